"""The plan on disk: every pair once, in fetch order, and it cannot change afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from manifests import disk
from manifests.columns import PAIRS
from manifests.schema import Fetch, HostLimit, Recipe, Source
from pipeline.fetch import plan
from pipeline.fetch.host_groups import plan_shards, row_keys
from pipeline.fetch.plan import (
    add_retries,
    read_plan,
    retries_of_shard,
    rows_of_shard,
    settings_hash,
    write_plan,
)
from tests.support.pairs import pairs, urls


def write_pairs(pool: Path, *tables: pa.Table) -> None:
    for k, table in enumerate(tables):
        disk.write_parquet(pool / "pairs" / f"part-{k:05d}.parquet", table, {"parts": len(tables)})


def recipe(**fetch: Any) -> Recipe:
    return Recipe(
        name="r",
        source=Source(kind="table", paths=("a.csv",)),
        fetch=Fetch(rows_per_shard=20, **fetch),
    )


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_a_plan_holds_every_pair_in_fetch_order(tmp_path: Path, scheme: str) -> None:
    one, two = pairs(urls(50, 9)), pairs([f"http://other{i}.test/{i}" for i in range(33)])
    pool = f"{scheme}{tmp_path}/pool"
    for k, table in enumerate((one, two)):
        disk.write_parquet(disk.join(pool, "pairs", f"part-{k:05d}.parquet"), table, {"parts": 2})
    tasks = write_plan(pool, recipe())
    whole = pa.concat_tables([one, two])
    expected = plan_shards(row_keys([whole]), 20, settings_hash(recipe().fetch))
    assert tasks == expected == read_plan(pool)
    for task in expected:
        assert [p.uid for p in rows_of_shard(pool, task.shard)] == whole["uid"].take(
            task.rows
        ).to_pylist()
    assert rows_of_shard(pool, 0)[0].caption == whole["caption"][int(expected[0].rows[0])].as_py()
    assert retries_of_shard(pool, 0) == [None] * expected[0].size


def test_resuming_leaves_the_plan_as_it_is(tmp_path: Path) -> None:
    write_pairs(tmp_path, pairs(urls(30, 9)))
    write_plan(str(tmp_path), recipe())
    before = (tmp_path / "plan.parquet").read_bytes()
    write_plan(
        str(tmp_path),
        recipe(user_agent="another/1 (me@b.example)", connect_to={"a.test": "127.0.0.1:80"}),
    )
    assert (tmp_path / "plan.parquet").read_bytes() == before


@pytest.mark.parametrize(
    "manners",
    [
        {"per_host": 4, "user_agent": "another/1 (me@b.example)"},
        {"retries": 0, "deadline_s": 5.0, "delay_s": 1.0, "patience_s": 9.0, "min_rate": 0},
        {"concurrency": 9, "hosts": {"a.test": HostLimit(per_host=1)}},
    ],
    ids=" ".join,
)
def test_manners_may_change_in_the_middle_of_a_pool(
    tmp_path: Path, manners: dict[str, Any]
) -> None:
    write_pairs(tmp_path, pairs(urls(50, 9)))
    planned = write_plan(str(tmp_path), recipe(per_host=2))
    before = (tmp_path / "plan.parquet").read_bytes()
    assert write_plan(str(tmp_path), recipe(**manners)) == planned
    assert (tmp_path / "plan.parquet").read_bytes() == before
    assert settings_hash(recipe(**manners).fetch) == settings_hash(recipe(per_host=2).fetch)
    key = f"{planned[0].shard:05d}0000"
    [retry] = add_retries(str(tmp_path), recipe(**manners), [key])
    assert retries_of_shard(str(tmp_path), retry.shard) == [key]


@pytest.mark.slow
def test_many_parts_are_planned_in_one_scan(tmp_path: Path) -> None:
    """A scan per part needed 2 GB for 2,500 parts, whatever their size."""
    table = pairs(urls(900, 40))
    write_pairs(tmp_path, *(table.slice(start, 3) for start in range(0, 900, 3)))
    shards = write_plan(str(tmp_path), recipe())
    expected = plan_shards(row_keys([table]), 20, settings_hash(recipe().fetch))
    assert shards == expected
    planned = disk.read_parquet(tmp_path / "plan.parquet", ["uid", "part", "row"])
    rows = [
        3 * part + row
        for part, row in zip(planned["part"].to_pylist(), planned["row"].to_pylist(), strict=True)
    ]
    assert rows == [row for shard in expected for row in shard.rows.tolist()]
    assert planned["uid"].to_pylist() == [table["uid"][row].as_py() for row in rows]


def test_a_part_whose_name_has_a_quotation_mark(tmp_path: Path) -> None:
    pool = tmp_path / "it's a pool"
    write_pairs(pool, pairs(urls(30, 9)), pairs(urls(3, 2)))
    assert sum(shard.size for shard in write_plan(str(pool), recipe())) == 33


def test_the_same_pairs_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_pairs(tmp_path / name, pairs(urls(30, 9)))
        write_plan(str(tmp_path / name), recipe())
    assert (tmp_path / "a/plan.parquet").read_bytes() == (tmp_path / "b/plan.parquet").read_bytes()


def test_another_recipe_is_refused_with_what_changed(tmp_path: Path) -> None:
    write_pairs(tmp_path, pairs(urls(30, 9)))
    write_plan(str(tmp_path), recipe())
    with pytest.raises(ValueError, match=r"fetch\.image_size was 256 and is 224.*another folder"):
        write_plan(str(tmp_path), recipe(image_size=224))


def test_other_pairs_are_refused(tmp_path: Path) -> None:
    write_pairs(tmp_path, pairs(urls(30, 9)))
    write_plan(str(tmp_path), recipe())
    write_pairs(tmp_path, pairs(urls(31, 9)))
    with pytest.raises(ValueError, match="not those that this pool was planned from"):
        write_plan(str(tmp_path), recipe())


def test_an_unfinished_crawl_is_not_planned(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no pairs to plan; run the stage crawl"):
        write_plan(str(tmp_path), recipe())
    disk.write_parquet(tmp_path / "pairs" / "part-00000.parquet", pairs(urls(5, 2)), {"parts": 2})
    with pytest.raises(ValueError, match="1 of 2 parts"):
        write_plan(str(tmp_path), recipe())


def test_a_source_without_pairs_is_an_empty_plan(tmp_path: Path) -> None:
    write_pairs(tmp_path, PAIRS.empty_table())
    assert write_plan(str(tmp_path), recipe()) == [] == read_plan(str(tmp_path))


@pytest.mark.slow
def test_retries_become_shards_of_their_own_and_can_be_retried_again(tmp_path: Path) -> None:
    write_pairs(tmp_path, pairs(urls(50, 9)))
    pool = str(tmp_path)
    tasks = write_plan(pool, recipe())
    keys = [f"{t.shard:05d}{i:04d}" for t in tasks for i in (0, t.size - 1)]
    new = add_retries(pool, recipe(), keys)
    assert [t.shard for t in new] == list(range(len(tasks), len(tasks) + len(new)))
    assert read_plan(pool) == [*tasks, *new]
    asked: dict[str, str] = {}
    for task in new:
        for key, pair in zip(
            retries_of_shard(pool, task.shard), rows_of_shard(pool, task.shard), strict=True
        ):
            assert key is not None
            asked[key] = pair.uid
            old = next(t for t in tasks if t.shard == int(key[:-4]))
            assert old.group == task.group
            assert rows_of_shard(pool, old.shard)[int(key[-4:])] == pair
    assert set(asked) == set(keys)
    again = add_retries(pool, recipe(), [f"{new[0].shard:05d}0000"])
    assert retries_of_shard(pool, again[0].shard) == [f"{new[0].shard:05d}0000"]
    assert write_plan(pool, recipe()) == [*tasks, *new, *again]
    assert add_retries(pool, recipe(), []) == []
    assert add_retries(pool, recipe(), keys) == [], "they are planned already"


# --- files, which have no host -------------------------------------------------------------------


def files_recipe() -> Recipe:
    source = Source(kind="image_folder", paths=("images",), captions="txt")
    return Recipe(name="r", source=source, fetch=Fetch(rows_per_shard=20))


def file_pairs(count: int) -> pa.Table:
    return pairs([f"/data/{i}.jpg" for i in range(count)])


def test_a_plan_of_files_has_full_shards_and_its_retries_too(tmp_path: Path) -> None:
    write_pairs(tmp_path, file_pairs(50), file_pairs(45))
    pool = str(tmp_path)
    shards = write_plan(pool, files_recipe())
    assert [(s.shard, s.group, s.size) for s in shards] == [
        (0, 0, 20), (1, 1, 20), (2, 2, 20), (3, 3, 20), (4, 4, 15),
    ]  # fmt: skip
    assert write_plan(pool, files_recipe()) == shards
    keys = [f"{s.shard:05d}{i:04d}" for s in shards for i in range(5)]
    new = add_retries(pool, files_recipe(), keys)
    assert [(s.shard, s.group, s.size) for s in new] == [(5, 5, 20), (6, 6, 5)]
    retried = [*retries_of_shard(pool, 5), *retries_of_shard(pool, 6)]
    assert sorted(map(str, retried)) == keys


def test_a_pool_of_files_that_was_planned_by_groups_goes_on_with_its_plan(tmp_path: Path) -> None:
    """Pools of files had host groups by uid, and so many short shards."""
    write_pairs(tmp_path, file_pairs(95))
    pool = str(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        kind = replace(plan.SOURCES["image_folder"], images="web")
        patch.setattr(plan, "SOURCES", {**plan.SOURCES, "image_folder": kind})
        old = write_plan(pool, files_recipe())
    assert [(s.group, s.size) for s in old] != [(i, min(20, 95 - 20 * i)) for i in range(5)]
    before = (tmp_path / "plan.parquet").read_bytes()
    assert write_plan(pool, files_recipe()) == old
    assert (tmp_path / "plan.parquet").read_bytes() == before
    new = add_retries(pool, files_recipe(), [f"{s.shard:05d}0000" for s in old])
    assert {s.group for s in new} == {s.group for s in old}


def test_what_is_not_in_the_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no plan"):
        read_plan(str(tmp_path))
    write_pairs(tmp_path, pairs(urls(30, 9)))
    write_plan(str(tmp_path), recipe())
    with pytest.raises(ValueError, match="no shard 99"):
        rows_of_shard(str(tmp_path), 99)
    with pytest.raises(ValueError, match="1 of the keys to retry"):
        add_retries(str(tmp_path), recipe(), ["000000000", "000000999"])
