"""A loader of synthetic samples in memory: what training costs where reading costs nothing.

Images are random bytes, one batch of them for all steps. Captions have the lengths of web captions:
lognormal, median 16.5 tokens, deviation 0.6 of the logarithm, at least 4, at most the context; a
mean of 20, with the tokens of start and end. The first caption of a batch fills the context, as
some caption of a large batch does, so that padded captions are never cut short.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clipmill.train.config import TrainConfig, check_world
from clipmill.train.data.loader import RunBatch
from clipmill.train.model.architecture import ModelConfig, OpenClipConfig

MEDIAN, SPREAD, SHORTEST = 16.5, 0.6, 4
VARIETY = 4  # batches of captions in turn, so that packed ones differ in size


class SyntheticOrder:
    """What a run asks about the order: there are no sources."""

    def repeats(self, steps: int) -> dict[str, Any]:
        """What `steps` steps draw of each source."""
        return {}

    def fingerprint(self) -> str:
        """The order's hash."""
        return "synthetic"


class SyntheticLoader:
    """Stands for the loader of a blend, for one rank. Nothing is read and nothing is decoded.

    `device` is where the images lie; without it they lie in host memory, from where every step of a
    GPU copies them. ValueError for ranks that cannot share a batch evenly.
    """

    is_resumable = False
    views = ()

    def __init__(
        self,
        config: TrainConfig,
        model: ModelConfig | OpenClipConfig,
        rank: int = 0,
        world: int = 1,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        check_world(config, world)
        self.order = SyntheticOrder()
        self._steps, size = config.steps, config.batch_size // world
        generator = torch.Generator(device).manual_seed(config.seed * world + rank)
        shape = (size, *model.height_width, 3)
        image_BHWC = torch.randint(
            0, 256, shape, dtype=torch.uint8, generator=generator, device=device
        )
        pin = config.device != "cpu" and torch.cuda.is_available() and not image_BHWC.is_cuda
        self._image_BHWC = image_BHWC.pin_memory() if pin else image_BHWC
        self._captions = []
        for number in range(VARIETY):
            seed = (config.seed * world + rank) * VARIETY + number
            captions = draw_captions(size, model.context_length, model.vocab_size, seed)
            self._captions.append(captions)

    def remedy(self, source: str) -> str:
        """What a person does about damaged samples. There are none."""
        return f"{source} is synthetic"

    def sources(self, steps: int | None = None) -> dict[str, dict[str, Any]]:
        """What the run drew from each source."""
        return {}

    def batches(self, start: int = 0) -> Generator[RunBatch]:
        """The batches of the run."""
        for step in range(start, self._steps):
            tokens_BT, length_B = self._captions[step % VARIETY]
            yield RunBatch(
                step=step,
                image_BHWC=self._image_BHWC,
                tokens_BT=tokens_BT,
                length_B=length_B,
                keys=(),
                substituted=0,
                damaged=0,
                damaged_samples=(),
            )


def draw_captions(count: int, context: int, vocabulary: int, seed: int) -> tuple[Tensor, Tensor]:
    """Token numbers BT, 0 after the token that ends a text, and their lengths B."""
    drawn = np.random.default_rng(seed).lognormal(math.log(MEDIAN), SPREAD, count)
    rounded = np.clip(np.rint(drawn), min(SHORTEST, context), context).astype(np.int64)
    rounded[:1] = context
    length_B = torch.from_numpy(rounded)
    generator = torch.Generator().manual_seed(seed)
    tokens_BT = torch.randint(1, vocabulary - 2, (count, context), generator=generator)
    tokens_BT[:, 0] = vocabulary - 2
    tokens_BT[torch.arange(count), length_B - 1] = vocabulary - 1
    tokens_BT[torch.arange(context) >= length_B[:, None]] = 0
    return tokens_BT, length_B
