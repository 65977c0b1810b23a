"""What is published is complete, what is committed is replaced by name and never overwritten."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from manifests import disk
from manifests.columns import SIDECAR
from manifests.layout import CommitRecord, PoolLayout, read_commit_records
from pipeline.pool.lease import (
    LeaseLost,
    hold_lease,
    read_commit_record,
    read_sidecar,
    remove_uncommitted,
)
from pipeline.pool.shard_writer import ShardWriter, TarFile, publish_shard, replace_shard
from tests.support.five_rows import files_of, five_rows, write_five


def pool_of(store: str, tmp_path: Path) -> str:
    return str(tmp_path / "pool") if store == "local" else f"memory://{tmp_path}/pool"


def as_sidecar(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SIDECAR)


def new_tar(folder: Path, data: bytes = bytes(1024)) -> tuple[TarFile, Path]:
    staged = folder / "new.tar"
    staged.write_bytes(data)
    return TarFile(name="00003.tar", bytes=len(data), sha256=disk.file_sha256(staged)), staged


@pytest.mark.parametrize("store", ["local", "memory"])
def test_a_replaced_shard_gets_names_that_its_new_record_names(store: str, tmp_path: Path) -> None:
    pool = pool_of(store, tmp_path)
    layout = PoolLayout(pool)
    with hold_lease(pool, create=True) as lease:
        old = write_five(pool)
        rows = read_sidecar(pool, 3).to_pylist()
        rows[0]["caption"] = "gone"
        tar, staged = new_tar(tmp_path)
        record = replace_shard(pool, 3, as_sidecar(rows), tar, staged_tar=staged, fence=lease.fence)
        assert (record.tar, record.sidecar, record.revision) == (
            "00003.r1.tar", "00003.r1.parquet", 1,
        )  # fmt: skip
        assert (record.task, record.group, record.fence) == (old.task, old.group, lease.fence)
        assert record == read_commit_record(pool, 3) == read_commit_records(pool)["00003"]
        assert disk.read_bytes(layout.tar(record)) == staged.read_bytes()
        assert read_sidecar(pool, 3, ["caption"])["caption"][0].as_py() == "gone"
        # Only the sidecar again: the tar keeps its name
        again = replace_shard(pool, 3, as_sidecar(rows), fence=lease.fence)
    assert (again.tar, again.sidecar) == ("00003.r1.tar", "00003.r2.parquet")
    assert disk.list_names(layout.shards) == [
        "00003.r1.tar",
        "00003.r2.parquet",
        "00003_stats.json",
    ]
    assert remove_uncommitted(pool) == []


def test_an_adopted_tar_stays_where_it_is(tmp_path: Path) -> None:
    pool = str(tmp_path / "pool")
    tar, staged = new_tar(tmp_path)
    tar = dataclasses.replace(tar, name=str(staged))
    old = publish_shard(pool, 3, [], tar, task="t", group="0", duration_s=1)
    assert old.adopted
    record = replace_shard(pool, 3, as_sidecar([]), fence=None)
    assert (record.adopted, record.tar, record.sidecar) == (True, str(staged), "00003.r1.parquet")
    assert staged.exists()
    record = replace_shard(pool, 3, as_sidecar([]), tar, staged_tar=staged, fence=None)
    assert (record.adopted, record.tar) == (False, "00003.r2.tar")
    assert staged.exists()


def test_a_reader_with_the_old_record_reads_the_new_one_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = str(tmp_path)
    write_five(pool)
    rows = read_sidecar(pool, 3).to_pylist()
    rows[0]["caption"] = "new"
    read_parquet = disk.read_parquet

    def meanwhile(*args: Any) -> pa.Table:
        monkeypatch.setattr(disk, "read_parquet", read_parquet)
        replace_shard(pool, 3, as_sidecar(rows), fence=None)
        return read_parquet(*args)

    monkeypatch.setattr(disk, "read_parquet", meanwhile)
    assert read_sidecar(pool, 3)["caption"][0].as_py() == "new"
    (tmp_path / "shards/00003.r1.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"00003\.r1\.parquet"):
        read_sidecar(pool, 3)


def test_a_kill_during_a_replacement_leaves_the_old_or_the_new_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = five_rows()
    for n in range(6):
        pool = str(tmp_path / str(n))
        old = write_five(pool, given=rows)
        table = read_sidecar(pool, 3).to_pylist()
        tar, staged = new_tar(tmp_path)
        calls = 0
        with monkeypatch.context() as patch:
            for name in ("create_file", "replace_json", "remove"):
                real = getattr(disk, name)

                def deadly(*args: Any, real: Any = real, n: int = n, **options: Any) -> Any:
                    nonlocal calls
                    calls += 1
                    if calls > n:
                        raise KeyboardInterrupt
                    return real(*args, **options)

                patch.setattr(disk, name, deadly)
            with contextlib.suppress(KeyboardInterrupt):
                replace_shard(pool, 3, as_sidecar(table), tar, staged_tar=staged, fence=None)
        record = read_commit_record(pool, 3)
        assert record is not None
        assert (record == old) == (n < 3)
        remove_uncommitted(pool)
        assert set(files_of(Path(pool))) == {record.tar, record.sidecar, "00003_stats.json"}
        assert disk.file_sha256(PoolLayout(pool).tar(record)) == record.tar_sha256
        assert read_sidecar(pool, 3).num_rows == 5


def test_what_is_not_committed_cannot_be_replaced_and_a_changed_record_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = str(tmp_path)
    with pytest.raises(ValueError, match=r"shard 00003 of .* is not committed"):
        replace_shard(pool, 3, as_sidecar([]), fence=None)
    record = write_five(pool)
    table = read_sidecar(pool, 3).to_pylist()
    create_file = disk.create_file
    changed = {**record.to_plain(), "task": "of another process"}

    def meanwhile(*args: Any) -> None:
        create_file(*args)
        disk.write_json(PoolLayout(pool).commit_record(3), changed)

    monkeypatch.setattr(disk, "create_file", meanwhile)
    with pytest.raises(FileExistsError, match="another content"):
        replace_shard(pool, 3, as_sidecar(table), fence=None)
    assert read_commit_record(pool, 3) == CommitRecord.from_plain(changed)


def test_leftovers_under_a_name_without_a_lock_are_passed_over(tmp_path: Path) -> None:
    """A store has no lock: another process may be about to commit what lies there."""
    pool = f"memory://{tmp_path}/pool"
    disk.write_bytes(PoolLayout(pool).shard_tar(3), b"of a worker that may still run")
    record = write_five(pool)
    assert (record.tar, record.sidecar, record.revision) == ("00003.r1.tar", "00003.r1.parquet", 1)
    assert read_sidecar(pool, 3).num_rows == 5
    assert disk.read_bytes(PoolLayout(pool).tar(record)) == disk.read_bytes(
        PoolLayout(pool).shard_tar(3, 1)
    )
    local = str(tmp_path / "local")
    disk.write_bytes(PoolLayout(local).shard_tar(3), b"of a worker that was killed")
    assert write_five(local).tar == "00003.tar"  # under the lock: the leftover is removed


def test_the_workers_of_a_lost_lease_publish_nothing(tmp_path: Path) -> None:
    pool = str(tmp_path)
    with hold_lease(pool, create=True) as lease:
        fence = lease.fence
    with hold_lease(pool, create=True), ShardWriter(pool, 3, "task", "0", fence=fence) as writer:
        for i, row in enumerate(five_rows()):
            writer.add(i, *row)
        with pytest.raises(LeaseLost, match=r"taken over by .*nothing more is written"):
            writer.commit(5)
    assert disk.list_names(PoolLayout(pool).shards) == []


def test_a_tar_that_is_not_whole_is_not_published(tmp_path: Path) -> None:
    tar, staged = new_tar(tmp_path)
    staged.write_bytes(b"short")
    with pytest.raises(OSError, match=r"new\.tar has 5 bytes of 1024"):
        publish_shard(
            str(tmp_path), 3, [], tar, staged_tar=staged, task="t", group="0", duration_s=1
        )
    assert read_commit_records(str(tmp_path)) == {}
