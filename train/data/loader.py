"""Batches of a blend: positions from the order, bytes from the shards, pixels in threads; the same for any world size.

The number of batches comes from the config, so ranks cannot disagree; there is no collective, no shared memory and no
state but the step. Threads are given positions and write their rows of a batch in place; with no threads all of it
happens in the caller. A damaged picture is replaced by another row of its source, which its position alone decides.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manifests import disk
from manifests.schema import Blend
from train.config import TrainConfig, check_world
from train.data.augment import crop_numbers, random_crop, smallest_side
from train.data.decode import decode_image
from train.data.order import Order, SourceRows
from train.data.view_rows import open_view
from train.model import ModelConfig

PREFETCH = 4  # batches that are under way at most, and
PREFETCH_BYTES = 2**30  # … their pixels together, but always one
SPLIT = 4  # pieces of a batch per thread: evens out slow pictures
BAD_FREE, BAD_SHARE = 10, 0.001  # more bad samples than both of these end the run
BAD_LISTED = 1000  # bad samples that are kept by name
SUBSTITUTES = 16  # rows that are tried in the place of a damaged one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The rows of one global batch that a rank serves."""

    step: int
    image_BHWC: Tensor  # uint8 RGB, cropped to the model's size, not normalised
    tokens_BT: Tensor  # int64, padded with 0
    length_B: Tensor  # int64: tokens without padding
    keys: tuple[str, ...]  # POOL/VIEW:KEY of what was read, after substitution
    substituted: int  # rows of these that are substitutes


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedSample:
    """A picture that could not be used, and where the run met it."""

    step: int
    position: int  # in the global batch
    source: str  # POOL/VIEW of the blend
    shard: str
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Work:
    """A batch while it is filled: where its rows come from, and the arrays that the threads write to."""

    step: int
    first: int  # position of row 0 in the global batch
    source: list[int]
    shard: list[int]
    row: list[int]
    numbers: list[list[float]]  # of each row's crop
    image: Tensor
    tokens: Tensor
    length: Tensor
    keys: list[str]


class Loader:
    """An iterable of Batch; `len` is the run's number of steps. One rank's share of every global batch.

    ValueError for views that cannot be opened, a world size that does not divide the lanes, too many repeats, and,
    while it runs, for a tar that cannot be read or more than 1 in 1,000 (and more than ten) damaged pictures.
    """

    def __init__(
        self, blend: Blend, config: TrainConfig, model: ModelConfig, rank: int = 0, world: int = 1
    ) -> None:
        check_world(config, world)
        assert 0 <= rank < world
        self.names = tuple(sorted(blend.views))
        paths = [
            (blend.pools[pool], view)
            for pool, _, view in (name.partition("/") for name in self.names)
        ]
        held = (
            2 * config.lanes * config.window
        )  # a lane is inside one window, or passes from one to the next
        self.views = tuple(open_view(pool, view, config.tokenizer, held) for pool, view in paths)
        self.order = Order(
            [
                SourceRows(name=name, weight=blend.views[name], shard_rows=view.shard_rows)
                for name, view in zip(self.names, self.views, strict=True)
            ],
            config.batch_size,
            config.lanes,
            config.window,
            seed=(blend.seed << 32) + config.seed,
        )
        self.order.check_repeats(config.steps, blend.max_repeats)
        self.damaged: list[DamagedSample] = []  # the first BAD_LISTED
        self.damaged_count = 0
        self.drawn = 0
        self._config, self._size, self._context = config, model.height_width, model.context_length
        self._lanes = range(rank * config.lanes // world, (rank + 1) * config.lanes // world)
        self._min_size = smallest_side(max(model.height_width), config.crop_min)
        self._pin = config.device != "cpu" and torch.cuda.is_available()

    def __len__(self) -> int:
        return self._config.steps

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The batches of steps start, start + 1, … to the end of the run. Close it (or drain it) to end its threads."""
        threads = self._config.threads
        if threads == 0:
            for step in range(start, len(self)):
                work = self._plan(step)
                yield self._finish(work, self._fill(work, 0, len(work.row)))
            return
        pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        under_way: deque[tuple[_Work, list[Future[list[DamagedSample]]]]] = deque()
        try:
            for step in range(start, len(self) + self._ahead()):
                if step < len(self):
                    under_way.append(self._submit(pool, self._plan(step)))
                if step - start >= self._ahead() and under_way:
                    work, pieces = under_way.popleft()
                    yield self._finish(work, [bad for piece in pieces for bad in piece.result()])
        finally:
            pool.shutdown(cancel_futures=True)

    def sources(self) -> dict[str, dict[str, Any]]:
        """What the whole run draws: {POOL/VIEW: {"rows", "drawn", "repeats"}}."""
        return {name: disk.to_plain(found) for name, found in self.order.repeats(len(self)).items()}

    def _ahead(self) -> int:
        """How many batches are under way beside the one that is handed out."""
        size = (
            self._config.batch_size
            // self._config.lanes
            * len(self._lanes)
            * math.prod(self._size)
            * 3
        )
        return max(1, min(PREFETCH, PREFETCH_BYTES // size))

    def _plan(self, step: int) -> _Work:
        source, shard, row = self.order.batch(step, self._lanes)
        first = self._lanes.start * (self._config.batch_size // self._config.lanes)
        rows = len(row)
        return _Work(
            step=step,
            first=first,
            source=source.tolist(),
            shard=shard.tolist(),
            row=row.tolist(),
            numbers=crop_numbers(
                self.order.seed, step, first + np.arange(rows), self._config.crop_min
            ).tolist(),
            image=torch.empty((rows, *self._size, 3), dtype=torch.uint8, pin_memory=self._pin),
            tokens=torch.zeros((rows, self._context), dtype=torch.int64, pin_memory=self._pin),
            length=torch.zeros(rows, dtype=torch.int64, pin_memory=self._pin),
            keys=[""] * rows,
        )

    def _submit(
        self, pool: ThreadPoolExecutor, work: _Work
    ) -> tuple[_Work, list[Future[list[DamagedSample]]]]:
        rows = len(work.row)
        piece = -(-rows // (SPLIT * self._config.threads))
        return work, [
            pool.submit(self._fill, work, k, min(k + piece, rows)) for k in range(0, rows, piece)
        ]

    def _fill(self, work: _Work, start: int, stop: int) -> list[DamagedSample]:
        """Read, decode and crop rows start … stop − 1 of a batch into its arrays."""
        bad: list[DamagedSample] = []
        images, tokens_BT, length_B = work.image.numpy(), work.tokens.numpy(), work.length.numpy()
        for r in range(start, stop):
            s, shard, row = work.source[r], work.shard[r], work.row[r]
            view = self.views[s]
            for attempt in range(SUBSTITUTES):
                rows = view.shard(shard)
                try:
                    tokens = rows.tokens_of(row)
                    if not len(tokens):
                        raise ValueError("it has no tokens")
                    pixels = decode_image(view.read_image(shard, row), self._min_size)
                except ValueError as error:
                    bad.append(self._bad(work, r, s, shard, row, str(error)))
                    shard, row = self.order.substitute(s, work.step, work.first + r, attempt)
                except OSError as error:
                    raise ValueError(
                        f"{rows.tar} cannot be read at step {work.step}: {error}"
                    ) from error
                else:
                    break
            else:
                raise ValueError(
                    f"{SUBSTITUTES} rows of {self.names[s]} in a row cannot be used; the last: {bad[-1]}"
                )
            images[r] = random_crop(pixels, self._size, work.numbers[r])
            length_B[r] = copy_tokens(tokens, tokens_BT[r])
            work.keys[r] = f"{self.names[s]}:{rows.keys[row]}"
        return bad

    def _bad(
        self, work: _Work, r: int, source: int, shard: int, row: int, reason: str
    ) -> DamagedSample:
        rows = self.views[source].shard(shard)
        return DamagedSample(
            step=work.step,
            position=work.first + r,
            source=self.names[source],
            shard=rows.name,
            key=str(rows.keys[row]),
            reason=reason,
        )

    def _finish(self, work: _Work, bad: list[DamagedSample]) -> Batch:
        self.drawn += len(work.row)
        self.damaged_count += len(bad)
        self.damaged += bad[: BAD_LISTED - len(self.damaged)]
        if bad and self.damaged_count > max(BAD_FREE, BAD_SHARE * self.drawn):
            last = bad[-1]
            pool = self.views[self.names.index(last.source)].pool
            raise ValueError(
                f"{self.damaged_count} of {self.drawn:,} samples cannot be used, more than 1 in 1,000; the last is key"
                f" {last.key} of shard {last.shard} of {last.source}: {last.reason};"
                f" run python pipeline/audit.py {pool} --verify"
            )
        return Batch(
            step=work.step,
            image_BHWC=work.image,
            tokens_BT=work.tokens,
            length_B=work.length,
            keys=tuple(work.keys),
            substituted=len({sample.position for sample in bad}),
        )


def copy_tokens(tokens: NDArray[np.uint16], into_T: NDArray[np.int64]) -> int:
    """Write a caption's tokens into a row of zeros; of those that do not fit only the last stays. How many it holds."""
    length = min(len(tokens), len(into_T))
    into_T[:length] = tokens[:length]
    into_T[length - 1] = tokens[-1]
    return length
