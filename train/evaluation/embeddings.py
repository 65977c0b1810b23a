"""Unit vectors of evaluation images and texts. One that is not finite is an error."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manifests.clip_tokenizer import simple_tokenizer
from train.dist import Ranks
from train.evaluation.sharing import ALONE, Arrays, gather, in_batches
from train.model import CLIP, l2_normalise
from train.pixels import augment
from train.task_data import ImageSource, decoded_batches


@functools.lru_cache(maxsize=4)
def _tokenizer(context_length: int) -> Any:
    return simple_tokenizer()(context_length=context_length)


def require_finite(finite_N: np.ndarray, names: Sequence[str], task: str, what: str) -> None:
    """ValueError that names the task and the first sample where `finite_N` is false."""
    count = int((~finite_N).sum())
    if count:
        first = names[int(finite_N.argmin())]
        raise ValueError(
            f"task {task!r}: the {what} of {first!r} are not finite, as for {count} of "
            f"{len(names)} samples; the model is broken (NaN or infinite weights), so there are "
            "no metrics"
        )


def finite_rows(values_NX: Tensor) -> np.ndarray:
    """(N,) whether a row holds neither NaN nor infinity."""
    return torch.isfinite(values_NX).all(dim=1).numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A model on its device with its tokenizer. All methods are collectives of `ranks`.

    hashes: the sha256 of the images that were embedded, so that no image is read twice.
    """

    model: CLIP
    device: torch.device
    tokenizer: str = "clip"
    ranks: Ranks = ALONE
    hashes: dict[ImageSource, tuple[str, ...]] = field(default_factory=dict)

    def map_images(
        self, images: ImageSource, task: str, compute: Callable[[Tensor, slice], Arrays]
    ) -> Arrays:
        """`compute(unit vectors (B, E), rows)` for every batch of images, joined in order.

        The vectors are fp32 in host memory, and only those of one batch at a time. ValueError for
        NaN or infinity.
        """
        config = self.model.config

        def batches(own: Sequence[slice]) -> Iterator[Arrays]:
            for batch in decoded_batches(images, config.height_width, own):
                pixels_BHWC = torch.from_numpy(np.ascontiguousarray(batch.image_BHWC))
                image_BCHW = augment.normalise(
                    pixels_BHWC.to(self.device), config.image_mean, config.image_std
                )
                vectors_BE = self.model.encode_image(image_BCHW).detach().float().cpu()
                columns = compute(vectors_BE, batch.rows)
                yield {
                    **columns,
                    "finite": finite_rows(vectors_BE),
                    "sha256": batch.sha256_BX,
                }

        columns = gather(self.ranks, len(images.names), batches)
        require_finite(columns.pop("finite"), images.names, task, "image features")
        digests_NX = columns.pop("sha256")
        self.hashes[images] = tuple(digest.tobytes().hex() for digest in digests_NX)
        return columns

    def images(self, images: ImageSource, task: str) -> Tensor:
        """Unit vectors (N, E) of images, fp32 in host memory. ValueError for NaN or infinity."""
        columns = self.map_images(images, task, lambda vectors_BE, _: {"v": vectors_BE.numpy()})
        return torch.from_numpy(columns["v"])

    def texts(self, texts: Sequence[str], task: str) -> Tensor:
        """Unit vectors (N, E) of texts, fp32 in host memory. Texts are cut at the context length.

        ValueError for an unknown tokenizer and for NaN or infinity.
        """
        if self.tokenizer != "clip":
            raise ValueError(f"there is no tokenizer {self.tokenizer!r}; evaluation knows 'clip'")
        tokenize = _tokenizer(self.model.config.context_length)

        def encode(rows: slice) -> Arrays:
            tokens_BT = tokenize(list(texts[rows])).to(self.device)
            return {"v": self.model.encode_text(tokens_BT).detach().float().cpu().numpy()}

        vectors_NE = torch.from_numpy(in_batches(self.ranks, len(texts), encode)["v"])
        require_finite(finite_rows(vectors_NE), texts, task, "text features")
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
