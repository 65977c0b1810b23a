"""A plan is read: shards as columns, rows by file and row group."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from manifests import disk
from manifests.schema import Fetch, Recipe, Source
from pipeline.planning.plan_files import (
    is_planned,
    read_plan,
    read_shard,
    read_ticket,
)
from pipeline.planning.planner import add_retries, settings_hash, write_plan
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
    assert not is_planned(pool)
    shards = planned(pool, RECIPE)
    assert is_planned(pool)
    expected = plan_of(TABLE, 7, settings_hash(RECIPE.fetch))
    assert shards == [each.shard for each in expected]
    plan = read_plan(pool)
    asked = np.array([4, 1])
    tickets = list(plan.tickets(asked))
    for ticket, number in zip(tickets, asked.tolist(), strict=True):
        each = expected[number]
        assert (ticket.id, ticket.group) == (each.shard.id, str(each.shard.group))
        assert ticket.payload["shard"] == number
        rows, retry_of = read_ticket(ticket.payload, pool)
        assert [pair.uid for pair in rows] == TABLE["uid"].take(each.rows).to_pylist()
        assert retry_of == [None] * len(rows)
        assert (rows, retry_of) == read_shard(pool, number)


def test_what_is_not_in_a_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no plan; run clipmill build"):
        read_plan(str(tmp_path))
    pool = with_pairs(tmp_path)
    write_plan(pool, RECIPE)
    for shard in (99, -1):
        with pytest.raises(ValueError, match=f"no shard {shard}; its plan has"):
            read_shard(pool, shard)
    with pytest.raises(ValueError, match="1 of the keys to retry"):
        add_retries(pool, RECIPE, ["000000000", "000000999"])


def test_a_flipped_bit_in_the_rows_of_a_plan_is_refused(tmp_path: Path) -> None:
    pool = audited.make(tmp_path / "pool")
    [path] = (tmp_path / "pool" / "plan").glob("shards-*.parquet")
    numbers = range(len(read_plan(pool)))
    whole = [read_shard(pool, number) for number in numbers]
    content = path.read_bytes()
    refused = 0
    for position in range(4, len(content), len(content) // 60):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        try:
            assert [read_shard(pool, number) for number in numbers] == whole, position
        except (ValueError, OSError, KeyError):  # KeyError: the name of a column
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("text", ["null", "[]", "{}", "{", '{"shards": "x"}', "[" * 100_000])
def test_a_plan_that_is_none_is_refused_and_made_anew(tmp_path: Path, text: str) -> None:
    pool = with_pairs(tmp_path)
    shards = planned(pool, RECIPE)
    path = tmp_path / "plan/plan.json"
    path.write_text(text)
    for read in (read_plan, lambda pool: read_shard(pool, 0), lambda pool: planned(pool, RECIPE)):
        with pytest.raises(ValueError, match=r"plan/plan\.json cannot be used: .* made anew"):
            read(pool)
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
            read_plan(pool)
    path.write_bytes(whole[:10] + bytes([whole[10] ^ 1]) + whole[11:])
    with pytest.raises(ValueError, match=r"cannot be used: is damaged, or no Parquet file"):
        read_plan(pool)
    path.unlink()
    with pytest.raises(ValueError, match=r"cannot be used: it is missing"):
        read_plan(pool)
    (tmp_path / "plan/plan.json").unlink()
    assert planned(pool, RECIPE) == shards
    assert path.read_bytes() == whole


def test_a_damaged_round_of_retries_is_not_made_anew(tmp_path: Path) -> None:
    pool = with_pairs(tmp_path)
    planned(pool, RECIPE)
    assert retried(pool, RECIPE, ["000000000"])
    (tmp_path / "plan/retry-001/plan.json").write_text("null")
    with pytest.raises(ValueError, match=r"retry-001/plan\.json cannot be used") as error:
        read_plan(pool)
    assert "made anew" not in str(error.value)
