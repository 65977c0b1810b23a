"""How to train: training settings and the named presets, and `configure`, which reads changes to them."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from manifests.disk import did_you_mean
from manifests.reader import QUANTITY, UNITS
from train.model import MODELS, ModelConfig

RUN_SETS = {"logit_bias"}  # of a model: the loss decides
LOGIT_SCALE_MAX = math.log(100)  # the factor on the products of unit vectors stays below 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run. Defaults are open_clip's for a ViT; lengths are steps unless a name says otherwise."""

    model: str = "ViT-B-32"
    model_changes: Mapping[str, Any] = field(default_factory=dict)  # over the model's own settings
    init: str | None = (
        None  # weights to start from: a run, an export, local-dir:PATH or an open_clip name
    )
    samples_seen: int = 12_800_000
    batch_size: int = 4096  # of all ranks together
    lr: float = 5e-4
    warmup: int = 500  # steps from 0 to lr
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-6
    weight_decay: float = 0.2
    optimizer: Literal["adamw", "muon"] = (
        "adamw"  # muon: for the matrices of the blocks, AdamW for the rest
    )
    decay_groups: Literal["open_clip_main", "open_clip"] = (
        "open_clip_main"  # open_clip: positions decay too
    )
    schedule: Literal["cosine", "constant", "constant_cooldown"] = "cosine"  # cosine ends at 0
    cooldown: int = 0  # steps at the end of constant_cooldown
    cooldown_power: float = 1.0  # 1: a straight line
    cooldown_end_lr: float = 0.0
    grad_clip: float | None = None  # norm of all gradients together
    logit_scale_max: float = LOGIT_SCALE_MAX  # it is clamped to [0, this] after every step
    ema: float | None = (
        None  # of the weights before, kept per step by the average that is exported; 0.9999 for example
    )
    precision: Literal["fp32", "tf32", "bf16", "bf16_o2", "fp16"] = (
        "bf16"  # bf16_o2: weights of 16 bits, fp32 masters
    )
    micro_batch: int | None = (
        None  # samples of a rank that are computed at once; gradients stay those of the batch
    )
    seed: int = 0
    lanes: int = 64  # fixed blocks of the batch; a rank serves whole lanes
    window: int = 4  # shards that a lane permutes together
    context_length: int | None = None  # tokens; the model's own where it is not given
    tokenizer: str = "clip"
    crop_min: float = 0.9  # a random crop keeps at least this share of a picture's area
    loss: Literal["clip", "siglip"] = "clip"
    local_loss: bool = True  # a rank computes only its own rows of the logits
    gather_with_grad: bool = True  # features are gathered with their gradient
    loss_tile: int | None = (
        None  # side of a tile of logits; where it is not given, 1,024 above 4,096 x 4,096 logits
    )
    dp_shard: int = 1  # ranks that share one copy of weights and optimizer out (FSDP2)
    tp: int = 1  # ranks that share every layer out (tensor parallelism); all others see samples of their own
    reshard_after_forward: bool = (
        True  # false: weights stay gathered from forward to backward, for memory
    )
    cpu_offload: bool = False  # shards and optimizer lie in main memory; needs dp_shard and GPUs
    recompute: str = (
        "none"  # in backward: selective (all but products and attention), full, or every_N-th block
    )
    compile: Literal["none", "inductor", "aot_eager"] = "none"  # block by block
    attention: Literal["auto", "sdpa", "varlen", "flash"] = "auto"
    captions: Literal["padded", "groups", "packed"] = (
        "padded"  # to the longest of a batch, of a group, not at all
    )
    threads: int = 4  # that decode, per rank; 0 = the training thread does it
    checkpoint_every: int = 0  # steps; 0 = only at the end
    log_every: int = 100  # steps
    log_to: tuple[Literal["tensorboard", "wandb"], ...] = ()  # beside log.jsonl
    device: str = "auto"  # cpu, cuda, or the best there is

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(
                f"there is no model {self.model!r}{did_you_mean(self.model, MODELS)} (of {', '.join(MODELS)})"
            )
        for name in ("batch_size", "lanes", "window", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("warmup", "checkpoint_every", "seed", "weight_decay", "threads"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.batch_size % self.lanes:
            raise ValueError(
                f"batch_size {self.batch_size} is no multiple of lanes {self.lanes}; set lanes to one of its divisors"
            )
        if self.samples_seen < self.batch_size:
            raise ValueError(
                f"samples_seen {self.samples_seen} is less than one batch of {self.batch_size}"
            )
        for name in ("lr", "eps", "grad_clip", "cooldown_power", "logit_scale_max"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; it must be above 0")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie in [0, 1)")
        if not 0 < self.crop_min <= 1:
            raise ValueError(f"crop_min is {self.crop_min}; it must lie in (0, 1]")
        for name in ("loss_tile", "micro_batch"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema is {self.ema}; it must lie in (0, 1)")
        self._check_cooldown()
        if self.micro_batch is not None and self.precision == "bf16_o2":
            raise ValueError(
                "micro_batch adds up gradients, which bf16_o2 keeps in 8 bits; set precision to bf16"
            )
        if self.local_loss and not self.gather_with_grad:
            raise ValueError(
                "local_loss without gather_with_grad trains on a wrong gradient (cosine 0.978 to the true one, while"
                " the loss looks right); set gather_with_grad to true, or local_loss to false"
            )
        self._check_parallel()
        if self.device not in ("auto", "cpu") and not self.device.startswith("cuda"):
            raise ValueError(f"device is {self.device!r}; it must be auto, cpu or cuda")
        longest = _changed(self).context_length
        if self.context_length is not None and not 3 <= self.context_length <= longest:
            raise ValueError(
                f"context_length is {self.context_length}; {self.model} takes 3 to {longest} tokens"
            )

    def _check_cooldown(self) -> None:
        cools = self.schedule == "constant_cooldown"
        if cools and not 0 < self.cooldown <= self.steps:
            raise ValueError(
                f"cooldown is {self.cooldown}; constant_cooldown takes 1 to {self.steps} steps, all of them"
            )
        if not 0 <= self.cooldown_end_lr <= self.lr:
            raise ValueError(
                f"cooldown_end_lr is {self.cooldown_end_lr}; it must lie in [0, lr], lr is {self.lr}"
            )
        for name, unset in (("cooldown", 0), ("cooldown_power", 1.0), ("cooldown_end_lr", 0.0)):
            if not cools and getattr(self, name) != unset:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, but schedule is {self.schedule}, which has none"
                )

    def _check_parallel(self) -> None:
        for name in ("dp_shard", "tp"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        recompute_interval(self.recompute)
        model = _changed(self)
        for tower in ("vision", "text"):
            for of in ("heads", "mlp"):
                if (number := getattr(model, f"{tower}_{of}")) % self.tp:
                    raise ValueError(
                        f"tp {self.tp} does not divide {tower}_{of} {number}; set tp to a divisor of it"
                    )
        if self.optimizer == "muon" and self.dp_shard * self.tp > 1:
            raise ValueError(
                "optimizer is muon, which needs whole matrices; set it to adamw, or dp_shard and tp to 1"
            )
        if self.cpu_offload and (self.dp_shard == 1 or self.device == "cpu"):
            raise ValueError(
                "cpu_offload moves shards from GPUs to main memory; set dp_shard above 1, device to cuda"
            )

    @property
    def steps(self) -> int:
        """Optimizer steps: whole batches within samples_seen."""
        return self.samples_seen // self.batch_size


def model_config(config: TrainConfig) -> ModelConfig:
    """The model that a run trains, with the run's own context length and what its loss needs."""
    model = _changed(config)
    return dataclasses.replace(
        model,
        context_length=config.context_length or model.context_length,
        logit_bias=config.loss == "siglip",
    )


def _changed(config: TrainConfig) -> ModelConfig:
    """The named model with the run's changes. ValueError for what it cannot be, or what no shard can feed."""
    changes: dict[str, Any] = dict(config.model_changes)
    changes |= {name: tuple(value) for name, value in changes.items() if isinstance(value, list)}
    model = dataclasses.replace(MODELS[config.model], **changes)
    if model.num_channels not in (1, 3):
        raise ValueError(
            f"num_channels is {model.num_channels}; pictures in shards have 3, or 1 as their luminance"
        )
    return model


def check_world(config: TrainConfig, world: int) -> None:
    """ValueError where `world` ranks cannot share the lanes of a batch evenly."""
    if config.lanes % world:
        raise ValueError(
            f"{world} ranks cannot share {config.lanes} lanes evenly; set lanes to a multiple of {world}"
            f" that divides batch_size {config.batch_size}"
        )


def check_layout(config: TrainConfig, world: int) -> int:
    """Into how many parts `world` ranks cut a batch. ValueError where they do not fill the mesh."""
    together = config.dp_shard * config.tp
    if world % together:
        raise ValueError(
            f"dp_shard {config.dp_shard} x tp {config.tp} = {together} does not divide {world} ranks; start a multiple"
            f" of {together}, or change them"
        )
    return world // config.tp


def recompute_interval(recompute: str) -> int:
    """Of how many blocks one is recomputed in backward; 0: none. ValueError for what is no such setting."""
    fixed = {"none": 0, "selective": 1, "full": 1}
    number = recompute.removeprefix("every_")
    if recompute not in fixed and not (recompute != number and number.isdigit() and int(number)):
        raise ValueError(
            f"recompute is {recompute!r}; it must be none, selective, full or every_N, like every_2"
        )
    return fixed[recompute] if recompute in fixed else int(number)


# --- presets -------------------------------------------------------------------------------------------------------


def micro() -> TrainConfig:
    """The demo's: 100 steps of a model of 7.6M parameters, about 15 seconds on one core.

    Fixed before the first comparison that was published: `make demo` and CIFAR-10's figures are of these settings.
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
    """DataComp's debug scale: 125 steps inside a warm-up of 500, so the learning rate ends at a quarter of 1e-4."""
    return TrainConfig(samples_seen=128_000, batch_size=1024, lr=1e-4, log_every=10)


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
    """Thirty passes over CC12M's 10,968,539 pairs, with the settings published for its ResNet-50, for a ViT-B/32."""
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


# --- changes -------------------------------------------------------------------------------------------------------


def configure(changes: Mapping[str, Any]) -> TrainConfig:
    """A preset (key `preset`) or the defaults, with `changes` over it.

    `model.NAME` changes a setting of the model itself. Text is read as the setting's own type, so `5e-4` (text to YAML
    1.1) and `12.8M` are numbers. ValueError for an unknown key, a wrong type and an impossible value.
    """
    rest = {key: value for key, value in changes.items() if key != "preset"}
    preset = changes.get("preset")
    if preset is not None and preset not in PRESETS:
        raise ValueError(
            f"there is no preset {preset!r}{did_you_mean(str(preset), PRESETS)} (of {', '.join(PRESETS)})"
        )
    base = TrainConfig() if preset is None else PRESETS[preset]()
    hints, own = typing.get_type_hints(TrainConfig), typing.get_type_hints(ModelConfig)
    del hints["model_changes"]
    found: dict[str, Any] = {}
    of_model = dict(base.model_changes) if rest.get("model", base.model) == base.model else {}
    for key, value in rest.items():
        prefix, dot, name = key.partition(".")
        if dot and prefix == "model":
            if name not in own or name in RUN_SETS:
                there = did_you_mean(name, set(own) - RUN_SETS)
                raise ValueError(f"unknown setting {name!r} of a model{there}")
            of_model[name] = _read(key, value, own[name])
        elif key in hints:
            read = _read(key, value, hints[key])
            found[key] = tuple(read) if isinstance(read, list) else read
        else:
            known = [*hints, "preset", *(f"model.{name}" for name in own)]
            raise ValueError(f"unknown training setting {key!r}{did_you_mean(key, known)}")
    return dataclasses.replace(base, **found, model_changes=of_model)


def _read(key: str, value: Any, kind: Any) -> Any:
    """`value` as `kind`: one of int, float, bool, str, tuple[…, ...], Literal[…] and X | None."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        inner = next(part for part in typing.get_args(kind) if part is not type(None))
        return None if value is None or value in ("none", "null") else _read(key, value, inner)
    if typing.get_origin(kind) is tuple:
        parts = (
            [part for part in value.strip("[]() ").split(",") if part.strip()]
            if isinstance(value, str)
            else value
        )
        if not isinstance(parts, (list, tuple)):
            raise ValueError(f"{key} is {value!r}; it must be values with commas between them")
        return [
            _read(key, part.strip() if isinstance(part, str) else part, typing.get_args(kind)[0])
            for part in parts
        ]
    if typing.get_origin(kind) is Literal:
        allowed = typing.get_args(kind)
        if value not in allowed:
            raise ValueError(
                f"{key} is {value!r}{did_you_mean(str(value), allowed)} (of {', '.join(allowed)})"
            )
        return value
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if kind in (int, float) and not isinstance(value, bool):
        number = _number(value)
        if number is not None and (kind is float or number == int(number)):
            return kind(number)
    if kind is str and isinstance(value, str):
        return value
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
    raise ValueError(f"{key} is {value!r}; it must be {wanted}")


def _number(value: Any) -> float | int | None:
    """A finite number, or text that is one (12.8M, 20MiB, 5e-4); None for anything else."""
    if isinstance(value, str):
        if match := QUANTITY.match(value):
            return float(match[1]) * UNITS[match[2].lower()]
        try:
            value = int(value) if value.lstrip("+-").isdigit() else float(value)
        except ValueError:
            return None
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None
