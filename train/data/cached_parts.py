"""Parts of remote tars by way of the cache on disk (`part_cache.py`).

Nothing waits for a part: an image whose part is not there yet is read by itself, while the part
comes in the background for later steps. So a run starts as fast as without a cache, and a part is
read from its store once on a machine.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from train.data.view_rows import ShardRows, ViewRows
from train.store import PartCache

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
