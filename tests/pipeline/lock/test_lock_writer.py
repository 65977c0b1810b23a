"""A pool to a lock: what is in it, what is not handed on, and pools that cannot be locked."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits, rebuild_index
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Fetch, Recipe, Source
from clipmill.pipeline import recipe_run
from clipmill.pipeline.audit.purge import purge_rows
from clipmill.pipeline.audit.repair import rebuild_sidecar
from clipmill.pipeline.lock import lock_writer
from clipmill.pipeline.lock.lock_writer import lock_lines, write_lock
from clipmill.pipeline.planning.plan_files import read_plan
from clipmill.pipeline.pool.lease import PoolWriter
from tests.support import locked_pools, plans


def lost(number: int) -> str | None:
    return {3: "http_4xx", 4: "optout_header", 5: "robots_txt", 6: "known_bad"}.get(number % 20)


@pytest.fixture
def pool(tmp_path: Path) -> str:
    return locked_pools.make_pool(tmp_path / "pool", 40, lost)


def test_the_same_pool_gives_the_same_bytes_wherever_it_lies(pool: str, tmp_path: Path) -> None:
    first, second = tmp_path / "a.parquet", tmp_path / "b" / "a.parquet"
    write_lock(pool, str(first))
    Path(pool).rename(tmp_path / "moved")
    write_lock(str(tmp_path / "moved"), str(second))
    assert first.read_bytes() == second.read_bytes()
    assert [path.name for path in second.parent.iterdir()] == ["a.parquet"]


def test_small_row_groups_hold_whole_shards(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = write_lock(pool, str(tmp_path / "a.parquet"))
    monkeypatch.setattr(lock_writer, "GROUP_ROWS", 15)
    lock = write_lock(pool, str(tmp_path / "b.parquet"))
    few, many = (pq.read_metadata(each.path).num_row_groups for each in (whole, lock))
    assert many > few == 1
    rows = [row for table in lock.tables() for row in table.to_pylist()]
    assert rows == [row for table in whole.tables() for row in table.to_pylist()]
    of_groups = [set(table["lock_shard"].to_pylist()) for table in lock.tables()]
    assert len(set.union(*of_groups)) == sum(map(len, of_groups))


def test_refused_and_purged_rows_are_not_handed_on(pool: str, tmp_path: Path) -> None:
    purged = [locked_pools.url(0), locked_pools.url(21)]
    purge_rows(PoolWriter(pool), {"url": set(purged)})
    lock = write_lock(pool, str(tmp_path / "a.parquet"))
    assert lock.head.outcomes == {"http_4xx": 2, "stored": 30, "withheld": 8}
    hidden = [i for i in range(40) if i % 20 in (4, 5, 6)] + [0, 21]
    data = (tmp_path / "a.parquet").read_bytes()
    rows = [row for table in lock.tables() for row in table.to_pylist()]
    text = json.dumps(rows)
    for i in hidden:
        caption = f"image number {i}" + " of the third kind" * (i % 3 == 0)
        uid = disk.uid_of(locked_pools.url(i), caption)
        assert locked_pools.url(i) not in text
        assert uid not in text
        assert uid.encode() not in data
    withheld = [row for row in rows if row["lock_outcome"] == "withheld"]
    kept = ("lock_shard", "lock_group", "lock_tar_sha256", "lock_outcome")
    for row in withheld:
        values = {name: value for name, value in row.items() if name not in kept}
        assert set(values.values()) <= {None, False}
    assert lock.head.views["raw"].kept == 30
    assert "8 withheld" in "\n".join(lock_lines(lock))


def test_a_row_that_a_retry_found_refused_is_withheld_in_its_first_attempt(tmp_path: Path) -> None:
    pool = locked_pools.make_pool(tmp_path / "pool", 20, lambda i: "dns" if i < 4 else None)
    recipe = locked_pools.local_recipe()
    for task in plans.retried(pool, recipe):
        ends = {0: "optout_header", 1: "purged", 2: "http_4xx"}
        locked_pools.write_planned(pool, task.shard, ends.get)
    locked_pools.finish(pool, recipe)
    lock = write_lock(pool, str(tmp_path / "a.parquet"))
    rows = [row for table in lock.tables() for row in table.to_pylist()]
    assert lock.head.outcomes == {"dns": 2, "http_4xx": 1, "stored": 17, "withheld": 4}
    assert {row["link"] for row in rows} == {None, *range(2, 20)}
    retried = [row for row in rows if row["retry_of"]]
    assert [row["link"] for row in retried if row["lock_outcome"] == "stored"] == [3]


@pytest.mark.parametrize("optout", ["ignore", ("license", "train-ai")])
def test_rows_that_were_stored_against_their_signals_are_withheld(
    optout: str | tuple[str, ...], tmp_path: Path
) -> None:
    fetch = Fetch(rows_per_shard=10, user_agent="x/1", optout=optout)
    recipe = locked_pools.local_recipe(fetch=fetch)
    pool = locked_pools.make_pool(tmp_path / "pool", 20, fetch=fetch)
    again = str(tmp_path / "again")
    (tmp_path / "again").mkdir()
    for name in ("pairs", "plan"):
        Path(pool, name).rename(tmp_path / "again" / name)
    for task in read_plan(PoolLayout(again)):
        signals = '{"x-robots-tag": ["noai"]}' if task.shard == 0 else '{"tdm-policy": ["x"]}'
        locked_pools.write_planned(again, task.shard, optout=signals)
    locked_pools.finish(again, recipe)
    lock = write_lock(again, str(tmp_path / "a.parquet"))
    first = read_plan(PoolLayout(again)).shard(0).size
    assert lock.head.outcomes == {"stored": 20 - first, "withheld": first}


def test_what_a_lab_says_of_itself_is_not_in_the_head(tmp_path: Path) -> None:
    fetch = Fetch(
        rows_per_shard=10,
        user_agent="secret-agent/1 (me@lab.example)",
        per_host=7,
        connect_to={"*.x.test": "127.0.0.1:9"},
        image_size=128,
    )
    pool = locked_pools.make_pool(tmp_path / "pool", 10, fetch=fetch)
    lock = write_lock(pool, str(tmp_path / "a.parquet"))
    text = json.dumps(disk.to_plain(lock.head))
    assert "secret-agent" not in text
    assert "127.0.0.1" not in text
    assert str(tmp_path) not in text
    assert lock.head.recipe["fetch"]["per_host"] == Fetch().per_host
    assert lock.head.recipe["fetch"]["image_size"] == 128
    assert lock.head.recipe["source"]["paths"] == ["list.csv"]


def test_a_pool_with_a_missing_shard_or_sidecar_is_refused(pool: str, tmp_path: Path) -> None:
    target = str(tmp_path / "a.parquet")
    commits = read_commits(pool)
    sidecar = Path(commits.sidecar(1))
    data = sidecar.read_bytes()
    sidecar.write_bytes(data[:-5] + b"x" + data[-4:])
    with pytest.raises(ValueError, match=r"00001\.parquet is damaged: run clipmill audit repair "):
        write_lock(pool, target)
    sidecar.unlink()
    with pytest.raises(ValueError, match=r"00001\.parquet is missing: run clipmill audit repair "):
        write_lock(pool, target)
    Path(PoolLayout(pool).commit_record(1)).unlink()
    rebuild_index(pool)
    planned = len(commits)
    with pytest.raises(
        ValueError, match=rf"not complete: {planned - 1} of {planned} planned shards are committed"
    ):
        write_lock(pool, target)
    assert not list(tmp_path.glob("*a.parquet*"))


def test_a_pool_whose_shard_was_replaced_is_locked(pool: str, tmp_path: Path) -> None:
    before = write_lock(pool, str(tmp_path / "a.parquet"))
    rebuild_sidecar(PoolWriter(pool), 0, locked_pools.local_recipe())
    rebuild_index(pool)
    assert read_commits(pool).record(0).revision == 1
    after = write_lock(pool, str(tmp_path / "b.parquet"))
    assert after.head.rows_sha256 == before.head.rows_sha256
    assert after.head.views["long"].rows_sha256 == before.head.views["long"].rows_sha256


def test_a_stale_view_is_not_locked(pool: str, tmp_path: Path) -> None:
    path = PoolLayout(pool).view_json("long")
    disk.write_json(path, disk.read_json(path) | {"fingerprint": "another"})
    with pytest.raises(ValueError, match=r"view 'long' of .* is stale: .* or name the others with"):
        write_lock(pool, str(tmp_path / "a.parquet"))
    assert list(write_lock(pool, str(tmp_path / "a.parquet"), ["raw"]).head.views) == ["raw"]


def test_what_a_killed_lock_left_is_removed_by_the_next(pool: str, tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        (tmp_path / f".{name}.partial.77-0123abcd").write_bytes(b"half")
    write_lock(pool, str(tmp_path / "a.parquet"))
    names = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert names == [".b.parquet.partial.77-0123abcd", "a.parquet"]


def test_views_are_named_or_all(pool: str, tmp_path: Path) -> None:
    assert list(write_lock(pool, str(tmp_path / "a.parquet")).head.views) == ["long", "raw"]
    one = write_lock(pool, str(tmp_path / "b.parquet"), ["long"])
    assert list(one.head.views) == ["long"]
    kept = sum(table["view:long"].to_pylist().count(True) for table in one.tables())
    assert one.head.views["long"].kept == kept > 0
    with pytest.raises(ValueError, match=r"no view 'lnog'; did you mean 'long'\?; it has long,"):
        write_lock(pool, str(tmp_path / "c.parquet"), ["lnog"])


@pytest.mark.parametrize("name", ["a.lock", "taken.parquet"])
def test_a_lock_replaces_locks_only(name: str, pool: str, tmp_path: Path) -> None:
    pq.write_table(pq.read_table(read_commits(pool).sidecar(0)), tmp_path / "taken.parquet")
    before = (tmp_path / "taken.parquet").read_bytes()
    with pytest.raises(
        ValueError,
        match=r": (the name of a lock ends in \.parquet|a file that is no lock has that name)",
    ):
        write_lock(pool, str(tmp_path / name))
    assert (tmp_path / "taken.parquet").read_bytes() == before


def test_an_extra_column_with_a_name_of_the_lock_is_refused(pool: str, tmp_path: Path) -> None:
    recipe = locked_pools.local_recipe()
    source = Source(kind="table", paths=("list.csv",), extra_columns={"lock_group": "string"})
    named = dataclasses.replace(recipe, source=source)
    disk.write_json(PoolLayout(pool).recipe_json, named)
    with pytest.raises(ValueError, match=r"extra column 'lock_group', and a lock has a column"):
        write_lock(pool, str(tmp_path / "a.parquet"))


@pytest.mark.parametrize("with_sidecars", [True, False])
def test_adopted_tars_are_locked(pool: str, tmp_path: Path, with_sidecars: bool) -> None:
    """Refusals of a pool of ours stay refusals where its tars are adopted."""
    tars = [read_commits(pool).tar(shard) for shard in read_commits(pool).names()]
    first = write_lock(pool, str(tmp_path / "b.parquet"))
    if not with_sidecars:
        for tar in tars:
            Path(tar).with_suffix(".parquet").rename(Path(tar).with_suffix(".old"))
    recipe = Recipe(name="adopted", source=Source(kind="shards", paths=tuple(tars)))
    adopted = str(tmp_path / "adopted")
    assert recipe_run.build(recipe, adopted, engine="inline")["complete"]
    lock = write_lock(adopted, str(tmp_path / "a.parquet"))
    assert (lock.head.images, lock.head.groups) == ("tars", None)
    refusals = {"http_4xx": 2, "withheld": 6} if with_sidecars else {}
    assert lock.head.outcomes == {"stored": 32, **refusals}
    assert lock.head.views["raw"].kept == 32
    assert lock.head.rows_sha256 == first.head.rows_sha256
    refused = {locked_pools.url(i) for i in range(40) if i % 20 in (4, 5, 6)}
    rows = [row for table in lock.tables() for row in table.to_pylist()]
    assert not refused & {row["url"] for row in rows}
    assert len({row["sha256"] for row in rows} - {None}) == 32
