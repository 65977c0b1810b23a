"""Sizes of a CLIP: widths, layers, patch dropout, preprocessing; the named models, and those of
open_clip's list and of files.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clipmill.manifests import disk
from clipmill.manifests.preprocess import PREPROCESS_FIELDS, Preprocess, of_open_clip

LARGEST = 2**20  # of a width, a vocabulary and the like


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(Preprocess):
    """Both towers of a CLIP: widths in channels, images in pixels, context in tokens; and how
    pictures become its images.

    ValueError for sizes that do not fit together.
    """

    embed_dim: int
    image_size: int  # side of a square image, or height of another
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
    drop_patch_rate: float = 0.0  # share of an image's patches left out in training, in [0, 1)

    def __post_init__(self) -> None:
        for name in SIZES:
            size = getattr(self, name)
            if not isinstance(size, int) or size > LARGEST:  # a stranger's configuration
                raise ValueError(f"{name} is {size!r:.80}; it must be a number up to {LARGEST:,}")
            if size < 1:
                raise ValueError(f"{name} is {size}; it must be at least 1")
        if self.image_size < 1 or self.image_size % self.patch_size:
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}"
            )
        for tower in ("vision", "text"):
            width, heads = getattr(self, f"{tower}_width"), getattr(self, f"{tower}_heads")
            if heads < 1 or width % heads:
                raise ValueError(
                    f"{tower}_width {width} is not a multiple of {tower}_heads {heads}"
                )
        if self.context_length < 3:
            raise ValueError(
                f"context_length is {self.context_length}; it must be at least 3 (start, a word, "
                "end)"
            )
        if not 0 <= self.drop_patch_rate < 1:
            raise ValueError(f"drop_patch_rate is {self.drop_patch_rate}; it must lie in [0, 1)")
        self.check_preprocess()

    @property
    def height_width(self) -> tuple[int, int]:
        """Height and width of the model's images, in pixels."""
        return self.image_size, self.image_size

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2


SIZES = (
    "embed_dim",
    "patch_size",
    "vision_width",
    "vision_layers",
    "vision_mlp",
    "text_width",
    "text_layers",
    "text_mlp",
    "vocab_size",
)


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
    """vision = (width, layers, heads, mlp), text = (width, layers, heads).

    The hidden width of the caption tower's MLP is four times its width.
    """
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


def _published(*, quick_gelu: bool) -> dict[str, ModelConfig]:
    """Names and numbers as in open_clip.

    H, g, bigG and e have 16 vision heads: head widths of 80, 88, 104 and 112.
    """
    base, large = (768, 12, 12, 3072), (1024, 24, 16, 4096)
    small = (384, 12, 6, 1536)
    sizes: dict[str, tuple[int, int, tuple[int, int, int, int], tuple[int, int, int]]] = {
        "ViT-B-32": (512, 32, base, (512, 12, 8)),
        "ViT-B-16": (512, 16, base, (512, 12, 8)),
        "ViT-L-14": (768, 14, large, (768, 12, 12)),
        "ViT-L-14-336": (768, 14, large, (768, 12, 12)),
        "ViT-H-14": (1024, 14, (1280, 32, 16, 5120), (1024, 24, 16)),
        "ViT-g-14": (1024, 14, (1408, 40, 16, 6144), (1024, 24, 16)),
        "ViT-bigG-14": (1280, 14, (1664, 48, 16, 8192), (1280, 32, 20)),
        "ViT-e-14": (1280, 14, (1792, 56, 16, 15360), (1280, 36, 20)),
        "ViT-S-32": (384, 32, small, (384, 12, 6)),
        "ViT-S-16": (384, 16, small, (384, 12, 6)),
    }
    models = {}
    for name, size in sizes.items():
        if quick_gelu and name.startswith("ViT-S"):
            continue
        image_size = 336 if name.endswith("336") else 224
        model = _clip(*size, image_size=image_size, quick_gelu=quick_gelu)
        models[name + "-quickgelu" if quick_gelu else name] = model
    return models


MODELS: dict[str, ModelConfig] = {
    **_published(quick_gelu=False),
    **_published(quick_gelu=True),
    # For a CPU: the demo's model, and a smaller one for tests.
    "micro": _clip(128, 8, (128, 4, 2, 512), (128, 2, 2), image_size=32, context_length=16),
    "test": _clip(32, 16, (32, 2, 2, 128), (32, 2, 2), image_size=32, context_length=16),
}


def group_count(layers: int) -> int:
    """The groups of a tower with so many blocks."""
    return layers + 2


def trained_blocks(layers: int, groups: int | None) -> int:
    """How many of a tower's last blocks are trained, with so many trained groups; None: all."""
    return layers if groups is None else min(layers, max(0, groups - 1))


# --------------------------------------------------------------------------------------------------
# Models of open_clip's list and of its configuration files. What a `CLIP` can be is a ModelConfig,
# everything else an OpenClipConfig, whose module is open_clip's own (`open_clip_model.py`). Files
# are read, and open_clip is not imported.


WEIGHTS_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")  # of files of weights
OPEN_CLIP = "open_clip:"  # before a name or file: open_clip's own module, also for a ViT like ours
SIGLIP_SCALE, SIGLIP_BIAS = math.log(10), -10.0  # where the sigmoid loss starts (Zhai et al. 2023)
CLEAN = {"lower", "whitespace", "canonicalize"}  # what open_clip's CLIP tokenizer does to a text
# Settings of towers that start from weights of timm or the hub.
STARTS = (("vision_cfg", "timm_model_pretrained"), ("text_cfg", "hf_model_pretrained"))
# Our setting -> where open_clip's configuration has it.
_THEIR_SETTINGS = {
    "image_size": ("vision_cfg", "image_size"),
    "drop_patch_rate": ("vision_cfg", "patch_dropout"),
    "context_length": ("text_cfg", "context_length"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenClipConfig(Preprocess):
    """A model that open_clip's own module computes. ValueError for one that cannot be trained here.

    settings: open_clip's `model_cfg`. folder: the one with its tokenizer's files, if it is known.
    """

    name: str
    settings: Mapping[str, Any]
    folder: str | None = None

    def __post_init__(self) -> None:
        if reason := _untrainable(self.settings):
            raise ValueError(f"{self.name}: {reason}")
        self.check_preprocess()

    @property
    def vision(self) -> Mapping[str, Any]:
        """Settings of the image tower."""
        settings: Mapping[str, Any] = self.settings["vision_cfg"]
        return settings

    @property
    def text(self) -> Mapping[str, Any]:
        """Settings of the caption tower."""
        settings: Mapping[str, Any] = self.settings["text_cfg"]
        return settings

    @property
    def embed_dim(self) -> int:
        """Channels of an embedding."""
        return int(self.settings["embed_dim"])

    @property
    def image_size(self) -> int:
        """Side of a square image."""
        size = self.vision.get("image_size", 224)
        return int(size if isinstance(size, int) else size[0])

    @property
    def height_width(self) -> tuple[int, int]:
        """Height and width of the model's images, in pixels."""
        return self.image_size, self.image_size

    @property
    def context_length(self) -> int:
        """Tokens of a caption; the caption tower always computes all of them."""
        return int(self.text.get("context_length", 77))

    @property
    def vocab_size(self) -> int:
        """Tokens of the tokenizer."""
        return int(self.text.get("vocab_size", 49408))

    @property
    def logit_bias(self) -> bool:
        """Whether the logits have a learned offset."""
        return self.settings.get("init_logit_bias") is not None

    @property
    def tokenizer(self) -> str | None:
        """The name or folder of Hugging Face's tokenizer; None: CLIP's."""
        name = self.text.get("hf_tokenizer_name")
        return None if name is None else self.folder or str(name)

    @property
    def clean(self) -> str:
        """One of CLEAN: what CLIP's tokenizer does to a text first."""
        return str((self.text.get("tokenizer_kwargs") or {}).get("clean", "lower"))

    def changed(self, changes: Mapping[str, Any], *, logit_bias: bool) -> OpenClipConfig:
        """With some of _THEIR_SETTINGS and of PREPROCESS_FIELDS, and what the loss needs."""
        settings: dict[str, Any] = copy.deepcopy(dict(self.settings))
        rest: dict[str, Any] = {}
        for name, value in changes.items():
            if name in PREPROCESS_FIELDS:
                rest[name] = value
            elif name in _THEIR_SETTINGS:
                part, key = _THEIR_SETTINGS[name]
                settings[part][key] = value
            else:
                raise ValueError(
                    f"model.{name} changes a ViT of this trainer, and {self.name} is open_clip's "
                    "own module; write its changed configuration to a file and name that: "
                    "model=FILE.json"
                )
        if logit_bias:
            settings["init_logit_scale"] = SIGLIP_SCALE
            settings["init_logit_bias"] = SIGLIP_BIAS
        else:
            settings.pop("init_logit_bias", None)
        return dataclasses.replace(self, settings=settings, **rest)


def _untrainable(settings: Mapping[str, Any]) -> str | None:
    """Why a model of open_clip's cannot be trained here, and what can; None where it can."""
    if missing := [key for key in ("embed_dim", "vision_cfg", "text_cfg") if key not in settings]:
        return f"its configuration has no {missing[0]}, which every one of open_clip's has"
    vision, text = settings["vision_cfg"], settings["text_cfg"]
    if "multimodal_cfg" in settings:
        return (
            "a CoCa learns its decoder from a captioning loss, which this trainer does not have; "
            "choose the CLIP of the same towers, such as ViT-B-32"
        )
    if str(vision.get("timm_model_name", "")).startswith("naflexvit"):
        return (
            "a NaFlex ViT reads images of many sizes as sequences of patches, and batches here "
            "have images of one size; choose a model with a fixed image_size"
        )
    for part, key in STARTS:
        if settings[part].get(key):
            return (
                f"{key} is true, and a run starts from its seed or from both towers of init; set "
                f"{key} to false"
            )
    if "hf_model_name" in text and "hf_tokenizer_name" not in text:
        return "text_cfg has hf_model_name and no hf_tokenizer_name; name its tokenizer"
    given = text.get("tokenizer_kwargs") or {}
    if "hf_tokenizer_name" not in text and not (
        {*given} <= {"clean"} and {*given.values()} <= CLEAN
    ):
        return (
            f"text_cfg.tokenizer_kwargs is {given}; CLIP's tokenizer has clean here, one of "
            f"{', '.join(sorted(CLEAN))}"
        )
    size = vision.get("image_size", 224)
    if not isinstance(size, int) and len(set(size)) > 1:
        return f"image_size is {list(size)}; images are squares here"
    side = size if isinstance(size, int) else size[0]
    if isinstance(vision.get("layers"), (list, tuple)):
        if side % 32:
            return f"image_size {side} is not a multiple of 32, as a ResNet's must be"
        if vision.get("patch_dropout"):
            return "a ResNet has no patches to drop; leave drop_patch_rate out"
    return None


def without_starts(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """open_clip's `model_cfg` beside weights of the whole model, which replace those that a tower
    starts from: as in open_clip, these are not asked for.
    """
    model = copy.deepcopy(dict(settings))
    for part, key in STARTS:
        if isinstance(model.get(part), dict) and model[part].get(key):
            model[part][key] = False
    return model


def read_model(name: str) -> ModelConfig | OpenClipConfig:
    """The model of a name of MODELS, of open_clip's list or of a JSON file of open_clip's form.

    ValueError for a name that is none of these, with the nearest one.
    """
    if name in MODELS:
        return MODELS[name]
    theirs = name.removeprefix(OPEN_CLIP)
    settings, preprocess = read_settings(theirs, name)
    return model_of_settings(settings, preprocess, theirs, own_module=theirs != name)


def read_settings(theirs: str, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """`model_cfg` and `preprocess_cfg` of a file or a name of open_clip's list."""
    path, known = theirs, list(MODELS)
    if not theirs.endswith(".json"):
        package = importlib.util.find_spec("open_clip")
        if package is None or not package.submodule_search_locations:
            raise ValueError(
                f"there is no model {name!r}{disk.did_you_mean(theirs, known)} (of "
                f"{', '.join(known)}, or with pip install open_clip_torch of its list too)"
            )
        folder = Path(package.submodule_search_locations[0]) / "model_configs"
        path = str(folder / f"{theirs}.json")
        known += sorted(config.stem for config in folder.glob("*.json"))
    if not disk.exists(path):
        if theirs.endswith(".json"):
            raise ValueError(f"model is {name}, and there is no such file")
        raise ValueError(
            f"there is no model {name!r}{disk.did_you_mean(theirs, known)} (of {', '.join(MODELS)}"
            ", the names of open_clip's list, or a file of its form, FILE.json)"
        )
    document = disk.read_json(path)
    if not isinstance(document, dict):
        raise ValueError(f"{path} is no configuration of open_clip's: it must be an object")
    return document.get("model_cfg", document), document.get("preprocess_cfg", {})


def model_of_settings(
    settings: Mapping[str, object],
    preprocess: Mapping[str, object] | None,
    name: str,
    *,
    own_module: bool = False,
    folder: str | None = None,
) -> ModelConfig | OpenClipConfig:
    """A ModelConfig where a `CLIP` computes the same function, else an OpenClipConfig.

    own_module: an OpenClipConfig always. folder: with the files of its tokenizer.
    """
    if not own_module:
        try:
            return model_config_of(settings, preprocess)
        except (TypeError, KeyError, ValueError):  # a ResNet, for example, has a list of layers
            pass
    return OpenClipConfig(name=name, settings=settings, folder=folder, **of_open_clip(preprocess))


# Our setting, its name in vision_cfg, and the default, which is not written.
OPTIONAL_VISION_KEYS = (("drop_patch_rate", "patch_dropout", 0.0),)


def model_config_of(
    settings: Mapping[str, Any], preprocess: Mapping[str, Any] | None = None
) -> ModelConfig:
    """A ModelConfig from open_clip's `model_cfg` and `preprocess_cfg`.

    ValueError for a setting that changes what the model computes and that `CLIP` does not have.
    """
    vision, text = dict(settings["vision_cfg"]), dict(settings["text_cfg"])
    outer = {key: value for key, value in settings.items() if key not in ("vision_cfg", "text_cfg")}
    vision_width, text_width = vision.pop("width", 768), text.pop("width", 512)
    image_size = vision.pop("image_size", 224)
    sides = {image_size} if isinstance(image_size, int) else set(image_size)
    if len(sides) > 1:
        raise ValueError(f"open_clip's image_size is {image_size}; only squares are supported")
    pool = vision.pop("pool_type", "tok")
    if pool != "tok":
        raise ValueError(f"open_clip's pool_type is {pool!r}; only tok (class token) is supported")
    config = ModelConfig(
        embed_dim=outer.pop("embed_dim"),
        image_size=sides.pop(),
        patch_size=vision.pop("patch_size", 16),
        vision_width=vision_width,
        vision_layers=vision.pop("layers", 12),
        vision_heads=vision_width // vision.pop("head_width", 64),
        vision_mlp=int(vision_width * vision.pop("mlp_ratio", 4.0)),
        text_width=text_width,
        text_layers=text.pop("layers", 12),
        text_heads=text.pop("heads", 8),
        text_mlp=int(text_width * text.pop("mlp_ratio", 4.0)),
        context_length=text.pop("context_length", 77),
        vocab_size=text.pop("vocab_size", 49408),
        quick_gelu=outer.pop("quick_gelu", False),
        logit_bias=outer.pop("init_logit_bias", None) is not None,
        **{ours: vision.pop(theirs, default) for ours, theirs, default in OPTIONAL_VISION_KEYS},
        **of_open_clip(preprocess),
    )
    # Names of parameters and an initial value: neither changes what the model computes.
    for name in ("custom_text", "init_logit_scale"):
        outer.pop(name, None)
    unknown = sorted({**outer, **vision, **text})
    if unknown:
        raise ValueError(f"open_clip's setting {unknown[0]!r} is of a model that is not supported")
    return config
