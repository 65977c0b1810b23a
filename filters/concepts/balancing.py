"""MetaCLIP's balancing as arithmetic: counts of entries, their probabilities, those of rows, and a
draw that depends on the row alone.

An entry with at most t rows is a tail entry and keeps all of them; another one keeps each row with
probability t / count. A row is kept if any of its entries keeps it: 1 - product of (1 - p).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

Counts = np.ndarray[Any, np.dtype[np.int64]]
Shares = np.ndarray[Any, np.dtype[np.float64]]
COUNTS = pa.schema([("entry", pa.int32()), ("rows", pa.int64())])


def count_entries(lists: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Rows of each entry in a column of lists, as a table COUNTS by entry; NULL lists count as
    empty."""
    numbers = pc.list_flatten(lists)
    if isinstance(numbers, pa.ChunkedArray):
        numbers = numbers.combine_chunks()
    counts = np.bincount(numbers.to_numpy(zero_copy_only=False).astype(np.int64))
    entries = np.flatnonzero(counts)
    return pa.table(
        {"entry": entries.astype(np.int32), "rows": counts[entries].astype(np.int64)}, COUNTS
    )


def merge_counts(tables: pa.Table) -> pa.Table:
    """The rows of several tables COUNTS as one row for each entry, by entry."""
    counts = add_counts(tables)
    entries = np.flatnonzero(counts)
    return pa.table({"entry": entries.astype(np.int32), "rows": counts[entries]}, COUNTS)


def add_counts(tables: pa.Table) -> Counts:
    """(largest entry + 1,) rows of each entry, from the rows of several tables COUNTS."""
    if tables.num_rows == 0:
        return np.zeros(0, np.int64)
    entries, rows = tables["entry"].to_numpy(), tables["rows"].to_numpy()
    counts: Counts = np.zeros(int(entries.max()) + 1, np.int64)
    np.add.at(counts, entries, rows)
    return counts


def tail_share(counts: Counts, t: float) -> float:
    """Share of all matches that belong to entries with fewer than t rows."""
    total = counts.sum()
    return float(counts[counts < t].sum() / total) if total else 0.0


def threshold_for_share(counts: Counts, share: float) -> int:
    """The t whose tail has about `share` of all matches, as MetaCLIP 2 sets it for each language.

    Entries are sorted by count; t is the count of that one at which the running share of all
    matches is nearest to `share`. 1 for a pool without a match.
    """
    ascending = np.sort(counts[counts > 0])
    if not ascending.size:
        return 1
    running = np.cumsum(ascending) / ascending.sum()
    return int(ascending[np.abs(running - share).argmin()])


def entry_probabilities(counts: Counts, t: float) -> Shares:
    """(entries,) min(1, t / count)."""
    shares: Shares = t / np.maximum(counts, t)
    return shares


def row_probabilities(lists: pa.Array, shares: Shares) -> Shares:
    """(rows,) 1 - product of (1 - p) over the entries of each list; 0 for an empty one, NaN for
    NULL."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    numbers = pc.list_flatten(lists).to_numpy(zero_copy_only=False)
    misses: Shares = np.ones(len(lists))
    filled = np.flatnonzero(lengths)
    if filled.size:
        starts = np.concatenate([[0], np.cumsum(lengths[filled])[:-1]])
        misses[filled] = np.multiply.reduceat(1 - shares[numbers], starts)
    probabilities: Shares = 1 - misses
    probabilities[lists.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return probabilities


def draws(uids: Iterable[str], seed: int) -> Shares:
    """(rows,) a number in [0, 1) for each row: the upper 53 bits of xxh3_64 of `balance:` and uid.

    The prefix makes it independent of the `sample` of a view with the same seed.
    """
    hashes = [xxhash.xxh3_64_intdigest(f"balance:{uid}".encode(), seed) >> 11 for uid in uids]
    numbers: Shares = np.array(hashes, np.uint64) / 2.0**53
    return numbers
