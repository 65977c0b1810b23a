"""The table of rows names the shards of every uid, URL and key; what it lacks is told."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clipmill.manifests import disk
from clipmill.manifests.commits import Commits, read_commits, update_index
from clipmill.pipeline.audit import explain, row_index
from clipmill.pipeline.audit.explain import explain_row
from clipmill.pipeline.audit.purge import find_rows
from clipmill.pipeline.audit.row_index import extend_row_index, locate, write_row_index
from clipmill.pipeline.pool.lease import LeaseLost, PoolWriter
from tests.support.sidecars import read_sidecar
from tests.support.small_pool import make_pool, rows


@pytest.fixture(autouse=True)
def for_small_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_index, "MIN_ROWS", 0)


def part_of(pool: str, *shards: int) -> Commits:
    """What was committed when the pool had only these shards."""
    commits = read_commits(pool)
    mask = np.isin(commits.shards, shards)
    return Commits.of_records(pool, commits.records(mask))


def files(pool: str) -> list[str]:
    return sorted(os.listdir(Path(pool) / "index/rows"))


def table_of(pool: str | Path) -> Path:
    return Path(pool) / "index/rows/rows.parquet"


def check_every_row(pool: str) -> None:
    commits = read_commits(pool)
    for name in commits.names():
        for row in read_sidecar(pool, name).to_pylist():
            for word in (row["uid"], row["url"], row["key"]):
                located = locate(commits, word)
                assert located.shards == (int(name),), word
                assert len(located.others) == 0
                assert located.remark == ""


@pytest.mark.parametrize("row_group", [7, 2**16])
def test_every_uid_url_and_key_leads_to_its_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_group: int
) -> None:
    monkeypatch.setattr(row_index, "ROW_GROUP", row_group)
    pool = make_pool(tmp_path, rows(40))
    commits = update_index(pool)
    assert write_row_index(PoolWriter(pool), commits) == 80
    check_every_row(pool)
    assert locate(commits, "0" * 32).shards == ()
    for url in ("https://nowhere.example/", "http://\udcff.example/"):  # of a terminal: no UTF-8
        assert locate(commits, url).shards == ()


@pytest.mark.parametrize("name", ["dog.jpg", "g" * 32, "12", "999990000", "", "\udcff"])
def test_other_names_may_be_in_any_shard(tmp_path: Path, name: str) -> None:
    pool = make_pool(tmp_path, rows(5))
    commits = read_commits(pool)
    write_row_index(PoolWriter(pool), commits)
    located = locate(commits, name)
    assert located.shards == ()
    assert located.others.tolist() == commits.shards.tolist()
    assert located.remark


def test_a_table_is_extended_by_what_it_lacks(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(40))
    last = int(read_commits(pool).shards[-1])
    assert extend_row_index(PoolWriter(pool), part_of(pool, 0, 2)) > 0
    uid = read_sidecar(pool, last)["uid"][0].as_py()
    located = locate(read_commits(pool), uid)
    assert located.shards == ()
    assert last in located.others.tolist()
    assert {0, 2} & set(located.others.tolist()) == set()
    assert f"lacks {last - 1} of {last + 1} shards" in located.remark
    assert extend_row_index(PoolWriter(pool), read_commits(pool)) > 0
    assert extend_row_index(PoolWriter(pool), read_commits(pool)) == 0, "it has all"
    check_every_row(pool)
    assert files(pool) == ["rows.parquet"]


def test_a_table_that_grows_shard_by_shard_is_that_of_the_whole_pool(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(30), per_shard=4)
    write_row_index(PoolWriter(pool), read_commits(pool))
    whole = table_of(pool).read_bytes()
    table_of(pool).unlink()
    shards = read_commits(pool).shards.tolist()
    order = [*shards[::2], *shards[1::2]]
    for count in range(1, len(shards) + 1):
        assert extend_row_index(PoolWriter(pool), part_of(pool, *order[:count])) > 0
    assert table_of(pool).read_bytes() == whole
    assert disk.read_metadata(table_of(pool))["shards"] == [[0, len(shards) - 1]]
    check_every_row(pool)


def test_a_small_pool_gets_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_index, "MIN_ROWS", 41)
    pool = make_pool(tmp_path, rows(40))
    assert extend_row_index(PoolWriter(pool), read_commits(pool)) == 0
    assert not (tmp_path / "index/rows").exists()


def test_a_table_that_cannot_be_extended_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make_pool(tmp_path, rows(40))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(row_index.disk, "publish", full)
    assert extend_row_index(PoolWriter(pool), read_commits(pool)) == 0
    assert "No space left on device" in caplog.text
    assert not table_of(pool).exists()


def test_a_command_that_lost_its_lease_names_no_run(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(40))
    with pytest.raises(LeaseLost):
        extend_row_index(PoolWriter(pool, 7), read_commits(pool))
    assert not table_of(pool).exists()


@pytest.mark.parametrize("damage", ["no file", "empty", "old form"])
def test_a_damaged_table_is_told_and_every_sidecar_is_read(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(explain, "MANY_SHARDS", 1)
    caplog.set_level(logging.INFO)
    pool = make_pool(tmp_path, rows(20))
    write_row_index(PoolWriter(pool), read_commits(pool))
    uid = read_sidecar(pool, 1)["uid"][0].as_py()
    explain_row(pool, uid)
    assert caplog.messages == []
    if damage == "no file":
        table_of(pool).unlink()
    elif damage == "empty":
        table_of(pool).write_bytes(b"")
    else:
        table = disk.read_parquet(table_of(pool))
        disk.write_parquet(table_of(pool), table, {"version": 2, "shards": [[0, 9]]})
    history = explain_row(pool, uid)
    assert history["uid"] == uid
    assert [attempt["shard"] for attempt in history["attempts"]] == ["00001"]
    (line,) = caplog.messages
    assert "sidecars are read one by one" in line
    assert f"clipmill audit reindex {pool} makes the table anew" in line
    write_row_index(PoolWriter(pool), read_commits(pool))
    caplog.clear()
    explain_row(pool, uid)
    assert caplog.messages == []


def test_a_damaged_table_is_made_anew_with_the_next_shards(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(20))
    write_row_index(PoolWriter(pool), read_commits(pool))
    whole = table_of(pool).read_bytes()
    table_of(pool).write_bytes(whole[:-20])
    assert extend_row_index(PoolWriter(pool), read_commits(pool)) > 0
    assert table_of(pool).read_bytes() == whole
    check_every_row(pool)


# --------------------------------------------------------------------------------------------------
# Rows are found by what fits them, in the files that have them, with few files opened.


def sidecar_rows(pool: str) -> list[tuple[int, int, dict[str, Any]]]:
    commits = read_commits(pool)
    rows = []
    for shard in commits.shards.tolist():
        for number, row in enumerate(disk.read_parquet(commits.sidecar(shard)).to_pylist()):
            rows.append((shard, number, row))
    return rows


def test_the_row_index_spares_the_other_files(pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = update_index(pool)
    shard, _, row = sidecar_rows(pool)[13]
    slow = find_rows(commits, {"uid": {row["uid"]}})
    write_row_index(PoolWriter(pool), commits)
    read, opened = disk.read_with, []

    def counted(path: Any, reader: Any) -> Any:
        opened.append(str(path))
        return read(path, reader)

    monkeypatch.setattr(disk, "read_with", counted)
    fast = find_rows(commits, {"uid": {row["uid"]}})
    assert fast.uids.equals(slow.uids)
    assert (list(fast.shards), fast.files) == (list(slow.shards), slow.files)
    sidecars = [path for path in opened if "/shards/" in path]
    assert sidecars == [commits.sidecar(shard)]
    assert find_rows(commits, {"uid": {"1" * 32}}).uids.to_pylist() == []
