"""The rows that locks and a pool have in common: one hash in every lab, whatever the shards; and
what became of the rows of a lock in a pool that was built from it, reason by reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits, rebuild_index
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.records import DriftDocument, ViewDocument, read_document
from clipmill.pipeline.audit.integrity import verify
from clipmill.pipeline.audit.purge import purge_rows
from clipmill.pipeline.lock import rebuild
from clipmill.pipeline.lock.lock_file import LockFile
from clipmill.pipeline.lock.lock_writer import write_lock
from clipmill.pipeline.lock.rebuild import (
    count_drift,
    drift_lines,
    same_rows_lines,
    write_drift,
    write_locked_views,
    write_same_rows,
)
from clipmill.pipeline.planning.plan_files import read_plan
from clipmill.pipeline.pool.lease import LeaseLost, PoolWriter
from tests.support import locked_pools, plans
from tests.support.bundles import mask_of


def kept_links(pool: str, view: str) -> set[int]:
    """The link numbers of the rows that a view keeps."""
    rows = locked_pools.rows_of(pool, ["link"])
    masks: list[bool] = []
    for shard in read_commits(pool).names():
        masks += mask_of(pool, view, shard)["kept"].to_pylist()
    return {row["link"] for row, kept in zip(rows, masks, strict=True) if kept}


@pytest.fixture
def labs(tmp_path: Path) -> tuple[str, str, str, str]:
    """Two pools of the same pairs in other shards, with other losses, and their locks."""
    first = locked_pools.make_pool(tmp_path / "a", 60, lambda i: "dns" if i % 10 == 1 else None)
    second = locked_pools.make_pool(
        tmp_path / "b", 60, lambda i: "dns" if i % 15 == 2 else None, rows_per_shard=7
    )
    locks = [
        write_lock(pool, str(tmp_path / f"{name}.parquet")).path
        for pool, name in ((first, "a"), (second, "b"))
    ]
    return first, second, locks[0], locks[1]


EXPECTED = {i for i in range(60) if i % 10 != 1 and i % 15 != 2}


@pytest.mark.parametrize("batch_rows", [7, 10_000])
def test_two_labs_have_the_same_rows_and_the_same_hash(
    labs: tuple[str, str, str, str], batch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "BATCH_ROWS", batch_rows)
    first, second, a, b = labs
    ours = write_same_rows(PoolWriter(first), [a, b])
    theirs = write_same_rows(PoolWriter(second), [b, a])
    assert ours == theirs
    assert (ours.view, ours.kept, ours.in_locks) == ("same_rows", len(EXPECTED), len(EXPECTED))
    assert kept_links(first, "same_rows") == kept_links(second, "same_rows") == EXPECTED
    long = write_same_rows(PoolWriter(first), [a, b], view="long", name="both")
    assert long.rows_sha256 == write_same_rows(PoolWriter(second), [a, b], view="long").rows_sha256
    assert kept_links(first, "both") == {i for i in EXPECTED if i % 3 == 0 or i >= 10}
    assert not list(verify(first))
    document = read_document(PoolLayout(first).view_json("both"), ViewDocument)
    assert document.rows_sha256 == long.rows_sha256
    ids = " and ".join(sorted([LockFile(a).id, LockFile(b).id]))
    assert document.rules[0].where == f"in locks {ids}, kept by view long"


def test_a_row_with_other_bytes_is_not_the_same(tmp_path: Path) -> None:
    first = locked_pools.make_pool(tmp_path / "a", 20)
    lock = write_lock(first, str(tmp_path / "a.parquet")).path
    second = str(tmp_path / "b")
    (tmp_path / "b").mkdir()
    for name in ("pairs", "plan"):
        (tmp_path / "a" / name).rename(tmp_path / "b" / name)
    for shard in range(len(read_plan(PoolLayout(second)))):
        locked_pools.write_planned(second, shard, body=lambda i: locked_pools.image(i + (i == 7)))
    locked_pools.finish(second, locked_pools.local_recipe())
    result = write_same_rows(PoolWriter(second), [lock])
    assert (result.kept, result.in_locks) == (19, 20)
    assert kept_links(second, "same_rows") == set(range(20)) - {7}
    assert "1 more rows are in the lock" in same_rows_lines([result])[1]


def test_a_view_is_not_matched_again_until_something_changes(
    labs: tuple[str, str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, a, b = labs
    before = write_same_rows(PoolWriter(first), [a, b])

    def never(*_: Any) -> None:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(rebuild, "_match", never)
        assert write_same_rows(PoolWriter(first), [b, a]) == before
    purge_rows(PoolWriter(first), {"url": {locked_pools.url(0)}})
    document = read_document(PoolLayout(first).view_json("same_rows"), ViewDocument)
    assert document.rows_sha256 is None
    after = write_same_rows(PoolWriter(first), [a, b])
    assert (after.kept, after.in_locks) == (before.kept - 1, before.kept)
    assert after.rows_sha256 != before.rows_sha256


def test_the_views_of_a_lock_come_with_the_pool(tmp_path: Path) -> None:
    first = locked_pools.make_pool(tmp_path / "a", 30)
    lock = write_lock(first, str(tmp_path / "a.parquet"))
    second = locked_pools.make_from(lock.path, tmp_path / "b")
    results = write_locked_views(PoolWriter(second), read_commits(second), lock, [])
    assert [result.view for result in results] == ["locked", "long", "raw"]
    assert results[1].rows_sha256 == lock.head.views["long"].rows_sha256
    assert results[0].rows_sha256 == lock.head.rows_sha256
    third = locked_pools.make_from(
        lock.path, tmp_path / "c", lambda i: "dns" if i % 3 == 0 or i >= 10 else None
    )
    left = write_locked_views(PoolWriter(third), read_commits(third), lock, [])
    assert [result.view for result in left] == ["locked", "raw"]  # no row of `long` is left
    with pytest.raises(ValueError, match=r"view 'same_rows_long' keeps nothing"):
        write_same_rows(PoolWriter(third), [lock.path], view="long")
    others = write_locked_views(PoolWriter(second), read_commits(second), lock, ["long"])
    assert [result.view for result in others] == ["locked", "raw"]


@pytest.mark.parametrize(
    ("view", "problem"), [("lnog", r"no view 'lnog'; did you mean 'long'"), (None, "keeps nothing")]
)
def test_locks_without_the_view_or_without_common_rows_are_refused(
    view: str | None, problem: str, tmp_path: Path
) -> None:
    first = locked_pools.make_pool(tmp_path / "a", 20, lambda i: "dns" if i % 2 else None)
    second = locked_pools.make_pool(tmp_path / "b", 20, lambda i: None if i % 2 else "dns")
    locks = [
        write_lock(pool, str(tmp_path / f"{number}.parquet")).path
        for number, pool in enumerate((first, second))
    ]
    with pytest.raises(ValueError, match=problem):
        write_same_rows(PoolWriter(first), locks, view=view)
    assert not disk.exists(PoolLayout(first).view_json("same_rows"))
    with pytest.raises(ValueError, match=r"no committed shards"):
        write_same_rows(PoolWriter(str(tmp_path / "none")), locks)


LOST = {3: "http_4xx", 4: "optout_header", 5: "dns"}


@pytest.fixture
def lock(tmp_path: Path) -> LockFile:
    pool = locked_pools.make_pool(tmp_path / "first", 40, LOST.get)
    return write_lock(pool, str(tmp_path / "a.parquet"))


def now(number: int) -> str | None:
    return {10: "substituted", 11: "substituted", 12: "http_4xx", 13: "dns", 14: "dns"}.get(number)


def test_every_row_is_counted_once(lock: LockFile, tmp_path: Path) -> None:
    pool = locked_pools.make_from(lock.path, tmp_path / "second", now)
    drift = write_drift(PoolWriter(pool), read_commits(pool), lock)
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
        write_drift(PoolWriter(pool, 7), read_commits(pool), lock)
    assert not disk.exists(PoolLayout(pool).drift_json)
