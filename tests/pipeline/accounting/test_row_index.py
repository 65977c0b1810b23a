"""The table of rows names the shards of every uid, URL and key, and is not used when it is old."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests.commits import read_commits, update_index
from pipeline.accounting import row_index
from pipeline.accounting.row_index import shards_of, write_row_index
from pipeline.pool import read_sidecar, replace_shard
from tests.support.small_pool import make_pool, rows


@pytest.mark.parametrize("partition", [7, 2**22])
def test_every_uid_url_and_key_leads_to_its_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition: int
) -> None:
    monkeypatch.setattr(row_index, "PARTITION_ROWS", partition)
    pool = make_pool(tmp_path, rows(40))
    commits = update_index(pool)
    assert write_row_index(commits) == 80
    for name in commits.names():
        for row in read_sidecar(pool, name).to_pylist():
            for word in (row["uid"], row["url"], row["key"]):
                assert shards_of(commits, word) == [int(name)], word
    assert shards_of(commits, "0" * 32) == []
    assert shards_of(commits, "https://nowhere.example/") == []


@pytest.mark.parametrize("name", ["dog.jpg", "g" * 32, "12", "999990000", ""])
def test_other_names_are_not_known(tmp_path: Path, name: str) -> None:
    pool = make_pool(tmp_path, rows(5))
    commits = read_commits(pool)
    write_row_index(commits)
    assert shards_of(commits, name) is None


def test_an_old_or_damaged_table_is_not_used(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(20))
    write_row_index(read_commits(pool))
    uid = read_sidecar(pool, 1)["uid"][0].as_py()
    assert shards_of(read_commits(pool), uid) == [1]
    for path in tmp_path.glob("index/rows/*.parquet"):
        path.write_bytes(b"")
    assert shards_of(read_commits(pool), uid) is None
    write_row_index(read_commits(pool))
    changed = read_sidecar(pool, 0).to_pylist()
    changed[0]["error_message"] = "another"
    replace_shard(pool, 0, changed, fence=None)
    assert shards_of(read_commits(pool), uid) is None
