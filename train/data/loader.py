"""Batches of a blend: positions from the order, bytes from the shards, pixels from threads.

The batches are the same for any number of ranks and threads. The number of batches comes from the
settings, so ranks cannot disagree. There is no collective, no shared memory and no state but the
step. Threads get positions and write their rows of a batch
in place; with no threads the caller does the same work. What the next steps need is read ahead
(`read_ahead.py`). A damaged image is replaced by another row of its source, which its position
alone decides.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manifests.schema import Blend
from train.config import TrainConfig, check_world
from train.data.damage import DamagedSample, StageTimes
from train.data.live_rows import open_live
from train.data.read_ahead import GROUP_STEPS, ReadAhead, StepReads, ViewReading, read_positions
from train.data.view_rows import ViewChances, ViewNumbers, ViewRows, open_view
from train.mixture.order import Order, RunOrder
from train.mixture.schedule import blend_sources
from train.model.architecture import ModelConfig
from train.transforms import (
    ThreadBuffer,
    crop_numbers,
    decode_image,
    random_crop_into,
    smallest_side,
)

P = ParamSpec("P")
T = TypeVar("T")
PREFETCH = 4  # batches that are read ahead at most
PREFETCH_BYTES = 2**30  # pixels of the batches that are read ahead; one batch is always allowed
LIVE_STEPS = 4  # that a live run reads together: what is read ahead cannot draw from new shards
SPLIT = 4  # pieces of a batch per thread: evens out slow images
PIXELS = ThreadBuffer()  # of the image that a thread decodes
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
    damaged: int  # rows that could not be used; more than `substituted` where substitutes failed
    damaged_samples: tuple[DamagedSample, ...]  # these rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _PlannedBatch:
    """A batch while it is filled: where its rows come from, and the arrays that threads fill."""

    step: int
    first: int  # position of row 0 in the global batch
    source: list[int]
    shard: list[int]
    row: list[int]
    reads: StepReads
    column: list[str | None]  # text column of each row's caption; None: the stored tokens
    numbers: list[list[float]]  # of each row's crop
    image: Tensor
    tokens: Tensor
    length: Tensor
    keys: list[str]


# Batches whose rows are filled, with the damaged samples among them.
Filled = Generator[tuple[_PlannedBatch, list[DamagedSample]]]


class Loader:
    """An iterable of Batch; `len` is the run's number of steps. One rank's share of every batch.

    ValueError for views that cannot be opened, a world size that does not divide the batch, too
    many repeats, and, while it runs, for a tar that is not there or a row that no substitute can
    replace. ReadFailed where a store does not answer. Damaged samples are in each batch; the
    training loop, which knows the counts of all ranks, ends a run that has too many.
    """

    is_resumable = True  # a batch is a function of its step

    def __init__(
        self,
        blend: Blend,
        config: TrainConfig,
        model: ModelConfig,
        rank: int = 0,
        world: int = 1,
        *,
        out: str | None = None,
        decides: bool = True,
        times: StageTimes | None = None,
    ) -> None:
        """out, decides: of a live run, its folder and whether this process decides its segments.
        times: where the time of each stage is added up.
        """
        check_world(config, world)
        assert 0 <= rank < world
        self.names = tuple(sorted(blend.views))
        # A lane is inside one window, or passes from one to the next.
        cached = 2 * config.lanes * config.window
        self.is_live = blend.live or blend.segments is not None
        self.views: tuple[ViewRows, ...]
        self.order: RunOrder
        if self.is_live:
            seed = (blend.seed << 32) + _order_seed(config)
            rows, self.order = open_live(blend, config, cached, seed, out, decides)
            self.views = (rows,)
        else:
            self.views = _open_views(blend, config, self.names, cached)
            self.order = _order(blend, config, self.names, self.views, cached)
        # The tars of a live view are read by ranges, without parts on the local disk.
        self._reading: ViewReading | None = None
        if not self.is_live:
            local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            self._reading = ViewReading(self.views, config, min(1.0, local_ranks / world))
        self._most_shards = len(self.views) * (cached * 3 // 4)  # ahead; the caches keep them
        self._config, self._size, self._context = config, model.height_width, model.context_length
        share = config.batch_size // world
        self._rows = range(rank * share, (rank + 1) * share)  # of every global batch
        self._min_size = smallest_side(max(model.height_width), config.crop_min)
        self._times = times
        self._decode_image = self._timed("decode", decode_image)
        self._crop_into = self._timed("resize", random_crop_into)
        self._copy_tokens = self._timed("collate", copy_tokens)
        self._read_image = self._timed("read", _read_image)
        self._plan = self._timed("collate", self._planned)
        self._pin = config.device != "cpu" and torch.cuda.is_available()

    def _timed(self, stage: str, call: Callable[P, T]) -> Callable[P, T]:
        return call if self._times is None else self._times.timed(stage, call)

    def __len__(self) -> int:
        return self._config.steps

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, start: int = 0) -> Generator[Batch]:
        """The batches of steps start, start + 1, … of the run.

        Close or drain it to end its threads.
        """
        threads = self._config.threads
        if self.is_live and start < len(self):
            self.order.batch(start, self._rows)  # waits for the first rows of the pool
        if threads == 0 and not any(view.is_remote for view in self.views):
            for step in range(start, len(self)):
                planned = self._plan(step, read_positions(self.order, step, self._rows))
                yield self._finish(planned, self._fill(planned, 0, len(planned.row)))
            return
        steps = range(start, len(self))
        cache = None
        if self._reading is not None:
            self._reading.choose()
            cache = self._reading.cache
        reads = ReadAhead(
            self.order,
            self.views,
            self._rows,
            steps,
            self._most_shards,
            cache,
            LIVE_STEPS if self.is_live else GROUP_STEPS,
            self._times,
        )
        try:
            batches = self._threaded(reads, start) if threads else self._alone(reads, start)
            for planned, damaged in batches:
                reads.finish(planned.step)
                yield self._finish(planned, damaged)
        finally:
            reads.close()  # first: threads may wait for it
            batches.close()

    def _alone(self, reads: ReadAhead, start: int) -> Filled:
        """The batches from `start` on, filled by the caller."""
        for step in range(start, len(self)):
            planned = self._plan(step, reads.take())
            yield planned, self._fill(planned, 0, len(planned.row))

    def _threaded(self, reads: ReadAhead, start: int) -> Filled:
        """The batches from `start` on, filled by threads."""
        # Random numbers and memory of a batch are made in a thread of their own, so that the caller
        # only waits.
        planner = ThreadPoolExecutor(1, thread_name_prefix="plan")
        pool = ThreadPoolExecutor(self._config.threads, thread_name_prefix="decode")
        in_flight: deque[Future[tuple[_PlannedBatch, list[Future[list[DamagedSample]]]]]] = deque()
        try:
            for step in range(start, len(self) + self._ahead()):
                if step < len(self):
                    in_flight.append(planner.submit(self._begin, pool, step, reads))
                if step - start >= self._ahead() and in_flight:
                    planned, pieces = in_flight.popleft().result()
                    damaged: list[DamagedSample] = []
                    for piece in pieces:
                        damaged += piece.result()
                    yield planned, damaged
        finally:
            planner.shutdown(cancel_futures=True)
            pool.shutdown(cancel_futures=True)

    def remedy(self, source: str) -> str:
        """What a person does about damaged samples of a source."""
        pool = self.views[self.names.index(source)].pool
        return f"run clipmill audit verify {pool}"

    def sources(self, steps: int | None = None) -> dict[str, dict[str, Any]]:
        """What the run draws in all or some steps: {POOL/VIEW: {"rows", "drawn", "repeats"}}."""
        repeats = self.order.repeats(len(self) if steps is None else steps)
        return {name: of_source.document() for name, of_source in repeats.items()}

    def _ahead(self) -> int:
        """How many batches are read ahead of the one that is handed out."""
        size = len(self._rows) * math.prod(self._size) * 3
        return max(1, min(PREFETCH, PREFETCH_BYTES // size))

    def _planned(self, step: int, reads: StepReads) -> _PlannedBatch:
        assert reads.step == step
        first, rows = self._rows.start, len(self._rows)
        numbers = crop_numbers(
            self.order.seed, step, first + np.arange(rows), self._config.crop_min
        )
        return _PlannedBatch(
            step=step,
            first=first,
            source=reads.source.tolist(),
            shard=reads.shard.tolist(),
            row=reads.row.tolist(),
            reads=reads,
            column=self.order.captions(step, self._rows),
            numbers=numbers.tolist(),
            image=_empty_images((rows, *self._size, 3), self._pin),
            tokens=torch.zeros((rows, self._context), dtype=torch.int64, pin_memory=self._pin),
            length=torch.zeros(rows, dtype=torch.int64, pin_memory=self._pin),
            keys=[""] * rows,
        )

    def _begin(
        self, pool: ThreadPoolExecutor, step: int, reads: ReadAhead
    ) -> tuple[_PlannedBatch, list[Future[list[DamagedSample]]]]:
        """Plan a batch and let the threads of `pool` fill it."""
        planned = self._plan(step, reads.take())
        rows = len(planned.row)
        piece = -(-rows // (SPLIT * self._config.threads))
        starts = range(0, rows, piece)
        futures = [pool.submit(self._fill, planned, k, min(k + piece, rows)) for k in starts]
        return planned, futures

    def _fill(self, planned: _PlannedBatch, start: int, stop: int) -> list[DamagedSample]:
        """Read, decode and crop rows start … stop − 1 of a batch into its arrays."""
        damaged: list[DamagedSample] = []
        images, length_B = planned.image.numpy(), planned.length.numpy()
        tokens_BT = planned.tokens.numpy()
        for r in range(start, stop):
            pixels, tokens, key = self._usable_row(planned, r, damaged)
            self._crop_into(images[r], pixels, planned.numbers[r])
            length_B[r] = self._copy_tokens(tokens, tokens_BT[r])
            planned.keys[r] = key
        return damaged

    def _usable_row(
        self, planned: _PlannedBatch, r: int, damaged: list[DamagedSample]
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint16], str]:
        """Pixels, tokens and key of row `r`, or of its first substitute that can be used."""
        source, shard, row = planned.source[r], planned.shard[r], planned.row[r]
        view = self.views[source]
        for attempt in range(SUBSTITUTES):
            rows = planned.reads.columns.get((source, shard)) or view.shard(shard)
            try:
                tokens = rows.tokens_of(row, planned.column[r])
                if not len(tokens):
                    column = planned.column[r]
                    raise ValueError(f"it has no tokens{f' of {column}' if column else ''}")
                data = self._read_image(
                    planned.reads if attempt == 0 else None, r, view, shard, row
                )
                rows.whole_image(row, data)
                pixels = self._decode_image(data, self._min_size, PIXELS)
            except ValueError as error:
                sample = DamagedSample(
                    step=planned.step,
                    position=planned.first + r,
                    source=self.names[source],
                    shard=rows.name,
                    key=str(rows.keys[row]),
                    reason=str(error),
                )
                damaged.append(sample)
                position = planned.first + r
                shard, row = self.order.substitute(source, planned.step, position, attempt)
            except OSError as error:
                raise ValueError(
                    f"{rows.tar} cannot be read at step {planned.step}: {error}"
                ) from error
            else:
                return pixels, tokens, f"{self.names[source]}:{rows.keys[row]}"
        raise ValueError(
            f"{SUBSTITUTES} rows of {self.names[source]} in a row cannot be used; "
            f"the last: {damaged[-1]}"
        )

    def _finish(self, planned: _PlannedBatch, damaged: list[DamagedSample]) -> Batch:
        return Batch(
            step=planned.step,
            image_BHWC=planned.image,
            tokens_BT=planned.tokens,
            length_B=planned.length,
            keys=tuple(planned.keys),
            substituted=len({sample.position for sample in damaged}),
            damaged=len(damaged),
            damaged_samples=tuple(damaged),
        )


def _open_views(
    blend: Blend, config: TrainConfig, names: Sequence[str], cached: int
) -> tuple[ViewRows, ...]:
    views = []
    for name in names:
        pool, _, view = name.partition("/")
        texts = tuple(blend.captions.get(name, ()))
        rows = open_view(blend.pools[pool], view, config.tokenizer, cached, texts)
        rows.use_copy(config.read_mode in ("auto", "materialised"))
        views.append(rows)
    return tuple(views)


def _order(
    blend: Blend, config: TrainConfig, names: Sequence[str], views: Sequence[ViewRows], cached: int
) -> Order:
    """The order of a run. ValueError for a blend that cannot be drawn so many samples from."""
    shard_rows = {name: view.shard_rows for name, view in zip(names, views, strict=True)}
    sources = blend_sources(blend, shard_rows)
    distinct = None if blend.distinct is None else ViewNumbers(views, blend.distinct, cached)
    balance = ViewChances(views, names, blend.balance, cached) if blend.balance else None
    order = Order(
        sources,
        config.batch_size,
        config.lanes,
        config.window,
        seed=(blend.seed << 32) + _order_seed(config),
        distinct=distinct,
        balance=balance,
        captions=blend.captions,
    )
    order.check_repeats(config.steps, blend.max_repeats)
    return order


def _read_image(reads: StepReads | None, r: int, view: ViewRows, shard: int, row: int) -> bytes:
    """The bytes of an image: those that were asked for row `r` of the batch, else read now."""
    data = None if reads is None else reads.image(r)
    return view.read_image(shard, row) if data is None else data


def _empty_images(shape: tuple[int, ...], pin: bool) -> Tensor:
    """uint8, not initialised. NumPy asks for huge pages, torch does not: a fifth of a sample's time
    would go into small ones.
    """
    if pin:
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
    return torch.from_numpy(np.empty(shape, np.uint8))


def _order_seed(config: TrainConfig) -> int:
    """The seed of a run's order and crops."""
    return config.seed if config.order_seed is None else config.order_seed


def copy_tokens(tokens: NDArray[np.uint16], into_T: NDArray[np.int64]) -> int:
    """Write a caption's tokens into a row of zeros and return how many it holds.

    Where not all fit, the last token (end of text) takes the last place. A caption ends at its
    first end-of-text token, the highest number: a caption that has it as text, `<end_of_text>`, is
    pooled there (open_clip's argmax), and what follows is not seen.
    """
    length = min(len(tokens), len(into_T))
    into_T[:length] = tokens[:length]
    into_T[length - 1] = tokens[-1]
    length = int(into_T[:length].argmax()) + 1
    into_T[length:] = 0
    return length
