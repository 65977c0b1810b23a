"""Which pair goes where: the pairs alone decide it, and one host is in one group."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.schema import Fetch
from pipeline.fetch.host_groups import (
    PLAN_VERSION,
    PlannedShard,
    group_of,
    host_groups,
    host_of,
    plan_shards,
    row_keys,
)
from pipeline.fetch.plan import settings_hash
from tests.support.pairs import pairs, urls


def planned(table: pa.Table, rows_per_shard: int, settings: str = "") -> list[PlannedShard]:
    return plan_shards(row_keys([table]), rows_per_shard, settings)


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
    tasks = planned(pairs(urls(12, 5)), 4, "settings")
    assert [(t.shard, t.group, t.rows.tolist(), t.id) for t in tasks] == GOLDEN


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 50))
def test_every_row_once_hosts_undivided_and_shards_full(
    count: int, hosts: int, per_shard: int
) -> None:
    tasks = planned(pairs(urls(count, hosts)), per_shard)
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
    one = [[table["uid"][r].as_py() for r in t.rows] for t in planned(table, 10)]
    other = [[turned["uid"][r].as_py() for r in t.rows] for t in planned(turned, 10)]
    assert one == other


def test_local_files_are_spread_over_groups() -> None:
    assert len({t.group for t in planned(pairs([f"/data/{i}.jpg" for i in range(200)]), 10)}) > 10


def test_rows_without_hosts_fill_every_shard_but_the_last() -> None:
    table = pairs([f"/data/{i}.jpg" for i in range(7_727)])
    shards = plan_shards(row_keys([table]), 1000, by_host=False)
    assert [shard.size for shard in shards] == [1000] * 7 + [727]
    assert [shard.group for shard in shards] == list(range(8)) == [s.shard for s in shards]
    rows = [row for shard in shards for row in shard.rows.tolist()]
    assert sorted(rows) == list(range(7_727))
    assert rows != sorted(rows), "a shard is a sample of the whole list, not a stretch of it"
    turned = table.take(list(reversed(range(7_727))))
    ids = [shard.id for shard in plan_shards(row_keys([turned]), 1000, by_host=False)]
    assert ids == [shard.id for shard in shards]


GOLDEN_FILES = [
    (0, 0, [3, 7, 1, 5], "2109ecd5857d2302"),
    (1, 1, [6, 10, 9, 0], "cceacaa765334c5a"),
    (2, 2, [4, 8, 2], "2a78cec81f9a36c8"),
]


def test_golden_plan_of_files() -> None:
    """A change here is a change of every pool of files: raise PLAN_VERSION with it."""
    table = pairs([f"/data/{i}.jpg" for i in range(11)])
    shards = plan_shards(row_keys([table]), 4, "settings", by_host=False)
    assert [(s.shard, s.group, s.rows.tolist(), s.id) for s in shards] == GOLDEN_FILES


def test_ids_follow_rows_and_settings() -> None:
    table = pairs(urls(12, 5))
    ids = [t.id for t in planned(table, 4, settings_hash(Fetch()))]
    assert len(set(ids)) == len(ids)
    assert ids == [
        t.id for t in planned(table, 4, settings_hash(Fetch(user_agent="x/1 (a@b.example)")))
    ]
    assert set(ids).isdisjoint(
        t.id for t in planned(table, 4, settings_hash(Fetch(image_size=224)))
    )


def test_parts_or_one_table_give_the_same_plan() -> None:
    table = pairs(urls(300, 40))
    parts = [table.slice(start, 7) for start in range(0, 300, 7)]
    one, many = planned(table, 20, "s"), plan_shards(row_keys(parts), 20, "s")
    assert one == many
    assert [s.rows.tolist() for s in one] == [s.rows.tolist() for s in many]


def test_no_pairs_are_no_shards() -> None:
    assert plan_shards(row_keys([]), 20) == []


def test_a_table_without_urls_is_refused() -> None:
    with pytest.raises(KeyError, match="url"):
        row_keys([pairs(urls(3, 2)).drop_columns(["url"])])
