"""Which pair goes where: fixed by the pairs alone, one host in one group, and a plan that cannot change afterwards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests import disk
from manifests.columns import PAIRS
from manifests.schema import Fetch, Recipe, Source
from pipeline.fetch.plan import (
    PLAN_VERSION,
    add_retries,
    group_of,
    host_groups,
    host_of,
    plan,
    read_plan,
    retries_of_shard,
    rows_of_shard,
    settings_of,
    write_plan,
)


def pairs(urls: list[str]) -> pa.Table:
    rows = [
        {"uid": disk.uid_of(url, str(i)), "url": url, "caption": str(i)}
        for i, url in enumerate(urls)
    ]
    return pa.Table.from_pylist(rows, PAIRS)


def urls(count: int, hosts: int) -> list[str]:
    return [f"http://h{i * i % hosts}.test/{i}.jpg" for i in range(count)]


def write_pairs(pool: Path, *tables: pa.Table) -> None:
    for k, table in enumerate(tables):
        disk.write_parquet(pool / "pairs" / f"part-{k:05d}.parquet", table, {"parts": len(tables)})


def recipe(**fetch: Any) -> Recipe:
    return Recipe(
        name="r",
        source=Source(kind="table", paths=("a.csv",)),
        fetch=Fetch(rows_per_shard=20, **fetch),
    )


# --- pure ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "per_shard", "groups"),
    [(0, 10, 1), (9, 10, 1), (25, 10, 2), (10_000, 10, 1000), (10**9, 10_000, 1024)],
)
def test_host_groups_follow_from_the_number_of_pairs(
    rows: int, per_shard: int, groups: int
) -> None:
    assert host_groups(rows, per_shard) == groups


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://example.org", "example.org"),
        ("https://a-b.example.org:8443?x=http://other.test/", "a-b.example.org"),
        ("http://Example.ORG/a.jpg", "example.org"),
        ("https://user:secret@example.org:8443/a", "example.org"),
        ("http://example.org./a", "example.org"),
        ("http://bücher.example/a", "xn--bcher-kva.example"),
        ("http://[2001:db8::1]/a", "2001:db8::1"),
        ("http://[broken/a", ""),
        ("/a/local/file.jpg", ""),
        (f"http://{'ü' * 80}.example/", ""),
    ],
)
def test_the_host_of_a_url_however_it_is_written(url: str, host: str) -> None:
    assert host_of(url) == host


GOLDEN = [
    (0, 0, [0, 5, 10], "05e29bafd3ec8114"),
    (1, 2, [9, 2, 7, 3], "7cfbcb7894531c81"),
    (2, 2, [8, 6, 1, 4], "8414156f8d40a338"),
    (3, 2, [11], "df9fe0b348cec91c"),
]


def test_golden_plan() -> None:
    """A change here is a change of every pool's order: raise PLAN_VERSION with it."""
    assert PLAN_VERSION == 2
    tasks = plan(pairs(urls(12, 5)), 4, "settings")
    assert [(t.shard, t.group, t.rows.tolist(), t.id) for t in tasks] == GOLDEN


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 50))
def test_every_row_once_hosts_undivided_and_shards_full(
    count: int, hosts: int, per_shard: int
) -> None:
    tasks = plan(pairs(urls(count, hosts)), per_shard)
    assert sorted(row for t in tasks for row in t.rows.tolist()) == list(range(count))
    assert [t.shard for t in tasks] == list(range(len(tasks)))
    places = {
        (host_of(url), t.group)
        for t in tasks
        for url in (urls(count, hosts)[r] for r in t.rows.tolist())
    }
    assert max(Counter(host for host, _ in places).values()) == 1
    assert all(t.size == len(t.rows) <= per_shard for t in tasks)
    short = Counter(t.group for t in tasks if t.size < per_shard)
    assert all(n == 1 for n in short.values()), "only the last shard of a group may be short"
    groups = host_groups(count, per_shard)
    assert all(t.group == group_of(host_of(urls(count, hosts)[t.rows[0]]), groups) for t in tasks)


def test_a_row_keeps_its_place_among_its_hosts_rows_when_pairs_come_in_another_order() -> None:
    table = pairs(urls(60, 7))
    turned = table.take(list(reversed(range(60))))
    one = [[table["uid"][r].as_py() for r in t.rows] for t in plan(table, 10)]
    other = [[turned["uid"][r].as_py() for r in t.rows] for t in plan(turned, 10)]
    assert one == other


def test_local_files_are_spread_over_groups() -> None:
    assert len({t.group for t in plan(pairs([f"/data/{i}.jpg" for i in range(200)]), 10)}) > 10


def test_ids_follow_rows_and_settings() -> None:
    table = pairs(urls(12, 5))
    ids = [t.id for t in plan(table, 4, settings_of(Fetch()))]
    assert len(set(ids)) == len(ids)
    assert ids == [t.id for t in plan(table, 4, settings_of(Fetch(user_agent="x/1 (a@b.example)")))]
    assert set(ids).isdisjoint(t.id for t in plan(table, 4, settings_of(Fetch(image_size=224))))


# --- on disk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_a_plan_holds_every_pair_in_fetch_order(tmp_path: Path, scheme: str) -> None:
    one, two = pairs(urls(50, 9)), pairs([f"http://other{i}.test/{i}" for i in range(33)])
    pool = f"{scheme}{tmp_path}/pool"
    for k, table in enumerate((one, two)):
        disk.write_parquet(disk.join(pool, "pairs", f"part-{k:05d}.parquet"), table, {"parts": 2})
    tasks = write_plan(pool, recipe())
    whole = pa.concat_tables([one, two])
    expected = plan(whole, 20, settings_of(recipe().fetch))
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


def test_what_is_not_in_the_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no plan"):
        read_plan(str(tmp_path))
    write_pairs(tmp_path, pairs(urls(30, 9)))
    write_plan(str(tmp_path), recipe())
    with pytest.raises(ValueError, match="no shard 99"):
        rows_of_shard(str(tmp_path), 99)
    with pytest.raises(ValueError, match="1 of the keys to retry"):
        add_retries(str(tmp_path), recipe(), ["000000000", "000000999"])
