"""The settings of a training run, what each means, and what they decide together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from manifests.disk import did_you_mean
from train.model import MODELS, ModelConfig, group_count
from train.store import StoreSpeed

CHECKPOINT_SECONDS = 900.0  # what an interrupted run loses at most, by default
LOGIT_SCALE_MAX = math.log(100)  # the factor on the products of unit vectors stays below 100


def setting(default: Any, meaning: str, *, heading: str | None = None) -> Any:
    """A field of TrainConfig: its default and meaning; `heading` begins a group of settings."""
    return field(default=default, metadata={"meaning": meaning, "heading": heading})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run. Defaults are open_clip's for a ViT. ValueError for what cannot be."""

    # --- model
    model: str = setting("ViT-B-32", "architecture, a name of open_clip's", heading="Model")
    model_changes: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={"meaning": "changes to it; written model.NAME=VALUE", "heading": None},
    )
    init: str | None = setting(
        None, "weights to start from: a run, an export, local-dir:PATH or a name of open_clip's"
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
        64, "blocks of a batch, each with shards of its own; they decide the order"
    )
    window: int = setting(4, "shards that a lane permutes together")
    until_task: str | None = setting(
        None, "task file; training stops when the model reaches until_accuracy on it"
    )
    until_accuracy: float | None = setting(
        None, "value of the task's metric (accuracy, recall@1 or its `metric`) that ends the run"
    )
    until_every: int = setting(0, "steps between evaluations of until_task")
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
    optimizer: Literal["adamw", "muon"] = setting(
        "adamw", "muon: for the matrices of the blocks, AdamW for the rest", heading="Optimizer"
    )
    beta1: float = setting(0.9, "decay of AdamW's first moment")
    beta2: float = setting(0.98, "decay of AdamW's second moment")
    eps: float = setting(1e-6, "added to the root of AdamW's second moment")
    weight_decay: float = setting(0.2, "decoupled weight decay, times the learning rate")
    decay_groups: Literal["open_clip_main", "open_clip"] = setting(
        "open_clip_main", "open_clip: weight decay for positional embeddings too"
    )
    grad_clip: float | None = setting(None, "highest norm of all gradients together")
    ema: float | None = setting(
        None, "decay of an exponential moving average, which is then exported; e.g. 0.9999"
    )
    # --- loss
    loss: Literal["clip", "siglip"] = setting(
        "clip", "softmax over the batch, or a sigmoid for each pair", heading="Loss"
    )
    logit_scale_max: float = setting(
        LOGIT_SCALE_MAX, "the logit scale (a logarithm) is clamped to [0, this] after each step"
    )
    local_loss: bool = setting(True, "a rank computes only its own rows of the logits")
    gather_with_grad: bool = setting(True, "features are gathered with their gradient")
    loss_tile: int | None = setting(
        None, "side of a tile of logits; none: 1,024 above 4,096 x 4,096 logits"
    )
    # --- precision and memory
    precision: Literal["fp32", "tf32", "bf16", "bf16_o2", "fp16"] = setting(
        "bf16", "bf16_o2: weights of 16 bits with fp32 masters", heading="Precision and memory"
    )
    micro_batch: int | Literal["auto"] | None = setting(
        None,
        "samples of a rank that are computed at once; gradients stay those of the batch;"
        " auto: as many as the device has memory for",
    )
    recompute: str = setting(
        "none", "blocks recomputed in backward: none, selective, full or every_N, like every_2"
    )
    captions: Literal["padded", "groups", "packed"] = setting(
        "padded", "captions padded to the longest of a batch, of a length group, or not at all"
    )
    attention: Literal["auto", "sdpa", "varlen", "flash"] = setting("auto", "attention kernel")
    compile: Literal["none", "inductor", "aot_eager"] = setting(
        "none", "torch.compile's backend, block by block"
    )
    # --- devices and ranks
    device: str = setting("auto", "auto, cpu or cuda", heading="Devices and ranks")
    threads: int = setting(4, "decoding threads of a rank; 0: the training thread decodes")
    dp_shard: int = setting(1, "ranks that share one copy of weights and optimizer (FSDP2)")
    tp: int = setting(1, "ranks that share every layer (tensor parallelism)")
    reshard_after_forward: bool = setting(
        True, "false: FSDP2 keeps weights gathered from forward to backward; needs dp_shard"
    )
    cpu_offload: bool = setting(
        False, "FSDP2's shards and the optimizer in host memory; needs dp_shard and GPUs"
    )
    # --- reading
    read_mode: Literal["auto", "mask", "ranged", "materialised"] = setting(
        "auto",
        "what is read of remote tars: whole ones, kept rows, or tars of the view's own; auto: these"
        " where there are some, else what costs less",
        heading="Reading",
    )
    read_cache: str | None = setting(
        None, "local folder for parts of remote tars, shared by the ranks of a machine"
    )
    read_cache_gb: float = setting(100.0, "most GB of all files in read_cache")
    store_speed: str | None = setting(
        None, "latency and bandwidth of the store, like 50ms,200MB/s; none: measured at the start"
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
        if self.model not in MODELS:
            suggestion = did_you_mean(self.model, MODELS)
            raise ValueError(
                f"there is no model {self.model!r}{suggestion} (of {', '.join(MODELS)})"
            )
        self._check_ranges()
        self._check_batch()
        self._check_until()
        self._check_schedule()
        self._check_gradients()
        self._check_locks()
        self._check_parallel()
        if self.device not in ("auto", "cpu") and not self.device.startswith("cuda"):
            raise ValueError(f"device is {self.device!r}; it must be auto, cpu or cuda")
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
            "logit_scale_max",
            "checkpoint_seconds",
            "read_cache_gb",
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; it must be above 0")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie in [0, 1)")
        if self.store_speed is not None:
            StoreSpeed.parse(self.store_speed)
        if self.order_seed is not None and self.order_seed < 0:
            raise ValueError(f"order_seed is {self.order_seed}; it must not be negative")
        if not 0 < self.crop_min <= 1:
            raise ValueError(f"crop_min is {self.crop_min}; it must lie in (0, 1]")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema is {self.ema}; it must lie in (0, 1)")

    def _check_batch(self) -> None:
        if self.batch_size % self.lanes:
            raise ValueError(
                f"batch_size {self.batch_size} is no multiple of lanes {self.lanes}; "
                "set lanes to one of its divisors"
            )
        if self.samples_seen < self.batch_size:
            raise ValueError(
                f"samples_seen {self.samples_seen} is less than one batch of {self.batch_size}"
            )

    def _check_until(self) -> None:
        given = (self.until_task, self.until_accuracy, self.until_every or None)
        if any(value is not None for value in given) and None in given:
            raise ValueError(
                f"until_task is {self.until_task!r}, until_accuracy {self.until_accuracy} and "
                f"until_every {self.until_every}; training until a target needs all three, as in "
                "until: {task: objects.yaml, accuracy: 0.4, every: 100}"
            )
        if self.until_every < 0:
            raise ValueError(f"until_every is {self.until_every}; it must not be negative")

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

    def _check_gradients(self) -> None:
        if isinstance(self.micro_batch, int) and self.precision == "bf16_o2":
            raise ValueError(
                "micro_batch adds up gradients, "
                "which bf16_o2 keeps in 8 bits; set precision to bf16"
            )
        if self.local_loss and not self.gather_with_grad:
            raise ValueError(
                "local_loss without gather_with_grad trains "
                "on a wrong gradient (cosine 0.978 to the true one, while the loss looks right); "
                "set gather_with_grad to true, or local_loss to false"
            )

    def _check_locks(self) -> None:
        model = _changed_model(self)
        for locked, unlocked, layers in (
            ("lock_image", "lock_image_unlocked_groups", model.vision_layers),
            ("lock_text", "lock_text_unlocked_layers", model.text_layers),
        ):
            groups, number = group_count(layers), getattr(self, unlocked)
            if getattr(self, locked) and self.init is None:
                raise ValueError(
                    f"{locked} keeps the weights that a run starts from, and without init they are "
                    f"random; set init, or leave {locked} out"
                )
            if number and not getattr(self, locked):
                raise ValueError(
                    f"{unlocked} is {number}, but nothing is locked; set {locked} to true"
                )
            if not 0 <= number < groups:
                raise ValueError(
                    f"{unlocked} is {number}; it must lie in [0, {groups - 1}], of the {groups} "
                    f"groups of the tower: embeddings, {layers} blocks, projection"
                )

    def _check_parallel(self) -> None:
        recompute_interval(self.recompute)
        model = _changed_model(self)
        for name in ("vision_heads", "vision_mlp", "text_heads", "text_mlp"):
            if (number := getattr(model, name)) % self.tp:
                raise ValueError(
                    f"tp {self.tp} does not divide {name} {number}; set tp to a divisor of it"
                )
        if self.optimizer == "muon" and self.dp_shard * self.tp > 1:
            raise ValueError(
                "optimizer is muon, which needs whole matrices; "
                "set it to adamw, or dp_shard and tp to 1"
            )
        if not self.reshard_after_forward and self.dp_shard == 1:
            raise ValueError(
                "reshard_after_forward is false, but dp_shard is 1 and no weight is sharded; set "
                "dp_shard above 1, or leave reshard_after_forward out"
            )
        if self.cpu_offload and (self.dp_shard == 1 or self.device == "cpu"):
            raise ValueError(
                "cpu_offload moves shards from GPUs to host memory; "
                "set dp_shard above 1, device to cuda"
            )

    @property
    def steps(self) -> int:
        """Optimizer steps: whole batches within samples_seen."""
        return self.samples_seen // self.batch_size


# --- what the settings decide together ------------------------------------------------------------


def model_config(config: TrainConfig) -> ModelConfig:
    """The model that a run trains, with the run's context length and what its loss needs."""
    model = _changed_model(config)
    return dataclasses.replace(
        model,
        context_length=config.context_length or model.context_length,
        logit_bias=config.loss == "siglip",
    )


def _changed_model(config: TrainConfig) -> ModelConfig:
    """The named model with the run's changes. ValueError for one that shards cannot feed."""
    changes: dict[str, Any] = dict(config.model_changes)
    changes |= {name: tuple(value) for name, value in changes.items() if isinstance(value, list)}
    model = dataclasses.replace(MODELS[config.model], **changes)
    if model.num_channels not in (1, 3):
        raise ValueError(
            f"num_channels is {model.num_channels}; "
            "images in shards have 3, or 1 as their luminance"
        )
    return model


def trained_groups(config: TrainConfig) -> tuple[int | None, int | None]:
    """The last groups of layers of the image and caption towers that are trained; None: all."""
    image = config.lock_image_unlocked_groups if config.lock_image else None
    return image, config.lock_text_unlocked_layers if config.lock_text else None


def refuse_reading(config: TrainConfig, reader: str) -> None:
    """ValueError for a setting of `Reading` that a reader of another kind would ignore."""
    defaults = TrainConfig()
    for name in ("read_mode", "read_cache", "read_cache_gb", "store_speed"):
        value = getattr(config, name)
        if value != getattr(defaults, name):
            raise ValueError(
                f"{name} is {value}, which is for views of finished pools, and {reader} reads "
                f"without it; leave {name} out"
            )


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

    ValueError where ranks do not fill the mesh.
    """
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
