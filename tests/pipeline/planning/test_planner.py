"""The plan on disk: every pair once, in fetch order, and it cannot change afterwards."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clipmill.manifests import disk
from clipmill.manifests.columns import PAIRS, with_extra
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Fetch, Recipe, Source
from clipmill.pipeline import shuffle
from clipmill.pipeline.crawl.crawler import Block
from clipmill.pipeline.executor import tickets
from clipmill.pipeline.executor.tickets import Ticket
from clipmill.pipeline.planning import planner
from clipmill.pipeline.planning.plan_files import read_plan, read_rounds, read_shard, rows_of_shard
from clipmill.pipeline.planning.planner import (
    add_retries,
    retried_keys,
    settings_hash,
    sort_pairs,
    write_plan,
)
from clipmill.pipeline.pool.lease import PoolWriter
from tests.support import audited, self_kills
from tests.support.pairs import pairs, urls, write_part
from tests.support.plans import planned, retried
from tests.support.reference_plan import Expected, plan_of
from tests.support.sidecars import read_sidecar


def write_pairs(pool: Path, *tables: pa.Table) -> None:
    for k, table in enumerate(tables):
        write_part(pool, table, k, parts=len(tables))


def recipe(rows_per_shard: int = 20, **fetch: Any) -> Recipe:
    return Recipe(
        name="r",
        source=Source(kind="table", paths=("a.csv",)),
        fetch=Fetch(rows_per_shard=rows_per_shard, **fetch),
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a plan."""
    paths = [path for path in sorted((folder / "plan").rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture(params=["one ticket", "many tickets", "slices"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """How many rows a ticket may hold."""
    rows = {"one ticket": 500_000, "many tickets": 37, "slices": 16}[request.param]
    monkeypatch.setattr(planner, "ROWS_PER_TICKET", rows)
    return request.param


def check(pool: str, whole: pa.Table, expected: list[Expected]) -> None:
    """The plan on disk is the expected one, row by row."""
    plan = read_plan(PoolLayout(pool))
    assert list(plan) == [each.shard for each in expected]
    for each in expected[:: 1 + len(expected) // 20]:
        wanted = whole["uid"].take(each.rows).to_pylist()
        assert [pair.uid for pair in rows_of_shard(PoolLayout(pool), each.shard.shard)] == wanted


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_a_plan_holds_every_pair_in_fetch_order(tmp_path: Path, scheme: str, sizes: str) -> None:
    one, two = pairs(urls(50, 9)), pairs([f"http://other{i}.test/{i}" for i in range(33)])
    empty = PAIRS.empty_table()
    pool = f"{scheme}{tmp_path}/pool"
    for k, table in enumerate((empty, one, empty, two, empty)):
        write_part(pool, table, k, parts=5)
    assert write_plan(PoolWriter(pool), recipe()) == {}
    whole = pa.concat_tables([one, two])
    expected = plan_of(whole, 20, settings_hash(recipe().fetch))
    check(pool, whole, expected)
    first = rows_of_shard(PoolLayout(pool), 0)[0]
    assert first.caption == whole["caption"][expected[0].rows[0]].as_py()
    assert read_shard(PoolLayout(pool), 0)[1] == [None] * expected[0].shard.size
    assert not disk.list_names(disk.join(pool, "plan", ".shuffle"))


GOLDEN = [
    (0, 0, [0, 5, 10], "05e29bafd3ec8114"),
    (1, 2, [9, 2, 7, 3], "7cfbcb7894531c81"),
    (2, 2, [8, 6, 1, 4], "8414156f8d40a338"),
    (3, 2, [11], "df9fe0b348cec91c"),
]
GOLDEN_FILES = [
    (0, 0, [3, 7, 1, 5], "2109ecd5857d2302"),
    (1, 1, [6, 10, 9, 0], "cceacaa765334c5a"),
    (2, 2, [4, 8, 2], "2a78cec81f9a36c8"),
]


@pytest.mark.parametrize("of_files", [False, True])
def test_golden_plan(
    tmp_path: Path, of_files: bool, sizes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change here is a change of every pool's order: raise PLAN_VERSION with it."""
    assert planner.PLAN_VERSION == 2
    monkeypatch.setattr(planner, "settings_hash", lambda fetch: "settings")
    table = file_pairs(11) if of_files else pairs(urls(12, 5))
    write_pairs(tmp_path, table)
    asked = files_recipe(4) if of_files else recipe(4)
    rows = {uid: row for row, uid in enumerate(table["uid"].to_pylist())}
    found = []
    for shard in planned(str(tmp_path), asked):
        numbers = [rows[pair.uid] for pair in rows_of_shard(PoolLayout(str(tmp_path)), shard.shard)]
        found.append((shard.shard, shard.group, numbers, shard.id))
    assert found == (GOLDEN_FILES if of_files else GOLDEN)


@pytest.mark.parametrize(("rows_per_shard", "hosts"), [(1, 600), (7, 1), (7, 7), (1000, 7)])
def test_any_shape_is_planned_as_row_by_row(
    tmp_path: Path, rows_per_shard: int, hosts: int, sizes: str
) -> None:
    table = pairs(urls(151, hosts))
    write_pairs(tmp_path, *(table.slice(start, 50) for start in range(0, 151, 50)))
    asked = recipe(rows_per_shard)
    assert write_plan(PoolWriter(str(tmp_path)), asked) == {}
    check(str(tmp_path), table, plan_of(table, rows_per_shard, settings_hash(asked.fetch)))


def test_part_and_row_say_where_a_pair_comes_from(tmp_path: Path, sizes: str) -> None:
    table = pairs(urls(90, 40))
    write_pairs(tmp_path, *(table.slice(start, 3) for start in range(0, 90, 3)))
    write_plan(PoolWriter(str(tmp_path)), recipe())
    for path in sorted((tmp_path / "plan").glob("shards-*.parquet")):
        for row in disk.read_parquet(path, ["uid", "part", "row"]).to_pylist():
            assert table["uid"][3 * row["part"] + row["row"]].as_py() == row["uid"]


@pytest.mark.parametrize("url", ["http://h.test/" + "a" * 100_000, "http://h.test/ü\U0001f600"])
def test_a_url_of_any_length_travels(tmp_path: Path, url: str, sizes: str) -> None:
    write_pairs(tmp_path, pairs([*urls(50, 9), url]))
    shards = planned(str(tmp_path), recipe())
    planned_urls = [
        p.url for s in shards for p in rows_of_shard(PoolLayout(str(tmp_path)), s.shard)
    ]
    assert sorted(planned_urls) == sorted([*urls(50, 9), url])


def test_a_uid_that_comes_twice_stays_twice_in_the_order_of_the_pairs(
    tmp_path: Path, sizes: str
) -> None:
    one = pairs(urls(30, 4))
    again = one.set_column(2, "caption", pa.array([f"again {i}" for i in range(30)]))
    write_pairs(tmp_path, one, again)
    whole = pa.concat_tables([one, again])
    write_plan(PoolWriter(str(tmp_path)), recipe())
    expected = plan_of(whole, 20, settings_hash(recipe().fetch))
    check(str(tmp_path), whole, expected)
    captions = [p.caption for p in rows_of_shard(PoolLayout(str(tmp_path)), 0)]
    assert captions == whole["caption"].take(expected[0].rows).to_pylist()


def test_extra_columns_travel_and_a_part_without_one_is_named(tmp_path: Path) -> None:
    source = Source(kind="table", paths=("a.csv",), extra_columns={"faces": "json", "n": "int"})
    asked = replace(recipe(), source=source)
    table = pairs(urls(30, 9))
    whole = table.append_column("faces", pa.array([f"[{i}]" for i in range(30)]))
    whole = whole.append_column("n", pa.array(range(30), pa.int64()))
    assert whole.schema.names == with_extra(PAIRS, source.extra_columns).names
    beyond = whole.append_column("other", pa.array(["x"] * 30))
    write_pairs(tmp_path / "a", whole.slice(0, 20), beyond.slice(20))
    for shard in planned(str(tmp_path / "a"), asked):
        for pair in rows_of_shard(PoolLayout(str(tmp_path / "a")), shard.shard):
            assert pair.extra == {"faces": f"[{pair.caption}]", "n": int(pair.caption)}
    write_pairs(tmp_path / "b", whole.slice(0, 20), table.slice(20))
    failed = write_plan(PoolWriter(str(tmp_path / "b")), asked)
    assert "part-00001.parquet has no column 'faces'; run the stage crawl" in str(failed)
    assert not (tmp_path / "b/plan/plan.json").exists()


# --- stopped and resumed --------------------------------------------------------------------------


class Stopped(BaseException):
    """The process is killed here."""


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Writes are counted; the one whose number is `at` ends the process, before or after it."""
    state = {"count": 0, "at": -1, "after": 0}
    lock = threading.Lock()  # files are removed in threads

    def wrapped(function: Any) -> Any:
        def write(*arguments: Any) -> None:
            with lock:
                state["count"] += 1
                is_last = state["count"] == state["at"]
            if is_last and not state["after"]:
                raise Stopped
            function(*arguments)
            if is_last:
                raise Stopped

        return write

    for name in ("write_bytes", "publish", "create_file", "remove"):
        monkeypatch.setattr(disk, name, wrapped(getattr(disk, name)))
    return state


@pytest.mark.parametrize("retries", [False, True])
def test_a_round_that_is_stopped_anywhere_ends_in_the_same_bytes(
    tmp_path: Path, stopping: dict[str, int], retries: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan or retries, before the first write, behind the second one, before the third, …"""
    monkeypatch.setattr(planner, "ROWS_PER_TICKET", 20)
    keys: list[str] = []

    def begun(name: str) -> Path:
        write_pairs(tmp_path / name, pairs(urls(50, 9)), pairs(urls(33, 2)))
        if retries:
            write_plan(PoolWriter(str(tmp_path / name)), recipe(8))
        return tmp_path / name

    def run(pool: Path) -> None:
        if retries:
            retried(str(pool), recipe(8), keys)
        else:
            write_plan(PoolWriter(str(pool)), recipe(8))

    whole = begun("whole")
    if retries:
        for shard in read_plan(PoolLayout(str(whole))):
            keys += [f"{shard.shard:05d}{row:04d}" for row in range(shard.size)]
    stopping["count"] = 0
    run(whole)
    writes = stopping["count"]
    assert writes > 12
    for at in (1, writes // 2, writes - 3) if retries else range(1, writes + 1):
        pool = begun(f"{at}")
        stopping.update(count=0, at=at, after=1 - at % 2)
        with pytest.raises(Stopped):
            run(pool)
        stopping["at"] = -1
        if retries:
            planned(str(pool), recipe(8))  # another command between them
        before = stopping["count"]
        run(pool)
        assert stopping["count"] - before <= writes - at + 4, "what was done is done again"
        assert contents(pool) == contents(whole)


def test_files_of_another_job_are_not_taken(
    tmp_path: Path, stopping: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "ROWS_PER_TICKET", 20)
    write_pairs(tmp_path / "a", pairs(urls(50, 9)))
    write_pairs(tmp_path / "b", pairs(urls(50, 9)))
    stopping.update(count=0, at=6)
    with pytest.raises(Stopped):
        write_plan(PoolWriter(str(tmp_path / "a")), recipe(8))
    stopping["at"] = -1
    write_plan(PoolWriter(str(tmp_path / "a")), recipe(7))
    write_plan(PoolWriter(str(tmp_path / "b")), recipe(7))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.slow
@pytest.mark.ray
def test_workers_and_killed_workers_leave_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies at a ticket of each step: it is replaced, and the ticket runs again."""
    from clipmill.manifests import ray_runtime

    monkeypatch.setattr(planner, "ROWS_PER_TICKET", 20)
    monkeypatch.setattr(planner, "FEW", 0)
    monkeypatch.setattr(tickets, "RETRY_PAUSE_S", 0.0)
    marks = tmp_path / "marks"
    try:
        for engine in ("inline", "ray"):
            write_pairs(tmp_path / engine, pairs(urls(90, 9)))
            if engine == "ray":
                for step in ("sort_pairs", "merge_runs"):
                    self_kills.mark(marks, step, 1)
                monkeypatch.setattr(shuffle, "Stage", partial(self_kills.dying_stage, str(marks)))
            assert (
                write_plan(PoolWriter(str(tmp_path / engine)), recipe(8), engine=engine, workers=2)
                == {}
            )  # type: ignore[arg-type]
    finally:
        ray_runtime.disconnect()
    assert not list(marks.iterdir())
    assert contents(tmp_path / "inline") == contents(tmp_path / "ray")


MANNERS: dict[str, Any] = {"per_host": 4, "user_agent": "another/1 (me@b.example)", "retries": 0}
MANNERS |= {"deadline_s": 5.0, "delay_s": 1.0, "patience_s": 9.0, "min_rate": 0, "concurrency": 9}


def test_manners_may_change_in_the_middle_of_a_pool(tmp_path: Path) -> None:
    changed = recipe(**MANNERS, connect_to={"a.test": "127.0.0.1:80"})
    write_pairs(tmp_path, pairs(urls(50, 9)))
    shards = planned(str(tmp_path), recipe(per_host=2))
    before = contents(tmp_path)
    assert planned(str(tmp_path), changed) == shards
    assert contents(tmp_path) == before
    key = f"{shards[0].shard:05d}0000"
    [retry] = retried(str(tmp_path), changed, [key])
    assert read_shard(PoolLayout(str(tmp_path)), retry.shard)[1] == [key]


@pytest.mark.parametrize(
    ("asked", "count", "version", "message"),
    [
        (recipe(image_size=224), 30, 2, r"fetch\.image_size was 256 and is 224.*another folder"),
        (recipe(), 31, 2, "not those that this pool was planned from"),
        (recipe(), 30, 3, "planned by plan version 2, this is version 3"),
    ],
)
def test_a_plan_of_something_else_is_refused_with_what_changed(
    tmp_path: Path,
    asked: Recipe,
    count: int,
    version: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_pairs(tmp_path, pairs(urls(30, 9)))
    write_plan(PoolWriter(str(tmp_path)), recipe())
    write_pairs(tmp_path, pairs(urls(count, 9)))
    monkeypatch.setattr(planner, "PLAN_VERSION", version)
    with pytest.raises(ValueError, match=message):
        write_plan(PoolWriter(str(tmp_path)), asked)


def test_an_unfinished_crawl_is_not_planned(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no pairs to plan; run the stage crawl"):
        write_plan(PoolWriter(str(tmp_path)), recipe())
    write_part(tmp_path, pairs(urls(5, 2)), parts=2)
    with pytest.raises(ValueError, match="1 of 2 parts"):
        write_plan(PoolWriter(str(tmp_path)), recipe())


def test_a_source_without_pairs_is_an_empty_plan(tmp_path: Path) -> None:
    write_pairs(tmp_path, PAIRS.empty_table())
    assert planned(str(tmp_path), recipe()) == []
    assert retried(str(tmp_path), recipe(), []) == []


def test_retries_become_shards_of_their_own_and_can_be_retried_again(
    tmp_path: Path, sizes: str
) -> None:
    write_pairs(tmp_path, pairs(urls(50, 9)))
    pool = str(tmp_path)
    tasks = planned(pool, recipe())
    keys = [f"{t.shard:05d}{i:04d}" for t in tasks for i in (0, t.size - 1)]
    new = retried(pool, recipe(), keys)
    assert [t.shard for t in new] == list(range(len(tasks), len(tasks) + len(new)))
    assert list(read_plan(PoolLayout(pool))) == [*tasks, *new]
    asked: dict[str, str] = {}
    for task in new:
        for pair, key in zip(*read_shard(PoolLayout(pool), task.shard), strict=True):
            assert key is not None
            asked[key] = pair.uid
            old = next(t for t in tasks if t.shard == int(key[:-4]))
            assert old.group == task.group
            assert rows_of_shard(PoolLayout(pool), old.shard)[int(key[-4:])] == pair
    assert set(asked) == set(keys)
    again = retried(pool, recipe(), [f"{new[0].shard:05d}0000"])
    assert read_shard(PoolLayout(pool), again[0].shard)[1] == [f"{new[0].shard:05d}0000"]
    assert planned(pool, recipe()) == [*tasks, *new, *again]
    assert retried(pool, recipe(), []) == []
    assert retried(pool, recipe(), keys) == [], "they are planned already"


# --- files, which have no host -------------------------------------------------------------------


def files_recipe(rows_per_shard: int = 20) -> Recipe:
    source = Source(kind="image_folder", paths=("images",), captions="txt")
    return Recipe(name="r", source=source, fetch=Fetch(rows_per_shard=rows_per_shard))


def file_pairs(count: int) -> pa.Table:
    return pairs([f"/data/{i}.jpg" for i in range(count)])


def test_a_plan_of_files_has_full_shards_and_its_retries_too(tmp_path: Path, sizes: str) -> None:
    write_pairs(tmp_path, file_pairs(50), file_pairs(45))
    pool = str(tmp_path)
    shards = planned(pool, files_recipe())
    assert [(s.shard, s.group, s.size) for s in shards] == [
        (0, 0, 20), (1, 1, 20), (2, 2, 20), (3, 3, 20), (4, 4, 15),
    ]  # fmt: skip
    assert planned(pool, files_recipe()) == shards
    keys = [f"{s.shard:05d}{i:04d}" for s in shards for i in range(5)]
    new = retried(pool, files_recipe(), keys)
    assert [(s.shard, s.group, s.size) for s in new] == [(5, 5, 20), (6, 6, 5)]
    retry_of = [*read_shard(PoolLayout(pool), 5)[1], *read_shard(PoolLayout(pool), 6)[1]]
    assert sorted(map(str, retry_of)) == keys


def transient_keys(pool: str, shards: range) -> list[str]:
    keys = []
    for shard in shards:
        rows = read_sidecar(pool, shard, ["key", "class"]).to_pylist()
        keys += [row["key"] for row in rows if row["class"] == "transient"]
    return keys


@pytest.mark.parametrize("rows_per_ticket", [500_000, 4])
def test_all_transient_rows_are_retried_once(
    tmp_path: Path, rows_per_ticket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "ROWS_PER_TICKET", rows_per_ticket)
    pool = str(tmp_path)
    audited.write_pairs(pool, 60)
    shards = planned(pool, audited.RECIPE)
    for shard in shards[:-1]:
        audited.write_shard(pool, shard)
    expected = transient_keys(pool, range(len(shards) - 1))
    assert len(expected) > 3
    assert add_retries(PoolWriter(pool), audited.RECIPE) == {}
    new = list(read_plan(PoolLayout(pool)))[len(shards) :]
    keys = [key for shard in new for key in read_shard(PoolLayout(pool), shard.shard)[1]]
    assert sorted(map(str, keys)) == sorted(expected)
    before = sorted(path.name for path in (tmp_path / "plan").rglob("*.parquet"))
    assert add_retries(PoolWriter(pool), audited.RECIPE) == {}, "nothing is left to retry"
    assert sorted(path.name for path in (tmp_path / "plan").rglob("*.parquet")) == before
    audited.write_shard(pool, shards[-1])
    late = transient_keys(pool, range(len(shards) - 1, len(shards)))
    assert late
    assert add_retries(PoolWriter(pool), audited.RECIPE) == {}
    rounds = read_rounds(PoolLayout(pool))
    assert [each.number for each in rounds] == [0, 1, 2]
    retried = retried_keys(rounds, 0, len(read_plan(PoolLayout(pool)))).tolist()
    assert retried == sorted(int(key) for key in [*expected, *late])
    assert retried_keys(rounds, 1, 1).tolist() == [k for k in retried if k // 10_000 == 1]


def test_a_part_with_fewer_rows_than_its_footer_said_is_named(tmp_path: Path) -> None:
    pool = str(tmp_path)
    audited.write_pairs(pool)
    job = planner.PlanJob(
        out=PoolWriter(pool), recipe=audited.RECIPE, id="j", round=0, is_retry=False, groups=1,
        first_shard=0, rows_per_file=9, runs=2,
    )  # fmt: skip
    work = sort_pairs(job)
    some = Block(number=0, first=0, ranges=((0, 3, 9),))
    work(Ticket(id="a", group="a", payload=some))
    assert disk.read_parquet(job.exchange.path(0)).num_rows == 6
    with pytest.raises(AssertionError, match=r"part-00000\.parquet has 24 rows, not 99"):
        work(Ticket(id="b", group="b", payload=Block(number=1, first=0, ranges=((0, 0, 99),))))
