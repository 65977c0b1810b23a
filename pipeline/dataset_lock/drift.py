"""How the rows of a pool that was built from a lock differ from those of the lock, by reason."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk
from manifests.columns import STORED
from manifests.commits import Commits
from manifests.documents import DriftDocument
from manifests.pool_layout import PoolLayout
from pipeline.dataset_lock.lock_file import SHOWN_ID, LockFile
from pipeline.pool import check_fence

READERS = 4  # sidecars that are read at a time
MISSING = "missing"  # outcome of a row whose shard is not committed
KEYS_PER_SHARD = 10_000  # a key is the number shard * KEYS_PER_SHARD + position


def write_drift(commits: Commits, lock: LockFile, fence: int | None = None) -> DriftDocument:
    """Compare a pool with its lock and write drift.json."""
    document = count_drift(commits, lock)
    check_fence(commits.pool, fence)
    disk.write_json(PoolLayout(commits.pool).drift_json, document)
    return document


def count_drift(commits: Commits, lock: LockFile) -> DriftDocument:
    """The outcomes of all rows of a lock in a pool. Of a row that was retried here the newest one
    counts.
    """
    pairs = Counter[tuple[str, str]]()  # (outcome in the lock, outcome here)
    same_tars = shards = 0
    newest = _retried_here(commits, lock)
    for counts, same_tar in _shard_counts(commits, lock, newest):
        pairs += counts
        same_tars += same_tar
        shards += 1
    drift = Counter[str]()
    not_asked = Counter[str]()
    for (locked, here), count in pairs.items():
        if locked != STORED:
            not_asked[locked] += count
        elif here not in (STORED, MISSING):
            drift[here] += count
    return DriftDocument(
        lock=lock.head.id,
        name=lock.head.name,
        rows=lock.head.rows,
        stored=lock.head.outcomes.get(STORED, 0),
        same=pairs[STORED, STORED],
        drift=dict(sorted(drift.items())),
        missing=pairs[STORED, MISSING],
        not_asked=dict(sorted(not_asked.items())),
        shards=shards,
        same_tars=same_tars,
    )


def drift_lines(document: DriftDocument) -> list[str]:
    """The drift of a pool, for a terminal."""
    stored = max(1, document.stored)
    lines = [
        f"drift from lock {document.lock[:SHOWN_ID]}: of {document.stored:,} rows that it has",
        f"  {'the same bytes':<16} {document.same:>12,} {document.same / stored:>8.2%}",
    ]
    by_count = sorted(document.drift.items(), key=lambda item: (-item[1], item[0]))
    if document.missing:
        by_count.append(("not committed", document.missing))
    for reason, count in by_count:
        lines.append(f"  {reason:<16} {count:>12,} {count / stored:>8.2%}")
    if document.not_asked:
        reasons = [f"{name} {count:,}" for name, count in document.not_asked.items()]
        total = sum(document.not_asked.values())
        lines.append(f"  not asked for: {total:,} rows that the lock does not have stored")
        lines.append(f"    {', '.join(reasons)}")
    lines.append(f"  {document.same_tars:,} of {document.shards:,} tars are the same")
    return lines


def _shard_counts(
    commits: Commits, lock: LockFile, newest: dict[int, str]
) -> Iterator[tuple[Counter[tuple[str, str]], bool]]:
    """For each shard of a lock: its outcomes, and whether its tar here has the same bytes."""
    columns = ["lock_tar_sha256", "lock_outcome"]
    shards = enumerate(table for _, table in lock.shards(columns))
    retried = {key // KEYS_PER_SHARD for key in newest}

    def work(shard: tuple[int, pa.Table]) -> tuple[Counter[tuple[str, str]], bool]:
        number, table = shard
        position = commits.position(number)
        if position is None:
            here = pa.array([MISSING] * table.num_rows, pa.string())
            return _pairs(table["lock_outcome"], here), False
        sidecar = disk.read_parquet(commits.sidecar(number), ["reason"])
        here = pc.fill_null(sidecar["reason"], STORED)
        low = number * KEYS_PER_SHARD
        if number in retried:
            outcomes = here.to_pylist()
            for row in range(len(outcomes)):
                outcomes[row] = newest.get(low + row, outcomes[row])
            here = pa.array(outcomes, pa.string())
        tar = commits.column("tar_sha256")[position].as_py().hex()
        return _pairs(table["lock_outcome"], here), tar == table["lock_tar_sha256"][0].as_py()

    with ThreadPoolExecutor(READERS) as threads:
        while batch := list(itertools.islice(shards, 4 * READERS)):
            yield from threads.map(work, batch)


def _pairs(locked: Any, here: Any) -> Counter[tuple[str, str]]:
    """How often each pair of outcomes is there."""
    table = pa.table({"locked": locked, "here": here})
    counts = table.group_by(["locked", "here"]).aggregate([([], "count_all")])
    rows = counts.to_pylist()
    return Counter({(row["locked"], row["here"]): row["count_all"] for row in rows})


def _retried_here(commits: Commits, lock: LockFile) -> dict[int, str]:
    """{key: newest outcome} of the rows of the lock that a round of retries here asked for again.

    A retry of a retry counts for the row that was asked for first.
    """
    retries = commits.column("retries").to_numpy() > 0
    if not retries.any():
        return {}
    first_retry = sum(1 for _ in lock.shards([]))
    newest: dict[int, str] = {}
    for shard in commits.shards[retries][::-1].tolist():
        if shard < first_retry:
            break  # a retry of the pool that was locked
        table = disk.read_parquet(commits.sidecar(shard), ["key", "retry_of", "reason"])
        for row in table.to_pylist():
            outcome = newest.pop(int(row["key"]), row["reason"] or STORED)
            newest[int(row["retry_of"])] = outcome
    return newest
