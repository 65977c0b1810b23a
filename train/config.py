"""The settings of a training run, what each means, presets, and what they decide together.

Training settings: what there is, the presets, and changes to them.

It reads and writes no file. The settings of a run are written down in RUN/run.json.

Invariants:

* Every setting has a meaning and belongs to a group (tests/train/test_config.py).
* A setting that cannot be, or that another setting makes ineffective, is refused with the way out
  (tests/train/test_config.py).
* Presets are the published settings (tests/train/test_config.py).

To add a setting: a line in `TrainConfig` with `setting(default, meaning)`, its check, and its
place in train/trainer/loop.py if it changes no weight.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from clipmill.manifests import waits
from clipmill.manifests.disk import did_you_mean
from clipmill.manifests.reader import QUANTITY, UNITS
from clipmill.manifests.schema import SEEDS
from clipmill.train.model.architecture import (
    ModelConfig,
    OpenClipConfig,
    group_count,
    read_model,
)

# --------------------------------------------------------------------------------------------------
# The settings of a training run, what each means, and what they decide together.


CLIP_TOKENS = 49_408  # of the tokenizer `clip`
WEEK_SECONDS = 604_800
CHECKPOINT_SECONDS = 900.0  # what an interrupted run loses at most, by default


def setting(default: object, meaning: str, *, heading: str | None = None) -> Any:
    """A field of TrainConfig: its default and meaning; `heading` begins a group of settings."""
    return field(default=default, metadata={"meaning": meaning, "heading": heading})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run. Defaults are open_clip's for a ViT. ValueError for what cannot be."""

    # --- model
    model: str = setting(
        "ViT-B-32",
        "architecture: a name of open_clip's list, a file of its form (FILE.json), or"
        " open_clip:NAME for open_clip's own module of a ViT",
        heading="Model",
    )
    model_changes: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={"meaning": "changes to it; written model.NAME=VALUE", "heading": None},
    )
    init: str | None = setting(
        None,
        "weights to start from: a run, an export, local-dir:PATH, a file of open_clip's weights"
        " (epoch_1.pt) or a name of open_clip's",
    )
    lock_image: bool = setting(False, "the image tower keeps its weights; needs init")
    lock_image_unlocked_groups: int = setting(
        0, "last groups of layers of a locked image tower that are trained: 1 is its projection"
    )
    lock_text: bool = setting(False, "the caption tower keeps its weights; needs init")
    lock_text_unlocked_layers: int = setting(
        0, "last groups of layers of a locked caption tower that are trained"
    )
    context_length: int | None = setting(None, "tokens of a caption; none: the model's own")
    tokenizer: str = setting("clip", "which stored tokens are read")
    # --- length and order
    samples_seen: int = setting(
        12_800_000, "length of the run, in samples of all ranks", heading="Length and order"
    )
    batch_size: int = setting(4096, "samples of a step, of all ranks")
    seed: int = setting(0, "of the weights at the start, the order and every random number")
    order_seed: int | None = setting(
        None, "of the samples' order and crops, so that `seed` decides all else; none: `seed`"
    )
    lanes: int = setting(
        64,
        "blocks of a batch, each with shards of its own; they decide the order; by default the most"
        " up to this number that divide batch_size",
    )
    window: int = setting(4, "shards that a lane permutes together")
    crop_min: float = setting(0.9, "least share of an image's area that a random crop keeps")
    # --- learning rate
    lr: float = setting(5e-4, "highest learning rate", heading="Learning rate")
    schedule: Literal["cosine", "constant", "constant_cooldown"] = setting(
        "cosine", "course of the learning rate after the warm-up; cosine ends at 0"
    )
    warmup: int = setting(500, "steps from 0 to lr")
    cooldown: int = setting(0, "steps at the end of constant_cooldown")
    cooldown_power: float = setting(1.0, "shape of the cool-down; 1: a straight line")
    cooldown_end_lr: float = setting(0.0, "learning rate after the cool-down")
    # --- optimizer
    beta1: float = setting(0.9, "decay of AdamW's first moment", heading="Optimizer")
    beta2: float = setting(0.98, "decay of AdamW's second moment")
    eps: float = setting(1e-6, "added to the root of AdamW's second moment")
    weight_decay: float = setting(0.2, "decoupled weight decay, times the learning rate")
    decay_groups: Literal["open_clip_main", "open_clip"] = setting(
        "open_clip_main", "open_clip: weight decay for positional embeddings too"
    )
    grad_clip: float | None = setting(None, "highest norm of all gradients together")
    # --- loss
    loss: Literal["clip", "siglip"] = setting(
        "clip", "softmax over the batch, or a sigmoid for each pair", heading="Loss"
    )
    loss_tile: int | None = setting(
        None, "side of a tile of logits; none: 1,024 above 4,096 x 4,096 logits"
    )
    # --- precision and memory
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = setting(
        "bf16", "of the matrix products; weights are fp32", heading="Precision and memory"
    )
    micro_batch: int | Literal["auto"] | None = setting(
        None,
        "samples of a rank that are computed at once; gradients stay those of the batch;"
        " auto: as many as the device has memory for",
    )
    recompute: str = setting(
        "none", "blocks recomputed in backward: none, selective, full or every_N, like every_2"
    )
    captions: Literal["padded", "packed"] = setting(
        "padded", "captions padded to the longest of a batch, or not at all"
    )
    attention: Literal["auto", "sdpa", "varlen", "flash"] = setting("auto", "attention kernel")
    compile: Literal["none", "inductor", "aot_eager"] = setting(
        "none", "torch.compile's backend, block by block"
    )
    # --- devices and ranks
    device: str = setting("auto", "auto, cpu, cuda or cuda:N", heading="Devices and ranks")
    threads: int = setting(4, "decoding threads of a rank; 0: the training thread decodes")
    dp_shard: int = setting(1, "ranks that share one copy of weights and optimizer (FSDP2)")
    tp: int = setting(1, "ranks that share every layer (tensor parallelism)")
    # --- reading
    read_cache: str | None = setting(
        None,
        "local folder for parts of remote tars, shared by the ranks of a machine",
        heading="Reading",
    )
    read_cache_gb: float = setting(100.0, "most GB of all files in read_cache")
    hang_seconds: float = setting(
        waits.LIMIT_S,
        "seconds without an answer to any read, or to the writing of a checkpoint, after which a"
        " run ends that waits for it; a line says so after a minute",
    )
    # --- checkpoints and logs
    checkpoint_every: int | Literal["auto"] = setting(
        "auto",
        "steps between checkpoints; auto: every checkpoint_seconds; 0: only at the end",
        heading="Checkpoints and logs",
    )
    checkpoint_seconds: float = setting(
        CHECKPOINT_SECONDS,
        "seconds between automatic checkpoints; more where training would wait for them for more"
        " than 1 % of the time",
    )
    keep_checkpoints: int = setting(2, "checkpoints that are kept; older ones are removed")
    log_every: int = setting(100, "steps between lines of log.jsonl")
    log_to: tuple[Literal["tensorboard", "wandb"], ...] = setting((), "logs beside log.jsonl")

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_batch()
        self._check_schedule()
        self._check_locks()
        self._check_parallel()
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", self.device):
            raise ValueError(f"device is {self.device!r}; it must be auto, cpu, cuda or cuda:N")
        longest = _changed_model(self).context_length
        if self.context_length is not None and not 3 <= self.context_length <= longest:
            raise ValueError(
                f"context_length is {self.context_length}; {self.model} takes 3 to {longest} tokens"
            )

    def _check_ranges(self) -> None:
        for name in (
            "batch_size",
            "lanes",
            "window",
            "log_every",
            "dp_shard",
            "tp",
            "keep_checkpoints",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("loss_tile", "micro_batch"):
            if isinstance(value := getattr(self, name), int) and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        for name in ("warmup", "checkpoint_every", "seed", "weight_decay", "threads"):
            if getattr(self, name) != "auto" and getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.checkpoint_every != "auto" and self.checkpoint_seconds != CHECKPOINT_SECONDS:
            raise ValueError(
                f"checkpoint_seconds is {self.checkpoint_seconds:g}, but checkpoint_every is "
                f"{self.checkpoint_every} steps; leave one of them out"
            )
        for name in (
            "lr",
            "eps",
            "grad_clip",
            "cooldown_power",
            "checkpoint_seconds",
            "read_cache_gb",
            "hang_seconds",
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; it must be above 0")
        if self.hang_seconds > WEEK_SECONDS:
            raise ValueError(
                f"hang_seconds is {self.hang_seconds:g}; it must be at most {WEEK_SECONDS:,}"
            )
        for name in ("seed", "order_seed"):
            if (getattr(self, name) or 0) >= SEEDS:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it must be below 2^32 ({SEEDS:,})"
                )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie in [0, 1)")
        if self.order_seed is not None and self.order_seed < 0:
            raise ValueError(f"order_seed is {self.order_seed}; it must not be negative")
        if not 0 < self.crop_min <= 1:
            raise ValueError(f"crop_min is {self.crop_min}; it must lie in (0, 1]")

    def _check_batch(self) -> None:
        if self.batch_size % self.lanes:
            raise ValueError(
                f"batch_size {self.batch_size} is no multiple of lanes {self.lanes}; "
                "set lanes to one of its divisors"
            )
        if self.samples_seen < self.batch_size:
            raise ValueError(
                f"samples_seen {self.samples_seen} is less than one batch "
                f"(batch_size {self.batch_size})"
            )

    def _check_schedule(self) -> None:
        cools = self.schedule == "constant_cooldown"
        if cools and not 0 < self.cooldown <= self.steps:
            raise ValueError(
                f"cooldown is {self.cooldown}; constant_cooldown takes 1 to {self.steps} steps, "
                "all of them"
            )
        if not 0 <= self.cooldown_end_lr <= self.lr:
            raise ValueError(
                f"cooldown_end_lr is {self.cooldown_end_lr}; "
                f"it must lie in [0, lr], lr is {self.lr}"
            )
        for name, unset in (("cooldown", 0), ("cooldown_power", 1.0), ("cooldown_end_lr", 0.0)):
            if not cools and getattr(self, name) != unset:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, "
                    f"but schedule is {self.schedule}, which has none"
                )
        planned = self.warmup + self.cooldown
        if planned > self.steps:
            parts = f"warmup {self.warmup}"
            parts += f" and cooldown {self.cooldown} are {planned} steps" if cools else ""
            room = self.steps - self.cooldown
            raise ValueError(
                f"{parts}, but the run has {self.steps} steps (samples_seen {self.samples_seen:,} "
                f"/ batch_size {self.batch_size:,}); set warmup to at most {room}, or samples_seen "
                f"to at least {planned * self.batch_size}"
            )

    def _check_locks(self) -> None:
        model = _changed_model(self)
        for locked, unlocked, of_tower in (
            ("lock_image", "lock_image_unlocked_groups", "vision_layers"),
            ("lock_text", "lock_text_unlocked_layers", "text_layers"),
        ):
            number = getattr(self, unlocked)
            if getattr(self, locked) and self.init is None:
                raise ValueError(
                    f"{locked} keeps the weights that a run starts from, and without init they are "
                    f"random; set init, or leave {locked} out"
                )
            if number and not getattr(self, locked):
                raise ValueError(
                    f"{unlocked} is {number}, but nothing is locked; set {locked} to true"
                )
            if isinstance(model, OpenClipConfig):  # its own module knows its groups
                continue
            layers = getattr(model, of_tower)
            groups = group_count(layers)
            if not 0 <= number < groups:
                raise ValueError(
                    f"{unlocked} is {number}; it must lie in [0, {groups - 1}], of the {groups} "
                    f"groups of the tower: embeddings, {layers} blocks, projection"
                )

    def _check_parallel(self) -> None:
        recompute_interval(self.recompute)
        model = _changed_model(self)
        if isinstance(model, OpenClipConfig):
            for name, only in (("tp", 1), ("captions", "padded"), ("attention", "auto")):
                if (value := getattr(self, name)) != only:
                    raise ValueError(
                        f"{name} is {value}, which is for the ViTs of this trainer, and "
                        f"{self.model} is computed by open_clip's own module; leave {name} out"
                    )
            if model.tokenizer is not None and self.tokenizer != "clip":
                raise ValueError(
                    f"tokenizer is {self.tokenizer}, and {self.model} reads captions with its own,"
                    f" {model.tokenizer}; leave tokenizer out"
                )
            return
        for name in ("vision_heads", "vision_mlp", "text_heads", "text_mlp"):
            if (number := getattr(model, name)) % self.tp:
                raise ValueError(
                    f"tp {self.tp} does not divide {name} {number}; set tp to a divisor of it"
                )

    @property
    def steps(self) -> int:
        """Optimizer steps: whole batches within samples_seen."""
        return self.samples_seen // self.batch_size


# --- what the settings decide together ------------------------------------------------------------


def model_config(config: TrainConfig) -> ModelConfig | OpenClipConfig:
    """The model that a run trains, with the run's context length and what its loss needs."""
    model = _changed_model(config)
    if isinstance(model, OpenClipConfig):
        changes = {"context_length": config.context_length} if config.context_length else {}
        return model.changed(changes, logit_bias=config.loss == "siglip")
    return dataclasses.replace(
        model,
        context_length=config.context_length or model.context_length,
        logit_bias=config.loss == "siglip",
    )


def _changed_model(config: TrainConfig) -> ModelConfig | OpenClipConfig:
    """The named model with the run's changes. ValueError for one that shards cannot feed."""
    changes: dict[str, Any] = dict(config.model_changes)
    changes |= {name: tuple(value) for name, value in changes.items() if isinstance(value, list)}
    model = read_model(config.model)
    if isinstance(model, OpenClipConfig):
        model = model.changed(changes, logit_bias=model.logit_bias)
        if model.tokenizer is not None:
            return model
        if model.clean != "lower":
            raise ValueError(
                f"{config.model} reads captions with clean {model.clean}, and stored tokens are of "
                "clean lower; leave text_cfg.tokenizer_kwargs out"
            )
    else:
        model = dataclasses.replace(model, **changes)
    if config.tokenizer == "clip" and model.vocab_size < CLIP_TOKENS:
        raise ValueError(
            f"vocab_size is {model.vocab_size}, but tokenizer clip has {CLIP_TOKENS:,} tokens; "
            f"set model.vocab_size to {CLIP_TOKENS} at least"
        )
    return model


def trained_groups(config: TrainConfig) -> tuple[int | None, int | None]:
    """The last groups of layers of the image and caption towers that are trained; None: all."""
    image = config.lock_image_unlocked_groups if config.lock_image else None
    return image, config.lock_text_unlocked_layers if config.lock_text else None


def check_world(config: TrainConfig, world: int) -> None:
    """ValueError where `world` data-parallel ranks cannot share a batch evenly."""
    batch = config.batch_size
    if batch % world == 0:
        return
    fitting = [number for number in range(1, batch + 1) if batch % number == 0]
    near = sorted(fitting, key=lambda number: abs(math.log(number / world)))[:4]
    unit = math.lcm(world, config.lanes)
    unit = unit if unit <= batch else world  # the lanes stay as they are where they can
    sizes = [number for number in (batch // unit * unit, -(-batch // unit) * unit) if number]
    ways = [f"{size} (lanes {_nearest_lanes(size, config.lanes)})" for size in sizes]
    raise ValueError(
        f"{world} ranks cannot share a batch of {batch} evenly; "
        f"{', '.join(str(number) for number in sorted(near))} ranks can. For {world} ranks set "
        f"batch_size to {' or '.join(ways)}"
    )


def _nearest_lanes(batch: int, lanes: int) -> int:
    """The number that divides `batch` and is nearest to `lanes`."""
    fitting = [number for number in range(1, batch + 1) if batch % number == 0]
    return min(fitting, key=lambda number: abs(math.log(number / lanes)))


def check_layout(config: TrainConfig, world: int) -> int:
    """The number of ranks that see different samples.

    ValueError where ranks do not fill the mesh, and for one GPU for several ranks.
    """
    if world > 1 and config.device.startswith("cuda:"):
        raise ValueError(
            f"device is {config.device!r}, one GPU, and each of {world} ranks takes the GPU of its "
            "own number; set device to cuda"
        )
    together = config.dp_shard * config.tp
    if world % together:
        raise ValueError(
            f"dp_shard {config.dp_shard} x tp {config.tp} = {together} does not divide {world} "
            f"ranks; start a multiple of {together}, or change them"
        )
    return world // config.tp


def recompute_interval(recompute: str) -> int:
    """Of how many blocks one is recomputed in backward; 0: none. ValueError for another word."""
    fixed = {"none": 0, "selective": 1, "full": 1}
    if recompute in fixed:
        return fixed[recompute]
    number = recompute.removeprefix("every_")
    if recompute == number or not number.isdigit() or int(number) == 0:
        raise ValueError(
            f"recompute is {recompute!r}; it must be none, selective, full or every_N, like every_2"
        )
    return int(number)


# --------------------------------------------------------------------------------------------------
# Named training settings: the demo's and those of published runs.


def micro() -> TrainConfig:
    """The demo: 100 steps of a model of 7.6M parameters, about 15 seconds on one core.

    These settings were fixed before the first published comparison: `make demo` and the figures on
    CIFAR-10 use them.
    """
    return TrainConfig(
        model="micro",
        samples_seen=12_800,
        batch_size=128,
        lr=1e-3,
        warmup=20,
        precision="fp32",
        lanes=32,
        threads=1,
        log_every=10,
    )


def datacomp_debug() -> TrainConfig:
    """DataComp's debug scale: 125 steps of a warm-up.

    DataComp states a warm-up of 500 steps to 1e-4, of which 125 are run. They end at a quarter of
    1e-4, which is what is written here.
    """
    return TrainConfig(samples_seen=128_000, batch_size=1024, lr=2.5e-5, warmup=125, log_every=10)


def datacomp_small() -> TrainConfig:
    """DataComp small: ViT-B/32, 12.8M samples, batch 4,096."""
    return TrainConfig(samples_seen=12_800_000, checkpoint_every=625)


def datacomp_medium() -> TrainConfig:
    """DataComp medium: ViT-B/32, 128M samples, batch 4,096."""
    return TrainConfig(samples_seen=128_000_000, checkpoint_every=1000)


def datacomp_large() -> TrainConfig:
    """DataComp large: ViT-B/16, 1.28B samples, batch 8,192."""
    return TrainConfig(
        model="ViT-B-16", samples_seen=1_280_000_000, batch_size=8192, checkpoint_every=1000
    )


def datacomp_xlarge() -> TrainConfig:
    """DataComp xlarge: ViT-L/14, 12.8B samples, batch 90,112, beta2 0.95."""
    return TrainConfig(
        model="ViT-L-14",
        samples_seen=12_800_000_000,
        batch_size=90_112,
        lr=1e-3,
        warmup=10_000,
        beta2=0.95,
        checkpoint_every=1000,
    )


def laion400m_b32() -> TrainConfig:
    """LAION-400M's ViT-B/32 (62.96 % on ImageNet, zero-shot): batch 32,768, 13B samples."""
    return TrainConfig(
        samples_seen=13_000_000_000, batch_size=32_768, warmup=2000, checkpoint_every=1000
    )


def cc12m() -> TrainConfig:
    """Thirty passes over CC12M's 10,968,539 pairs for a ViT-B/32.

    The other settings are those that were published for a ResNet-50 on CC12M.
    """
    return TrainConfig(
        samples_seen=30 * 10_968_539,
        batch_size=1024,
        lr=1e-3,
        warmup=10_000,
        beta2=0.999,
        eps=1e-8,
        weight_decay=0.1,
        checkpoint_every=10_000,
    )


PRESETS: dict[str, Callable[[], TrainConfig]] = {
    "micro": micro,
    "datacomp_debug": datacomp_debug,
    "datacomp_small": datacomp_small,
    "datacomp_medium": datacomp_medium,
    "datacomp_large": datacomp_large,
    "datacomp_xlarge": datacomp_xlarge,
    "laion400m_b32": laion400m_b32,
    "cc12m": cc12m,
}

# --------------------------------------------------------------------------------------------------
# Changes to training settings, as text or values: `configure({"preset": …, "lr": "5e-4"})`.


# Fields of ModelConfig that follow from the run: the loss decides whether there is a logit bias.
DECIDED_BY_RUN = {"logit_bias"}
# What open_clip calls a setting that means the same here: the name, and words for values.
OPEN_CLIP_NAMES: dict[str, tuple[str, dict[str, str]]] = {
    "grad_checkpointing": ("recompute", {"true": "full", "false": "none"}),
    "grad_clip_norm": ("grad_clip", {}),
    "lr_cooldown_end": ("cooldown_end_lr", {}),
    "lr_cooldown_power": ("cooldown_power", {}),
    "lr_scheduler": ("schedule", {"const": "constant", "const-cooldown": "constant_cooldown"}),
    "precision": ("precision", {"amp": "fp16", "amp_bf16": "bf16", "amp_bfloat16": "bf16"}),
    "wd": ("weight_decay", {}),
}
# What other trainers call a setting -> what it is here. The values may have another unit.
OTHER_NAMES = {
    "accum_freq": "micro_batch",
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "cooldown_steps": "cooldown",
    "global_batch_size": "batch_size",
    "gradient_clip": "grad_clip",
    "learning_rate": "lr",
    "micro_batch_size": "micro_batch",
    "num_workers": "threads",
    "pretrained": "init",
    "report_to": "log_to",
    "torchcompile": "compile",
    "train_num_samples": "samples_seen",
    "warmup_steps": "warmup",
    "workers": "threads",
}
LENGTHS = ("epochs", "num_epochs", "max_epochs", "steps", "max_steps", "num_steps")


def configure(changes: Mapping[str, Any], epoch_samples: int | None = None) -> TrainConfig:
    """A preset (key `preset`) or the defaults, with `changes` over it.

    `model.NAME` changes a setting of the model. Text is read as the type of the setting, so `5e-4`
    (text in YAML 1.1) and `12.8M` are numbers. Names of OPEN_CLIP_NAMES are read too. Without
    `lanes` they are those of the preset, or the next fewer that divide the batch. `epoch_samples`,
    the kept rows of the blend, is named in the message for `epochs`. ValueError for an unknown key,
    a wrong type and an impossible value.
    """
    changes = plain_changes(changes)
    rest = {key: value for key, value in changes.items() if key != "preset"}
    preset = changes.get("preset")
    if preset is not None and preset not in [*PRESETS]:  # of a manifest it may be a list
        suggestion = did_you_mean(str(preset), PRESETS)
        raise ValueError(f"there is no preset {preset!r}{suggestion} (of {', '.join(PRESETS)})")
    base = TrainConfig() if preset is None else PRESETS[preset]()
    types_of, types_of_model = _types()
    run_changes: dict[str, Any] = {}
    same_model = rest.get("model", base.model) == base.model
    model_changes = dict(base.model_changes) if same_model else {}
    for key, value in rest.items():
        prefix, _, name = key.partition(".")
        if prefix == "model" and name:
            if name not in types_of_model:
                suggestion = did_you_mean(name, types_of_model)
                raise ValueError(f"unknown setting {name!r} of a model{suggestion}")
            model_changes[name] = _read(key, value, types_of_model[name])
        elif key in types_of:
            setting = _read(key, value, types_of[key])
            run_changes[key] = tuple(setting) if isinstance(setting, list) else setting
        else:
            raise ValueError(_unknown(key, value, base, epoch_samples))
    batch = run_changes.get("batch_size", base.batch_size)
    if "lanes" not in run_changes and batch > 0:
        run_changes["lanes"] = next(k for k in range(base.lanes, 0, -1) if batch % k == 0)
    return dataclasses.replace(base, **run_changes, model_changes=model_changes)


def plain_changes(changes: Mapping[str, object]) -> dict[str, Any]:
    """Changes under the names that settings have here. ValueError for two names of one setting."""
    plain: dict[str, object] = {}
    for key, value in changes.items():
        name, words = OPEN_CLIP_NAMES.get(key.replace("-", "_"), (key, {}))
        if name in plain:
            raise ValueError(f"{name} is given twice, as {key} too; give one of them")
        plain[name] = words.get(str(value).lower(), value)
    return plain


def _types() -> tuple[dict[str, Any], dict[str, Any]]:
    """The types of the settings of a run and of a model that may be changed."""
    of_run, of_model = typing.get_type_hints(TrainConfig), typing.get_type_hints(ModelConfig)
    del of_run["model_changes"]
    return of_run, {name: kind for name, kind in of_model.items() if name not in DECIDED_BY_RUN}


def _unknown(key: str, value: object, base: TrainConfig, epoch_samples: int | None) -> str:
    """The message for a key that is no setting, with the setting that is meant."""
    message = f"unknown training setting {key!r}"
    name = key.replace("-", "_").lower()
    if name in OTHER_NAMES:
        return f"{message}; here it is {OTHER_NAMES[name]}"
    if name not in LENGTHS:
        of_run, of_model = _types()
        known = [*of_run, "preset", *(f"model.{name}" for name in of_model)]
        return message + did_you_mean(key, known)
    message += "; the length of a run is samples_seen, in samples"
    number = _finite_number(value)
    if name.endswith("steps"):
        message += f": steps x batch_size (now {base.batch_size:,})"
    elif epoch_samples is not None:
        message += f": an epoch of this blend has {epoch_samples:,}"
        if number is not None and number > 0:
            message += f", so {number:g} epochs are samples_seen={round(number * epoch_samples)}"
    else:
        message += ": epochs x the rows that the views of the blend keep"
    return message


def _read(key: str, value: Any, kind: Any) -> Any:
    """`value` as `kind`: one of int, float, bool, str, tuple[…, ...], Literal[…] and X | None."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(kind) if part is not type(None)]
        if value is None or value in ("none", "null"):
            return None
        words = [part for part in parts[1:] if value in typing.get_args(part)]
        return value if words else _read(key, value, parts[0])
    if typing.get_origin(kind) is tuple:
        return _read_list(key, value, typing.get_args(kind)[0])
    if typing.get_origin(kind) is Literal:
        allowed = typing.get_args(kind)
        if value not in allowed:
            suggestion = did_you_mean(str(value), allowed)
            raise ValueError(f"{key} is {value!r}{suggestion} (of {', '.join(allowed)})")
        return value
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if kind in (int, float) and not isinstance(value, bool):
        number = _finite_number(value)
        if number is not None and (kind is float or number == int(number)):
            return kind(number)
    if kind is str and isinstance(value, str):
        return value
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
    raise ValueError(f"{key} is {value!r}; it must be {wanted}")


def _read_list(key: str, value: object, kind: object) -> list[Any]:
    """Values of one kind, from a list or from text with commas between them."""
    parts = value
    if isinstance(value, str):
        parts = [part.strip() for part in value.strip("[]() ").split(",") if part.strip()]
    if not isinstance(parts, (list, tuple)):
        raise ValueError(f"{key} is {value!r}; it must be values with commas between them")
    return [_read(key, part, kind) for part in parts]


def _finite_number(value: object) -> float | int | None:
    """A finite number, or text that is one (12.8M, 20MiB, 5e-4); None for anything else."""
    if isinstance(value, str):
        if match := QUANTITY.match(value):
            return float(match[1]) * UNITS[match[2].lower()]
        try:
            value = int(value) if value.lstrip("+-").isdigit() else float(value)
        except ValueError:
            return None
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


# --------------------------------------------------------------------------------------------------
# Every setting of a run with its default, choices and meaning, as `--list-settings` shows them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting as `--list-settings` shows it."""

    name: str
    heading: str  # of the group that it belongs to
    choices: str  # "cosine | constant | …", "whole number", "number", "true | false" or "text"
    default: str
    meaning: str


def list_settings() -> list[Setting]:
    """Every setting of a run with its default and meaning, in groups."""
    types_of, heading = typing.get_type_hints(TrainConfig), ""
    settings = []
    for of_class in dataclasses.fields(TrainConfig):
        heading = of_class.metadata["heading"] or heading
        is_changes = of_class.name == "model_changes"
        default = "" if is_changes else _as_text(of_class.default)
        settings.append(
            Setting(
                name="model.NAME" if is_changes else of_class.name,
                heading=heading,
                choices="a field of the model" if is_changes else _choices(types_of[of_class.name]),
                default=default,
                meaning=of_class.metadata["meaning"],
            )
        )
    return settings


def format_settings() -> str:
    """`list_settings` as text: a heading for each group, a line for each setting."""
    settings = list_settings()
    width = max(len(f"{s.name}={s.default}") for s in settings)
    lines: list[str] = []
    heading = ""
    for s in settings:
        if s.heading != heading:
            heading = s.heading
            lines += ["", heading] if lines else [heading]
        lines.append(f"  {f'{s.name}={s.default}':<{width}}  {s.meaning} ({s.choices})")
    return "\n".join(lines)


def _choices(kind: Any) -> str:
    """The values that a setting takes, in words."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return " | ".join(parts)
    if typing.get_origin(kind) is tuple:
        return f"list of {_choices(parts[0])}"
    if parts:
        words = [_choices(part) for part in parts if part is not type(None)]
        return ", or ".join([*words, "none"] if type(None) in parts else words)
    return {int: "whole number", float: "number", bool: "true | false", str: "text"}[kind]


def _as_text(value: object) -> str:
    """A default as `--set` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value)
