"""Tars of other programs as streams: bytes, members, samples, split over readers, steps.

Tars that other programs made, read from their beginning to their end while a run trains: for
commands (`pipe:`), web servers without ranges, and tars that nobody has looked at yet. Nothing is
known of a tar before it is read, so such a run cannot be resumed. Tars that can be read at any
offset are better adopted into a pool (`source: {kind: shards}`).

Reads the tars of the blend's `streams`. Writes no file.

Invariants:

* Every pass reads every tar once, whatever the number of ranks and readers; a pass of a reader
  gives each sample once, before those of the next (tests/train/data/test_tar_streams.py).
* A tar that is cut off anywhere is noticed (tests/train/data/test_tar_streams.py).
* The shares of the sources are exact (tests/train/data/test_tar_streams.py).
* A run says in its plan, log and run.json that it cannot be resumed, and is refused
  (tests/train/test_streamed_run.py).

To extend: another source of bytes is a function that returns a `ByteStream`, and its branch in
`open_source`.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import logging
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from clipmill.manifests import console, disk, tls, waits
from clipmill.manifests.arrays import Integers
from clipmill.manifests.clip_tokenizer import CaptionTokenizer
from clipmill.manifests.disk import content_hash
from clipmill.manifests.installation import install_command
from clipmill.manifests.schema import TarStream
from clipmill.manifests.text import printable, valid_text
from clipmill.train.data.damage import Sample, StageTimes
from clipmill.train.mixture.schedule import Schedule, SourceRows
from clipmill.train.rng import derive_key, permutation
from clipmill.train.store import ReadFailed, read_with_retries

if TYPE_CHECKING:
    from clipmill.train.model.open_clip_model import ModelTokenizer

# --------------------------------------------------------------------------------------------------
# The bytes of a tar from its beginning to its end: a file, a store, a web server or a command.
#
# Nothing is asked to seek. A source that ends too early is noticed: by the status of its command,
# by the length that the server announced, by the checksum of gzip, or by the end mark that every
# tar has.


COMMAND = "pipe:"
WEB = ("http://", "https://")
BLOCK = 2**20
END = 512  # zero bytes: a tar ends with two such blocks at least
GZIP = b"\x1f\x8b"
WEB_TIMEOUT_S = 60.0  # without a byte
MESSAGE_BYTES = 2000  # of what a command wrote to stderr


class BrokenSource(Exception):
    """A tar that ended too early or cannot be opened; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteStream:
    """Bytes in their order.

    read: at most so many, none at the end. check_end: BrokenSource where the end that was read is
    not that of the source. stop: let a `read` that waits end soon, from any thread.
    """

    read: Callable[[int], bytes]
    check_end: Callable[[], None] = lambda: None
    stop: Callable[[], None] = lambda: None


@contextlib.contextmanager
def open_source(name: str) -> Iterator[ByteStream]:
    """The source of a path, a URL or pipe:COMMAND. BrokenSource where it cannot be opened, and
    ReadFailed where a server does not answer."""
    with contextlib.ExitStack() as stack:
        try:
            if name.startswith(COMMAND):
                source = _command(name.removeprefix(COMMAND), stack)
            elif name.startswith(WEB):
                source = _web(name, stack)
            else:
                opened = stack.enter_context(disk.open_file(name))
                file = opened if disk.is_url(name) else stack.enter_context(opened.open("rb"))
                source = ByteStream(read=file.read)
        except OSError as error:
            raise BrokenSource(error.strerror or str(error)) from error
        yield source


def _web(url: str, stack: contextlib.ExitStack) -> ByteStream:
    """What a web server sends; it need not know ranges."""

    def attempt() -> Any:
        try:
            return urllib.request.urlopen(url, timeout=WEB_TIMEOUT_S, context=tls.context())
        except urllib.error.HTTPError as error:
            error.close()
            if error.code >= 500 or error.code == 429:
                raise ConnectionError(f"status {error.code}") from error
            raise BrokenSource(f"the server answers {error.code} {error.reason}") from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, OSError):
                raise error.reason from error
            raise

    response = stack.enter_context(
        read_with_retries(attempt, "it", "check the connection to the server")
    )

    def check_end() -> None:
        if response.length:
            raise BrokenSource(f"the server ended {response.length:,} bytes too early")

    return ByteStream(read=response.read, check_end=check_end)


def _command(command: str, stack: contextlib.ExitStack) -> ByteStream:
    """What a shell command writes.

    It has a session of its own: Ctrl-C ends the run after its step, and not the command before.
    """
    messages = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    process = stack.enter_context(
        console.attached(["sh", "-c", command], stdout=subprocess.PIPE, stderr=messages)
    )

    def stop() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def check_end() -> None:
        status = process.wait()
        if status == 0:
            return
        size = messages.seek(0, os.SEEK_END)
        messages.seek(max(0, size - MESSAGE_BYTES))
        lines = messages.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        how = f"with status {status}" if status > 0 else f"by signal {-status}"
        raise BrokenSource(f"the command ended {how}{f': {printable(last)}' if last else ''}")

    assert process.stdout is not None
    stack.enter_context(process.stdout)
    return ByteStream(read=process.stdout.read, check_end=check_end, stop=stop)


class TarBytes:
    """A source as `tarfile` reads it: unpacked where it is compressed by gzip."""

    def __init__(self, source: ByteStream) -> None:
        self._source = source
        plain = io.BufferedReader(_Bytes(source.read))
        is_packed = plain.peek(len(GZIP))[: len(GZIP)] == GZIP
        self._file = gzip.GzipFile(fileobj=plain) if is_packed else plain
        self._tail = b""
        self._size = 0

    def read(self, size: int) -> bytes:
        """At most `size` bytes of the tar. BrokenSource for damage of the compressed data."""
        try:
            data = self._file.read(size)
        except (EOFError, gzip.BadGzipFile, OSError) as error:
            raise BrokenSource(str(error)) from error
        self._size += len(data)
        self._tail = (self._tail + data)[-END:]
        return data

    def finish(self) -> None:
        """Read what is left. BrokenSource where the source or the tar ended too early, and where
        something follows the tar."""
        follows = False
        while data := self.read(BLOCK):
            follows = follows or bool(data.strip(b"\0"))
        self._source.check_end()
        if follows:
            raise BrokenSource(
                "the tar ends and more data follows: a header is damaged, or another tar is there, "
                "which must be named by itself"
            )
        if self._size % END or self._tail != bytes(END):
            raise BrokenSource("it ends without the end mark of a tar, so it was cut off")


class _Bytes(io.RawIOBase):
    """The bytes of a source as a file."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        data = self._read(len(into))
        into[: len(data)] = data
        return len(data)


# --------------------------------------------------------------------------------------------------
# What a run has read of its streams, and what it says of them in its log and in run.json.


LISTED = 100  # broken tars that are kept by name


class StreamCounts:
    """Counts of one source, filled by its readers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.tars = 0  # read to their end, or to where they are broken
        self.skipped: Counter[str] = Counter()  # samples by reason
        self.broken = 0
        self.reasons: dict[str, str] = {}  # of the first LISTED broken tars

    def skip(self, reason: str) -> None:
        """Count a sample that cannot be used."""
        with self._lock:
            self.skipped[reason] += 1

    def end_tar(self, tar: str, broken: str | None = None) -> None:
        """Count a tar that was read; `broken`: why it ended too early."""
        with self._lock:
            self.tars += 1
            if broken is not None:
                self.broken += 1
                if len(self.reasons) < LISTED:
                    self.reasons[tar] = broken

    def to_plain(self) -> dict[str, object]:
        """As plain values for JSON."""
        with self._lock:
            return {
                "tars_read": self.tars,
                "skipped": dict(sorted(self.skipped.items())),
                "broken": self.broken,
                "broken_tars": dict(self.reasons),
            }


def sum_counts(parts: Iterable[Mapping[str, Any]]) -> dict[str, object]:
    """The sum of the plain values of several ranks."""
    tars = broken = 0
    skipped: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for part in parts:
        tars += part["tars_read"]
        broken += part["broken"]
        skipped.update(part["skipped"])
        reasons |= part["broken_tars"]
    listed = dict(list(reasons.items())[:LISTED])
    return {
        "tars_read": tars,
        "skipped": dict(sorted(skipped.items())),
        "broken": broken,
        "broken_tars": listed,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDraws:
    """What some steps draw from a source, and what was read for them so far."""

    drawn: int
    share: float
    tars: int  # of the source
    read: Mapping[str, Any] = field(default_factory=dict)  # StreamCounts of this rank

    def document(self) -> dict[str, object]:
        """As plain values for run.json. The number of rows is not known."""
        return {"drawn": self.drawn, "share": self.share, "tars": self.tars, **self.read}

    def realised(self) -> dict[str, object]:
        """As a line of the log has it."""
        return {
            "samples": self.drawn,
            "share": self.share,
            "skipped": sum(self.read.get("skipped", {}).values()),
            "broken": self.read.get("broken", 0),
        }

    def cells(self, is_estimate: bool) -> dict[str, str]:
        """Its columns in the table of the plan."""
        return {"tars": f"{self.tars:,}"}


# --------------------------------------------------------------------------------------------------
# The samples of a tar that is read from its beginning to its end, by way of `webdataset`.


IMAGES = ("jpg", "jpeg", "png", "webp")
JSON = "json:"  # before a key of the json member


@dataclass(frozen=True, slots=True, kw_only=True)
class TarSample:
    """An image and its caption."""

    tar: str
    key: str
    image: bytes
    caption: str


def read_samples(tar: str, source: ByteStream, stream: TarStream) -> Iterator[TarSample | str]:
    """The samples of a tar in their order; in place of one that cannot be used, the reason.

    BrokenSource where the tar is damaged or ends too early; what came before it was whole.
    ValueError where `webdataset` is not installed.
    """
    tar_file_expander, group_by_keys = _webdataset()
    try:
        data = TarBytes(source)
        files = tar_file_expander([{"url": tar, "stream": data}])
        for members in group_by_keys(files):
            yield sample_of(tar, members, stream.caption)
    except BrokenSource as error:
        raise BrokenSource(str(error.args[0])) from error
    except Exception as error:  # tarfile and webdataset raise anything on damaged bytes
        reason = str(error.args[0]) if error.args else type(error).__name__
        raise BrokenSource(f"the tar is damaged: {reason.partition(' @ ')[0]}") from error
    data.finish()


def sample_of(tar: str, members: Mapping[str, Any], caption: str) -> TarSample | str:
    """The sample of some members, by what follows the first dot of their names, or the reason why
    it cannot be used.

    caption: the name of a member, or json:KEY.
    """
    image = next((members[name] for name in IMAGES if members.get(name)), None)
    if image is None:
        return "no image"
    text = _caption(members, caption)
    if text is None or not text.strip():
        return "no caption"
    return TarSample(tar=tar, key=str(members["__key__"]), image=image, caption=valid_text(text))


def _caption(members: Mapping[str, Any], caption: str) -> str | None:
    member = members.get("json" if caption.startswith(JSON) else caption)
    if member is None:
        return None
    try:
        text = member.decode()
        if not caption.startswith(JSON):
            return str(text)
        value = json.loads(text).get(caption.removeprefix(JSON))
    except (ValueError, AttributeError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _webdataset() -> Any:
    try:
        from webdataset.tariterators import group_by_keys, tar_file_expander
    except ImportError as error:
        raise ValueError(
            f"tars are streamed by webdataset, which cannot be imported ({error}); "
            f"run {install_command('stream')}, or adopt the tars into a pool"
        ) from error
    return tar_file_expander, group_by_keys


# --------------------------------------------------------------------------------------------------
# Which tars a reader reads, and in which order. Pure functions of integers.
#
# The tars of a source are permuted anew for each pass over them, and the passes follow one
# another in one list without an end. Reader k of n reads the entries k, k + n, k + 2n, … of it.
# So every tar is read equally often whatever the number of readers, and two readers never have
# the same tar at the same place of the list.


PASS = 9  # what a random number is for, see train/mixture/order.py
MOST_READERS = 4  # of a source on a rank: so many tars are open at a time


def readers_of_rank(tars: int, world: int, threads: int) -> int:
    """How many readers a rank has for a source of so many tars: 1 to MOST_READERS."""
    return max(1, min(MOST_READERS, threads, tars // world))


def tars_of_reader(
    tars: Sequence[str], reader: int, readers: int, seed: int
) -> Iterator[tuple[int, str]]:
    """(pass, tar) for a reader of `readers`, those of all ranks together; without an end."""
    assert 0 <= reader < readers <= len(tars)
    known, order = -1, permutation(0, 0)
    entry = reader
    while True:
        number, position = divmod(entry, len(tars))
        if number != known:
            known, order = number, permutation(derive_key(seed, PASS, number), len(tars))
        yield number, tars[int(order[position])]
        entry += readers


# --------------------------------------------------------------------------------------------------
# Threads that read the tars of a source and hand out its samples in a shuffled order.
#
# Each reader has tars of its own and a buffer from which it draws at random. The caller takes from
# the readers in turns, so no reader's tars come more often than another's.


DRAW = 10  # what a random number is for, see train/mixture/order.py
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
        self._source: ByteStream | None = None
        self._tar = ""
        self._thread = threading.Thread(target=self._run, name="read-tars", daemon=True)
        self._thread.start()

    def take(self) -> TarSample:
        """The next sample. ReadFailed and ValueError as `samples_of` raises them, and ReadFailed
        for a source that gives nothing for SILENT_S."""
        with waits.doing(f"a sample of {self._tar} of stream {self._share.name!r}"):
            return self._take()

    def _take(self) -> TarSample:
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
                    if self._is_closed.is_set():  # it was while the source was opened
                        raise Ended
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


# --------------------------------------------------------------------------------------------------
# The steps of a run: which source each position has, and the samples that come next.


SPARE = 64  # samples of a source that may replace later ones that cannot be used


class StreamOrder:
    """What the rest of a run asks about the order: shares, identity, hash. There are no rows."""

    def __init__(
        self,
        streams: Mapping[str, TarStream],
        tars: Mapping[str, Sequence[str]],
        batch_size: int,
        seed: int,
    ) -> None:
        self.names, self.streams, self.tars = sorted(streams), streams, tars
        self.batch_size, self.seed = batch_size, seed
        self.counts = {name: StreamCounts() for name in self.names}
        sources = []
        for name in self.names:
            sources.append(SourceRows(name=name, weight=streams[name].weight, shard_rows=[]))
        self._schedule = Schedule(sources)

    def sources(self, step: int, positions: range) -> list[str]:
        """(rows,) the source of some positions of a batch."""
        of_run: Integers = step * self.batch_size + np.arange(positions.start, positions.stop)
        return [self.names[source] for source in self._schedule.draws(of_run)[0].tolist()]

    def repeats(self, steps: int) -> dict[str, StreamDraws]:
        """Per source, what `steps` steps draw, and what this rank has read so far."""
        samples = steps * self.batch_size
        draws = {}
        for name, count in zip(self.names, self._schedule.drawn(samples).tolist(), strict=True):
            draws[name] = StreamDraws(
                drawn=count,
                share=count / samples if samples else 0.0,
                tars=len(self.tars[name]),
                read=self.counts[name].to_plain(),
            )
        return draws

    def identity(self) -> dict[str, object]:
        """What is known to decide the samples; the tars may hold others the next time."""
        streams = {}
        for name in self.names:
            streams[name] = {**disk.to_plain(self.streams[name]), "tars": list(self.tars[name])}
        return {"streams": streams, "batch_size": self.batch_size, "seed": self.seed}

    def fingerprint(self) -> str:
        """Hash of the identity."""
        return content_hash(self.identity())


@dataclass(frozen=True, slots=True, kw_only=True)
class TarStep:
    """The samples of a step, and those before them of each source."""

    step: int
    samples: Sequence[Sample]
    spare: Mapping[str, Sequence[Sample]]

    def sample(self, r: int, attempt: int) -> Sample:
        """Row `r`, or in its place one of the samples that its source gave before."""
        sample = self.samples[r]
        if not attempt:
            return sample
        spare = self.spare[sample.source]
        return spare[(r + attempt) % len(spare)]


class TarSteps:
    """The steps of a run, one after another: what the readers of this rank give in turns."""

    def __init__(
        self,
        order: StreamOrder,
        positions: range,
        steps: range,
        rank: int,
        world: int,
        threads: int,
        times: StageTimes,
        own: ModelTokenizer | None = None,
    ) -> None:
        """positions: of this rank in every batch. threads: of this rank that decode. own: the
        model's tokenizer, where that is not CLIP's.
        """
        self._order, self._positions, self._steps = order, positions, iter(steps)
        self._coder = own or CaptionTokenizer()
        self._readers: list[TarReader] = []
        self._turns: dict[str, Iterator[TarReader]] = {}
        self._before: dict[str, list[Sample]] = {}
        for name in order.names:
            tars, stream = order.tars[name], order.streams[name]
            number = readers_of_rank(len(tars), world, threads)
            readers = []
            for k in range(number):
                share = Share(
                    name=name,
                    stream=stream,
                    tars=tars,
                    reader=rank * number + k,
                    readers=world * number,
                    seed=order.seed,
                )
                readers.append(TarReader(share, order.counts[name], times))
            self._readers += readers
            self._turns[name] = itertools.cycle(readers)

    def take(self) -> TarStep:
        """The next step."""
        step = next(self._steps)
        samples: list[Sample] = []
        of_source: dict[str, list[Sample]] = {}
        for name in self._order.sources(step, self._positions):
            sample = next(self._turns[name]).take()
            samples.append(self._tokenised(name, sample))
            of_source.setdefault(name, []).append(samples[-1])
        # A batch should not have a sample twice; only the first one has none before it.
        spare = {**of_source, **self._before}
        for name, own in of_source.items():
            self._before[name] = (self._before.get(name, []) + own)[-SPARE:]
        return TarStep(step=step, samples=samples, spare=spare)

    def _tokenised(self, source: str, sample: TarSample) -> Sample:
        return Sample(
            source=source,
            shard=sample.tar,
            tar=sample.tar,
            key=sample.key,
            name=f"{source}:{sample.tar}#{sample.key}",
            tokens=np.array(self._coder.encode(sample.caption), np.uint32),
            read=lambda: sample.image,
        )

    def finish(self, step: int) -> None:
        """Nothing is held for a step alone."""

    def close(self) -> None:
        """End the threads, and the commands that they read from."""
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
