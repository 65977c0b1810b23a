"""The rows that several locks and a pool have in common, byte for byte, as a view of the pool.

Two rows are the same where uid and sha256 of the received bytes are. Two labs that make the view
from the same locks have the same hash of its rows, whatever their shards are.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk
from manifests.columns import STORED
from manifests.commits import Commits, read_commits
from manifests.documents import ViewDocument
from pipeline import views
from pipeline.dataset_lock.lock_file import VIEW_PREFIX, LockFile
from pipeline.pool import (
    Bytes,
    Keys,
    RecordSpill,
    RowsHash,
    are_in,
    row_bits,
    row_keys,
    row_spill,
    sorted_rows,
    unique_where,
)

READERS = 4  # sidecars that are read at a time
ORDINAL_BYTES = 8  # number of a row in the pool, counted over all shards
ALL_ROWS = "locked"  # the view of all rows of a lock that a pool built from it has
HEX = r"^[0-9a-f]{64}$"


@dataclass(frozen=True, slots=True, kw_only=True)
class SameRows:
    """A view of the rows that a pool and locks have in common."""

    view: str
    kept: int
    rows_sha256: str
    in_locks: int  # rows that all the locks have, and keep


@dataclass(slots=True)
class _Match:
    """The rows of one selection: `None` for all rows of the locks, else of a view."""

    bits: Bytes  # one bit a row of the pool, lowest first
    content: RowsHash
    in_locks: int = 0

    def rows(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """(stop - start,) which rows of the pool are in it."""
        part = self.bits[start >> 3 : (stop + 7) >> 3]
        flags = np.unpackbits(part, bitorder="little")[start & 7 :][: stop - start]
        return flags.astype(np.bool_)


def write_same_rows(
    pool: str,
    paths: Sequence[str],
    *,
    view: str | None = None,
    name: str | None = None,
    fence: int | None = None,
) -> SameRows:
    """Write the view of the rows that all these locks and the pool have.

    view: only the rows that this view keeps in every lock. name: of the new view. ValueError for
    locks that cannot be used or do not have that view, and where no row is left.
    """
    commits = read_commits(pool)
    if not len(commits):
        raise ValueError(f"{pool} has no committed shards; is it the folder of a pool?")
    locks = [LockFile(path) for path in paths]
    return _write(commits, locks, {view: name or _default_name(view)}, fence)[0]


def write_locked_views(
    commits: Commits, lock: LockFile, others: Sequence[str], fence: int | None = None
) -> list[SameRows]:
    """Write the views of a lock into a pool that was built from it, and ALL_ROWS.

    others: names of views that the recipe of the pool makes itself; those are left out.
    """
    names: dict[str | None, str] = {None: ALL_ROWS}
    for view in lock.head.views:
        if view not in (*others, ALL_ROWS):
            names[view] = view
    return _write(commits, [lock], names, fence, skip_empty=True)


def same_rows_lines(results: Sequence[SameRows]) -> list[str]:
    """The views, for a terminal."""
    lines = []
    for result in results:
        lines.append(f"view {result.view}: {result.kept:,} rows, {result.rows_sha256}")
        if missing := result.in_locks - result.kept:
            lines.append(f"  {missing:,} more rows are in the lock, and not in this pool")
    return lines


def _default_name(view: str | None) -> str:
    return "same_rows" if view is None else f"same_rows_{view}"


def _where(locks: Sequence[LockFile], view: str | None) -> str:
    """What the rows of a selection are, in words; it decides whether a view is made again."""
    ids = " and ".join(sorted({lock.id for lock in locks}))
    text = f"in lock {ids}" if len(locks) == 1 else f"in locks {ids}"
    return text if view is None else f"{text}, kept by view {view}"


def _write(
    commits: Commits,
    locks: Sequence[LockFile],
    names: dict[str | None, str],
    fence: int | None,
    *,
    skip_empty: bool = False,
) -> list[SameRows]:
    """Write a view for each selection of `names` that is not there yet. skip_empty: none for a view
    of the lock of which no row is left.
    """
    for lock in locks:
        for view in names:
            if view is not None and view not in lock.head.views:
                raise ValueError(
                    f"{lock.path} has no view {view!r}{disk.did_you_mean(view, lock.head.views)} "
                    f"(it has {', '.join(lock.head.views) or 'none'})"
                )
    todo = []
    results: dict[str | None, SameRows] = {}
    for view, name in names.items():
        document = views.selected_view(commits, name, _where(locks, view))
        if document is None:
            todo.append(view)
        else:
            results[view] = _same_rows(document, document.kept)
    matches = _match(commits, locks, todo) if todo else {}
    for view, match in matches.items():
        if not match.content.rows and view is not None and skip_empty:
            continue
        document = views.write_selected_view(
            commits,
            names[view],
            _where(locks, view),
            match.rows,
            match.content.hexdigest(),
            fence,
        )
        results[view] = _same_rows(document, match.in_locks - match.content.rows + document.kept)
    return [results[view] for view in names if view in results]


def _same_rows(document: ViewDocument, in_locks: int) -> SameRows:
    return SameRows(
        view=document.name,
        kept=document.kept,
        rows_sha256=str(document.rows_sha256),
        in_locks=in_locks,
    )


# --- matching -------------------------------------------------------------------------------------


def _match(
    commits: Commits, locks: Sequence[LockFile], selections: Sequence[str | None]
) -> dict[str | None, _Match]:
    """The rows of the pool that are in every lock, for each selection. One partition of the rows is
    in memory at a time, and one bit a row.
    """
    rows = commits.totals.rows
    largest = max([commits.totals.stored, *(lock.head.outcomes.get(STORED, 0) for lock in locks)])
    bits = row_bits(largest)
    matches = {}
    for view in selections:
        matches[view] = _Match(np.zeros((rows + 7) // 8, np.uint8), RowsHash())
    with contextlib.ExitStack() as stack:
        of_pool = stack.enter_context(row_spill(bits, ORDINAL_BYTES))
        _spill_pool(commits, of_pool)
        of_locks = []
        for lock in locks:
            spill = stack.enter_context(row_spill(bits, len(selections)))
            _spill_lock(lock, selections, spill)
            of_locks.append(sorted_rows(spill))
        for keys, payload in sorted_rows(of_pool):
            ordinals = np.ascontiguousarray(payload).view("<i8").ravel()
            parts = [next(partition) for partition in of_locks]
            for number, match in enumerate(matches.values()):
                _add(match, number, keys, ordinals, parts)
    return matches


def _add(
    match: _Match,
    number: int,
    keys: Keys,
    ordinals: npt.NDArray[np.int64],
    parts: Sequence[tuple[Keys, Bytes]],
) -> None:
    """Add one partition to the match of selection `number`."""
    of_locks = [unique_where(locked, flags[:, number] == 1) for locked, flags in parts]
    common = reduce(lambda left, right: left[are_in(left, right)], of_locks)
    match.in_locks += len(common)
    kept = are_in(keys, common)
    match.content.add(keys[kept])
    rows = ordinals[kept]
    np.bitwise_or.at(match.bits, rows >> 3, (1 << (rows & 7)).astype(np.uint8))


def _spill_pool(commits: Commits, spill: RecordSpill) -> None:
    """The stored rows of a pool with their numbers."""
    counts = commits.column("count").to_numpy()
    firsts = np.cumsum(counts) - counts

    def read(position: int) -> Bytes:
        path = commits.sidecar(int(commits.shards[position]))
        table = disk.read_parquet(path, ["uid", "sha256", "status"])
        if table.num_rows != counts[position]:
            raise ValueError(f"{path} does not have the rows of its commit record; verify it")
        known = pc.fill_null(pc.match_substring_regex(table["sha256"], HEX), False)
        stored = pc.and_(pc.equal(table["status"], "success"), known)
        table = table.filter(stored)
        ordinals = firsts[position] + np.flatnonzero(stored.to_numpy())
        return np.hstack([row_keys(table["uid"], table["sha256"]), _as_bytes(ordinals)])

    positions = iter(range(len(commits)))
    with ThreadPoolExecutor(READERS) as threads:
        while batch := list(itertools.islice(positions, 4 * READERS)):
            for records in threads.map(read, batch):
                spill.add(records)


def _as_bytes(numbers: npt.NDArray[Any]) -> Bytes:
    return numbers.astype("<i8").view(np.uint8).reshape(-1, ORDINAL_BYTES)


def _spill_lock(lock: LockFile, selections: Sequence[str | None], spill: RecordSpill) -> None:
    """The stored rows of a lock, each with the selections that keep it."""
    columns = ["uid", "sha256", "lock_outcome"]
    of_views = [VIEW_PREFIX + view for view in selections if view is not None]
    for table in lock.tables([*columns, *of_views]):
        known = pc.and_(pc.equal(table["lock_outcome"], STORED), table["sha256"].is_valid())
        stored: pa.Table = table.filter(known)
        flags = np.ones((stored.num_rows, len(selections)), np.uint8)
        for number, view in enumerate(selections):
            if view is not None:
                flags[:, number] = stored[VIEW_PREFIX + view].to_numpy()
        spill.add(np.hstack([row_keys(stored["uid"], stored["sha256"]), flags]))
