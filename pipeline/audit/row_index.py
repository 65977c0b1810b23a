"""Where the rows of a uid or a URL are: a table of (hash, shard), sorted, in a few runs.

A stage that commits shards adds a run for its new shards; runs of one size class are merged, so
there are few. The files of a run are partitions by the first bits of the hash. A lookup reads one
footer and one row group of each run. An entry takes 12 bytes before compression, and a row has two.

The table may have too much, never too little, for the shards that rows.json names: a row whose URL
was purged leaves a hash that leads to a shard without it. Shards are not named there until all
their rows are in a run.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from manifests import disk
from manifests.columns import hex_bytes
from manifests.commits import Commits
from manifests.layout import PoolLayout
from manifests.records import read_document
from pipeline.pool.lease import check_fence
from pipeline.pool.uid_hashes import Bytes, RecordSpill, partition_bits
from pipeline.progress.view import counted_stage

VERSION = 2
MIN_ROWS = 100_000  # below, reading every sidecar takes less than a second
PARTITION_ENTRIES = 2**22  # 48 MB, sorted in memory
MAX_BITS = 12
ROW_GROUP = 2**16
FANOUT = 8  # runs of a size class before they are merged into one of the next
READERS = 8  # sidecars that are read at a time
UID_DIGITS = 32
ENTRY = np.dtype([("hash", ">u8"), ("shard", "<i4")])  # partitions are by the first bits
Entries = np.ndarray[Any, Any]
Integers = npt.NDArray[np.int64]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRun:
    """Sorted entries of some shards, in 2 ** bits files."""

    number: int
    bits: int  # of a hash, which number the files
    entries: int
    shards: tuple[tuple[int, int], ...]  # (first, last) of each range of shards


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIndexDocument:
    """index/rows.json, written last."""

    version: int
    runs: tuple[RowRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Located:
    """Where the rows of a name may be."""

    shards: tuple[int, ...]  # where the table, or the key itself, says
    others: Integers  # shards of which the table says nothing
    remark: str = ""  # why there are others, for a person
    is_guess: bool = False  # if no row of `shards` fits, any shard may have one


def write_row_index(commits: Commits) -> int:
    """Write the table anew, and return its number of entries. Under the pool's lease."""
    layout = PoolLayout(commits.pool)
    disk.remove(_document(layout))
    _remove_others(layout, ())
    return _add(commits, commits.shards, (), None)


def extend_row_index(commits: Commits, fence: int | None = None) -> int:
    """Add the shards that the table lacks; returns the number of new entries.

    Under the pool's lease. A small pool without a table gets none. A table that cannot be extended
    is a warning: it is only a help, and `locate` knows which shards it has.
    """
    layout = PoolLayout(commits.pool)
    document = _read(layout)
    if document is None and commits.totals.rows < MIN_ROWS:
        return 0
    runs = () if document is None else document.runs
    missing = commits.shards[~_covered(runs, commits.shards)]
    if not len(missing):
        return 0
    try:
        return _add(commits, missing, runs, fence)
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
    for _ in range(2):  # a writer may merge runs between the two reads
        document = _read(PoolLayout(commits.pool))
        if document is None:
            break
        try:
            shards = _look_up(commits.pool, document.runs, value)
        except (ValueError, OSError) as error:
            remark = f"the table of rows cannot be read ({error})"
            continue
        others = commits.shards[~_covered(document.runs, commits.shards)]
        remark = f"the table of rows lacks {len(others):,} of {len(commits):,} shards"
        return Located(shards=shards, others=others, remark=remark if len(others) else "")
    return Located(shards=(), others=commits.shards, remark=remark)


# --- reading --------------------------------------------------------------------------------------


def _read(layout: PoolLayout) -> RowIndexDocument | None:
    """rows.json; None where there is none, or one of another version."""
    path = _document(layout)
    try:
        document = read_document(path, RowIndexDocument)
    except (FileNotFoundError, ValueError):
        return None
    return document if document.version == VERSION else None


def _look_up(pool: str, runs: Sequence[RowRun], value: int) -> tuple[int, ...]:
    """The shards of a hash. One footer and one row group of each run are read."""
    shards: set[int] = set()
    for run in runs:
        path = _file(PoolLayout(pool), run.number, value >> 64 - run.bits if run.bits else 0)
        rows = disk.read_parquet(path, where=[("hash", "=", pa.scalar(value, pa.uint64()))])
        shards.update(rows["shard"].to_pylist())
    return tuple(sorted(shards))


def _covered(runs: Sequence[RowRun], shards: Integers) -> npt.NDArray[np.bool_]:
    """(shards,) True where all rows of a shard are in one of the runs."""
    covered = np.zeros(len(shards), np.bool_)
    for run in runs:
        ranges = np.array(run.shards, np.int64).reshape(-1, 2)
        position = np.searchsorted(ranges[:, 0], shards, side="right") - 1
        is_in = position >= 0
        is_in[is_in] = shards[is_in] <= ranges[position[is_in], 1]
        covered |= is_in
    return covered


def _hash_of(name: str) -> int | None:
    """The first 64 bits of a uid, or the hash of a URL; None for any other name."""
    if "://" in name:
        return xxhash.xxh3_64_intdigest(name.encode(errors="surrogateescape"))
    try:
        return int(name[:16], 16) if len(name) == UID_DIGITS else None
    except ValueError:
        return None


# --- writing --------------------------------------------------------------------------------------


def _add(commits: Commits, shards: Integers, runs: Sequence[RowRun], fence: int | None) -> int:
    """Write a run for some shards, merge it with others of its size, and name it in rows.json."""
    layout = PoolLayout(commits.pool)
    rows = int(np.asarray(commits.column("count"))[np.isin(commits.shards, shards)].sum())
    number = 1 + max([-1, *(run.number for run in runs), *_numbers(layout)])
    with counted_stage("table of rows", len(shards), brief=True) as counter:

        def entries() -> Iterator[Entries]:
            for shard, of_shard in zip(shards, _all_entries(commits, shards), strict=True):
                counter.ended(str(shard), {})
                yield of_shard

        run = _write_run(layout, number, entries(), 2 * rows, _ranges(shards))
    added = run.entries
    kept = [*runs, run]
    while same := _of_one_class(kept):
        number += 1
        ranges = np.concatenate([np.array(each.shards, np.int64) for each in same])
        merged = _write_run(
            layout,
            number,
            _entries_of_runs(layout, same),
            sum(each.entries for each in same),
            _joined(ranges),
        )
        kept = [*(each for each in kept if each not in same), merged]
    check_fence(commits.pool, fence)
    disk.write_json(_document(layout), RowIndexDocument(version=VERSION, runs=tuple(kept)))
    _remove_others(layout, kept)
    return added


def _of_one_class(runs: Sequence[RowRun]) -> list[RowRun]:
    """FANOUT runs of about one size, or []."""
    classes: dict[int, list[RowRun]] = {}
    for run in runs:
        classes.setdefault(int(math.log(max(1, run.entries), FANOUT)), []).append(run)
    return next((same for same in classes.values() if len(same) >= FANOUT), [])


def _all_entries(commits: Commits, shards: Integers) -> Iterator[Entries]:
    """The entries of each shard, by uid and by URL. A few sidecars are in memory at a time."""
    waiting = iter(shards.tolist())
    with ThreadPoolExecutor(READERS) as threads:
        while batch := list(itertools.islice(waiting, 2 * READERS)):
            yield from threads.map(lambda shard: _entries(commits, shard), batch)


def _entries(commits: Commits, shard: int) -> Entries:
    table = disk.read_parquet(commits.sidecar(shard), ["uid", "url"])
    uids = hex_bytes(table["uid"], UID_DIGITS // 2, "uid").view(">u8")[:, 0]
    urls = table["url"].drop_null().to_pylist()
    entries = np.empty(len(uids) + len(urls), ENTRY)
    entries["hash"][: len(uids)] = uids
    entries["hash"][len(uids) :] = [xxhash.xxh3_64_intdigest(url.encode()) for url in urls]
    entries["shard"] = shard
    return entries


def _entries_of_runs(layout: PoolLayout, runs: Sequence[RowRun]) -> Iterator[Entries]:
    for run in runs:
        for part in range(1 << run.bits):
            table = disk.read_parquet(_file(layout, run.number, part))
            entries = np.empty(table.num_rows, ENTRY)
            entries["hash"], entries["shard"] = table["hash"], table["shard"]
            yield entries


def _write_run(
    layout: PoolLayout,
    number: int,
    parts: Iterable[Entries],
    expected: int,
    shards: tuple[tuple[int, int], ...],
) -> RowRun:
    """Sort entries into the files of a run. About one partition is in memory at a time."""
    bits = partition_bits(expected, PARTITION_ENTRIES, MAX_BITS)
    with (
        RecordSpill(ENTRY.itemsize, bits) as spill,
        disk.scratch_folder("clipmill-rows-") as folder,
    ):
        for entries in parts:
            spill.add(entries.view(np.uint8).reshape(-1, ENTRY.itemsize))
        staged = Path(folder) / "staged.parquet"
        for part, records in enumerate(spill.partitions()):
            _write_part(records, staged, _file(layout, number, part))
    return RowRun(number=number, bits=bits, entries=spill.records, shards=shards)


def _write_part(records: Bytes, staged: Path, path: str) -> None:
    """Sort the entries of one partition and publish them as Parquet."""
    entries = records.view(ENTRY).ravel()
    hashes = entries["hash"].astype(np.uint64)
    order = np.argsort(hashes, kind="stable")
    shards = np.ascontiguousarray(entries["shard"])[order]
    table = pa.table({"hash": hashes[order], "shard": shards})
    with disk.parquet_writer(
        staged,
        table.schema,
        compression="zstd",
        use_dictionary=["shard"],
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP)
    disk.publish(staged, path)


# --- ranges and names -----------------------------------------------------------------------------


def _ranges(shards: Integers) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as (first, last) of each range without a gap."""
    starts = np.flatnonzero(np.diff(shards, prepend=shards[:1] - 2) > 1)
    lasts = np.append(starts[1:] - 1, len(shards) - 1)
    pairs = zip(shards[starts].tolist(), shards[lasts].tolist(), strict=True)
    return tuple(pairs) if len(shards) else ()


def _joined(ranges: Integers) -> tuple[tuple[int, int], ...]:
    """Ranges in any order, with those that touch or overlap made one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(map(tuple, ranges.reshape(-1, 2).tolist())):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)


def _document(layout: PoolLayout) -> str:
    return disk.join(layout.index, "rows.json")


def _folder(layout: PoolLayout) -> str:
    return disk.join(layout.index, "rows")


def _file(layout: PoolLayout, run: int, part: int) -> str:
    return disk.join(_folder(layout), f"rows-{run:05d}-{part:05d}.parquet")


def _numbers(layout: PoolLayout) -> Iterator[int]:
    """The numbers of all runs that have a file, those of killed writers too: none is used again."""
    for name in disk.list_names(_folder(layout), ".parquet"):
        words = name.split("-")
        if len(words) == 3 and words[1].isdecimal():
            yield int(words[1])


def _remove_others(layout: PoolLayout, runs: Sequence[RowRun]) -> None:
    """Remove the files of runs that rows.json does not name any more."""
    named = {f"rows-{run.number:05d}" for run in runs}
    for name in disk.list_names(_folder(layout), ".parquet"):
        if name.rpartition("-")[0] not in named:
            disk.remove(disk.join(_folder(layout), name))
