"""Unit vectors of evaluation images and texts. One that is not finite is an error."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manifests import disk
from train.data import augment, decode_image
from train.model import CLIP, l2_normalise

BATCH_SIZE = 256  # images or prompts per forward
# Decoded images that a process keeps for its next run; 10,000 images of 224 pixels are 1.5e9 bytes.
CACHE_BYTES = 2 * 2**30

_decoded_images: dict[tuple[str, tuple[str, ...], tuple[int, int]], np.ndarray] = {}


def image_batches(
    folder: str, files: tuple[str, ...], size: tuple[int, int]
) -> Iterator[np.ndarray]:
    """Batches (B, H, W, C) uint8 of images, resized and cropped to the `size` (H, W) of a model.

    What fits in CACHE_BYTES is decoded once per process. ValueError names a file that is no image.
    """
    key = (folder, files, size)
    cached_bytes = sum(images.nbytes for images in _decoded_images.values())
    fits = cached_bytes + len(files) * math.prod(size) * 3 <= CACHE_BYTES
    if key not in _decoded_images and fits:
        _decoded_images[key] = np.concatenate(list(_decode(folder, files, size)))
    if key not in _decoded_images:
        yield from _decode(folder, files, size)
        return
    images_NHWC = _decoded_images[key]
    for start in range(0, len(images_NHWC), BATCH_SIZE):
        yield images_NHWC[start : start + BATCH_SIZE]


def _decode(folder: str, files: tuple[str, ...], size: tuple[int, int]) -> Iterator[np.ndarray]:
    def decode_file(file: str) -> np.ndarray:
        path = disk.join(folder, file)
        try:
            return augment.centre_crop(decode_image(disk.read_bytes(path)), size)
        except (ValueError, OSError) as error:
            raise ValueError(f"{path} cannot be decoded as an image: {error}") from error

    with ThreadPoolExecutor(max_workers=max(1, torch.get_num_threads())) as threads:
        for start in range(0, len(files), BATCH_SIZE):
            yield np.stack(list(threads.map(decode_file, files[start : start + BATCH_SIZE])))


@functools.lru_cache(maxsize=4)
def _tokenizer(context_length: int) -> Any:
    from open_clip.tokenizer import SimpleTokenizer

    return SimpleTokenizer(context_length=context_length)


def require_finite(vectors_NE: Tensor, names: Sequence[str], task: str, what: str) -> None:
    """ValueError that names the task and the first sample whose row holds a NaN or an infinity."""
    broken_N = ~torch.isfinite(vectors_NE).all(dim=1)
    count = int(broken_N.sum())
    if count:
        first = names[int(broken_N.int().argmax())]
        raise ValueError(
            f"task {task!r}: the {what} of {first!r} are not finite, as for {count} of "
            f"{len(names)} samples; the model is broken (NaN or infinite weights), so there are "
            "no metrics"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A model on its device with its tokenizer."""

    model: CLIP
    device: torch.device
    tokenizer: str = "clip"

    def images(self, folder: str, files: tuple[str, ...], task: str) -> Tensor:
        """Unit vectors (N, E) of images, fp32 in host memory. ValueError for NaN or infinity."""
        config = self.model.config
        batches = []
        for batch_BHWC in image_batches(folder, files, config.height_width):
            pixels_BHWC = torch.from_numpy(np.ascontiguousarray(batch_BHWC)).to(self.device)
            image_BCHW = augment.normalise(pixels_BHWC, config.image_mean, config.image_std)
            batches.append(self.model.encode_image(image_BCHW).float().cpu())
        vectors_NE = torch.cat(batches)
        require_finite(vectors_NE, files, task, "image features")
        return vectors_NE

    def texts(self, texts: Sequence[str], task: str) -> Tensor:
        """Unit vectors (N, E) of texts, fp32 in host memory. Texts are cut at the context length.

        ValueError for an unknown tokenizer and for NaN or infinity.
        """
        if self.tokenizer != "clip":
            raise ValueError(f"there is no tokenizer {self.tokenizer!r}; evaluation knows 'clip'")
        tokens_NT = _tokenizer(self.model.config.context_length)(list(texts))
        batches = []
        for part_BT in tokens_NT.split(BATCH_SIZE):
            batches.append(self.model.encode_text(part_BT.to(self.device)).float().cpu())
        vectors_NE = torch.cat(batches)
        require_finite(vectors_NE, texts, task, "text features")
        return vectors_NE

    def classes(self, classes: Sequence[str], templates: Sequence[str], task: str) -> Tensor:
        """Unit vectors (C, E): the mean of each class over its templates, at length 1 again.

        This is open_clip's `build_zero_shot_classifier` (CLIP paper, section 3.1.4).
        """
        prompts = []
        for name in classes:
            prompts += [template.replace("{}", name) for template in templates]
        vectors_NE = self.texts(prompts, task)
        return l2_normalise(vectors_NE.view(len(classes), len(templates), -1).mean(dim=1))
