"""Where the rows of a uid or a URL are: a Parquet table of (hash, shard), sorted by hash.

A stage that commits shards merges their rows into the table: one statement of `pipeline/shuffle`
over what is there and what is new. A lookup reads the footer and one row group. An entry takes 12
bytes before compression, and a row has two. The footer names the shards whose rows are all there.

The table may have too much, never too little, for those shards: a row whose URL was purged leaves a
hash that leads to a shard without it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from clipmill.manifests import disk
from clipmill.manifests.arrays import Integers, Mask
from clipmill.manifests.columns import hex_bytes
from clipmill.manifests.commits import Commits, in_threads
from clipmill.manifests.hashes import text_hashes
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.pool import Pool
from clipmill.pipeline.database import select, stream
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.progress.state import Measure
from clipmill.pipeline.progress.view import counted_stage

VERSION = 3
MIN_ROWS = 100_000  # below, reading every sidecar takes less than a second
ROW_GROUP = 2**16
UID_DIGITS = 32
ENTRIES = pa.schema([("hash", pa.uint64()), ("shard", pa.int32())])
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Located:
    """Where the rows of a name may be."""

    shards: tuple[int, ...]  # where the table, or the key itself, says
    others: Integers  # shards of which the table says nothing
    remark: str = ""  # why there are others, for a person
    is_guess: bool = False  # if no row of `shards` fits, any shard may have one


def write_row_index(out: PoolWriter, commits: Commits) -> int:
    """Write the table anew, and return its number of entries."""
    out.remove(_path(out.layout))
    return _add(out, commits, commits.shards, None)


def extend_row_index(out: PoolWriter, commits: Commits) -> int:
    """Add the shards that the table lacks; returns its number of entries, 0 where it has all.

    A small pool without a table gets none. A table that cannot be extended
    is a warning: it is only a help, and `locate` knows which shards it has.
    """
    try:
        ranges = _ranges_of_table(commits.layout)
    except (ValueError, OSError):  # it is damaged, and made anew
        ranges = None
    if ranges is None and commits.totals.rows < MIN_ROWS:
        return 0
    missing = commits.shards[~_covered(ranges, commits.shards)]
    try:
        return _add(out, commits, missing, ranges) if len(missing) else 0
    except (OSError, pa.ArrowException) as error:
        logger.warning(
            "the table of rows was not extended, `audit explain` will be slow: %s", error
        )
        return 0


def locate(commits: Commits, name: str) -> Located:
    """Where the rows of a tar key, a uid, a URL or a file name may be."""
    nothing = np.zeros(0, np.int64)
    if name.isdecimal() and len(name) >= len("000000000") and len(name) != UID_DIGITS:
        shard = int(name[:-4])
        if shard in commits:
            return Located(shards=(shard,), others=nothing, is_guess=True)
    value = _hash_of(name)
    if value is None:
        remark = "it is neither a uid nor a URL nor a tar key"
        return Located(shards=(), others=commits.shards, remark=remark)
    remark = "there is no table of rows"
    try:
        ranges = _ranges_of_table(commits.layout)
        if ranges is not None:
            shards = _look_up(commits.layout, value)
            others = commits.shards[~_covered(ranges, commits.shards)]
            remark = f"the table of rows lacks {len(others):,} of {len(commits):,} shards"
            return Located(shards=shards, others=others, remark=remark if len(others) else "")
    except (ValueError, OSError) as error:
        remark = f"the table of rows cannot be read ({error})"
    return Located(shards=(), others=commits.shards, remark=remark)


# --- reading --------------------------------------------------------------------------------------


def _look_up(layout: PoolLayout, value: int) -> tuple[int, ...]:
    """The shards of a hash. The footer and one row group are read."""
    rows = disk.read_parquet(_path(layout), where=[("hash", "=", pa.scalar(value, pa.uint64()))])
    return tuple(sorted(set(rows["shard"].to_pylist())))


def _ranges_of_table(layout: PoolLayout) -> Integers | None:
    """(ranges, 2) first and last shard of each range whose rows are in the table; None without one
    of this version. DamagedTable where it cannot be read."""
    try:
        metadata = disk.read_metadata(_path(layout))
    except FileNotFoundError:
        return None
    if metadata.get("version") != VERSION:
        return None
    return np.array(metadata["shards"], np.int64).reshape(-1, 2)


def _covered(ranges: Integers | None, shards: Integers) -> Mask:
    """(shards,) True where a shard is in a range; ranges: see `_ranges_of_table`."""
    if ranges is None:
        return np.zeros(len(shards), np.bool_)
    position = np.searchsorted(ranges[:, 0], shards, side="right") - 1
    last = np.append(ranges[:, 1], -1)  # of position -1: before all ranges
    return np.asarray(shards <= last[position], np.bool_)


def _hash_of(name: str) -> int | None:
    """The first 64 bits of a uid, or the hash of a URL; None for any other name."""
    if "://" in name:
        return xxhash.xxh3_64_intdigest(name.encode(errors="surrogateescape"))
    try:
        return int(name[:16], 16) if len(name) == UID_DIGITS else None
    except ValueError:
        return None


# --- writing --------------------------------------------------------------------------------------


def _add(out: PoolWriter, commits: Commits, shards: Integers, ranges: Integers | None) -> int:
    """Write the table with some shards more than those of `ranges`, which are in it already; None
    begins it anew. Returns its number of entries."""
    path = _path(commits.layout)
    numbers = [np.asarray(shards, np.int64)]
    if ranges is not None:
        numbers += [np.arange(first, last + 1) for first, last in ranges.tolist()]
    metadata = {"version": VERSION, "shards": _ranges(np.unique(np.concatenate(numbers)))}
    count = 0
    with counted_stage("table of rows", len(shards), brief=True) as counter:

        def entries(shard: int) -> pa.Table:
            return _entries(commits, shard)

        def tables() -> Iterator[pa.Table]:
            if ranges is not None:
                yield from _entries_of_table(path)
            for shard, table in zip(shards, in_threads(entries, shards.tolist()), strict=True):
                counter.ended(str(shard), Measure())
                yield table

        rows = stream(tables(), ENTRIES)
        with out.parquet_writer(
            path, disk.with_metadata(ENTRIES, metadata), use_dictionary=["shard"]
        ) as writer:
            for batch in select("SELECT * FROM rows ORDER BY hash, shard", ROW_GROUP, rows=rows):
                writer.write_batch(batch)
                count += batch.num_rows
    return count


def _entries_of_table(path: str) -> Iterator[pa.Table]:
    with (
        disk.naming_table(path),
        disk.open_file(path) as source,
        pq.ParquetFile(source, page_checksum_verification=True) as file,
    ):
        for batch in file.iter_batches(ROW_GROUP):
            yield pa.Table.from_batches([batch])


def _entries(commits: Commits, shard: int) -> pa.Table:
    table = Pool(commits).read(shard, ["uid", "url"])
    uids = hex_bytes(table["uid"], UID_DIGITS // 2, "uid").view(">u8")[:, 0]
    urls = text_hashes(table["url"].drop_null().to_pylist())
    both = np.concatenate([uids.astype(np.uint64), urls])
    return pa.table([both, np.full(len(both), shard, np.int32)], ENTRIES)


def _ranges(shards: Integers) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as (first, last) of each range without a gap."""
    starts = np.flatnonzero(np.diff(shards, prepend=shards[:1] - 2) > 1)
    lasts = np.append(starts[1:] - 1, len(shards) - 1)
    pairs = zip(shards[starts].tolist(), shards[lasts].tolist(), strict=True)
    return tuple(pairs) if len(shards) else ()


def _path(layout: PoolLayout) -> str:
    return disk.join(layout.index, "rows", "rows.parquet")
