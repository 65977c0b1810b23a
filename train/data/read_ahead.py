"""Reads ahead for the next steps: columns of their shards, bytes of remote images."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from manifests import disk
from train.config import TrainConfig
from train.data.damage import StageTimes
from train.data.view_rows import ShardRows, ViewRows
from train.mixture.order import RunOrder
from train.store import Mode, PartCache, StoreSpeed, choose_mode, coalesce, measure_speed

# --------------------------------------------------------------------------------------------------
# Parts of remote tars by way of the cache on disk (`part_cache.py`).
#
# Nothing waits for a part: an image whose part is not there yet is read by itself, while the part
# comes in the background for later steps. So a run starts as fast as without a cache, and a part
# is read from its store once on a machine.


Ints = NDArray[np.int64]
FETCH_THREADS = 8  # they share the line with the reads that a step waits for
OPEN_THREADS = 4  # compare checksums of parts that are there


class CachedImages:
    """Images of one shard from a part, by their kept rows."""

    def __init__(
        self, cache: PartCache, view: ViewRows, shard: int, rows: ShardRows, part: int
    ) -> None:
        self._cache, self._view, self._shard, self._rows = cache, view, shard, rows
        assert rows.parts is not None
        self._name = rows.parts.names[part]
        self._start = int(rows.parts.ranges.start[part])
        self._length = int(rows.parts.ranges.length[part])

    def fetch(self, row: int) -> CachedImages:
        """Make sure that the part is there and whole, where the disk has room. ReadFailed and
        OSError name `row`."""

        def read() -> bytes:
            return self._view.read_range(self._rows, self._shard, self._start, self._length, row)

        self._cache.fetch(self._name, read)
        return self

    def __getitem__(self, row: int) -> bytes:
        """The bytes of the image of a kept row, from the store where the part is gone again."""
        offset, length = int(self._rows.offset[row]), int(self._rows.length[row])
        part = self._cache.open(self._name)
        if part is None:
            return self._view.read_range(self._rows, self._shard, offset, length, row)
        return part.read(offset - self._start, length)


class CachedParts:
    """Which images come from the cache now; the parts of others are fetched in the background."""

    def __init__(self, cache: PartCache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._fetching: set[str] = set()
        self._opening = ThreadPoolExecutor(OPEN_THREADS, thread_name_prefix="read-open")
        self._background = ThreadPoolExecutor(FETCH_THREADS, thread_name_prefix="read-parts")

    def images(
        self, view: ViewRows, shard: int, rows: ShardRows, kept: Ints
    ) -> dict[int, Future[CachedImages]]:
        """{kept row: the images of its part} for the rows whose parts are in the cache."""
        images_of_row: dict[int, Future[CachedImages]] = {}
        if rows.parts is None:
            return images_of_row
        of_kept = rows.parts.ranges.of_row[kept]
        for part in np.unique(of_kept).tolist():
            here = kept[of_kept == part].tolist()
            images = CachedImages(self._cache, view, shard, rows, part)
            name = rows.parts.names[part]
            if self._cache.has(name):
                future = self._opening.submit(images.fetch, here[0])
                images_of_row.update(dict.fromkeys(here, future))
            elif self._cache.is_on:
                self._fetch_later(name, images, here[0])
        return images_of_row

    def _fetch_later(self, name: str, images: CachedImages, row: int) -> None:
        with self._lock:
            if name in self._fetching:
                return
            self._fetching.add(name)

        def fetch() -> None:
            try:
                images.fetch(row)
            finally:
                with self._lock:
                    self._fetching.discard(name)

        # An error is not lost: an image that is read by itself then ends the same way.
        self._background.submit(fetch)

    def close(self) -> None:
        """End the threads; what has begun is waited for."""
        self._opening.shutdown(cancel_futures=True)
        self._background.shutdown(cancel_futures=True)


# --------------------------------------------------------------------------------------------------
# Positions of the next steps, the columns of their shards, and the bytes of their remote images:
# made ahead by threads of their own.
#
# The order is a pure function, so what the next steps need is known. A thread goes ahead of the
# decoding ones: it asks for the columns of the shards of later steps, and for the images of a
# group of steps in ranged reads that several images share. A value is a future, so nothing waits
# for another value. Images in local tars are not read here: the decoding threads read them.
#
# The bytes that wait for their step are bounded. The first group is one step, and each group may
# have twice as many steps as the one before it: a run starts at once, and reads in few requests
# later.


ShardKey = tuple[int, int]  # source of the blend, shard of its view

# Reads at a time. At 50 ms a request these are 640 requests/s, and a line of 1 GB/s is full with
# reads of 2 MB. Threads keep their connections, see train/store.py.
READ_THREADS = 32
COLUMN_THREADS = 32  # columns never wait behind images; a first batch may need 256 shards
LOCAL_COLUMN_THREADS = 8  # of local pools: each holds some MB, and little is waited for
COLUMN_STEPS = 8  # steps whose columns are asked for before their images
GROUP_STEPS = 64  # most steps whose images are read together
FETCH = "fetch"  # the stage of the threads that read ahead, see stage_times.py
READ_BYTES = 2**30  # images of a rank that were read, or are being read, before their step


class Closed(Exception):
    """The reader of steps was closed while somebody waited for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    """Where the bytes of an image will be: element `index` of what a ranged read gives."""

    read: Future[list[bytes]] | Future[CachedImages]
    index: int


@dataclass(slots=True, kw_only=True)
class StepReads:
    """Positions of a rank's rows of one batch, and the images that were asked for."""

    step: int
    source: Ints  # (rows,)
    shard: Ints  # (rows,)
    row: Ints  # (rows,)
    columns: dict[ShardKey, ShardRows] = field(default_factory=dict)
    images: dict[int, _Image] = field(default_factory=dict)  # by the row of the batch
    error: BaseException | None = None  # why the step cannot be read

    def shards(self) -> dict[ShardKey, Ints]:
        """{(source, shard): the rows of the batch that it has}."""
        if not len(self.row):
            return {}
        order = np.lexsort((self.shard, self.source))
        source, shard = self.source[order], self.shard[order]
        differs = (np.diff(source) != 0) | (np.diff(shard) != 0)
        parts = np.split(order, np.flatnonzero(differs) + 1)
        return {(int(self.source[rows[0]]), int(self.shard[rows[0]])): rows for rows in parts}

    def image(self, r: int) -> bytes | None:
        """The bytes of row `r` of the batch, fewer where the tar ends before them; None where they
        were not asked for. ReadFailed or OSError as the read ended."""
        asked = self.images.get(r)
        return None if asked is None else asked.read.result()[asked.index]


class _RangedRead:
    """One ranged read, and the images that it gives."""

    def __init__(
        self, view: ViewRows, rows: ShardRows, shard: int, start: int, length: int, kept: Ints
    ) -> None:
        """kept: (images,) the kept rows of the shard whose images it gives."""
        self.future: Future[list[bytes]] = Future()
        self.first_step = 2**62  # that needs it
        self._view, self._rows, self._shard = view, rows, shard
        self._start, self._length, self._kept = start, length, kept

    def run(self) -> None:
        """Read, and keep the bytes of the images alone."""
        try:
            data = self._view.read_range(
                self._rows, self._shard, self._start, self._length, int(self._kept[0])
            )
            begins = self._rows.offset[self._kept] - self._start
            ends = begins + self._rows.length[self._kept]
            spans = zip(begins.tolist(), ends.tolist(), strict=True)
            self.future.set_result([data[begin:end] for begin, end in spans])
        except BaseException as error:
            self.future.set_exception(error)


@dataclass(slots=True, kw_only=True)
class _Group:
    """Steps whose images are read together."""

    steps: list[StepReads] = field(default_factory=list)
    reads: list[_RangedRead] = field(default_factory=list)
    bytes: int = 0  # of their remote images
    unfinished: int = 0  # steps


def read_positions(order: RunOrder, step: int, rows: range) -> StepReads:
    """The positions of a step alone."""
    source, shard, row = order.batch(step, rows)
    return StepReads(step=step, source=source, shard=shard, row=row)


class ReadAhead:
    """`take()` gives the StepReads of some steps in a row. `finish(step)` frees the bytes of a
    step, so that later ones are read. `close()` ends the threads.
    """

    def __init__(
        self,
        order: RunOrder,
        views: Sequence[ViewRows],
        rows: range,
        steps: range,
        most_shards: int,
        cache: PartCache | None = None,
        group_steps: int = GROUP_STEPS,
        times: StageTimes | None = None,
    ) -> None:
        """rows: of every global batch. most_shards: whose columns are asked for ahead. cache: a
        folder for parts of remote tars. group_steps: most steps that are read together.
        times: where the time of the reads is added up."""
        self._group_steps, self._times = group_steps, times
        self._parts = None if cache is None else CachedParts(cache)
        self._most_shards = most_shards
        self._order, self._views, self._rows = order, views, rows
        self._steps = iter(steps)
        self._changed = threading.Condition()
        self._ready: deque[StepReads] = deque()
        self._group_of: dict[int, _Group] = {}  # by step, until it is finished
        self._bytes = 0
        self._is_closed = False
        self._failure: BaseException | None = None
        self._shards: dict[ShardKey, Future[ShardRows]] = {}  # of the steps in `asked`
        is_remote = any(view.is_remote for view in views)
        threads = COLUMN_THREADS if is_remote else LOCAL_COLUMN_THREADS
        self._column_threads = ThreadPoolExecutor(threads, thread_name_prefix="columns")
        self._read_threads = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="read")
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)
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
        self._read_threads.shutdown(cancel_futures=True)
        if self._parts is not None:
            self._parts.close()
        self._thread.join()
        for group in self._group_of.values():
            for ranged in group.reads:
                ranged.future.cancel()  # a decoding thread may wait for it

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
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
            group = self._next_group(asked, most)
            if not self._wait_for_room(group):
                return
            self._ask_images(group)
            needed = {key for reads in asked for key in reads.shards()}
            self._shards = {key: self._shards[key] for key in needed}
            with self._changed:
                self._ready.extend(group.steps)
                self._changed.notify_all()
            most = min(2 * most, self._group_steps)

    def _ask_columns(self, step: int) -> StepReads:
        """The positions of a step; the columns of its shards are on their way."""
        reads = read_positions(self._order, step, self._rows)
        for key in reads.shards():
            if key not in self._shards:
                source, shard = key
                submit = self._column_threads.submit
                self._shards[key] = submit(self._views[source].shard, shard)
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
            for key, here in reads.shards().items():
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
                for key, here in reads.shards().items():
                    rows_of.setdefault(key, []).extend((reads, r) for r in here.tolist())
        for key, draws in rows_of.items():
            if disk.is_url(draws[0][0].columns[key].tar):
                group.reads += self._ranged_reads(key, draws)
        group.reads.sort(key=lambda ranged: ranged.first_step)
        for ranged in group.reads:
            run = ranged.run if self._times is None else self._times.timed(FETCH, ranged.run)
            self._read_threads.submit(run)

    def _ranged_reads(
        self, key: ShardKey, draws: Sequence[tuple[StepReads, int]]
    ) -> list[_RangedRead]:
        """The reads of rows of one shard; `draws`: the steps and rows that they serve."""
        source, shard = key
        view, rows = self._views[source], draws[0][0].columns[key]
        if self._parts is not None:
            draws = self._from_cache(self._parts, key, draws)
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
            ranged.append(_RangedRead(view, rows, shard, start, length, kept[members]))
        for (reads, r), p in zip(draws, position.tolist(), strict=True):
            read = ranged[int(ranges.of_row[p])]
            read.first_step = min(read.first_step, reads.step)
            reads.images[r] = _Image(read=read.future, index=int(index[p]))
        return ranged

    def _from_cache(
        self, parts: CachedParts, key: ShardKey, draws: Sequence[tuple[StepReads, int]]
    ) -> list[tuple[StepReads, int]]:
        """The draws whose images are not in the cache; those of the others are noted."""
        source, shard = key
        rows = draws[0][0].columns[key]
        kept = np.unique(np.array([reads.row[r] for reads, r in draws], np.int64))
        cached = parts.images(self._views[source], shard, rows, kept)
        missing = []
        for reads, r in draws:
            row = int(reads.row[r])
            if (read := cached.get(row)) is None:
                missing.append((reads, r))
            else:
                reads.images[r] = _Image(read=read, index=row)
        return missing


# --------------------------------------------------------------------------------------------------
# How each view of a run is read, with the reason in one log line: the folder for parts of remote
# tars, and whole tars or kept rows by the cost model of `read_modes.py`.


READS_AT_ONCE = 32  # of one rank, see READ_THREADS
logger = logging.getLogger(__name__)


class ViewReading:
    """How the views of a run are read; `cache` is where parts of remote tars lie, None for none.

    ValueError for a cache folder that cannot be written to, and for a view without tars of its own
    where the settings ask for these.
    """

    def __init__(self, views: Sequence[ViewRows], config: TrainConfig, share: float) -> None:
        """share: the part of every batch that the ranks of this machine read."""
        self._views, self._config, self._share = views, config, share
        self._is_chosen = False
        for view in views:
            view.use_copy(config.read_mode in ("auto", "materialised"))
            if config.read_mode == "materialised" and view.copy is None:
                raise ValueError(
                    f"read_mode is materialised, but view {view.view!r} of {view.pool} has no tars "
                    f"of its own; run clipmill filter materialise {view.pool} "
                    f"{view.view}"
                )
        self.cache: PartCache | None = None
        if config.read_cache is not None:
            self.cache = PartCache(config.read_cache, int(config.read_cache_gb * 1e9))

    def choose(self) -> None:
        """Set `part_mode` of the views, once, and log how each is read and why."""
        if self._is_chosen:
            return
        self._is_chosen = True
        for view in self._views:
            mode = self._mode(view)
            if self.cache is not None and self._fits(view, self.cache, mode):
                view.part_mode = mode
                view.forget_shards()  # those that were read before have no parts

    def _mode(self, view: ViewRows) -> Mode:
        mode: Mode
        if view.copy is not None:
            mode, reason = "materialised", "it has tars of its own"
        elif not view.is_remote:
            return "mask"  # of adopted tars that lie in a store
        elif self._config.read_mode != "auto":
            mode, reason = self._config.read_mode, "read_mode says so"
        elif self.cache is None:
            mode, reason = "ranged", "whole tars need a folder for them, see read_cache"
        else:
            mode, reason = self._cheaper(view)
        logger.info("view %s of %s is read by %s: %s", view.view, view.pool, mode, reason)
        return mode

    def _cheaper(self, view: ViewRows) -> tuple[Mode, str]:
        """The mode that the cost model chooses for the first shard that has kept rows."""
        number = _first_shard(view)
        rows = view.shard(number)
        if self._config.store_speed is not None:
            speed = StoreSpeed.parse(self._config.store_speed)
        else:
            size = int((rows.offset + rows.length).max())
            speed = measure_speed(
                lambda start, length: view.read_range(rows, number, start, length, 0), size
            )
        mode, reason = choose_mode(view.costs(number), speed, READS_AT_ONCE)
        return mode, f"shard {rows.name} by {reason}"

    def _fits(self, view: ViewRows, cache: PartCache, mode: Mode) -> bool:
        """Whether the cache has room for the shards that the lanes draw from at a time.

        In a smaller one parts would be removed before they are used, and fetched again and again.
        """
        if not view.is_remote:
            return True
        lanes = math.ceil(self._config.lanes * self._share)
        # A lane is inside one window, or passes from one to the next.
        shards = min(2 * lanes * self._config.window, int((view.shard_rows > 0).sum()))
        costs = view.costs(_first_shard(view))
        need = shards * costs.get(mode, costs["ranged"]).bytes
        if need <= cache.limit:
            return True
        logger.warning(
            "view %s of %s needs about %.3g GB of read_cache and has %.3g GB: its images are read "
            "without it; raise read_cache_gb",
            view.view,
            view.pool,
            need / 1e9,
            cache.limit / 1e9,
        )
        return False


def _first_shard(view: ViewRows) -> int:
    """The position of the first shard of which the view keeps rows."""
    return int(np.argmax(view.shard_rows > 0))
