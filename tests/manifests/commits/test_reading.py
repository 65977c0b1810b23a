"""`read_commits` gives what is committed: by a closed index, an open one, and none."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests import disk
from manifests.commits import (
    IndexWriter,
    read_commits,
    read_index_document,
    rebuild_index,
    update_index,
)
from manifests.layout import CommitRecord, PoolLayout
from tests.support.commit_records import commit_record, write_record


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths: list[str] = []
    read = CommitRecord.read.__func__  # type: ignore[attr-defined]

    def counting(cls: type[CommitRecord], path: str) -> CommitRecord:
        paths.append(path)
        return read(cls, path)

    monkeypatch.setattr(CommitRecord, "read", classmethod(counting))
    return paths


def test_a_pool_without_an_index_is_read_from_its_records(tmp_path: Path) -> None:
    pool = str(tmp_path)
    assert len(read_commits(pool)) == 0
    for shard in (100_000, 2, 99_999, 3000):
        write_record(pool, shard)
    assert read_commits(pool).shards.tolist() == [2, 3000, 99_999, 100_000]
    assert not (tmp_path / "index").exists()
    some = read_commits(pool, ["tar"])
    assert some.tar(2) == f"{pool}/shards/00002.tar"
    assert some.fingerprint == read_commits(pool).fingerprint


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_closed_index_reads_no_record_and_lists_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    pool = str(tmp_path)
    for shard in range(count):
        write_record(pool, shard)
    closed = update_index(pool)
    paths = counted_reads(monkeypatch)
    monkeypatch.setattr(disk, "list_names", None)
    commits = read_commits(pool)
    assert commits.shards.tolist() == list(range(count))
    assert list(commits.records()) == list(closed.records())
    assert (commits.fingerprint, commits.totals) == (closed.fingerprint, closed.totals)
    assert paths == []


def test_an_open_index_is_completed_from_a_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = str(tmp_path)
    for shard in range(6):
        write_record(pool, shard)
    with pytest.raises(KeyboardInterrupt), IndexWriter(pool):
        raise KeyboardInterrupt
    document = read_index_document(pool)
    assert document is not None
    assert not document.closed
    for shard in (6, 7, 8):
        write_record(pool, shard)
    paths = counted_reads(monkeypatch)
    assert read_commits(pool).shards.tolist() == list(range(9))
    Path(PoolLayout(pool).commit_record(1)).unlink()
    assert 1 not in read_commits(pool)
    assert {Path(path).name[:5] for path in paths} == {"00006", "00007", "00008"}


def test_what_a_person_does_to_records_is_seen_when_the_index_is_made_anew(tmp_path: Path) -> None:
    pool = str(tmp_path)
    for shard in range(3):
        write_record(pool, shard)
    before = update_index(pool)
    Path(PoolLayout(pool).commit_record(1)).unlink()
    write_record(pool, 7)
    write_record(pool, 2, count=6, successes=3)
    assert read_commits(pool).fingerprint == before.fingerprint
    now = rebuild_index(pool)
    assert now.shards.tolist() == read_commits(pool).shards.tolist() == [0, 2, 7]
    assert now.record(2).count == 6
    assert now.fingerprint != before.fingerprint
    assert now.totals.rows == 16


def test_a_record_of_another_shard_and_one_without_a_number_are_named(tmp_path: Path) -> None:
    pool = str(tmp_path)
    disk.write_json(PoolLayout(pool).commit_record(3), commit_record(4).to_plain())
    with pytest.raises(ValueError, match=r"00003_stats\.json is the commit record of shard 00004"):
        read_commits(pool)
    disk.write_json(tmp_path / "b/shards/my_stats.json", {})
    with pytest.raises(ValueError, match=r"my_stats\.json is not a commit record.*no shard number"):
        read_commits(str(tmp_path / "b"))
