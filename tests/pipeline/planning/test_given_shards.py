"""A plan whose shards are given: the same files as any plan, with the columns of a lock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from manifests import disk
from manifests.columns import LOCKED, PLAN
from manifests.layout import PoolLayout
from manifests.schema import Fetch, Recipe, Source
from pipeline.planning import planner
from pipeline.planning.plan_files import (
    group_count,
    is_planned,
    lock_of_plan,
    read_plan,
    read_row_group,
    read_shard,
    rows_of_shard,
)
from pipeline.planning.planner import add_retries, write_given_plan
from pipeline.pool.lease import LeaseLost

RECIPE = Recipe(
    name="locked", source=Source(kind="lock", paths=("a.parquet",)), fetch=Fetch(user_agent="x/1")
)


def shard(first: int, count: int, sha256: str | None = "ab") -> pa.Table:
    names = [n for n in [*PLAN.names, *LOCKED.names] if n not in planner.NUMBERED]
    rows: list[dict[str, Any]] = []
    for i in range(first, first + count):
        row = dict.fromkeys(names) | {"uid": f"{i:032x}", "url": f"http://x.test/{i}"}
        rows.append(row | {"caption": "c", "locked_outcome": "stored", "locked_sha256": sha256})
    fields = [field for field in [*PLAN, *LOCKED] if field.name in names]
    return pa.Table.from_pylist(rows, pa.schema(fields))


def write(pool: Path, sizes: list[int]) -> str:
    shards, first = [], 0
    for number, size in enumerate(sizes):
        shards.append((number % 2, shard(first, size)))
        first += size
    write_given_plan(str(pool), RECIPE, shards, "the-lock", 2)
    return str(pool)


def test_shards_and_rows_stay_as_they_are_given(tmp_path: Path) -> None:
    pool = write(tmp_path, [3, 5, 1])
    plan = read_plan(pool)
    assert plan.rows.tolist() == [3, 5, 1]
    assert plan.groups.tolist() == [0, 1, 0]
    assert len(set(plan.ids.to_pylist())) == 3
    pairs, retried = read_shard(pool, 1)
    assert [int(pair.uid, 16) for pair in pairs] == [3, 4, 5, 6, 7]
    assert [(pair.locked_outcome, pair.locked_sha256) for pair in pairs] == [("stored", "ab")] * 5
    assert pairs[0].extra is None
    assert retried == [None] * 5
    ticket = next(iter([plan.tickets(plan.rows[:0].astype(int)), plan.location(2)][1:]))
    assert len(read_row_group(ticket["file"], ticket["row_group"])) == 1
    assert group_count(pool) == 2
    assert lock_of_plan(pool) == (
        "the-lock",
        disk.read_json(PoolLayout(pool).plan_round(0) + "/plan.json")["recipe"],
    )


def test_many_shards_become_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "SHARDS_PER_FILE", 3)
    monkeypatch.setattr(planner, "ROWS_PER_TICKET", 10)
    pool = write(tmp_path, [1, 1, 1, 1, 8, 2, 20, 1])
    files = disk.list_names(PoolLayout(pool).plan_round(0), ".parquet")
    assert files[:4] == [f"shards-{i:05d}.parquet" for i in range(4)]
    plan = read_plan(pool)
    assert plan.file.tolist() == [0, 0, 0, 1, 1, 1, 2, 3]
    uids = [pair.uid for n in range(8) for pair in rows_of_shard(pool, n)]
    assert uids == [f"{i:032x}" for i in range(35)]


def test_rows_that_are_retried_keep_their_hashes(tmp_path: Path) -> None:
    pool = write(tmp_path, [3, 5])
    assert add_retries(pool, RECIPE, ["000000001", "000010004"]) == {}
    pairs = [pair for n in (2, 3)[: len(read_plan(pool)) - 2] for pair in
             rows_of_shard(pool, n)]  # fmt: skip
    assert {pair.locked_sha256 for pair in pairs} == {"ab"}
    assert {pair.locked_outcome for pair in pairs} == {"stored"}
    assert len(pairs) == 2


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_command_that_lost_its_lease_plans_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Whether it is lost before the first file, the table of shards or the document."""
    checks = []

    def check(pool: str, fence: int | None) -> None:
        checks.append((pool, fence))
        if len(checks) > before:
            raise LeaseLost("taken over")

    monkeypatch.setattr(planner, "check_fence", check)
    with pytest.raises(LeaseLost, match="taken over"):
        write_given_plan(str(tmp_path), RECIPE, [(0, shard(0, 3))], "the-lock", 2, 7)
    assert checks == [(str(tmp_path), 7)] * (before + 1)
    assert len(disk.list_names(PoolLayout(str(tmp_path)).plan_round(0))) == before
    assert not is_planned(str(tmp_path))


def test_no_row_is_no_plan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lock the-lock has no rows"):
        write(tmp_path, [])
    assert not is_planned(str(tmp_path))
    assert lock_of_plan(str(tmp_path)) is None
