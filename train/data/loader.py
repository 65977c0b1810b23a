"""The batches of a run: a source of samples says what each step has, threads make pixels of it.

`RunLoader` is the trainer's, and takes its settings. `clipmill.Loader`, for loops of one's own, is
`own_loop.py`, which draws from a RunLoader.

Which samples a step has is said by a route (`routes.py`). The number of batches comes from the
settings, so ranks cannot disagree. There is no collective, no shared memory and no state but the
step. Threads write their rows of a batch in place; with no threads the caller does the same work. A
sample that cannot be used is replaced by another one of its source, and counted.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from clipmill.manifests.arrays import Pixels
from clipmill.manifests.schema import Blend
from clipmill.train.config import TrainConfig, check_world
from clipmill.train.data.damage import DamagedSample, Sample, StageTimes
from clipmill.train.data.routes import ROUTES, RankRequest, Steps, StepSamples
from clipmill.train.data.view_rows import CaptionCoder
from clipmill.train.model.open_clip_model import own_tokenizer
from clipmill.train.transforms import (
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
SPLIT = 4  # pieces of a batch per thread: evens out slow images
TOGETHER = 32  # rows of which each part of the work is done before the next part
PIXELS = ThreadBuffer()  # of the image that a thread decodes
SUBSTITUTES = 16  # samples that are tried in the place of a damaged one


class ModelInputs(Protocol):
    """What a model takes; its configuration says so."""

    @property
    def height_width(self) -> tuple[int, int]:
        """Of an image, in pixels."""

    @property
    def context_length(self) -> int:
        """Tokens of a caption."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunBatch:
    """The rows of one global batch that a rank serves."""

    step: int
    image_BHWC: Tensor  # uint8 RGB, cropped to the model's size, not normalised
    tokens_BT: Tensor  # int64, padded with 0
    length_B: Tensor  # int64: tokens without padding
    keys: tuple[str, ...]  # POOL/VIEW:KEY or STREAM:TAR#KEY of what was read, after substitution
    substituted: int  # rows of these that are substitutes
    damaged: int  # rows that could not be used; more than `substituted` where substitutes failed
    damaged_samples: tuple[DamagedSample, ...]  # these rows
    # Where whole pictures were asked for: decoded, or encoded where memory is short; no image_BHWC
    pictures: tuple[Pixels | bytes, ...] = ()
    columns: pa.Table | None = None  # (B,) those that were asked for
    texts: tuple[str | None, ...] = ()  # with columns: which text column each caption is of


class _ImageMemory:
    """Memory of the images of batches. It is used again once a batch, and every tensor and array
    that shares its memory, is gone: new pages cost a tenth of a sample's time.
    """

    def __init__(self, shape: tuple[int, ...], pin: bool, most: int) -> None:
        """most: of batches whose memory waits to be used again."""
        self._shape, self._pin, self.lock = shape, pin, threading.Lock()
        self._free: deque[Pixels] = deque(maxlen=most)

    def take(self) -> Tensor:
        """uint8, not initialised. The caller has the lock."""
        if self._pin:  # torch keeps pinned memory itself
            return torch.empty(self._shape, dtype=torch.uint8, pin_memory=True)
        # NumPy asks for huge pages, torch does not: a fifth of a sample's time would go into small
        # ones.
        memory = self._free.pop() if self._free else np.empty(self._shape, np.uint8)
        lent = memory.view()  # lives as long as the tensor, and whatever is made of it
        weakref.finalize(lent, self._free.append, memory)
        return torch.from_numpy(lent)

    def clear(self) -> None:
        """Keep none that waits."""
        with self.lock:
            self._free.clear()


@dataclass(slots=True, kw_only=True, eq=False)
class _PlannedBatch:
    """A batch while it is filled: where its rows come from, and the arrays that threads fill."""

    samples: StepSamples
    numbers: list[list[float]]  # of each row's crop
    memory: _ImageMemory
    tokens: Tensor
    length: Tensor
    keys: list[str]
    drawn: dict[int, Sample]  # by row, where columns were asked for
    pictures: list[Pixels | bytes]  # where whole ones were asked for
    room: int  # bytes of decoded pictures that may still be kept; about, as threads share it
    _image: Tensor | None = None

    def image(self) -> Tensor:
        """(rows, height, width, 3). Its memory is taken when the first row is filled: by then an
        earlier batch has given back its own, where whoever takes batches is fast.
        """
        with self.memory.lock:
            if self._image is None:
                self._image = self.memory.take()
            return self._image

    def keep(self, r: int, data: bytes, pixels: Pixels) -> None:
        """Keep the whole picture of row `r`."""
        self.room -= pixels.nbytes
        self.pictures[r] = pixels if self.room >= 0 else data


# Batches whose rows are filled, with the damaged samples among them.
Filled = Generator[tuple[_PlannedBatch, list[DamagedSample]]]


class RunLoader:
    """An iterable of RunBatch; `len` is the run's number of steps. One rank's share of every batch.

    ValueError for sources that cannot be opened, a world size that does not divide the batch, too
    many repeats, and, while it runs, for a tar that is not there or a row that no substitute can
    replace. ReadFailed where a store does not answer or a stream is broken. Damaged samples are in
    each batch; the training loop, which knows the counts of all ranks, ends a run that has too
    many.

    route: how its samples are read, with the other three. is_resumable: whether a batch is a
    function of its step. views: of finished pools.
    """

    def __init__(
        self,
        blend: Blend,
        config: TrainConfig,
        model: ModelInputs,
        rank: int = 0,
        world: int = 1,
        *,
        out: str | None = None,
        decides: bool = True,
        times: StageTimes | None = None,
        coder: CaptionCoder | None = None,
        columns: Sequence[str] = (),
        whole: bool = False,
    ) -> None:
        """out, decides: of a live run, its folder and whether this process decides its segments.
        times: where the time of each stage is added up. Of views alone: coder makes the tokens of
        captions, in the place of the stored ones; columns are read beside the images; with `whole`
        batches have the whole pictures and no image_BHWC.
        """
        check_world(config, world)
        assert 0 <= rank < world
        self._config, self._size, self._context = config, model.height_width, model.context_length
        self._whole, self._columns = whole, tuple(columns)
        # A whole picture is not scaled, and outlives the buffer of its thread.
        self._min_size = 0 if whole else smallest_side(max(model.height_width), config.crop_min)
        self._buffer = None if whole else PIXELS
        self._times = times
        self._decode_image = self._timed("decode", decode_image)
        self._crop_into = self._timed("resize", random_crop_into)
        own = own_tokenizer(model)
        coder = coder or own
        self._pad = 0 if coder is None else coder.pad
        self._copy_tokens = self._timed("collate", copy_tokens if coder is None else copy_whole)
        self._read_image = self._timed("read", _read_image)
        self._plan = self._timed("collate", self._planned)
        self._pin = config.device != "cpu" and torch.cuda.is_available()
        order_seed = config.seed if config.order_seed is None else config.order_seed
        request = RankRequest(
            config=config,
            rank=rank,
            world=world,
            seed=(blend.seed << 32) + order_seed,
            times=times,
            own=own,
            coder=coder,
            columns=self._columns,
            out=out,
            decides=decides,
        )
        self._rows = request.positions
        shape = (0 if whole else len(self._rows), *self._size, 3)
        self._memory = _ImageMemory(shape, self._pin, self._ahead())
        self.route = ROUTES[blend.draws_from](blend, request)
        self.order, self.views = self.route.order, self.route.views
        self.is_resumable = self.route.is_resumable

    def _timed(self, stage: str, call: Callable[P, T]) -> Callable[P, T]:
        return call if self._times is None else self._times.timed(stage, call)

    def __len__(self) -> int:
        return self._config.steps

    def __iter__(self) -> Iterator[RunBatch]:
        return self.batches()

    def batches(self, start: int = 0, stop: int | None = None) -> Generator[RunBatch]:
        """The batches of steps start … stop − 1, by default to the last one; of streams start is 0.

        Close or drain it to end its threads and commands.
        """
        assert start == 0 or self.is_resumable
        numbers = range(start, len(self) if stop is None else stop)
        steps = self.route.steps(numbers)
        try:
            fill = self._threaded if self._config.threads else self._alone
            batches = fill(steps, numbers)
            for planned, damaged in batches:
                steps.finish(planned.samples.step)
                yield self._finish(planned, damaged)
        finally:
            steps.close()  # first: threads may wait for it
            batches.close()
            self._memory.clear()

    def _alone(self, steps: Steps, numbers: range) -> Filled:
        """The batches of the steps `numbers`, filled by the caller."""
        for _ in numbers:
            planned = self._plan(steps.take())
            yield planned, self._fill(planned, range(len(self._rows)))

    def _threaded(self, steps: Steps, numbers: range) -> Filled:
        """The batches of the steps `numbers`, filled by threads."""
        # Random numbers of a batch are made in a thread of their own: the caller only waits.
        planner = ThreadPoolExecutor(1, thread_name_prefix="plan")
        pool = ThreadPoolExecutor(self._config.threads, thread_name_prefix="decode")
        in_flight: deque[Future[tuple[_PlannedBatch, list[Future[list[DamagedSample]]]]]] = deque()
        try:
            for count in range(len(numbers) + self._ahead()):
                if count < len(numbers):
                    in_flight.append(planner.submit(self._begin, pool, steps))
                if count >= self._ahead() and in_flight:
                    planned, pieces = in_flight.popleft().result()
                    damaged: list[DamagedSample] = []
                    for piece in pieces:
                        damaged += piece.result()
                    yield planned, damaged
        finally:
            planner.shutdown(cancel_futures=True)
            pool.shutdown(cancel_futures=True)

    def sources(self, steps: int | None = None) -> dict[str, dict[str, object]]:
        """What the run draws of each source in all or some steps, as plain values; of streams also
        what this rank has read.
        """
        repeats = self.order.repeats(len(self) if steps is None else steps)
        return {name: of_source.document() for name, of_source in repeats.items()}

    def _ahead(self) -> int:
        """How many batches are read ahead of the one that is handed out."""
        if self._whole:
            return 1
        size = len(self._rows) * math.prod(self._size) * 3
        return max(1, min(PREFETCH, PREFETCH_BYTES // size))

    def _planned(self, samples: StepSamples) -> _PlannedBatch:
        rows = len(self._rows)
        positions = np.arange(self._rows.start, self._rows.stop)
        numbers = crop_numbers(self.order.seed, samples.step, positions, self._config.crop_min)
        return _PlannedBatch(
            samples=samples,
            numbers=numbers.tolist(),
            memory=self._memory,
            tokens=torch.full((rows, self._context), self._pad, pin_memory=self._pin),
            length=torch.zeros(rows, dtype=torch.int64, pin_memory=self._pin),
            keys=[""] * rows,
            drawn={},
            pictures=[b""] * (rows if self._whole else 0),
            room=PREFETCH_BYTES // (1 + self._ahead()),
        )

    def _begin(
        self, pool: ThreadPoolExecutor, steps: Steps
    ) -> tuple[_PlannedBatch, list[Future[list[DamagedSample]]]]:
        """Plan the next batch and let the threads of `pool` fill it."""
        planned = self._plan(steps.take())
        rows = range(len(self._rows))
        piece = -(-len(rows) // (SPLIT * self._config.threads))
        starts = range(0, len(rows), piece)
        return planned, [pool.submit(self._fill, planned, rows[k : k + piece]) for k in starts]

    def _fill(self, planned: _PlannedBatch, rows: range) -> list[DamagedSample]:
        """Read, decode and crop some rows of a batch into its arrays; what was damaged."""
        damaged: list[DamagedSample] = []
        for first in range(0, len(rows), TOGETHER):
            self._fill_some(planned, rows[first : first + TOGETHER], damaged)
        return damaged

    def _fill_some(self, planned: _PlannedBatch, rows: range, damaged: list[DamagedSample]) -> None:
        """`_fill` of few rows, one part of the work after another."""
        images = planned.image().numpy()
        samples = [planned.samples.sample(r, 0) for r in rows]
        encoded = [self._read(sample, planned.samples.step) for sample in samples]
        for k, r in enumerate(rows):
            data, pixels = encoded[k], self._decoded(encoded[k])
            for attempt in range(1, SUBSTITUTES + 1):
                if not isinstance(pixels, ValueError):
                    break
                damaged.append(self._damaged(samples[k], planned.samples.step, r, pixels))
                if attempt == SUBSTITUTES:
                    raise ValueError(
                        f"{SUBSTITUTES} rows of {samples[k].source} in a row cannot be used; the "
                        f"last: {damaged[-1]}"
                    )
                samples[k] = planned.samples.sample(r, attempt)
                data = self._read(samples[k], planned.samples.step)
                pixels = self._decoded(data)
            assert not isinstance(pixels, ValueError)
            if self._whole:
                assert isinstance(data, bytes)
                planned.keep(r, data, pixels)
            else:
                self._crop_into(images[r], pixels, planned.numbers[r])
        for r, sample in zip(rows, samples, strict=True):
            planned.keys[r] = sample.name
            if self._columns:
                planned.drawn[r] = sample
        here = slice(rows.start, rows.stop)
        captions = [sample.tokens for sample in samples]
        self._copy_tokens(captions, planned.tokens.numpy()[here], planned.length.numpy()[here])

    def _read(self, sample: Sample, step: int) -> bytes | ValueError:
        """The bytes of the image, or why the sample cannot be used."""
        if not len(sample.tokens):
            of_column = f" of {sample.text}" if sample.text else ""
            return ValueError(f"it has no tokens{of_column}")
        try:
            return self._read_image(sample)
        except ValueError as error:
            return error
        except OSError as error:
            raise ValueError(f"{sample.tar} cannot be read at step {step}: {error}") from error

    def _decoded(self, data: bytes | ValueError) -> Pixels | ValueError:
        """The pixels of an image, or why the sample cannot be used."""
        if isinstance(data, ValueError):
            return data
        try:
            return self._decode_image(data, self._min_size, self._buffer)
        except ValueError as error:
            return error

    def _damaged(self, sample: Sample, step: int, r: int, error: ValueError) -> DamagedSample:
        return DamagedSample(
            step=step,
            position=self._rows.start + r,
            source=sample.source,
            shard=sample.shard,
            key=sample.key,
            reason=str(error),
        )

    def _finish(self, planned: _PlannedBatch, damaged: list[DamagedSample]) -> RunBatch:
        drawn = [planned.drawn[r] for r in range(len(planned.drawn))]
        return RunBatch(
            step=planned.samples.step,
            image_BHWC=planned.image(),
            tokens_BT=planned.tokens,
            length_B=planned.length,
            keys=tuple(planned.keys),
            substituted=len({sample.position for sample in damaged}),
            damaged=len(damaged),
            damaged_samples=tuple(damaged),
            pictures=tuple(planned.pictures),
            columns=_gathered(drawn) if drawn else None,
            texts=tuple(sample.text for sample in drawn),
        )


def _gathered(samples: Sequence[Sample]) -> pa.Table:
    """(samples,) the columns of each. Those of one shard are taken together."""
    of_shard: dict[int, list[int]] = {}
    for r, sample in enumerate(samples):
        of_shard.setdefault(id(sample.columns), []).append(r)
    parts = []
    for rows in of_shard.values():
        of_one = samples[rows[0]].columns
        assert of_one is not None
        parts.append(of_one.take([samples[r].row for r in rows]))
    table = pa.concat_tables(parts, promote_options="permissive")
    place = np.argsort(np.concatenate(list(of_shard.values())))
    return table.take(place).combine_chunks()


def _read_image(sample: Sample) -> bytes:
    return sample.read()


def copy_whole(
    captions: Sequence[NDArray[Any]], into_BT: NDArray[np.int64], length_B: NDArray[np.int64]
) -> None:
    """Write the tokens of a model's own tokenizer into rows of padding, which the model reads too,
    and how many each row holds.
    """
    for tokens, into_T in zip(captions, into_BT, strict=True):
        into_T[: len(tokens)] = tokens
    length_B[:] = into_BT.shape[1]


def copy_tokens(
    captions: Sequence[NDArray[Any]], into_BT: NDArray[np.int64], length_B: NDArray[np.int64]
) -> None:
    """Write the tokens of each caption into a row, with zeros behind them, and how many it holds.

    Where not all fit, the last token (end of text) takes the last place. A caption ends at its
    first end-of-text token, the highest number: a caption that has it as text, `<end_of_text>`, is
    pooled there (open_clip's argmax), and what follows is not seen.
    """
    places_T = np.arange(into_BT.shape[1])
    last_B = np.fromiter(map(len, captions), np.int64, len(captions)) - 1
    place_BT = np.minimum(places_T, last_B[:, None])  # in a caption; behind its end the last one
    place_BT[:, -1] = last_B
    first_B = np.cumsum(last_B + 1) - last_B - 1
    tokens_BT = np.concatenate(captions)[first_B[:, None] + place_BT]
    length_B[:] = tokens_BT.argmax(axis=1) + 1
    into_BT[:] = np.where(places_T < length_B[:, None], tokens_BT, 0)
