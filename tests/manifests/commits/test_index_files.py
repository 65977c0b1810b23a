"""Files of the index: every damage is named, with the command that mends it."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import disk
from clipmill.manifests.commits import (
    Commits,
    IndexWriter,
    ShardFiles,
    open_shard_files,
    read_commits,
    read_index_document,
    rebuild_index,
    update_index,
)
from clipmill.manifests.commits.commits import to_table
from clipmill.manifests.commits.index import (
    IndexDocument,
    newest_rows,
    read_files,
    write_document,
    write_file,
)
from clipmill.manifests.layout import CommitRecord, PoolLayout
from tests.support.commit_records import commit_record, write_record

REINDEX = r"run clipmill audit reindex "


@pytest.fixture
def pool(tmp_path: Path) -> str:
    for shard in (0, 1, 2, 3000):
        write_record(str(tmp_path), shard)
    update_index(str(tmp_path))
    return str(tmp_path)


def files(pool: str) -> list[Path]:
    return sorted(Path(pool, "index").glob("*.parquet"))


def test_every_bad_byte_of_the_index_is_noticed(pool: str) -> None:
    """Every 3rd byte of index.json, and every 41st of the Parquet file."""
    (batch,) = files(pool)
    for path, step in ((Path(pool, "index/index.json"), 3), (batch, 41)):
        whole = path.read_bytes()
        for at in range(0, len(whole), step):
            damaged = bytearray(whole)
            damaged[at] ^= 0x01
            path.write_bytes(damaged)
            same = path != batch and _same_json(bytes(damaged), whole)
            if not same:
                with pytest.raises(ValueError, match=REINDEX):
                    read_commits(pool)
        path.write_bytes(whole)
    assert len(read_commits(pool)) == 4


def _same_json(text: bytes, other: bytes) -> bool:
    """A space that became another blank changes nothing."""
    try:
        return bool(json.loads(text) == json.loads(other))
    except ValueError:
        return False


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense"])
def test_an_index_json_that_is_none_is_named(pool: str, text: str) -> None:
    Path(pool, "index/index.json").write_text(text)
    with pytest.raises(ValueError, match=rf"index\.json is damaged: .*; {REINDEX}"):
        read_index_document(PoolLayout(pool))


@pytest.mark.parametrize(("other", "remedy"), [(1, "take a newer one"), (-1, REINDEX)])
def test_an_index_of_another_program_is_refused(pool: str, other: int, remedy: str) -> None:
    document = read_index_document(PoolLayout(pool))
    assert document is not None
    known = document.version
    write_document(PoolLayout(pool), dataclasses.replace(document, version=known + other))
    said = rf"has version {known + other}; this clipmill reads {known}: {remedy}"
    with pytest.raises(ValueError, match=said):
        read_index_document(PoolLayout(pool))


def test_the_highest_revision_of_a_shard_wins_in_any_order(tmp_path: Path) -> None:
    old, new = commit_record(5), commit_record(5, revision=1, tar="00005.r1.tar")
    for order in ([old, new], [new, old], [new, old, new]):
        table = newest_rows(PoolLayout("p"), to_table([*order, commit_record(4)]))
        assert table["shard"].to_pylist() == [4, 5]
        assert table["revision"].to_pylist() == [0, 1]


def test_two_records_of_one_shard_that_differ_are_damage(tmp_path: Path) -> None:
    pool = str(tmp_path)
    write_record(pool, 5)
    batches = [to_table([commit_record(5)]), to_table([commit_record(5, count=6, successes=3)])]
    named = tuple(write_file(PoolLayout(pool), batch) for batch in batches)
    document = IndexDocument(version=1, closed=False, files=named, shards=2)
    with pytest.raises(ValueError, match=rf"different records of shard 00005; {REINDEX}"):
        read_files(PoolLayout(pool), document)
    again = IndexDocument(version=1, closed=False, files=(named[0], named[0]), shards=2)
    assert read_files(PoolLayout(pool), again)[1].num_rows == 1


def test_a_file_that_a_writer_merged_meanwhile_is_found_in_the_new_index(pool: str) -> None:
    old = read_index_document(PoolLayout(pool))
    assert old is not None
    write_record(pool, 7)
    update_index(pool)
    assert not Path(pool, "index", old.files[0].name).exists()
    read, table = read_files(PoolLayout(pool), old)
    assert (read.shards, table.num_rows) == (5, 5)


# --------------------------------------------------------------------------------------------------
# Paths of shards for the trainer: from two small files of a closed index.


@pytest.fixture
def renamed(tmp_path: Path) -> str:
    for shard in range(7):
        write_record(str(tmp_path), shard)
    write_record(str(tmp_path), 5, revision=2, tar="00005.r2.tar")
    write_record(str(tmp_path), 6, tar="s3://b/x.tar", adopted=True)
    return str(tmp_path)


def test_the_paths_are_those_of_the_records(renamed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = open_shard_files(renamed)
    assert isinstance(commits, Commits)
    update_index(renamed)
    read: list[str] = []
    read_bytes = disk.read_bytes

    def counting(path: str, *rest: int) -> bytes:
        read.append(str(path))
        return read_bytes(path, *rest)

    monkeypatch.setattr(disk, "read_bytes", counting)
    files = open_shard_files(renamed)
    assert isinstance(files, ShardFiles)
    assert len(read) <= 2
    assert files.fingerprint == commits.fingerprint
    for shard in range(7):
        assert files.tar(shard) == commits.tar(shard)
        assert files.sidecar(shard) == commits.sidecar(shard)
    assert files.tar(6) == "s3://b/x.tar"
    assert files.tar("00005").endswith("/shards/00005.r2.tar")


def test_a_lost_file_is_named(renamed: str) -> None:
    update_index(renamed)
    for path in Path(renamed, "index").glob("*.parquet"):
        path.unlink()
    for read in (open_shard_files, read_commits):
        with pytest.raises(ValueError, match=r"is not there; run clipmill audit reindex "):
            read(renamed)
    assert len(rebuild_index(renamed)) == len(read_commits(renamed)) == 7


# --------------------------------------------------------------------------------------------------
# `read_commits` gives what is committed: by a closed index, an open one, and none.


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
    document = read_index_document(PoolLayout(pool))
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
    disk.write_json(PoolLayout(pool).commit_record(3), commit_record(4))
    with pytest.raises(ValueError, match=r"00003_stats\.json is the commit record of shard 00004"):
        read_commits(pool)
    disk.write_json(tmp_path / "b/shards/my_stats.json", {})
    with pytest.raises(ValueError, match=r"my_stats\.json is not a commit record.*no shard number"):
        read_commits(str(tmp_path / "b"))


# --------------------------------------------------------------------------------------------------
# The writer of the index: killed anywhere, no committed shard is lost and none is invented.


class Killed(BaseException):
    """Stands for the end of the process."""


def build(pool: str, shards: range) -> Commits:
    """What the driver of a stage does."""
    with IndexWriter(pool, batch_rows=2) as index:
        for shard in shards:
            if shard not in index.commits:
                index.add(disk.to_plain(write_record(pool, shard)))
    return index.commits


def killing(monkeypatch: pytest.MonkeyPatch, n: int, *, after: bool) -> None:
    """End the process before or after the n-th write or removal in the index."""
    calls = itertools.count(1)

    def deadly(real: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, *rest: Any) -> None:
            now = next(calls) if "/index/" in str(path) else 0
            if now == n and not after:
                raise Killed
            real(path, *rest)
            if now == n:
                raise Killed

        return call

    monkeypatch.setattr(disk, "write_bytes", deadly(disk.write_bytes))
    monkeypatch.setattr(disk, "remove", deadly(disk.remove))


@pytest.mark.parametrize("store", ["local", "memory"])
@pytest.mark.parametrize("after", [False, True])
def test_killed_between_any_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, after: bool
) -> None:
    whole = build(str(tmp_path / "whole"), range(7))
    for n in itertools.count(1):
        name = f"{n}-{after}"
        pool = str(tmp_path / name) if store == "local" else f"memory://{tmp_path.name}-{name}"
        with monkeypatch.context() as patch:
            killing(patch, n, after=after)
            try:
                build(pool, range(7))
            except Killed:
                ended = False
            else:
                ended = True
        records = disk.list_names(PoolLayout(pool).shards, "_stats.json")
        assert list(read_commits(pool).names()) == [record[:5] for record in records]
        resumed = build(pool, range(7))
        assert list(resumed.records()) == list(whole.records())
        assert resumed.fingerprint == whole.fingerprint
        document = read_index_document(PoolLayout(pool))
        assert document is not None
        assert document.closed
        named = {file.name for file in document.files}
        assert set(disk.list_names(PoolLayout(pool).index, ".parquet")) == named
        if ended:
            assert n > 7
            return


def test_batches_are_few_and_every_row_is_there(tmp_path: Path) -> None:
    pool = str(tmp_path)
    counts = []
    with IndexWriter(pool, batch_rows=20, batch_seconds=0.0) as index:
        for shard in range(80):
            index.add(commit_record(shard))
            counts.append(len(disk.list_names(PoolLayout(pool).index, ".parquet")))
            write_record(pool, shard)
    assert max(counts) == 4
    assert len(disk.list_names(PoolLayout(pool).index, ".parquet")) == 1
    assert index.commits.shards.tolist() == list(range(80))


def test_a_shard_that_is_replaced_is_forgotten_first(tmp_path: Path) -> None:
    pool = str(tmp_path)
    build(pool, range(5))

    def repair() -> None:
        with IndexWriter(pool) as index:
            index.forget([2, 4])
            write_record(pool, 2, revision=1, tar="00002.r1.tar")
            raise Killed

    with pytest.raises(Killed):
        repair()
    document = read_index_document(PoolLayout(pool))
    assert document is not None
    assert (document.closed, document.shards) == (False, 3)
    commits = read_commits(pool)
    assert commits.record(2).revision == 1
    assert commits.record(4).revision == 0
    assert update_index(pool).record(2).revision == 1


def test_only_files_with_a_forgotten_shard_are_written_again(tmp_path: Path) -> None:
    pool = str(tmp_path)

    def killed() -> None:
        with IndexWriter(pool, batch_rows=4) as index:
            for shard in range(12):
                index.add(write_record(pool, shard))
            raise Killed

    with pytest.raises(Killed):
        killed()
    with IndexWriter(pool) as index:
        before = set(disk.list_names(PoolLayout(pool).index, ".parquet"))
        index.forget([5])
        kept = before & set(disk.list_names(PoolLayout(pool).index, ".parquet"))
        assert (len(before), len(kept)) == (3, 2)
        index.forget([100, 4, 6, 7])  # nothing is left of the file
        assert set(disk.list_names(PoolLayout(pool).index, ".parquet")) == kept
    assert index.commits.shards.tolist() == list(range(12))


def test_a_record_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no 'shard'"), IndexWriter(str(tmp_path)) as index:
        index.add({"count": 3})


def test_an_index_is_not_made_anew_after_the_lease_is_lost(tmp_path: Path) -> None:
    pool = str(tmp_path)
    build(pool, range(3))
    before = {path.name: path.read_bytes() for path in (tmp_path / "index").iterdir()}

    def lost() -> None:
        raise ValueError("its lease was taken over")

    for make in (rebuild_index, update_index):
        with pytest.raises(ValueError, match="taken over"):
            make(pool, lost)
        assert {path.name: path.read_bytes() for path in (tmp_path / "index").iterdir()} == before
