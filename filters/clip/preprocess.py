"""An image as the pixels that a CLIP's own validation transform gives, in fewer steps.

open_clip's transform ends with ToTensor and Normalize, which make three copies of an image in
float32. `Preprocess.pixels` stops before them, at uint8, and `Preprocess.normalised` does both in
one pass over a batch. Values are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from filters.picture import PIXELS

Pixels = NDArray[np.uint8]

# The last steps of open_clip's validation transforms, whatever precedes them.
FLOAT_STEPS = ["MaybeToTensor", "Normalize"]
# The steps before them in a transform that scales the shorter side and crops the centre: those of
# every CLIP but SigLIP and a few others, which squash or pad.
CROPPED_STEPS = ["Resize", "CenterCrop", "MaybeConvertMode"]


class Preprocess:
    """A validation transform of open_clip, cut into a part that gives uint8 and a part that gives
    float32."""

    def __init__(self, transform: Any, *, fast: bool = False) -> None:
        """transform: torchvision's Compose of open_clip's image_transform(is_train=False).

        fast: resize by torch's uint8 kernel instead of Pillow. It rounds the weights of a filter to
        16 bits where Pillow has 22, so that 1 of 300 values differs, by a level or two.

        ValueError for a transform that does not end with ToTensor and Normalize, and for `fast`
        where it does not scale the shorter side and crop the centre.
        """
        *self.pixel_steps, to_tensor, normalize = transform.transforms
        names = [type(to_tensor).__name__, type(normalize).__name__]
        if names != FLOAT_STEPS:
            raise ValueError(
                f"a CLIP's validation transform ends with {', '.join(names)}; "
                f"it must end with {', '.join(FLOAT_STEPS)}"
            )
        self.mean, self.std = normalize.mean, normalize.std
        names = [type(step).__name__ for step in self.pixel_steps]
        self.cropped: tuple[int, str] | None = None  # side and interpolation
        if names == CROPPED_STEPS and isinstance(self.pixel_steps[0].size, int):
            resize = self.pixel_steps[0]
            self.cropped = (resize.size, resize.interpolation.value)
        self.fast = fast
        if fast and self.cropped is None:
            raise ValueError(
                f"resize: fast is for models that scale the shorter side and crop the centre; "
                f"this one does {', '.join(names)}: leave resize out"
            )

    def pixels(self, image: Image.Image) -> Pixels:
        """(H, W, 3) of an RGB image, resized and cropped."""
        if self.cropped is None:
            for step in self.pixel_steps:
                image = step(image)
            return np.asarray(image)
        side, interpolation = self.cropped
        width, height = scaled_size(image.width, image.height, side)
        # As torchvision's CenterCrop rounds.
        left, top = round((width - side) / 2), round((height - side) / 2)
        if self.fast:
            scaled_HWC = _resized_by_torch(_array_of(image), width, height, interpolation)
            return scaled_HWC[top : top + side, left : left + side]
        if image.size == (width, height):
            return np.asarray(image)[top : top + side, left : left + side]
        resample = Image.Resampling[interpolation.upper()]
        if width > side:  # a wide image: the second pass need not see what is cropped
            image = image.resize((width, image.height), resample)
            image = image.crop((left, 0, left + side, image.height))
            width, left = side, 0
        image = image.resize((width, height), resample)
        return np.asarray(image.crop((left, top, left + side, top + side)))

    def normalised(self, pixels: Sequence[Pixels]) -> Any:
        """(B, 3, H, W) float32 tensor: scaled to [0, 1], less the mean, divided by the standard
        deviation.

        An image is finished before the next one is begun, so that it stays in the cache.
        """
        import torch

        mean_C11 = np.array(self.mean, np.float32).reshape(-1, 1, 1)
        std_C11 = np.array(self.std, np.float32).reshape(-1, 1, 1)
        height, width, channels = pixels[0].shape
        batch_BCHW = torch.empty(len(pixels), channels, height, width)
        for image_CHW, pixels_HWC in zip(batch_BCHW.numpy(), pixels, strict=True):
            np.copyto(image_CHW, pixels_HWC.transpose(2, 0, 1))
            np.divide(image_CHW, 255, out=image_CHW)
            np.subtract(image_CHW, mean_C11, out=image_CHW)
            np.divide(image_CHW, std_C11, out=image_CHW)
        return batch_BCHW


def _array_of(image: Image.Image) -> Pixels:
    """(H, W, 3) of an RGB image: the array that it was decoded to, where it is still at hand."""
    decoded: Pixels | None = getattr(image, PIXELS, None)
    return np.asarray(image) if decoded is None else decoded


def scaled_size(width: int, height: int, side: int) -> tuple[int, int]:
    """Width and height with a shorter side of `side`, rounded down as torchvision's Resize does."""
    if width <= height:
        return side, int(side * height / width)
    return int(side * width / height), side


def _resized_by_torch(pixels_HWC: Pixels, width: int, height: int, interpolation: str) -> Pixels:
    import torch
    import torch.nn.functional as F

    if pixels_HWC.shape[:2] == (height, width):
        return pixels_HWC
    # Pillow gives a read-only array, which torch does not take.
    image_1CHW = torch.from_numpy(pixels_HWC.copy()).permute(2, 0, 1)[None]
    sizes = [(height, width)]
    full_height, full_width = pixels_HWC.shape[:2]
    # Pillow from version 13 begins with the vertical pass where the height shrinks much more. Each
    # pass rounds to 8 bits, so that the order of the two is visible.
    if full_height - height > 2 * max(0, full_width - width):
        sizes.insert(0, (height, full_width))
    for size in sizes:
        image_1CHW = F.interpolate(image_1CHW, size=size, mode=interpolation, antialias=True)
    scaled_HWC: Pixels = image_1CHW[0].permute(1, 2, 0).numpy()
    return scaled_HWC
