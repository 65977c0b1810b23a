"""From a picture to the pixels that a model takes: resized, cropped or padded, and by what mean and
deviation it is normalised. The words are those of open_clip's `preprocess_cfg` and of Hugging
Face's `preprocessor_config.json`, and both are read and written here.

Every command that runs a model on pictures has its pixels from `Preprocess.pixels`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from clipmill.manifests.arrays import Pixels

# Mean and deviation of each channel of the images that OpenAI trained on. Every CLIP checkpoint
# expects images that are normalised with them.
IMAGE_MEAN = (0.48145466, 0.4578275, 0.40821073)
IMAGE_STD = (0.26862954, 0.26130258, 0.27577711)
CHANNELS = 3  # red, green and blue
RESIZE_MODES = ("shortest", "squash", "longest", "none")
# Those of open_clip, whose evaluation takes bicubic for random, and those of Pillow.
OPEN_CLIP_INTERPOLATIONS = ("bicubic", "bilinear", "random")
INTERPOLATIONS = ("random", *(each.name.lower() for each in Image.Resampling))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocess:
    """How pictures become a model's images. ValueError for what cannot be done.

    resize_mode: `shortest` scales the shorter side and crops the centre, `squash` scales both,
    `longest` scales the longer side and pads the rest with `fill_color`, `none` crops or pads.
    resize_to: the side that is scaled to before the crop, in pixels; None: the model's own.
    crop_floor: an odd margin is rounded down, as in Hugging Face; else to even, as in open_clip.
    """

    image_mean: tuple[float, ...] = IMAGE_MEAN  # per channel, of pixels from 0 to 1
    image_std: tuple[float, ...] = IMAGE_STD
    resize_mode: str = "shortest"
    interpolation: str = "bicubic"
    fill_color: int = 0
    resize_to: int | None = None
    crop_floor: bool = field(default=False, compare=False)  # a pixel's place, not another model

    def __post_init__(self) -> None:
        self.check_preprocess()

    def check_preprocess(self) -> None:
        """ValueError for a value that there is not."""
        for name in ("image_mean", "image_std"):
            values = getattr(self, name)
            if len(values) != CHANNELS:
                raise ValueError(
                    f"{name} has {len(values)} values; images have {CHANNELS} channels"
                )
        if min(self.image_std) <= 0:
            raise ValueError(f"image_std is {list(self.image_std)}; every value must be above 0")
        for name, known in (("resize_mode", RESIZE_MODES), ("interpolation", INTERPOLATIONS)):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
        for name, least, most in (("fill_color", 0, 255), ("resize_to", 1, 1 << 16)):
            value = getattr(self, name)
            if (value is None and least) or (type(value) is int and least <= value <= most):
                continue
            raise ValueError(f"{name} is {value!r}; it must be a whole number, {least} to {most}")

    @property
    def preprocess(self) -> Preprocess:
        """These settings alone, of a model that has more."""
        values = {name: getattr(self, name) for name in PREPROCESS_FIELDS}
        return Preprocess(**values)

    def pixels(self, image: Image.Image, size: tuple[int, int]) -> Pixels:
        """(height, width, 3) of an RGB picture, for a model of `size`: open_clip's evaluation
        transform, and Hugging Face's by Pillow, to the last bit before they are normalised.

        ValueError for a picture so narrow that nothing is left of it.
        """
        height, width = size
        h, w = self.scaled_size(image.height, image.width, size)
        if min(h, w) < 1:
            raise ValueError(f"{image.width} x {image.height} pixels would become {w} x {h}")
        name = self.interpolation
        if name == "random" or (self.resize_mode == "shortest" and height != width):
            name = "bicubic"  # as open_clip has it for those
        resample = Image.Resampling[name.upper()]
        if (h, w) != (image.height, image.width):
            if w > width and h == height:  # the second pass need not see what is cropped
                image, left = image.resize((w, image.height), resample), self._margin(w - width)
                image = image.crop((left, 0, left + width, image.height))
                w = width
            image = image.resize((w, h), resample)
        return self.cropped(np.asarray(image), size)

    def cropped(self, pixels_HWC: Pixels, size: tuple[int, int]) -> Pixels:
        """The centre of scaled pixels; what is smaller than `size` is padded."""
        height, width = size
        h, w = pixels_HWC.shape[:2]
        if h < height or w < width:  # of an odd rest the second side has more
            rows, columns = max(height - h, 0), max(width - w, 0)
            padding = [(rows // 2, (rows + 1) // 2), (columns // 2, (columns + 1) // 2), (0, 0)]
            pixels_HWC = np.pad(pixels_HWC, padding, constant_values=self.fill_color)
        top, left = self._margin(max(h - height, 0)), self._margin(max(w - width, 0))
        return pixels_HWC[top : top + height, left : left + width]

    def scaled_size(self, h: int, w: int, size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of a picture of (h, w) before it is cropped or padded."""
        height, width = size if self.resize_to is None else (self.resize_to, self.resize_to)
        if self.resize_mode == "none":
            return h, w
        if self.resize_mode == "squash":
            return height, width
        if self.resize_mode == "shortest" and height == width:
            short = min(h, w)  # rounded down, as torchvision's Resize does
            return int(height * h / short), int(width * w / short)
        ratios = (h / height, w / width)
        ratio = min(ratios) if self.resize_mode == "shortest" else max(ratios)
        return round(h / ratio), round(w / ratio)

    def _margin(self, rest: int) -> int:
        return rest // 2 if self.crop_floor else round(rest / 2)

    def line(self, size: tuple[int, int]) -> str:
        """What is done, in words."""
        side = "" if self.resize_to is None else f" to {self.resize_to}"
        fill = f", fill_color {self.fill_color}" if self.resize_mode == "longest" else ""
        mean, std = ("/".join(f"{x:g}" for x in x_C) for x_C in (self.image_mean, self.image_std))
        return (
            f"{size[1]} x {size[0]} pixels, resize_mode {self.resize_mode}{side}{fill}, "
            f"{self.interpolation}, mean {mean}, std {std}"
        )


PREPROCESS_FIELDS = tuple(each.name for each in dataclasses.fields(Preprocess))


# --- open_clip's preprocess_cfg -------------------------------------------------------------------


def of_open_clip(document: Mapping[str, object] | None) -> dict[str, Any]:
    """The settings of a `preprocess_cfg`; null and a missing key are its defaults, and other keys
    are not read, as in open_clip. Its size is that of the vision tower.

    ValueError for what open_clip does not have.
    """
    if not isinstance(document or {}, Mapping):
        raise ValueError(f"preprocess_cfg is {document!r}; it must be an object")
    given = {key: value for key, value in (document or {}).items() if value is not None}
    values: dict[str, Any] = {}
    for ours, theirs in (("image_mean", "mean"), ("image_std", "std")):
        if theirs in given:
            values[ours] = _per_channel(given[theirs], f"preprocess_cfg.{theirs}")
    for name in ("resize_mode", "interpolation", "fill_color"):
        if name in given:
            values[name] = given[name]
    if given.get("mode", "RGB") != "RGB":
        raise ValueError(f"preprocess_cfg.mode is {given['mode']!r}; images are RGB here")
    has = {"interpolation": OPEN_CLIP_INTERPOLATIONS, "resize_mode": RESIZE_MODES[:3]}
    for name, known in has.items():
        if name in values and values[name] not in known:
            listed = ", ".join(known)
            raise ValueError(f"preprocess_cfg.{name} is {values[name]!r}; open_clip has {listed}")
    return values


def to_open_clip(settings: Preprocess, size: tuple[int, int]) -> dict[str, object]:
    """`preprocess_cfg` of a model. ValueError where open_clip has no such transform.

    Its crop rounds an odd margin to even, whatever `crop_floor` says.
    """
    has = settings.interpolation in OPEN_CLIP_INTERPOLATIONS and settings.resize_mode != "none"
    if settings.resize_to is not None or not has:
        raise ValueError(
            f"open_clip's preprocess_cfg cannot say what is done here: {settings.line(size)}; "
            "write --format huggingface"
        )
    document: dict[str, Any] = {
        "mean": list(settings.image_mean),
        "std": list(settings.image_std),
        "interpolation": settings.interpolation,
        "resize_mode": settings.resize_mode,
    }
    if settings.fill_color:
        document["fill_color"] = settings.fill_color
    return document


def _per_channel(value: Any, name: str) -> tuple[float, ...]:
    """A value of each channel; a single number is that of all."""
    values = value if isinstance(value, (list, tuple)) else (value,) * CHANNELS
    if any(isinstance(x, bool) or not isinstance(x, (int, float)) for x in values):
        raise ValueError(f"{name} is {value!r}; it must be {CHANNELS} numbers")
    return tuple(float(x) for x in values)


# --- Hugging Face's preprocessor_config.json ------------------------------------------------------


STEPS = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb")
# Beginnings of processors' names: a `size` that is one number is that of both sides, or of the
# shorter one.
SQUARE_KINDS = ("ViTI", "ViTF", "DeiT", "Blip", "Flava")
SHORTEST_KINDS = ("CLIP", "ChineseCLIP", "Bit")


def of_hugging_face(document: Mapping[str, Any], image_size: int) -> dict[str, Any]:
    """The settings of a `preprocessor_config.json`, for a model of `image_size`.

    A missing key has the default of CLIPImageProcessor. ValueError for what that cannot do, and for
    images of another size than the model's.
    """
    kind = document.get("image_processor_type") or document.get("feature_extractor_type")
    is_clip = kind is None or kind.startswith(("CLIP", "ChineseCLIP"))
    missing = [
        key for key in ("size", "resample", "image_mean", "image_std") if key not in document
    ]
    if missing and not is_clip:
        raise ValueError(f"preprocessor_config.json is of {kind} and has no {missing[0]}; write it")
    others = [key for key in document if key.startswith("do_") and key not in STEPS]
    if done := [key for key in others if document[key]]:
        raise ValueError(
            f"preprocessor_config.json has {done[0]}, which is not done here; the steps are "
            f"{', '.join(STEPS)}"
        )
    crops = bool(document.get("do_center_crop", is_clip))
    values: dict[str, Any] = {"crop_floor": True}
    factor = (
        float(document.get("rescale_factor", 1 / 255)) if document.get("do_rescale", True) else 1.0
    )
    if not factor > 0:
        raise ValueError(
            f"preprocessor_config.json has rescale_factor {factor}; it must be above 0"
        )
    normalises = document.get("do_normalize", True)
    for name, plain, default in (("image_mean", 0.0, IMAGE_MEAN), ("image_std", 1.0, IMAGE_STD)):
        given = document.get(name) if normalises else plain
        numbers = _per_channel(default if given is None else given, name)
        # The processor normalises levels times its factor, and the settings are of levels / 255.
        values[name] = (
            numbers if abs(factor * 255 - 1) < 1e-9 else tuple(x / (255 * factor) for x in numbers)
        )
    resample = document.get("resample", int(Image.Resampling.BICUBIC))
    if isinstance(resample, bool) or resample not in list(Image.Resampling):
        raise ValueError(f"preprocessor_config.json has resample {resample!r}; it is 0 to 5")
    values["interpolation"] = Image.Resampling(resample).name.lower()
    mode, side = "none", image_size
    if document.get("do_resize", True):
        mode, side = _scaled(document, str(kind or "CLIP"), image_size)
    crop = document.get("crop_size")
    cropped = _square(crop, "crop_size") if crops and crop is not None else image_size
    if mode != "squash" and not crops:
        raise ValueError(
            "preprocessor_config.json has do_center_crop false and gives images of many shapes; "
            "set size to the height and width of the model's"
        )
    if (given := cropped if crops else side) != image_size:
        raise ValueError(
            f"preprocessor_config.json gives images of {given} pixels, and the model takes "
            f"{image_size}"
        )
    return {**values, "resize_mode": mode, "resize_to": None if side == image_size else side}


def _scaled(document: Mapping[str, Any], kind: str, image_size: int) -> tuple[str, int]:
    """(resize_mode, side) of Hugging Face's `size`, for a processor of a kind."""
    size = document.get("size")
    if size is None or isinstance(size, int):  # a number in older files
        squashes = document.get("default_to_square")
        if squashes is None:
            squashes = kind.startswith(SQUARE_KINDS)
            if size is not None and not kind.startswith((*SQUARE_KINDS, *SHORTEST_KINDS)):
                raise ValueError(
                    f"preprocessor_config.json is of {kind} and has size {size}, which may be that "
                    "of both sides or of the shorter one; write it as height and width, or as "
                    "shortest_edge"
                )
        return "squash" if squashes else "shortest", size or image_size
    keys = set(size) if isinstance(size, Mapping) else set()
    if keys == {"shortest_edge"}:
        return "shortest", size["shortest_edge"]
    if keys == {"height", "width"}:
        return "squash", _square(size, "size")
    raise ValueError(f"preprocessor_config.json has size {size!r}, which is not read here")


def _square(size: Any, name: str) -> int:
    sides = {"height": size, "width": size} if isinstance(size, int) else size
    side = sides.get("height") if isinstance(sides, Mapping) else None
    if not isinstance(side, int) or side != sides.get("width"):
        raise ValueError(f"preprocessor_config.json has {name} {size!r}; images are squares here")
    return side


def to_hugging_face(settings: Preprocess, image_size: int) -> dict[str, object]:
    """`preprocessor_config.json` of a CLIPImageProcessor. ValueError where it cannot do that.

    Its crop rounds an odd margin down, whatever `crop_floor` says.
    """
    if settings.resize_mode == "longest":
        raise ValueError(
            "the model pads its pictures (resize_mode longest), which Hugging Face's "
            "CLIPImageProcessor cannot; write --format open_clip"
        )
    side = settings.resize_to or image_size
    square = {"height": side, "width": side}
    squashes = settings.resize_mode == "squash"
    name = "bicubic" if settings.interpolation == "random" else settings.interpolation
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": settings.resize_mode != "none",
        "size": square if squashes else {"shortest_edge": side},
        "resample": int(Image.Resampling[name.upper()]),
        "do_center_crop": not squashes or side != image_size,
        "crop_size": {"height": image_size, "width": image_size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "do_convert_rgb": True,
        "image_mean": list(settings.image_mean),
        "image_std": list(settings.image_std),
    }
