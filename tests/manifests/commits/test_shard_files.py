"""Paths of shards for the trainer: from two small files of a closed index."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests import disk
from manifests.commits import Commits, ShardFiles, open_shard_files, update_index
from tests.support.commit_records import write_record


@pytest.fixture
def pool(tmp_path: Path) -> str:
    for shard in range(7):
        write_record(str(tmp_path), shard)
    write_record(str(tmp_path), 5, revision=2, tar="00005.r2.tar")
    write_record(str(tmp_path), 6, tar="s3://b/x.tar", adopted=True)
    return str(tmp_path)


def test_the_paths_are_those_of_the_records(pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = open_shard_files(pool)
    assert isinstance(commits, Commits)
    update_index(pool)
    read: list[str] = []
    read_bytes = disk.read_bytes

    def counting(path: str, *rest: int) -> bytes:
        read.append(str(path))
        return read_bytes(path, *rest)

    monkeypatch.setattr(disk, "read_bytes", counting)
    files = open_shard_files(pool)
    assert isinstance(files, ShardFiles)
    assert len(read) <= 2
    assert files.fingerprint == commits.fingerprint
    for shard in range(7):
        assert files.tar(shard) == commits.tar(shard)
        assert files.sidecar(shard) == commits.sidecar(shard)
    assert files.tar(6) == "s3://b/x.tar"
    assert files.tar("00005").endswith("/shards/00005.r2.tar")


def test_a_lost_file_is_named(pool: str) -> None:
    update_index(pool)
    for path in Path(pool, "index").glob("*.parquet"):
        path.unlink()
    with pytest.raises(ValueError, match=r"is not there; run clipmill audit reindex "):
        open_shard_files(pool)
