"""Rows are found by what fits them, in the files that have them, with few files opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from manifests import disk
from manifests.commits import read_commits, update_index
from pipeline.audit.purge import ShardRows, find_rows, locate_rows
from pipeline.audit.row_index import write_row_index
from tests.support import audited


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> str:
    return audited.make(tmp_path_factory.mktemp("searched") / "pool")


def sidecar_rows(pool: str) -> list[tuple[int, int, dict[str, Any]]]:
    commits = read_commits(pool)
    rows = []
    for shard in commits.shards.tolist():
        for number, row in enumerate(disk.read_parquet(commits.sidecar(shard)).to_pylist()):
            rows.append((shard, number, row))
    return rows


def test_rows_of_a_uid_a_url_and_a_domain(pool: str) -> None:
    commits, rows = read_commits(pool), sidecar_rows(pool)
    shard, number, row = rows[13]
    for criteria in ({"uid": {row["uid"]}}, {"url": {row["url"]}}):
        matching = find_rows(commits, criteria)
        assert matching.uids.to_pylist() == [row["uid"]]
        assert list(matching.shards) == [shard]
        assert np.flatnonzero(matching.shards[shard]).tolist() == [number]
        assert {path.rpartition("/")[2][:4] for path in matching.files} == {"part", "shar"}
    of_domain = find_rows(commits, {"domain": {"host1.test"}})
    expected = {row["uid"] for _, _, row in rows if row["url"].startswith("http://host1.test/")}
    assert set(of_domain.uids.to_pylist()) == expected
    assert sum(int(of_domain.shards[shard].sum()) for shard in of_domain.shards) == len(expected)


@pytest.mark.parametrize("criteria", [{"uid": {"0" * 32}}, {"domain": {"test"}}, {"url": {"http"}}])
def test_what_is_not_there_is_not_found(pool: str, criteria: dict[str, set[str]]) -> None:
    rows = find_rows(read_commits(pool), criteria)
    if "domain" in criteria:  # every host lies in it
        assert len(rows.uids) == 24
    else:
        assert (len(rows.uids), len(rows.shards), rows.files) == (0, 0, ())


def test_the_row_index_spares_the_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = audited.make(tmp_path / "pool")
    commits = update_index(pool)
    shard, _, row = sidecar_rows(pool)[13]
    slow = find_rows(commits, {"uid": {row["uid"]}})
    write_row_index(commits)
    read, opened = disk.read_parquet, []

    def counted(path: Any, *args: Any, **options: Any) -> pa.Table:
        opened.append(str(path))
        return read(path, *args, **options)

    monkeypatch.setattr(disk, "read_parquet", counted)
    fast = find_rows(commits, {"uid": {row["uid"]}})
    assert fast.uids.equals(slow.uids)
    assert (list(fast.shards), fast.files) == (list(slow.shards), slow.files)
    sidecars = [path for path in opened if "/shards/" in path]
    assert sidecars == [commits.sidecar(shard)]
    assert find_rows(commits, {"uid": {"1" * 32}}).uids.to_pylist() == []


def test_tombstones_are_found_only_where_they_are_asked_for(tmp_path: Path) -> None:
    pool = audited.make(tmp_path / "pool")
    shard, _, row = sidecar_rows(pool)[0]
    uids = pa.array([row["uid"]], pa.string())
    path = read_commits(pool).sidecar(shard)
    table = disk.read_parquet(path).to_pylist()
    table[0] |= {"reason": "purged", "status": "failed_to_download"}
    disk.write_parquet(path, pa.Table.from_pylist(table, disk.read_schema(path).remove_metadata()))
    commits = read_commits(pool)
    assert list(locate_rows(commits, uids).shards) == []
    assert list(locate_rows(commits, uids, tombstones=True).shards) == [shard]
    with pytest.raises(KeyError):
        ShardRows()[3]
