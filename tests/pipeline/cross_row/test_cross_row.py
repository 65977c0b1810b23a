"""Filters that look at the whole pool: the same columns however the work is divided, and after any
interruption."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clipmill.filters import FILTERS, instances_of
from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout, uids_checksum
from clipmill.manifests.pool import Pool, complete_score_sets
from clipmill.manifests.schema import FilterSpec, Recipe, Rule, Source, View
from clipmill.pipeline import cross_row
from clipmill.pipeline.audit.integrity import verify
from clipmill.pipeline.database import stream
from clipmill.pipeline.executor.tickets import Ticket
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.progress.state import Measure
from clipmill.pipeline.scoring.score_sets import read_score_set
from clipmill.pipeline.scoring.scorer import score
from clipmill.pipeline.shuffle import ShardUnit
from clipmill.pipeline.views.files import choose_views
from tests.support.bundles import scores_of
from tests.support.folders import make_bundles_small
from tests.support.sidecars import read_sidecar
from tests.support.small_pool import Row, make_pool, rows, set_name, write_shard
from tests.support.toy_pool_filters import Near, Often, components

OFTEN, NEAR = FilterSpec(name="often"), FilterSpec(name="near")
WORDS = ["red", "green", "blue", "one", "two", "three", "four", "five", "six", "seven", "eight"]


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILTERS, "often", Often)
    monkeypatch.setitem(FILTERS, "near", Near)


def columns(pool: str, spec: FilterSpec) -> dict[str, dict[str, Any]]:
    """{key: row of the columns, with uid, status and caption} of all shards."""
    name = set_name(spec)
    values = {}
    for shard in read_commits(pool).names():
        sidecar = read_sidecar(pool, shard, ["key", "uid", "status", "caption"]).to_pylist()
        table = scores_of(pool, name, shard).to_pylist()
        for row, own in zip(sidecar, table, strict=True):
            values[row["key"]] = row | own
    return values


def run(pool: str, *specs: FilterSpec) -> None:
    assert score(PoolWriter(pool), specs, engine="inline")["failed"] == {}
    assert not (Path(pool) / ".transient").exists()


def check_often(values: dict[str, dict[str, Any]]) -> None:
    stored = [row for row in values.values() if row["status"] == "success"]
    counts = Counter(row["caption"] for row in stored)
    for row in values.values():
        if row["status"] != "success":
            assert row["often"] is None
        elif row["caption"] is None:
            assert (row["often"], row["often_share"]) == (0, None)  # the default, and none
        else:
            share = counts[row["caption"]] / len(stored)
            assert (row["often"], row["often_share"]) == (counts[row["caption"]], share)


def check_near(values: dict[str, dict[str, Any]]) -> None:
    stored = [row for row in values.values() if row["status"] == "success" and row["caption"]]
    group_of = components([(row["uid"], row["caption"]) for row in stored])
    sizes = Counter(group_of.values())
    for row in values.values():
        group = group_of.get(row["uid"])
        expected = (group, sizes.get(group), group and row["uid"] == group)
        assert (row["near_group"], row["near_size"], row["near_first"]) == expected


@pytest.mark.slow
@settings(
    max_examples=5,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    captions=st.lists(
        st.one_of(st.none(), st.lists(st.sampled_from(WORDS), max_size=2).map(" ".join)),
        min_size=1,
        max_size=24,
    ),
    per_shard=st.integers(1, 9),
    partition_bytes=st.sampled_from([600, 2000, 1 << 27]),
)
def test_the_columns_do_not_depend_on_shards_and_partitions(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    captions: list[str | None],
    per_shard: int,
    partition_bytes: int,
) -> None:
    given_rows = []
    for number, caption in enumerate(captions):
        reason = "http_4xx" if number % 6 == 5 else None
        given_rows.append(Row(caption=caption, reason=reason))
    pool = make_pool(tmp_path_factory.mktemp("pool"), given_rows, per_shard)
    # From one partition and ticket to one for every three rows.
    with monkeypatch.context() as patch:
        patch.setattr(cross_row, "PARTITION_BYTES", partition_bytes)
        run(pool, OFTEN, NEAR)
    check_often(columns(pool, OFTEN))
    check_near(columns(pool, NEAR))


@pytest.mark.slow
def test_a_long_chain_over_many_partitions_is_one_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(tmp_path, [Row(caption=f"w{i} w{i + 1}") for i in range(30)], per_shard=7)
    monkeypatch.setattr(cross_row, "PARTITION_BYTES", 3000)
    run(pool, NEAR)
    values = columns(pool, NEAR)
    check_near(values)
    assert {row["near_size"] for row in values.values()} == {30}
    (document,) = complete_score_sets(PoolLayout(pool)).values()
    assert document.seconds > 0


@pytest.mark.slow
def test_a_large_pool_and_one_that_grew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_bundles_small(monkeypatch)
    pool = make_pool(tmp_path, rows(20), per_shard=4)
    run(pool, OFTEN)
    name = set_name(OFTEN)
    document = complete_score_sets(PoolLayout(pool))[name]
    assert document.whole_pool
    assert (document.rows, document.stored, document.scored) == (20, 16, 16)
    view = View(name="v", rules=(Rule(name="often", where="often > 2"),))
    source = Source(kind="files", paths=("x.csv",))
    recipe = Recipe(name="r", source=source, filters=(OFTEN,), views=(view,))
    kept = choose_views(PoolWriter(pool), recipe)["v"].kept
    before = disk.read_parquet(PoolLayout(pool).score_bundle(name, 4))["often"].to_pylist()
    write_shard(pool, 5, list(enumerate(rows(7), start=20)))
    with pytest.raises(ValueError, match="of an older state of the pool"):
        choose_views(PoolWriter(pool), recipe)
    grown = read_commits(pool)
    assert not Pool(grown).covers(document)
    run(pool, OFTEN)
    after = disk.read_parquet(PoolLayout(pool).score_bundle(name, 4))["often"].to_pylist()
    assert after != before  # the columns of the old shards are new too
    assert choose_views(PoolWriter(pool), recipe)["v"].kept > kept
    assert verify(pool) == []


@pytest.mark.slow
def test_an_interrupted_job_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before any of its files is published, it ends with the same files."""
    monkeypatch.setattr(cross_row, "PARTITION_BYTES", 700)
    whole = make_pool(tmp_path / "whole", rows(16), per_shard=4)
    run(whole, OFTEN, NEAR)
    expected = [columns(whole, OFTEN), columns(whole, NEAR)]
    pool = make_pool(tmp_path / "pool", rows(16), per_shard=4)
    calls = 0
    stop_at = 1
    real = disk.files.publish

    class Killed(BaseException):
        pass

    def publish(*arguments: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise Killed
        real(*arguments, **options)

    monkeypatch.setattr(disk, "publish", publish)
    kills = 0
    for _ in range(200):
        try:
            score(PoolWriter(pool), [OFTEN, NEAR], engine="inline")
            break
        except Killed:
            kills += 1
            calls, stop_at = 0, 3  # a ticket leaves two files at most: every start gets further
    assert kills > 10
    assert [columns(pool, OFTEN), columns(pool, NEAR)] == expected
    assert not (Path(pool) / ".transient").exists()


def test_files_of_another_job_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_row, "PARTITION_BYTES", 700)
    captions = ("a b c d", "d e f a", None)
    pool = make_pool(tmp_path, [*rows(10), *(Row(caption=caption) for caption in captions)])
    planned = PoolLayout(pool)
    (set_name,) = score(PoolWriter(pool), [OFTEN], engine="inline")["sets"]
    disk.remove(planned.score_set_json(set_name))
    disk.remove(planned.score_bundle(set_name, 0))
    folder = planned.score_scratch(f"{set_name}-{read_commits(pool).fingerprint}")
    disk.write_json(disk.join(folder, "job.json"), {"form": 0})
    disk.write_bytes(disk.join(folder, "run-route-00000.index"), b"rubbish")
    run(pool, OFTEN, NEAR)
    check_often(columns(pool, OFTEN))
    check_near(columns(pool, NEAR))


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("route", ([0], [99]), "route must return partition numbers from 0 to 0; it returned 99"),
        ("route", ([99], [0]), "route must return row numbers from 0 to 7; it returned 99 to 99"),
        ("route", ([0.5], [0]), "of type float64"),
        ("route", ([0, 0], [0, 0]), "route sent a row to two partitions"),
        ("route", ([0, 1], [0]), r"two arrays of one length; their shapes are \(2,\) and \(1,\)"),
        ("route", 5, "route must return two arrays"),
        ("judge", {"often": [1]}, "must give the columns often, often_share; it gave often"),
        ("judge", {"often": [1], "often_share": [1.0]}, "gave 1 values of often for 8 rows"),
        ("judge", {"often": ["x"] * 8, "often_share": [1.0] * 8}, "of often are not of type int64"),
        ("judge", RuntimeError("two\nlines"), "judge raised RuntimeError: two lines"),
        ("summarise", [1], "summarise must return an Arrow table; it returned list"),
        ("combine", 8, "combine must return an Arrow table; it returned int"),
        ("links", [(1, 2)], "links must return a table of uid_a and uid_b"),
        ("links", pa.table({"a": [1]}), "links must return a table of uid_a and uid_b"),
        (
            "links",
            pa.table({"uid_a": ["x"], "uid_b": ["y"]}),
            "links must return uids: a uid does not have 32 hex digits",
        ),
    ],
)
def test_mistakes_of_a_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, value: Any, message: str
) -> None:
    def wrong(*_: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    monkeypatch.setattr(Near if method == "links" else Often, method, wrong)
    pool = make_pool(tmp_path, rows(10))
    report = score(PoolWriter(pool), [NEAR if method == "links" else OFTEN], engine="inline")
    ((_, reason),) = report["failed"].items()
    assert re.search(message, reason), reason
    assert "\n" not in reason
    assert list(report["sets"].values()) == [{}]


@pytest.mark.slow
def test_damage_and_pools_without_rows(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no committed shard; build it first"):
        score(PoolWriter(str(tmp_path / "none")), [OFTEN], engine="inline")
    failed = [Row(caption="x", reason="http_4xx") for _ in range(5)]
    with pytest.raises(ValueError, match="none of the 5 rows is stored"):
        score(PoolWriter(make_pool(tmp_path / "empty", failed)), [OFTEN], engine="inline")
    pool = make_pool(tmp_path / "pool", rows(30))
    run(make_pool(tmp_path / "one", rows(1)), OFTEN, NEAR)
    sidecar = Path(PoolLayout(pool).sidecar(1))
    content = sidecar.read_bytes()
    disk.write_parquet(str(sidecar), read_sidecar(pool, 1).slice(1))
    with pytest.raises(
        ValueError, match=r"shard 00001 is damaged: .* 9 rows of 10; run clipmill audit repair "
    ):
        score(PoolWriter(pool), [OFTEN], engine="inline")
    sidecar.write_bytes(content)
    run(pool, OFTEN)
    (set_name,) = [n for n in disk.list_names(PoolLayout(pool).scores) if n.startswith("often@")]
    disk.remove(PoolLayout(pool).score_bundle(set_name, 1))
    assert any("often@" in line for line in verify(pool))
    disk.remove(PoolLayout(pool).score_set_json(set_name))
    assert read_score_set(PoolLayout(pool), set_name) is None
    run(pool, OFTEN)
    check_often(columns(pool, OFTEN))


def test_a_column_that_is_nowhere_names_the_filter_that_gives_it(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(5))
    balance = FilterSpec(name="balance", options={"t": 3})
    message = "reads concept_entries, which .* does not have; put the filter concept into the rec"
    with pytest.raises(ValueError, match=message):
        score(PoolWriter(pool), [balance], engine="inline")


def planned(
    pool: str, columns: dict[str, tuple[str, ...]], name: str = "often"
) -> cross_row.PoolJob:
    instance = instances_of([FilterSpec(name=name)])[name]
    return cross_row.plan_job(PoolWriter(pool), read_commits(pool), f"{name}@1", instance, columns)


def test_tickets_and_partitions_follow_from_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(tmp_path, rows(40), per_shard=4)
    small = planned(pool, {"": ("caption",)})
    assert (small.partitions, small.bounds, small.units) == (1, (0, 10), 1)
    monkeypatch.setattr(cross_row, "PARTITION_BYTES", 2000)
    many = planned(pool, {"": ("caption",)})
    assert many.partitions > 1
    assert many.bounds[0] == 0
    assert many.bounds[-1] == 10
    assert list(many.bounds) == sorted(set(many.bounds))
    assert planned(pool, {"": ("caption",)}, "near").partitions > 2 * many.partitions
    assert disk.from_plain(cross_row.PoolJob, disk.to_plain(many)) == many
    assert many.identity() != small.identity()
    monkeypatch.setattr(cross_row, "MOST_PARTITIONS", 2)
    assert planned(pool, {"": ("caption",)}).partitions == 2


def test_summaries_are_merged_beyond_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged: list[int] = []

    class Merging(Often):
        def merge(self, summaries: pa.Table) -> pa.Table:
            merged.append(summaries.num_rows)
            return self.combine(summaries)

    monkeypatch.setitem(FILTERS, "often", Merging)
    monkeypatch.setattr(cross_row, "SUMMARY_BYTES", 20)  # of 8 bytes a shard
    pool = make_pool(tmp_path, rows(20), per_shard=1)
    run(pool, OFTEN)
    check_often(columns(pool, OFTEN))
    assert set(merged) == {3}
    assert len(merged) > 5


def test_columns_of_two_shards(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(8), per_shard=5)
    commits = read_commits(pool)
    instance = instances_of([FilterSpec(name="many", kind="often")])["many"]
    job = cross_row.plan_job(
        PoolWriter(commits.pool), commits, "many@1", instance, {"": ("caption",)}
    )
    table = pa.table({"often": pa.array([7, None, 9]), "often_share": pa.array([0.5, 0.6, 0.7])})
    ids = np.array([1 << 32 | 2, 1, 0], np.uint64)
    job.exchange(cross_row.VALUES).write(0, table, ids)
    work = cross_row.gather(job)
    ticket = Ticket(id="g", group="g", payload=ShardUnit(number=0, shards=(0, 1)))
    assert work(ticket) == Measure(rows=2, stored=2)
    path = PoolLayout(pool).score_part("many@1", 0)
    first = disk.read_parquet(path)
    # Rows 2 and 3 are stored and took no part: the default. Row 4 is not stored.
    assert first["many"].to_pylist() == [9, None, 0, 0, None]
    assert first["many_share"].to_pylist() == [0.7, 0.6, None, None, None]
    second = disk.read_parquet(PoolLayout(pool).score_part("many@1", 1))
    assert second["many"].to_pylist() == [0, 0, 7]
    metadata = disk.read_metadata(path)
    assert metadata["pool"] == commits.fingerprint
    assert metadata["uids"] == uids_checksum(read_sidecar(pool, 0)["uid"])
    assert (metadata["rows"], metadata["stored"], metadata["scored"]) == (5, 4, 1)
    with pytest.raises(FileNotFoundError):
        work(Ticket(id="g", group="g", payload=ShardUnit(number=0, shards=(0, 1, 2))))


PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=60)


def uid(number: int) -> str:
    """Ids whose bytes end in zeros, or begin with them."""
    return f"{number * 0x1000000 % 0x700000001:032x}"


@settings(max_examples=15)
@given(PAIRS, st.integers(1, 3))
def test_the_stars_of_partitions_and_of_the_pool_are_the_components(
    pairs: list[tuple[int, int]], partitions: int
) -> None:
    parts = []
    for number in range(partitions):
        own = pairs[number::partitions]
        ends = [pa.array([uid(pair[end]) for pair in own], pa.string()) for end in (0, 1)]
        parts.append(cross_row.stars(pa.table(ends, cross_row.PAIR)))
    whole = cross_row.stars(stream(parts, cross_row.PAIR))
    words: dict[str, str] = {}  # a word of both ends of each pair
    for number, pair in enumerate(pairs):
        for each in map(uid, pair):
            words[each] = f"{words.get(each, '')} {number}"
    groups = components(sorted(words.items()))
    expected = {each: group for each, group in sorted(groups.items()) if each != group}
    assert whole["first"].to_pylist() == list(expected)
    assert whole["second"].to_pylist() == list(expected.values())
