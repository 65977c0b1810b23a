"""The writer of the index: killed anywhere, no committed shard is lost and none is invented."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manifests import disk
from manifests.commits import (
    Commits,
    IndexWriter,
    read_commits,
    read_index_document,
    rebuild_index,
    update_index,
)
from manifests.layout import PoolLayout
from tests.support.commit_records import commit_record, write_record


class Killed(BaseException):
    """Stands for the end of the process."""


def build(pool: str, shards: range) -> Commits:
    """What the driver of a stage does."""
    with IndexWriter(pool, batch_rows=2) as index:
        for shard in shards:
            if shard not in index.commits:
                index.add(write_record(pool, shard).to_plain())
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
        document = read_index_document(pool)
        assert document is not None
        assert document.closed
        named = {file.name for file in document.files}
        assert set(disk.list_names(PoolLayout(pool).index, ".parquet")) == named
        if ended:
            assert n > 7
            return


def test_an_error_leaves_the_index_open_with_what_was_added(tmp_path: Path) -> None:
    pool = str(tmp_path)

    def stage() -> None:
        with IndexWriter(pool) as index:
            index.add(write_record(pool, 0))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stage()
    document = read_index_document(pool)
    assert document is not None
    assert (document.closed, document.shards) == (False, 1)
    assert len(read_commits(pool)) == 1


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
    document = read_index_document(pool)
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
