"""Batches of a blend that streams tars: the samples come as their tars are read.

Nothing is known of a tar before it is read, so the order is not a function of the step: such a run
cannot be resumed. The shares of the sources are exact, as for views. A sample that cannot be
decoded is replaced by the next one of its source, and counted.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from manifests import disk
from manifests.clip_tokenizer import TOKENIZER, CaptionTokenizer
from manifests.disk import content_hash
from manifests.schema import Blend, TarStream
from train.config import TrainConfig, check_world, refuse_reading
from train.data.damage import DamagedSample, StageTimes
from train.data.loader import Batch, copy_tokens
from train.data.tar_streams import (
    COMMAND,
    WEB,
    Share,
    StreamCounts,
    StreamDraws,
    TarReader,
    TarSample,
    readers_of_rank,
)
from train.mixture.schedule import SourceRows, wheel_sequence, wheel_slots
from train.model.architecture import ModelConfig
from train.rng import Ints
from train.transforms import (
    ThreadBuffer,
    crop_numbers,
    decode_image,
    random_crop_into,
    smallest_side,
)

AHEAD = 3  # batches that are decoded ahead
PIXELS = ThreadBuffer()
SUBSTITUTES = 16  # samples that are tried in the place of one that cannot be decoded


class StreamOrder:
    """What the rest of a run asks about the order: shares, identity, hash. There are no rows."""

    def __init__(
        self,
        streams: Mapping[str, TarStream],
        tars: Mapping[str, Sequence[str]],
        batch_size: int,
        seed: int,
        counts: Mapping[str, StreamCounts],
    ) -> None:
        self.seed, self.batch_size = seed, batch_size
        self._names, self._streams, self._tars = sorted(streams), streams, tars
        self._counts = counts
        sources = []
        for name in self._names:
            sources.append(SourceRows(name=name, weight=streams[name].weight, shard_rows=[]))
        self._wheel = wheel_sequence(wheel_slots(sources))

    def sources(self, step: int, rows: range) -> Ints:
        """(rows,) the source of some rows of a batch, by its place among the names."""
        positions = step * self.batch_size + np.arange(rows.start, rows.stop)
        of_rows: Ints = self._wheel[positions % len(self._wheel)]
        return of_rows

    def repeats(self, steps: int) -> dict[str, StreamDraws]:
        """Per source, what `steps` steps draw, and what this rank has read so far."""
        samples = steps * self.batch_size
        turns, rest = divmod(samples, len(self._wheel))
        drawn = np.bincount(self._wheel, minlength=len(self._names)) * turns
        drawn += np.bincount(self._wheel[:rest], minlength=len(self._names))
        draws = {}
        for name, count in zip(self._names, drawn.tolist(), strict=True):
            draws[name] = StreamDraws(
                drawn=count,
                share=count / samples if samples else 0.0,
                tars=len(self._tars[name]),
                read=self._counts[name].to_plain(),
            )
        return draws

    def identity(self) -> dict[str, Any]:
        """What is known to decide the samples; the tars may hold others the next time."""
        streams = {}
        for name in self._names:
            streams[name] = {**disk.to_plain(self._streams[name]), "tars": list(self._tars[name])}
        return {"streams": streams, "batch_size": self.batch_size, "seed": self.seed}

    def fingerprint(self) -> str:
        """Hash of the identity."""
        return content_hash(self.identity())


class StreamLoader:
    """An iterable of Batch; `len` is the run's number of steps. One rank's share of every batch.

    ValueError for tars that are not there, for fewer tars than ranks, and, while it runs, for a
    source without a usable sample. ReadFailed for a tar that is broken, unless its stream says
    `broken: count`.
    """

    is_live = False
    is_resumable = False
    views = ()

    def __init__(
        self,
        blend: Blend,
        config: TrainConfig,
        model: ModelConfig,
        rank: int = 0,
        world: int = 1,
        *,
        times: StageTimes | None = None,
    ) -> None:
        check_world(config, world)
        refuse_reading(config, "a run on streams")
        assert 0 <= rank < world
        if config.tokenizer != TOKENIZER:
            raise ValueError(
                f"streams are tokenised with {TOKENIZER}, and the run's tokenizer is "
                f"{config.tokenizer}; leave tokenizer out, or adopt the tars into a pool"
            )
        self.names = tuple(sorted(blend.streams))
        self._streams, self._config = blend.streams, config
        self._tars = {name: expand(name, blend.streams[name].tars) for name in self.names}
        for name, tars in self._tars.items():
            check_tars(name, tars, world)
        self._rank, self._world = rank, world
        self._size, self._context = model.height_width, model.context_length
        self._counts = {name: StreamCounts() for name in self.names}
        order_seed = config.seed if config.order_seed is None else config.order_seed
        seed = (blend.seed << 32) + order_seed
        self.order = StreamOrder(blend.streams, self._tars, config.batch_size, seed, self._counts)
        share = config.batch_size // world
        self._rows = range(rank * share, (rank + 1) * share)
        self._min_size = smallest_side(max(model.height_width), config.crop_min)
        self._times = times or StageTimes()
        self._pin = config.device != "cpu" and torch.cuda.is_available()

    def __len__(self) -> int:
        return self._config.steps

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def remedy(self, source: str) -> str:
        """What a person does about damaged samples of a source."""
        return f"look at the tars of stream {source!r}"

    def sources(self, steps: int | None = None) -> dict[str, dict[str, Any]]:
        """What the run drew from each source, and what this rank has read."""
        draws = self.order.repeats(len(self) if steps is None else steps)
        return {name: of_source.document() for name, of_source in draws.items()}

    def batches(self, start: int = 0) -> Generator[Batch]:
        """The batches of the run. Close or drain it to end its threads and commands.

        start: 0, since a run that streams cannot be resumed.
        """
        assert start == 0
        readers = {name: _Turns(self._readers(name)) for name in self.names}
        coder = CaptionTokenizer()
        threads = ThreadPoolExecutor(max(1, self._config.threads), thread_name_prefix="decode")
        planner = ThreadPoolExecutor(1, thread_name_prefix="plan")
        pending: list[Future[_Plan]] = []

        def plan(step: int) -> _Plan:
            samples = []
            for source in self.order.sources(step, self._rows).tolist():
                samples.append(readers[self.names[source]].take())
            return self._begin(step, samples, coder, threads)

        try:
            for step in range(len(self) + AHEAD):
                if step < len(self):
                    pending.append(planner.submit(self._times.timed("collate", plan), step))
                if step >= AHEAD:
                    yield self._finish(pending.pop(0).result(), readers, coder)
        finally:
            for of_source in readers.values():
                of_source.close()
            planner.shutdown(cancel_futures=True)
            threads.shutdown(cancel_futures=True)

    def _readers(self, name: str) -> list[TarReader]:
        tars, stream = self._tars[name], self._streams[name]
        number = readers_of_rank(len(tars), self._world, self._config.threads)
        readers = []
        for k in range(number):
            share = Share(
                name=name,
                stream=stream,
                tars=tars,
                reader=self._rank * number + k,
                readers=self._world * number,
                seed=self.order.seed,
            )
            readers.append(TarReader(share, self._counts[name], self._times))
        return readers

    def _begin(
        self,
        step: int,
        samples: list[TarSample],
        coder: CaptionTokenizer,
        threads: ThreadPoolExecutor,
    ) -> _Plan:
        """Tokens of a batch; its images are on their way."""
        rows = self._rows
        numbers = crop_numbers(
            self.order.seed, step, np.arange(rows.start, rows.stop), self._config.crop_min
        )
        plan = _Plan(step, samples, numbers, (len(rows), *self._size, 3), self._context, self._pin)
        for r, sample in enumerate(samples):
            plan.set_tokens(r, coder.encode(sample.caption))
        pieces = max(1, self._config.threads)
        for rows_of_piece in np.array_split(np.arange(len(samples)), min(pieces, len(samples))):
            plan.pieces.append(threads.submit(self._decode, plan, rows_of_piece.tolist()))
        return plan

    def _decode(self, plan: _Plan, rows: list[int]) -> list[tuple[int, str]]:
        """Decode and crop some rows of a batch; (row, reason) of those that cannot be decoded."""
        failed = []
        images, times = plan.image.numpy(), self._times
        decode, crop = times.timed("decode", decode_image), times.timed("resize", random_crop_into)
        for r in rows:
            try:
                pixels = decode(plan.samples[r].image, self._min_size, PIXELS)
            except ValueError as error:
                failed.append((r, str(error)))
                continue
            crop(images[r], pixels, plan.numbers[r])
        return failed

    def _finish(self, plan: _Plan, readers: Mapping[str, _Turns], coder: CaptionTokenizer) -> Batch:
        """The batch, when all its images are there or replaced."""
        failed: list[tuple[int, str]] = []
        for piece in plan.pieces:
            failed += piece.result()
        damaged: list[DamagedSample] = []
        sources = self.order.sources(plan.step, self._rows)
        for r, reason in failed:
            name = self.names[int(sources[r])]
            for _ in range(SUBSTITUTES):
                damaged.append(self._damaged(plan, r, name, reason))
                plan.samples[r] = readers[name].take()
                plan.set_tokens(r, coder.encode(plan.samples[r].caption))
                again = self._decode(plan, [r])
                if not again:
                    break
                reason = again[0][1]
            else:
                raise ValueError(
                    f"{SUBSTITUTES} samples of stream {name!r} one after the other cannot be "
                    f"decoded; the last: {damaged[-1]}"
                )
        keys = []
        for r, sample in enumerate(plan.samples):
            keys.append(f"{self.names[int(sources[r])]}:{sample.tar}#{sample.key}")
        return Batch(
            step=plan.step,
            image_BHWC=plan.image,
            tokens_BT=plan.tokens,
            length_B=plan.length,
            keys=tuple(keys),
            substituted=len(failed),
            damaged=len(damaged),
            damaged_samples=tuple(damaged),
        )

    def _damaged(self, plan: _Plan, r: int, name: str, reason: str) -> DamagedSample:
        sample = plan.samples[r]
        return DamagedSample(
            step=plan.step,
            position=self._rows.start + r,
            source=name,
            shard=sample.tar,
            key=sample.key,
            reason=reason,
        )


class _Plan:
    """A batch while it is filled."""

    def __init__(
        self,
        step: int,
        samples: list[TarSample],
        numbers: NDArray[np.float64],
        shape: tuple[int, ...],
        context: int,
        pin: bool,
    ) -> None:
        self.step, self.samples, self.numbers = step, samples, numbers.tolist()
        self.image = torch.empty(shape, dtype=torch.uint8, pin_memory=pin)
        self.tokens = torch.zeros((shape[0], context), dtype=torch.int64, pin_memory=pin)
        self.length = torch.zeros(shape[0], dtype=torch.int64, pin_memory=pin)
        self.pieces: list[Future[list[tuple[int, str]]]] = []

    def set_tokens(self, r: int, tokens: list[int]) -> None:
        """Put the tokens of row `r` in place."""
        row = self.tokens.numpy()[r]
        row[:] = 0
        self.length[r] = copy_tokens(np.array(tokens, np.uint16), row)


class _Turns:
    """The readers of a source on this rank, taken from in turns. For several threads."""

    def __init__(self, readers: list[TarReader]) -> None:
        self._readers, self._next = readers, 0
        self._lock = threading.Lock()

    def take(self) -> TarSample:
        with self._lock:
            reader = self._readers[self._next % len(self._readers)]
            self._next += 1
            return reader.take()

    def close(self) -> None:
        for reader in self._readers:
            reader.close()


def expand(name: str, patterns: Sequence[str]) -> list[str]:
    """The tars that patterns like web-{00000..00099}.tar stand for. ValueError for one that is
    named twice, and for - (standard input)."""
    tars: list[str] = []
    for pattern in patterns:
        tars += disk.expand_braces(pattern)
    for tar in tars:
        if tar in ("-", COMMAND):
            raise ValueError(
                f"stream {name!r} names {tar!r}; standard input cannot be opened by each rank and "
                "for each pass: write pipe:COMMAND"
            )
    twice = [tar for tar, count in Counter(tars).items() if count > 1]
    if twice:
        raise ValueError(f"stream {name!r} names {twice[0]} twice; its weight is `weight`")
    return tars


def check_tars(name: str, tars: Sequence[str], world: int) -> None:
    """ValueError for a local tar that is not there, and for fewer tars than ranks."""
    for tar in tars:
        if not tar.startswith((COMMAND, *WEB)) and not disk.is_url(tar) and not disk.exists(tar):
            raise ValueError(f"stream {name!r}: there is no tar at {tar}")
    if len(tars) < world:
        raise ValueError(
            f"stream {name!r} has {len(tars)} tars for {world} ranks, and a tar is read by one "
            f"rank at a time; start at most {len(tars)} ranks, or write it as more tars"
        )
