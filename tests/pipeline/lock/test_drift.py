"""What became of the rows of a lock in a pool that was built from it, reason by reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests import disk
from manifests.commits import read_commits, rebuild_index
from manifests.layout import PoolLayout
from manifests.records import DriftDocument, read_document
from pipeline.lock.lock_file import LockFile
from pipeline.lock.lock_writer import write_lock
from pipeline.lock.rebuild import count_drift, drift_lines, write_drift
from pipeline.pool.lease import LeaseLost
from tests.support import locked_pools, plans

LOST = {3: "http_4xx", 4: "optout_header", 5: "dns"}


@pytest.fixture
def lock(tmp_path: Path) -> LockFile:
    pool = locked_pools.make_pool(tmp_path / "first", 40, LOST.get)
    return write_lock(pool, str(tmp_path / "a.parquet"))


def now(number: int) -> str | None:
    return {10: "substituted", 11: "substituted", 12: "http_4xx", 13: "dns", 14: "dns"}.get(number)


def test_every_row_is_counted_once(lock: LockFile, tmp_path: Path) -> None:
    pool = locked_pools.make_from(lock.path, tmp_path / "second", now)
    drift = write_drift(read_commits(pool), lock)
    assert drift == read_document(PoolLayout(pool).drift_json, DriftDocument)
    assert (drift.rows, drift.stored, drift.same, drift.missing) == (40, 37, 32, 0)
    assert drift.drift == {"dns": 2, "http_4xx": 1, "substituted": 2}
    assert drift.not_asked == {"dns": 1, "http_4xx": 1, "withheld": 1}
    changed = {row["key"][:5] for row in locked_pools.rows_of(pool) if row["link"] in range(10, 15)}
    assert drift.same_tars == drift.shards - len(changed)
    lines = drift_lines(drift)
    assert lines[1].split() == ["the", "same", "bytes", "32", "86.49%"]
    assert lines[2].split() == ["dns", "2", "5.41%"]
    assert "not asked for: 3 rows" in "\n".join(lines)


def test_the_newest_outcome_of_a_retried_row_counts(lock: LockFile, tmp_path: Path) -> None:
    pool = locked_pools.make_from(lock.path, tmp_path / "second", now)
    _, recipe = locked_pools.plan_from(lock.path, Path(pool))
    for task in plans.retried(pool, recipe):
        locked_pools.write_planned(pool, task.shard, {14: "connect"}.get)
    rebuild_index(pool)
    drift = count_drift(read_commits(pool), lock)
    assert drift.same == 33
    assert drift.drift == {"connect": 1, "http_4xx": 1, "substituted": 2}
    for task in plans.retried(pool, recipe):  # a retry of a retry
        locked_pools.write_planned(pool, task.shard, {14: "substituted"}.get)
    rebuild_index(pool)
    drift = count_drift(read_commits(pool), lock)
    assert (drift.same, drift.drift) == (33, {"http_4xx": 1, "substituted": 3})


def test_shards_that_are_not_committed_are_missing(lock: LockFile, tmp_path: Path) -> None:
    pool = locked_pools.make_from(lock.path, tmp_path / "second")
    count = read_commits(pool).record(0).count
    disk.remove(PoolLayout(pool).commit_record(0))
    rebuild_index(pool)
    drift = count_drift(read_commits(pool), lock)
    stored = drift.same + sum(drift.drift.values()) + drift.missing
    assert stored == drift.stored
    assert 0 < drift.missing <= count
    assert "not committed" in "\n".join(drift_lines(drift))


def test_a_lost_lease_writes_nothing(lock: LockFile, tmp_path: Path) -> None:
    pool = locked_pools.make_from(lock.path, tmp_path / "second")
    with pytest.raises(LeaseLost):
        write_drift(read_commits(pool), lock, fence=7)
    assert not disk.exists(PoolLayout(pool).drift_json)
