"""Threads that read the tars of a source and hand out its samples in a shuffled order.

Each reader has tars of its own (`tar_split.py`) and a buffer from which it draws at random. The
caller takes from the readers in turns, so no reader's tars come more often than another's.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from manifests.schema import TarStream
from train.data import ReadFailed, StageTimes
from train.rng import derive_key
from train.streams.byte_streams import BrokenSource, Source, open_source
from train.streams.counts import StreamCounts
from train.streams.tar_samples import TarSample, read_samples
from train.streams.tar_split import tars_of_reader

DRAW = 10  # what a random number is for, see train/mixing/order.py
# A reader draws from a buffer of at most so many samples, and begins with a part of it.
BUFFER_SAMPLES, BUFFER_BYTES, FIRST_SAMPLES = 1000, 2**26, 64
WAITING = 64  # samples of a reader that wait for the caller
LOOK_S = 0.2  # between two looks whether the run has ended
SILENT_S = 300.0  # without a sample, until a source counts as dead
END_S = 5.0  # that the end of a run waits for a reader
logger = logging.getLogger(__name__)


class Ended(Exception):
    """The run ended while a reader worked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of a source that a reader has: `reader` of `readers`, those of all ranks."""

    name: str
    stream: TarStream
    tars: Sequence[str]
    reader: int
    readers: int
    seed: int


class TarReader:
    """One reader. `take()` gives its next sample; `close()` ends its thread."""

    def __init__(self, share: Share, counts: StreamCounts, times: StageTimes) -> None:
        self._share, self._counts, self._times = share, counts, times
        self._samples: queue.Queue[TarSample | BaseException] = queue.Queue(WAITING)
        self._is_closed = threading.Event()
        self._source: Source | None = None
        self._tar = ""
        self._thread = threading.Thread(target=self._run, name="read-tars", daemon=True)
        self._thread.start()

    def take(self) -> TarSample:
        """The next sample. ReadFailed and ValueError as `samples_of` raises them, and ReadFailed
        for a source that gives nothing for SILENT_S."""
        since = time.monotonic()
        while True:
            try:
                sample = self._samples.get(timeout=LOOK_S)
            except queue.Empty:
                if self._is_closed.is_set():
                    raise Ended from None
                if time.monotonic() - since > SILENT_S:
                    raise ReadFailed(
                        f"{self._tar} of stream {self._share.name!r} gave no sample for "
                        f"{SILENT_S:g} s"
                    ) from None
                continue
            if isinstance(sample, BaseException):
                self._samples.put(sample)  # for the next call
                raise sample
            return sample

    def close(self) -> None:
        """End the thread and the command that it reads from."""
        self._is_closed.set()
        source = self._source
        if source is not None:
            source.stop()
        self._thread.join(END_S)

    def _run(self) -> None:
        try:
            samples = shuffled(self._read(), self._share)
            following = self._times.timed("fetch", samples.__next__)
            while True:
                self._put(following())
        except Ended:
            return
        except BaseException as error:
            self._put(error)

    def _put(self, sample: TarSample | BaseException) -> None:
        while not self._is_closed.is_set():
            try:
                return self._samples.put(sample, timeout=LOOK_S)
            except queue.Full:
                continue
        raise Ended

    def _read(self) -> Iterator[tuple[int, TarSample]]:
        """(pass, usable sample) of the reader's tars, without an end."""
        without: set[str] = set()  # tars that were read since the last sample
        share = self._share
        for number, tar in tars_of_reader(share.tars, share.reader, share.readers, share.seed):
            self._tar = tar
            broken, usable = None, False
            try:
                with open_source(tar) as source:
                    self._source = source
                    for sample in read_samples(tar, source, share.stream):
                        if self._is_closed.is_set():
                            raise Ended
                        if isinstance(sample, str):
                            self._counts.skip(sample)
                        else:
                            usable = True
                            yield number, sample
            except (BrokenSource, ReadFailed) as error:
                if self._is_closed.is_set():
                    raise Ended from None
                broken = str(error)
            finally:
                self._source = None
            self._counts.end_tar(tar, broken)
            if broken is not None:
                self._refuse_or_count(tar, broken)
            without = set() if usable else {*without, tar}
            if len(without) == len(share.tars):
                raise _nothing_usable(share.name, self._counts)

    def _refuse_or_count(self, tar: str, reason: str) -> None:
        name = self._share.name
        if self._share.stream.broken == "stop":
            raise ReadFailed(
                f"{tar} of stream {name!r} is broken: {reason}; mend it, or set broken: count to "
                "go on with the next tar"
            )
        logger.warning("%s of stream %r is broken and is left: %s", tar, name, reason)


def _nothing_usable(name: str, counts: StreamCounts) -> Exception:
    """The error for a source of which every tar was read without one usable sample."""
    reasons = [f"{count} with {reason}" for reason, count in sorted(counts.skipped.items())]
    reasons += [f"{counts.broken} broken tars"] if counts.broken else []
    message = f"stream {name!r} has no usable sample ({', '.join(reasons) or 'its tars are empty'})"
    if counts.broken:
        return ReadFailed(message)
    if counts.skipped.get("no caption"):
        message += "; name the captions' member as `caption`, like json:caption"
    return ValueError(message)


def shuffled(samples: Iterator[tuple[int, TarSample]], share: Share) -> Iterator[TarSample]:
    """(pass, sample) in an order that seed and reader decide: each sample is drawn at random from
    those that were read last. All samples of a pass come before those of the next."""
    buffer: list[TarSample] = []
    size = count = current = 0

    def draw() -> TarSample:
        nonlocal size, count
        chosen = derive_key(share.seed, DRAW, share.reader, count) % len(buffer)
        buffer[chosen], buffer[-1] = buffer[-1], buffer[chosen]
        sample = buffer.pop()
        size -= len(sample.image)
        count += 1
        return sample

    for number, sample in samples:
        while buffer and number != current:
            yield draw()
        current = number
        buffer.append(sample)
        size += len(sample.image)
        # It begins small, so that the first batch comes soon, and grows by one with each draw.
        while len(buffer) > min(BUFFER_SAMPLES, FIRST_SAMPLES + count) or size > BUFFER_BYTES:
            yield draw()
