"""A plan is read: shards as columns, rows by file and row group; and shards that a lock gives are
a plan like any other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clipmill.manifests import disk
from clipmill.manifests.columns import LOCKED, PLAN
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Fetch, Recipe, Source
from clipmill.pipeline.planning import planner
from clipmill.pipeline.planning.plan_files import (
    group_count,
    is_planned,
    lock_of_plan,
    read_plan,
    read_row_group,
    read_shard,
    rows_of_shard,
)
from clipmill.pipeline.planning.planner import settings_hash, write_given_plan, write_plan
from clipmill.pipeline.pool.lease import LeaseLost, PoolWriter
from tests.support import audited
from tests.support.pairs import pairs, urls, write_part
from tests.support.plans import planned, retried
from tests.support.reference_plan import plan_of

RECIPE = Recipe(
    name="r",
    source=Source(kind="table", paths=("a.csv",)),
    fetch=Fetch(rows_per_shard=7, user_agent="x/1"),
)
TABLE = pairs(urls(50, 9))


def with_pairs(pool: Path) -> str:
    write_part(pool, TABLE)
    return str(pool)


def test_shards_rows_and_tickets(tmp_path: Path) -> None:
    pool = with_pairs(tmp_path)
    assert not is_planned(PoolLayout(pool))
    shards = planned(pool, RECIPE)
    assert is_planned(PoolLayout(pool))
    expected = plan_of(TABLE, 7, settings_hash(RECIPE.fetch))
    assert shards == [each.shard for each in expected]
    plan = read_plan(PoolLayout(pool))
    asked = np.array([4, 1])
    tickets = list(plan.tickets(asked))
    for ticket, number in zip(tickets, asked.tolist(), strict=True):
        each = expected[number]
        assert (ticket.id, ticket.group) == (each.shard.id, str(each.shard.group))
        assert ticket.payload.shard == number
        rows, retry_of = ticket.payload.read()
        assert [pair.uid for pair in rows] == TABLE["uid"].take(each.rows).to_pylist()
        assert retry_of == [None] * len(rows)
        assert (rows, retry_of) == read_shard(PoolLayout(pool), number)


def test_what_is_not_in_a_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no plan; run clipmill build"):
        read_plan(PoolLayout(str(tmp_path)))
    pool = with_pairs(tmp_path)
    write_plan(PoolWriter(pool), RECIPE)
    for shard in (99, -1):
        with pytest.raises(ValueError, match=f"no shard {shard}; its plan has"):
            read_shard(PoolLayout(pool), shard)


def test_a_flipped_bit_in_the_rows_of_a_plan_is_refused(tmp_path: Path) -> None:
    pool = audited.make(tmp_path / "pool")
    [path] = (tmp_path / "pool" / "plan").glob("shards-*.parquet")
    numbers = range(len(read_plan(PoolLayout(pool))))
    whole = [read_shard(PoolLayout(pool), number) for number in numbers]
    content = path.read_bytes()
    refused = 0
    for position in range(4, len(content), len(content) // 60):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        try:
            assert [read_shard(PoolLayout(pool), number) for number in numbers] == whole, position
        except (ValueError, OSError, KeyError):  # KeyError: the name of a column
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("text", ["null", "[]", "{}", "{", '{"shards": "x"}', "[" * 100_000])
def test_a_plan_that_is_none_is_refused_and_made_anew(tmp_path: Path, text: str) -> None:
    pool = with_pairs(tmp_path)
    shards = planned(pool, RECIPE)
    path = tmp_path / "plan/plan.json"
    path.write_text(text)
    layout = PoolLayout(pool)
    for read in (
        lambda: read_plan(layout), lambda: read_shard(layout, 0), lambda: planned(pool, RECIPE)
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"plan/plan\.json cannot be used: .* made anew"):
            read()
    path.unlink()
    assert planned(pool, RECIPE) == shards


def test_a_damaged_list_of_shards_is_refused_and_made_anew(tmp_path: Path) -> None:
    pool = with_pairs(tmp_path)
    shards = planned(pool, RECIPE)
    path = tmp_path / "plan/shards.parquet"
    whole, table = path.read_bytes(), disk.read_parquet(path)
    index = table.schema.get_field_index("file")
    nulls = table.set_column(index, "file", pa.nulls(len(table), pa.int64()))
    for bad in (table.slice(1), nulls, table.drop_columns(["id"])):
        disk.write_parquet(path, bad)
        with pytest.raises(ValueError, match=r"shards\.parquet cannot be used: .* made anew"):
            read_plan(PoolLayout(pool))
    path.write_bytes(whole[:10] + bytes([whole[10] ^ 1]) + whole[11:])
    with pytest.raises(ValueError, match=r"cannot be used: is damaged, or no Parquet file"):
        read_plan(PoolLayout(pool))
    path.unlink()
    with pytest.raises(ValueError, match=r"cannot be used: it is missing"):
        read_plan(PoolLayout(pool))
    (tmp_path / "plan/plan.json").unlink()
    assert planned(pool, RECIPE) == shards
    assert path.read_bytes() == whole


def test_a_damaged_round_of_retries_is_not_made_anew(tmp_path: Path) -> None:
    pool = with_pairs(tmp_path)
    planned(pool, RECIPE)
    assert retried(pool, RECIPE, ["000000000"])
    (tmp_path / "plan/retry-001/plan.json").write_text("null")
    with pytest.raises(ValueError, match=r"retry-001/plan\.json cannot be used") as error:
        read_plan(PoolLayout(pool))
    assert "made anew" not in str(error.value)


FROM_LOCK = Recipe(
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
    write_given_plan(PoolWriter(str(pool)), FROM_LOCK, shards, "the-lock", 2)
    return str(pool)


def test_shards_and_rows_stay_as_they_are_given(tmp_path: Path) -> None:
    pool = write(tmp_path, [3, 5, 1])
    plan = read_plan(PoolLayout(pool))
    assert plan.rows.tolist() == [3, 5, 1]
    assert plan.groups.tolist() == [0, 1, 0]
    assert len(set(plan.ids.to_pylist())) == 3
    pairs, retried = read_shard(PoolLayout(pool), 1)
    assert [int(pair.uid, 16) for pair in pairs] == [3, 4, 5, 6, 7]
    assert [(pair.locked_outcome, pair.locked_sha256) for pair in pairs] == [("stored", "ab")] * 5
    assert pairs[0].extra is None
    assert retried == [None] * 5
    location = plan.location(2)
    assert len(read_row_group(location.file, location.row_group)) == 1
    assert group_count(PoolLayout(pool)) == 2
    document = disk.read_json(PoolLayout(pool).plan_round(0) + "/plan.json")
    assert lock_of_plan(PoolLayout(pool)) == ("the-lock", document["recipe"])


def test_many_shards_become_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "SHARDS_PER_FILE", 3)
    monkeypatch.setattr(planner, "ROWS_PER_TICKET", 10)
    pool = write(tmp_path, [1, 1, 1, 1, 8, 2, 20, 1])
    files = disk.list_names(PoolLayout(pool).plan_round(0), ".parquet")
    assert files[:4] == [f"shards-{i:05d}.parquet" for i in range(4)]
    plan = read_plan(PoolLayout(pool))
    assert plan.file.tolist() == [0, 0, 0, 1, 1, 1, 2, 3]
    uids = [pair.uid for n in range(8) for pair in rows_of_shard(PoolLayout(pool), n)]
    assert uids == [f"{i:032x}" for i in range(35)]


def test_rows_that_are_retried_keep_their_hashes(tmp_path: Path) -> None:
    pool = write(tmp_path, [3, 5])
    retried(pool, FROM_LOCK, ["000000001", "000010004"])
    pairs = [
        pair
        for n in range(2, len(read_plan(PoolLayout(pool))))
        for pair in rows_of_shard(PoolLayout(pool), n)
    ]
    assert [(pair.locked_sha256, pair.locked_outcome) for pair in pairs] == [("ab", "stored")] * 2


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_command_that_lost_its_lease_plans_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Whether it is lost before the first file, the table of shards or the document."""
    checks = []

    def check(out: PoolWriter) -> None:
        checks.append(out)
        if len(checks) > before:
            raise LeaseLost("taken over")

    monkeypatch.setattr(PoolWriter, "check", check)
    out = PoolWriter(str(tmp_path), 7)
    with pytest.raises(LeaseLost, match="taken over"):
        write_given_plan(out, FROM_LOCK, [(0, shard(0, 3))], "the-lock", 2)
    assert checks == [out] * (before + 1)
    assert len(disk.list_names(PoolLayout(str(tmp_path)).plan_round(0))) == before
    assert not is_planned(PoolLayout(str(tmp_path)))


def test_no_row_is_no_plan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lock the-lock has no rows"):
        write(tmp_path, [])
    assert not is_planned(PoolLayout(str(tmp_path)))
    assert lock_of_plan(PoolLayout(str(tmp_path))) is None
