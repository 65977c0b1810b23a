"""Numbers of rows that may not be in one batch together: equal uids, or equal groups of duplicates.

A pool has every uid once. So the rows of its views are numbered by shard and row, and only the
masks of the views are read. Views that share no shard cannot collide and cost nothing. The uids
themselves are read where a blend has several pools, and a column where the blend names one.

In memory are 8 bytes for each kept row of the shards that are being drawn from, whatever the size
of the pool: 41 MB for a view with 512 shards of 10,000 rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from train.data.view_rows import ViewRows
from train.rng import Ints
from train.store import ShardCache

UID = "uid"
POOL_SHIFT, SHARD_SHIFT = 52, 20  # a pool has up to 2^32 shards of up to 2^20 rows
# Rows without a value collide with nothing. Their numbers have this bit, which hashes do not have.
NO_VALUE = 1 << 62


class ViewNumbers:
    """Numbers of the kept rows of views; `train.mixing.order.RowNumbers`.

    column: `uid`, or any column of the sidecars and of the score sets that a view's rules read.
    cached: shards of a view whose numbers stay in memory.
    """

    def __init__(self, views: Sequence[ViewRows], column: str, cached: int) -> None:
        self.column = column
        self._views = tuple(views)
        self._pools = list(dict.fromkeys(view.pool for view in views))
        self._by_position = column == UID and len(self._pools) == 1
        self.sources = self._colliding()
        self._caches: list[ShardCache[Ints]] = []
        for s in range(len(self._views)):
            self._caches.append(ShardCache(cached, self._reader(s)))

    def __call__(self, source: int, shard: Ints, row: Ints) -> Ints:
        """(rows,) numbers ≥ 0 of kept rows of a source; ValueError for a column that is missing."""
        return values_of_rows(self._caches[source], shard, row, np.int64)

    def _colliding(self) -> frozenset[int]:
        """The sources of which a row may collide with another row of the blend."""
        if not self._by_position:
            only_one = len(self._views) == 1 and self.column == UID
            return frozenset() if only_one else frozenset(range(len(self._views)))
        with_rows = [view.shards[np.asarray(view.shard_rows) > 0] for view in self._views]
        shards, counts = np.unique(np.concatenate(with_rows), return_counts=True)
        shared = shards[counts > 1]
        return frozenset(s for s, own in enumerate(with_rows) if np.isin(own, shared).any())

    def _reader(self, source: int) -> Any:
        return lambda number: self._read(self._views[source], number)

    def _read(self, view: ViewRows, number: int) -> Ints:
        """(rows,) the numbers of the kept rows of a shard, which is given by its position."""
        shard = int(view.shards[number])
        first = (self._pools.index(view.pool) << POOL_SHIFT) + (shard << SHARD_SHIFT)
        if self._by_position:
            return first + view.masks.kept_rows(number)
        values = view.masks.kept_columns(number, [self.column])[self.column].combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = pa.concat_arrays(values.chunks)
        numbers = _hashes(values)
        missing = np.asarray(pc.is_null(values))
        numbers[missing] = NO_VALUE | (first + np.flatnonzero(missing))
        return numbers


def values_of_rows(
    of_shard: Callable[[int], NDArray[Any]], shard: Ints, row: Ints, kind: type
) -> NDArray[Any]:
    """(rows,) the values of kept rows; `of_shard` gives those of one shard."""
    values: NDArray[Any] = np.empty(len(shard), kind)
    by_shard = np.argsort(shard, kind="stable")
    different, starts = np.unique(shard[by_shard], return_index=True)
    for number, here in zip(different.tolist(), np.split(by_shard, starts[1:]), strict=True):
        values[here] = of_shard(number)[row[here]]
    return values


def _hashes(values: pa.Array) -> NDArray[np.int64]:
    """(rows,) 61 bits of the hash of each value's text; of NULL anything."""
    encoded = pc.dictionary_encode(pc.fill_null(pc.cast(values, pa.string()), ""))
    hashes = []
    for text in encoded.dictionary.to_pylist():
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        hashes.append(int.from_bytes(digest, "big") >> 3)
    indices = encoded.indices.to_numpy()
    numbers: NDArray[np.int64] = np.array(hashes, np.int64)[indices]
    return numbers
