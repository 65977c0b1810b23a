"""What a request brings: images in host memory, decoded or as JPEG, and texts as token numbers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from train import transforms
from train.formats import example_inputs
from train.model import ModelConfig
from train.transforms import decode_image

# Of the images that stand for those of a web crawl, before they are resized.
JPEG_HEIGHT_WIDTH = (375, 500)
JPEG_QUALITY = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One request of B images and B texts, in host memory."""

    pixels_BHWC: Tensor | None  # uint8 RGB in the size of the model
    jpegs: tuple[bytes, ...]  # instead of the pixels
    token_BT: Tensor  # int64

    def decoded(self, config: ModelConfig) -> Tensor:
        """The pixels. Of JPEG bytes: decoded, resized and cut to the centre, one after another."""
        if self.pixels_BHWC is not None:
            return self.pixels_BHWC
        smallest = min(config.height_width)
        images = []
        for data in self.jpegs:
            pixels_HWC = decode_image(data, smallest)
            images.append(transforms.centre_crop(pixels_HWC, config.height_width))
        return torch.from_numpy(np.stack(images))


def synthetic_inputs(
    config: ModelConfig, batch: int, text_length: int, *, count: int, jpeg: bool = False
) -> list[Inputs]:
    """`count` different requests. Every text has all its tokens, so that none is computed in less.

    ValueError for a batch or a text length that the model cannot take.
    """
    if batch < 1:
        raise ValueError(f"batch is {batch}; it must be at least 1")
    if not 1 <= text_length <= config.context_length:
        raise ValueError(
            f"text length is {text_length}; the model takes 1 to {config.context_length} tokens"
        )
    requests = []
    for seed in range(count):
        pixels_BHWC, token_BT = example_inputs(config, batch, text_length, "uint8", seed)
        end = config.vocab_size - 1
        token_BT[token_BT == 0] = 1
        token_BT[token_BT == end] = 1
        token_BT[:, -1] = end
        jpegs = tuple(_jpegs(batch, seed)) if jpeg else ()
        requests.append(
            Inputs(pixels_BHWC=None if jpeg else pixels_BHWC, jpegs=jpegs, token_BT=token_BT)
        )
    return requests


def _jpegs(batch: int, seed: int) -> Sequence[bytes]:
    """Smooth random images: noise alone would compress and decode like no photograph."""
    height, width = JPEG_HEIGHT_WIDTH
    generator = np.random.default_rng(seed)
    files = []
    for _ in range(batch):
        coarse = generator.integers(0, 256, (height // 25, width // 25, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        sink = io.BytesIO()
        image.save(sink, "JPEG", quality=JPEG_QUALITY)
        files.append(sink.getvalue())
    return files
