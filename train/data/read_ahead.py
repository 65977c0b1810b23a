"""The rows that the steps of a run draw, and what is read ahead of them: columns of their shards,
bytes of remote images.

The order is a pure function, so what the next steps need is known. A thread goes ahead of the
decoding ones: it asks for the columns of the shards of later steps, and for the images of a
group of steps in ranged reads that several images share. A value is a future, so nothing waits
for another value. Images in local tars are not read here: the decoding threads read them.

The bytes that wait for their step are bounded. The first group is one step, and each group may
have twice as many steps as the one before it: a run starts at once, and reads in few requests
later.

Where a folder for parts of remote tars is given, an image comes from its part if that is there.
Nothing waits for a part: another image is read as without the folder, while its part comes in the
background for later steps. So a part is read from its store once on a machine.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from clipmill.manifests import disk
from clipmill.manifests.arrays import Integers
from clipmill.train.data.damage import Sample, StageTimes
from clipmill.train.data.view_rows import RowReader, ShardRows, ViewRows
from clipmill.train.mixture.order import RunOrder
from clipmill.train.store import PartCache, coalesce

ShardKey = tuple[int, int]  # source of the blend, shard of its view

# Reads at a time. At 50 ms a request these are 640 requests/s, and a line of 1 GB/s is full with
# reads of 2 MB. Threads keep their connections, see train/store.py.
READ_THREADS = 32
PART_THREADS = 8  # they share the line with the reads that a step waits for
COLUMN_THREADS = 32  # columns never wait behind images; a first batch may need 256 shards
LOCAL_COLUMN_THREADS = 8  # of local pools: each holds some MB, and little is waited for
COLUMN_STEPS = 8  # steps whose columns are asked for before their images
GROUP_STEPS = 64  # most steps whose images are read together
FETCH = "fetch"  # the stage of the threads that read ahead, see `StageTimes`
READ_BYTES = 2**30  # images of a rank that were read, or are being read, before their step
logger = logging.getLogger(__name__)


class Closed(Exception):
    """The reader of steps was closed while somebody waited for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRows:
    """Which rows a rank draws: those at `positions` of every global batch."""

    order: RunOrder
    names: Sequence[str]  # of the sources
    readers: Sequence[RowReader]
    positions: range

    def step(self, step: int) -> StepReads:
        """The rows of a step."""
        source, shard, row = self.order.batch(step, self.positions)
        return StepReads(
            run=self,
            step=step,
            source=source,
            shard=shard,
            row=row,
            captions=self.order.captions(step, self.positions),
            shards=rows_of_shards(source, shard),
        )


def rows_of_shards(source: Integers, shard: Integers) -> dict[ShardKey, Integers]:
    """{(source, shard): the rows of a batch that it has}."""
    if not len(source):
        return {}
    order = np.lexsort((shard, source))
    source, shard = source[order], shard[order]
    firsts = np.flatnonzero((np.diff(source) != 0) | (np.diff(shard) != 0)) + 1
    keys = zip(source[[0, *firsts]].tolist(), shard[[0, *firsts]].tolist(), strict=True)
    return dict(zip(keys, np.split(order, firsts), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    """Where the bytes of an image will be: element `index` of what a read gives."""

    read: Future[list[bytes]] | Future[_PartImages]
    index: int


@dataclass(slots=True, kw_only=True)
class StepReads:
    """The rows of a step, and the images that were asked for."""

    run: RunRows
    step: int
    source: Integers  # (rows,)
    shard: Integers  # (rows,)
    row: Integers  # (rows,)
    captions: list[str | None]  # (rows,) text columns
    shards: dict[ShardKey, Integers]  # the rows of the batch that each shard has
    columns: dict[ShardKey, ShardRows] = field(default_factory=dict)
    images: dict[int, _Image] = field(default_factory=dict)  # by the row of the batch
    error: BaseException | None = None  # why the step cannot be read

    def sample(self, r: int, attempt: int) -> Sample:
        """Row `r` of the batch, or its substitute number `attempt` from 1 on, which its position
        alone decides."""
        source, shard, row = int(self.source[r]), int(self.shard[r]), int(self.row[r])
        if attempt:
            position = self.run.positions.start + r
            order = self.run.order
            shard, row = order.substitute(source, self.step, position, attempt - 1)
        reader, name, column = self.run.readers[source], self.run.names[source], self.captions[r]
        rows = self.columns.get((source, shard)) or reader.shard(shard)
        key = str(rows.keys[row])

        def read() -> bytes:
            image = None if attempt else self.image(r)
            return reader.read_image(rows, row) if image is None else rows.whole_image(row, image)

        return Sample(
            source=name,
            shard=rows.name,
            tar=rows.tar,
            key=key,
            name=f"{name}:{key}",
            tokens=rows.tokens_of(row, column),
            text=column,
            read=read,
            columns=rows.columns,
            row=row,
        )

    def image(self, r: int) -> bytes | None:
        """The bytes of row `r` of the batch, fewer where the tar ends before them; None where they
        were not asked for. ReadFailed or OSError as the read ended."""
        asked = self.images.get(r)
        return None if asked is None else asked.read.result()[asked.index]


class _RangedRead:
    """One ranged read, and the images that it gives."""

    def __init__(
        self, reader: RowReader, rows: ShardRows, start: int, length: int, kept: Integers
    ) -> None:
        """kept: (images,) the kept rows of the shard whose images it gives."""
        self.future: Future[list[bytes]] = Future()
        self.first_step = 2**62  # that needs it
        self._reader, self._rows = reader, rows
        self._start, self._length, self._kept = start, length, kept

    def run(self) -> None:
        """Read, and keep the bytes of the images alone."""
        try:
            row = int(self._kept[0])
            data = self._reader.read_range(self._rows, self._start, self._length, row)
            begins = self._rows.offset[self._kept] - self._start
            ends = begins + self._rows.length[self._kept]
            spans = zip(begins.tolist(), ends.tolist(), strict=True)
            self.future.set_result([data[begin:end] for begin, end in spans])
        except BaseException as error:
            self.future.set_exception(error)


class _PartImages:
    """Images of one part of a tar from the cache on disk, by their kept rows."""

    def __init__(self, cache: PartCache, reader: RowReader, rows: ShardRows, row: int) -> None:
        """row: one of those that the part has; errors name it."""
        self._cache, self._reader, self._rows, self._row = cache, reader, rows, row
        part = int(rows.parts.ranges.of_row[row])
        self.name = rows.parts.names[part]
        self._start = int(rows.parts.ranges.start[part])
        self._length = int(rows.parts.ranges.length[part])

    def fetch(self) -> _PartImages:
        """Make sure that the part is there and whole, where the disk has room."""

        def read() -> bytes:
            return self._reader.read_range(self._rows, self._start, self._length, self._row)

        self._cache.fetch(self.name, read)
        return self

    def __getitem__(self, row: int) -> bytes:
        """The bytes of the image of a kept row, from the store where the part is gone again."""
        offset, length = int(self._rows.offset[row]), int(self._rows.length[row])
        part = self._cache.open(self.name)
        if part is None:
            return self._reader.read_range(self._rows, offset, length, row)
        return part.read(offset - self._start, length)


def fitting_cache(cache: PartCache, run: RunRows, lanes: int, window: int) -> PartCache | None:
    """A cache that has room for the shards that `lanes` lanes draw from at a time; None and a
    warning where it has not: parts would be removed before they are used, and fetched again and
    again. Reads the columns of a shard of each view.
    """
    need = 0
    for reader in run.readers:
        if isinstance(reader, ViewRows) and reader.is_remote:
            # A lane is inside one window, or passes from one to the next.
            shards = min(2 * lanes * window, int((reader.shard_rows > 0).sum()))
            first = reader.shard(int(np.argmax(reader.shard_rows > 0)))
            need += shards * int(first.parts.ranges.length.sum())
    if need <= cache.limit:
        return cache
    logger.warning(
        "the views need about %.3g GB of read_cache and have %.3g GB: images are read without "
        "it; raise read_cache_gb",
        need / 1e9,
        cache.limit / 1e9,
    )
    return None


@dataclass(slots=True, kw_only=True)
class _Group:
    """Steps whose images are read together."""

    steps: list[StepReads] = field(default_factory=list)
    reads: list[_RangedRead] = field(default_factory=list)
    bytes: int = 0  # of their remote images
    unfinished: int = 0  # steps


class ReadAhead:
    """`take()` gives the StepReads of some steps in a row. `finish(step)` frees the bytes of a
    step, so that later ones are read. `close()` ends the threads.
    """

    def __init__(
        self,
        run: RunRows,
        steps: range,
        most_shards: int,
        open_cache: Callable[[], PartCache | None] | None = None,
        group_steps: int = GROUP_STEPS,
        times: StageTimes | None = None,
    ) -> None:
        """most_shards: whose columns are asked for ahead. open_cache: gives a folder for parts of
        remote tars, when the columns of the first steps are on their way. group_steps: most steps
        that are read together. times: where the time of the reads is added up."""
        self._group_steps, self._times = group_steps, times
        self._open_cache, self._most_shards = open_cache, most_shards
        self._cache: PartCache | None = None
        self._run = run
        self._steps = iter(steps)
        self._changed = threading.Condition()
        self._ready: deque[StepReads] = deque()
        self._group_of: dict[int, _Group] = {}  # by step, until it is finished
        self._bytes = 0
        self._is_closed = False
        self._failure: BaseException | None = None
        self._shards: dict[ShardKey, Future[ShardRows]] = {}  # of the steps in `asked`
        is_remote = any(reader.is_remote for reader in run.readers)
        threads = COLUMN_THREADS if is_remote else LOCAL_COLUMN_THREADS
        self._column_threads = ThreadPoolExecutor(threads, thread_name_prefix="columns")
        self._read_threads = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="read")
        self._part_threads = ThreadPoolExecutor(PART_THREADS, thread_name_prefix="read-parts")
        self._fetching: set[str] = set()  # parts that are on their way into the cache
        self._thread = threading.Thread(target=self._go_ahead, name="read-ahead", daemon=True)
        self._thread.start()

    def take(self) -> StepReads:
        """The next step. Waits for its columns, not for its images."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._failure or self._is_closed)
            if self._is_closed:
                raise Closed
            if not self._ready:
                assert self._failure is not None
                raise self._failure
            reads = self._ready.popleft()
        if reads.error is not None:
            raise reads.error
        return reads

    def finish(self, step: int) -> None:
        """The bytes of a step are not needed any more."""
        with self._changed:
            group = self._group_of.pop(step)
            group.unfinished -= 1
            if not group.unfinished:
                self._bytes -= group.bytes
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads; reads that have begun are waited for."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._column_threads.shutdown(cancel_futures=True)
        self._part_threads.shutdown(cancel_futures=True)
        self._read_threads.shutdown(cancel_futures=True)
        self._thread.join()
        for group in self._group_of.values():
            for ranged in group.reads:
                ranged.future.cancel()  # a decoding thread may wait for it

    # --- in the thread ----------------------------------------------------------------------------

    def _go_ahead(self) -> None:
        try:
            self._read_steps()
        except BaseException as error:
            with self._changed:
                self._failure = error  # a closed reader has no use for it
                self._changed.notify_all()

    def _read_steps(self) -> None:
        asked: deque[StepReads] = deque()  # steps whose columns were asked for
        most = 1  # steps of the next group
        while not self._is_closed:
            while len(asked) < most + COLUMN_STEPS and len(self._shards) <= self._most_shards:
                if (step := next(self._steps, None)) is None:
                    break
                asked.append(self._ask_columns(step))
            if not asked:
                return
            if self._open_cache is not None:
                self._cache, self._open_cache = self._open_cache(), None
            group = self._next_group(asked, most)
            if not self._wait_for_room(group):
                return
            self._ask_images(group)
            needed = {key for reads in asked for key in reads.shards}
            self._shards = {key: self._shards[key] for key in needed}
            with self._changed:
                self._ready.extend(group.steps)
                self._changed.notify_all()
            most = min(2 * most, self._group_steps)

    def _ask_columns(self, step: int) -> StepReads:
        """The positions of a step; the columns of its shards are on their way."""
        reads = self._run.step(step)
        for key in reads.shards:
            if key not in self._shards:
                source, shard = key
                reader, submit = self._run.readers[source], self._column_threads.submit
                for open_file in reader.files_of(shard):
                    submit(open_file)  # an error comes again with the shard
                self._shards[key] = submit(reader.shard, shard)
        return reads

    def _next_group(self, asked: deque[StepReads], most: int) -> _Group:
        """The next steps: at most a third of READ_BYTES, since one group is used, one was read, and
        one is being read."""
        group = _Group()
        while asked and len(group.steps) < most:
            size = self._remote_bytes(asked[0])
            if group.steps and group.bytes + size > READ_BYTES // 3:
                break
            group.steps.append(asked.popleft())
            group.bytes += size
        group.unfinished = len(group.steps)
        return group

    def _remote_bytes(self, reads: StepReads) -> int:
        """Bytes of a step's remote images. Where its columns cannot be read, the step says so."""
        size = 0
        try:
            for key, here in reads.shards.items():
                rows = reads.columns[key] = self._shards[key].result()
                if disk.is_url(rows.tar):
                    size += int(rows.length[reads.row[here]].sum())
        except BaseException as error:
            reads.error = error
        return size

    def _wait_for_room(self, group: _Group) -> bool:
        """Wait until the bytes of a group may be read; False where the reader was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has_room(group))
            for reads in group.steps:
                self._group_of[reads.step] = group
            self._bytes += group.bytes
            return not self._is_closed

    def _has_room(self, group: _Group) -> bool:
        if len(self._group_of) > self._group_steps:
            return False
        return not self._bytes or self._bytes + group.bytes <= READ_BYTES

    def _ask_images(self, group: _Group) -> None:
        """Reads of the remote images of a group, those of its first steps first."""
        rows_of: dict[ShardKey, list[tuple[StepReads, int]]] = {}
        for reads in group.steps:
            if reads.error is None:
                for key, here in reads.shards.items():
                    if disk.is_url(reads.columns[key].tar):
                        rows_of.setdefault(key, []).extend((reads, r) for r in here.tolist())
        for key, draws in rows_of.items():
            group.reads += self._ranged_reads(key, draws)
        group.reads.sort(key=lambda ranged: ranged.first_step)
        for ranged in group.reads:
            run = ranged.run if self._times is None else self._times.timed(FETCH, ranged.run)
            self._read_threads.submit(run)

    def _ranged_reads(
        self, key: ShardKey, draws: Sequence[tuple[StepReads, int]]
    ) -> list[_RangedRead]:
        """The reads of rows of one shard; `draws`: the steps and rows that they serve."""
        reader, rows = self._run.readers[key[0]], draws[0][0].columns[key]
        if self._cache is not None:
            draws = self._from_cache(self._cache, reader, rows, draws)
        drawn = np.array([reads.row[r] for reads, r in draws], np.int64)
        kept, position = np.unique(drawn, return_inverse=True)
        ranges = coalesce(rows.offset[kept], rows.length[kept])
        by_range = np.argsort(ranges.of_row, kind="stable")
        firsts = np.searchsorted(ranges.of_row[by_range], np.arange(len(ranges.start)))
        index = np.empty_like(by_range)  # of a kept row among those of its range
        index[by_range] = np.arange(len(by_range)) - firsts[ranges.of_row[by_range]]
        ranged: list[_RangedRead] = []
        for k, members in enumerate(np.split(by_range, firsts[1:]) if len(firsts) else []):
            start, length = int(ranges.start[k]), int(ranges.length[k])
            ranged.append(_RangedRead(reader, rows, start, length, kept[members]))
        for (reads, r), p in zip(draws, position.tolist(), strict=True):
            read = ranged[int(ranges.of_row[p])]
            read.first_step = min(read.first_step, reads.step)
            reads.images[r] = _Image(read=read.future, index=int(index[p]))
        return ranged

    def _from_cache(
        self,
        cache: PartCache,
        reader: RowReader,
        rows: ShardRows,
        draws: Sequence[tuple[StepReads, int]],
    ) -> list[tuple[StepReads, int]]:
        """The draws whose images are not in the cache; those of the others are noted."""
        of_part: dict[int, Future[_PartImages] | None] = {}
        missing = []
        for reads, r in draws:
            row = int(reads.row[r])
            part = int(rows.parts.ranges.of_row[row])
            if part not in of_part:
                of_part[part] = self._part(cache, _PartImages(cache, reader, rows, row))
            if (read := of_part[part]) is None:
                missing.append((reads, r))
            else:
                reads.images[r] = _Image(read=read, index=row)
        return missing

    def _part(self, cache: PartCache, images: _PartImages) -> Future[_PartImages] | None:
        """The images of a part that is in the cache; another one is fetched in the background. An
        error of that is not lost: an image that is read by itself then ends the same way."""
        if cache.has(images.name):
            return self._read_threads.submit(images.fetch)
        if cache.is_on and images.name not in self._fetching:
            self._fetching.add(images.name)
            fetched = self._part_threads.submit(images.fetch)
            fetched.add_done_callback(lambda _: self._fetching.discard(images.name))
        return None
