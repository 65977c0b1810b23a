"""How to train: model sizes, training settings and the named presets, and `configure`, which reads changes to them."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from manifests.disk import nearest
from manifests.reader import QUANTITY, UNITS

# Per-channel mean and deviation of the pictures that OpenAI trained on: what every CLIP checkpoint expects.
IMAGE_MEAN = (0.48145466, 0.4578275, 0.40821073)
IMAGE_STD = (0.26862954, 0.26130258, 0.27577711)
LOGIT_SCALE_MAX = math.log(100)  # the logit scale is clamped to [0, this] after every step


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Both towers of a CLIP: widths in channels, images square in pixels, context in tokens."""

    embed_dim: int
    image_size: int
    patch_size: int
    vision_width: int
    vision_layers: int
    vision_heads: int
    vision_mlp: int
    text_width: int
    text_layers: int
    text_heads: int
    text_mlp: int
    context_length: int
    vocab_size: int = 49408
    quick_gelu: bool = False
    logit_bias: bool = False  # a learned offset of the logits, for the SigLIP loss

    def __post_init__(self) -> None:
        if self.image_size % self.patch_size:
            raise ValueError(f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}")
        for tower in ("vision", "text"):
            width, heads = getattr(self, f"{tower}_width"), getattr(self, f"{tower}_heads")
            if width % heads:
                raise ValueError(f"{tower}_width {width} is not a multiple of {tower}_heads {heads}")
        if self.context_length < 3:
            raise ValueError(f"context_length is {self.context_length}; it must be at least 3 (start, a word, end)")


def _clip(
    embed_dim: int,
    patch_size: int,
    vision: tuple[int, int, int, int],
    text: tuple[int, int, int],
    *,
    image_size: int = 224,
    context_length: int = 77,
    quick_gelu: bool = False,
) -> ModelConfig:
    """vision = (width, layers, heads, mlp), text = (width, layers, heads); the text MLP is four times its width."""
    return ModelConfig(
        embed_dim=embed_dim,
        image_size=image_size,
        patch_size=patch_size,
        vision_width=vision[0],
        vision_layers=vision[1],
        vision_heads=vision[2],
        vision_mlp=vision[3],
        text_width=text[0],
        text_layers=text[1],
        text_heads=text[2],
        text_mlp=4 * text[0],
        context_length=context_length,
        quick_gelu=quick_gelu,
    )


_B, _L = (768, 12, 12, 3072), (1024, 24, 16, 4096)
# Names and numbers as in open_clip; H, g, bigG and e have 16 vision heads (head widths 80, 88, 104, 112).
MODELS: dict[str, ModelConfig] = {
    "ViT-B-32": _clip(512, 32, _B, (512, 12, 8)),
    "ViT-B-16": _clip(512, 16, _B, (512, 12, 8)),
    "ViT-L-14": _clip(768, 14, _L, (768, 12, 12)),
    "ViT-L-14-336": _clip(768, 14, _L, (768, 12, 12), image_size=336),
    "ViT-H-14": _clip(1024, 14, (1280, 32, 16, 5120), (1024, 24, 16)),
    "ViT-g-14": _clip(1024, 14, (1408, 40, 16, 6144), (1024, 24, 16)),
    "ViT-bigG-14": _clip(1280, 14, (1664, 48, 16, 8192), (1280, 32, 20)),
    "ViT-e-14": _clip(1280, 14, (1792, 56, 16, 15360), (1280, 36, 20)),
    "ViT-S-32": _clip(384, 32, (384, 12, 6, 1536), (384, 12, 6)),
    "ViT-S-16": _clip(384, 16, (384, 12, 6, 1536), (384, 12, 6)),
    "ViT-B-32-quickgelu": _clip(512, 32, _B, (512, 12, 8), quick_gelu=True),
    "ViT-B-16-quickgelu": _clip(512, 16, _B, (512, 12, 8), quick_gelu=True),
    "ViT-L-14-quickgelu": _clip(768, 14, _L, (768, 12, 12), quick_gelu=True),
    # For a processor: the demo's, and a smaller one for tests.
    "micro": _clip(128, 8, (128, 4, 2, 512), (128, 2, 2), image_size=32, context_length=16),
    "test": _clip(32, 16, (32, 2, 2, 128), (32, 2, 2), image_size=32, context_length=16),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run. Defaults are open_clip's for a ViT; lengths are steps unless a name says otherwise."""

    model: str = "ViT-B-32"
    samples_seen: int = 12_800_000
    batch_size: int = 4096  # of all ranks together
    lr: float = 5e-4
    warmup: int = 500  # steps from 0 to lr
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-6
    weight_decay: float = 0.2
    schedule: Literal["cosine", "constant"] = "cosine"  # cosine ends at 0
    grad_clip: float | None = None  # norm of all gradients together
    precision: Literal["fp32", "bf16"] = "bf16"
    seed: int = 0
    lanes: int = 64  # fixed blocks of the batch; a rank serves whole lanes
    window: int = 4  # shards that a lane permutes together
    context_length: int | None = None  # tokens; the model's own where it is not given
    tokenizer: str = "clip"
    crop_min: float = 0.9  # a random crop keeps at least this share of a picture's area
    loss: Literal["clip", "siglip"] = "clip"
    local_loss: bool = True  # a rank computes only its own rows of the logits
    gather_with_grad: bool = True  # features are gathered with their gradient
    threads: int = 4  # that decode, per rank; 0 = the training thread does it
    checkpoint_every: int = 0  # steps; 0 = only at the end
    log_every: int = 100  # steps
    device: str = "auto"  # cpu, cuda, or the best there is

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"there is no model {self.model!r}{nearest(self.model, MODELS)} (of {', '.join(MODELS)})")
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
            raise ValueError(f"samples_seen {self.samples_seen} is less than one batch of {self.batch_size}")
        for name in ("lr", "eps", "grad_clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; it must be above 0")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie in [0, 1)")
        if not 0 < self.crop_min <= 1:
            raise ValueError(f"crop_min is {self.crop_min}; it must lie in (0, 1]")
        if self.local_loss and not self.gather_with_grad:
            raise ValueError(
                "local_loss without gather_with_grad trains on a wrong gradient (cosine 0.978 to the true one, while"
                " the loss looks right); set gather_with_grad to true, or local_loss to false"
            )
        if self.device not in ("auto", "cpu") and not self.device.startswith("cuda"):
            raise ValueError(f"device is {self.device!r}; it must be auto, cpu or cuda")
        longest = MODELS[self.model].context_length
        if self.context_length is not None and not 3 <= self.context_length <= longest:
            raise ValueError(f"context_length is {self.context_length}; {self.model} takes 3 to {longest} tokens")

    @property
    def steps(self) -> int:
        """Optimizer steps: whole batches within samples_seen."""
        return self.samples_seen // self.batch_size


def model_config(config: TrainConfig) -> ModelConfig:
    """The model that a run trains, with the run's own context length and what its loss needs."""
    model = MODELS[config.model]
    return dataclasses.replace(
        model, context_length=config.context_length or model.context_length, logit_bias=config.loss == "siglip"
    )


def check_world(config: TrainConfig, world: int) -> None:
    """ValueError where `world` ranks cannot share the lanes of a batch evenly."""
    if config.lanes % world:
        raise ValueError(
            f"{world} ranks cannot share {config.lanes} lanes evenly; set lanes to a multiple of {world}"
            f" that divides batch_size {config.batch_size}"
        )


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
    return TrainConfig(model="ViT-B-16", samples_seen=1_280_000_000, batch_size=8192, checkpoint_every=1000)


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
    return TrainConfig(samples_seen=13_000_000_000, batch_size=32_768, warmup=2000, checkpoint_every=1000)


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

    Text is read as the setting's own type, so `5e-4` (text to YAML 1.1) and `12.8M` are numbers. ValueError for an
    unknown key, a wrong type and an impossible value.
    """
    rest = {key: value for key, value in changes.items() if key != "preset"}
    preset = changes.get("preset")
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"there is no preset {preset!r}{nearest(str(preset), PRESETS)} (of {', '.join(PRESETS)})")
    base = TrainConfig() if preset is None else PRESETS[preset]()
    hints = typing.get_type_hints(TrainConfig)
    for key in rest:
        if key not in hints:
            raise ValueError(f"unknown training setting {key!r}{nearest(key, [*hints, 'preset'])}")
    return dataclasses.replace(base, **{key: _read(key, value, hints[key]) for key, value in rest.items()})


def _read(key: str, value: Any, kind: Any) -> Any:
    """`value` as `kind`: one of int, float, bool, str, Literal[…] and X | None."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        inner = next(part for part in typing.get_args(kind) if part is not type(None))
        return None if value is None or value in ("none", "null") else _read(key, value, inner)
    if typing.get_origin(kind) is Literal:
        allowed = typing.get_args(kind)
        if value not in allowed:
            raise ValueError(f"{key} is {value!r}{nearest(str(value), allowed)} (of {', '.join(allowed)})")
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
