"""Nothing is readable before it is committed, and a committed shard stays as it is."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clipmill.manifests import disk
from clipmill.manifests.aligned import AlignedFiles
from clipmill.manifests.columns import SIDECAR
from clipmill.manifests.commits import read_commits, update_index
from clipmill.manifests.layout import CommitRecord, PoolLayout
from clipmill.manifests.pool import Pool, complete_score_sets
from clipmill.manifests.schema import FilterSpec
from clipmill.pipeline.pool.lease import LeaseLost, PoolWriter, hold_lease
from clipmill.pipeline.pool.shard_writer import (
    ShardWriter,
    TarFile,
    publish_shard,
    read_commit_record,
    remove_uncommitted,
    replace_shard,
)
from clipmill.pipeline.scoring.scorer import score
from tests.support.commit_records import read_commit_records
from tests.support.five_rows import files_of, five_rows, write_five
from tests.support.sidecars import read_sidecar
from tests.support.small_pool import make_pool, rows, write_shard


class Killed(BaseException):
    """Stands for the end of the process."""


def killed_at(monkeypatch: pytest.MonkeyPatch, n: int, *, after: bool) -> None:
    """Stop before or right after the n-th publication (of tar, sidecar or commit record)."""
    calls = itertools.count(1)

    def deadly(real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **options: Any) -> None:
            now = next(calls)
            if now == n and not after:
                raise Killed
            real(*args, **options)
            if now == n:
                raise Killed

        return call

    monkeypatch.setattr(disk, "create_file", deadly(disk.create_file))
    monkeypatch.setattr(disk, "create_json", deadly(disk.create_json))


@pytest.mark.parametrize("store", ["local", "memory"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_kill_between_any_two_writes_leaves_nothing_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, after: bool, n: int
) -> None:
    pool = str(tmp_path / "pool") if store == "local" else f"memory://{tmp_path.name}-{n}-{after}"
    whole = write_five(str(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        killed_at(patch, n, after=after)
        with pytest.raises(Killed):
            write_five(pool)
    expected = {"00003"} if (n, after) == (3, True) else set()
    assert set(read_commit_records(pool)) == expected
    remove_uncommitted(PoolLayout(pool))
    assert set(read_commit_records(pool)) == expected
    assert len(disk.list_names(disk.join(pool, "shards"))) == 3 * len(expected)
    again = write_five(pool)
    assert dataclasses.replace(again, duration_s=0) == dataclasses.replace(whole, duration_s=0)
    assert (
        disk.read_bytes(PoolLayout(pool).tar(again))
        == (tmp_path / "whole/shards/00003.tar").read_bytes()
    )


def test_a_kill_while_a_file_is_written_leaves_only_what_clean_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # a killed process tidies nothing

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr("clipmill.manifests.disk.files.os.link", full)
        with pytest.raises(OSError, match="No space left"):
            write_five(str(tmp_path))
    assert [name for name in files_of(tmp_path) if not name.startswith(".")] == []
    assert len(files_of(tmp_path)) > 0
    assert len(remove_uncommitted(PoolLayout(str(tmp_path)))) > 0
    assert files_of(tmp_path) == {}


def test_leftovers_are_removed_and_what_is_committed_and_refuses_what_is_not_ours(
    tmp_path: Path,
) -> None:
    write_five(str(tmp_path), 0)
    write_five(str(tmp_path), 1)
    (tmp_path / "shards/00001_stats.json").unlink()
    kept = {name: data for name, data in files_of(tmp_path).items() if name.startswith("00000")}
    assert remove_uncommitted(PoolLayout(str(tmp_path))) == ["00001.parquet", "00001.tar"]
    assert files_of(tmp_path) == kept
    with tarfile.open(tmp_path / "shards/00007.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("000070000.jpg"), None)
        info = tarfile.TarInfo("a.jpg")
        info.mtime = 5
        tar.addfile(info)
    assert remove_uncommitted(PoolLayout(str(tmp_path))) == ["00007.tar"]  # begins as ours do
    with tarfile.open(tmp_path / "shards/00007.tar", "w") as tar:
        info = tarfile.TarInfo("holiday.jpg")
        info.mtime = 5
        tar.addfile(info)
    with pytest.raises(ValueError, match=r"00007\.tar was not written by clipmill; move it"):
        remove_uncommitted(PoolLayout(str(tmp_path)))
    assert (tmp_path / "shards/00007.tar").exists()


def test_no_record_is_read_where_the_index_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = str(tmp_path)
    for number in range(7):
        write_five(pool, number)
    update_index(pool)
    layout = PoolLayout(pool)
    for path in (layout.shard_tar(8), layout.sidecar(9), layout.shard_tar(4, 1)):
        disk.write_bytes(path, bytes(1024))
    read = CommitRecord.read.__func__  # type: ignore[attr-defined]
    paths: list[str] = []

    def counted(cls: type[CommitRecord], path: str) -> CommitRecord:
        paths.append(path)
        record: CommitRecord = read(cls, path)
        return record

    monkeypatch.setattr(CommitRecord, "read", classmethod(counted))
    # Only the record of the shard with an unknown file is compared with it.
    leftovers = ["00004.r1.tar", "00008.tar", "00009.parquet"]
    assert remove_uncommitted(PoolLayout(pool)) == leftovers
    assert paths == [layout.commit_record(4)]
    assert len(read_commit_records(pool)) == 7
    # A shard that a closed index does not have is not taken for a leftover.
    for path in (tmp_path / "index").iterdir():
        path.rename(tmp_path / path.name)
    write_five(pool, 7)
    for path in [*tmp_path.glob("index.json"), *tmp_path.glob("commits-*")]:
        path.rename(tmp_path / "index" / path.name)
    assert 7 not in read_commits(pool)
    assert remove_uncommitted(PoolLayout(pool)) == []
    assert disk.exists(layout.shard_tar(7))


def test_the_statistics_of_another_program_are_no_commit_record(tmp_path: Path) -> None:
    disk.write_json(
        tmp_path / "shards/00000_stats.json", {"count": 10, "successes": 9, "status_dict": {}}
    )
    (tmp_path / "shards/00000.tar").write_bytes(b"precious")
    places = (read_commit_records, str(tmp_path)), (remove_uncommitted, PoolLayout(str(tmp_path)))
    for function, place in places:
        with pytest.raises(
            ValueError, match=r"00000_stats\.json is not a commit record.*source of kind shards"
        ):
            function(place)
    assert (tmp_path / "shards/00000.tar").read_bytes() == b"precious"


# --- two writers ----------------------------------------------------------------------------------


def other_image() -> list[Any]:
    changed = five_rows()
    changed[0] = (changed[0][0], b"another image", {})
    return changed


def test_a_slow_second_writer_does_not_damage_a_committed_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked before the first one had committed, and publishes after that."""
    pool = str(tmp_path)
    write_tar = ShardWriter._write_tar

    def slow(writer: ShardWriter, staged: Path) -> tuple[str, int]:
        answer = write_tar(writer, staged)
        monkeypatch.setattr(ShardWriter, "_write_tar", write_tar)
        write_five(pool)
        return answer

    monkeypatch.setattr(ShardWriter, "_write_tar", slow)
    record = write_five(pool, given=other_image())
    assert record == read_commit_record(PoolLayout(pool), 3)
    assert disk.file_sha256(PoolLayout(pool).tar(record)) == record.tar_sha256
    assert disk.file_sha256(PoolLayout(pool).sidecar(3)) == record.sidecar_file_sha256


def test_two_writers_at_the_same_time_leave_one_whole_shard(tmp_path: Path) -> None:
    for number in range(20):
        with ThreadPoolExecutor(2) as threads:
            rows = (five_rows(), other_image())
            futures = [threads.submit(write_five, str(tmp_path), number, None, r) for r in rows]
            first, second = (future.result() for future in futures)
        assert first == second == read_commit_record(PoolLayout(str(tmp_path)), number)
        assert disk.file_sha256(PoolLayout(str(tmp_path)).tar(first)) == first.tar_sha256
    assert not [name for name in files_of(tmp_path) if name.startswith(".")]


def test_a_record_that_appears_without_the_lock_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system without locks the record itself is created only where there is none."""
    path = PoolLayout(str(tmp_path)).commit_record(3)
    create_file = disk.create_file

    def and_another_commits(staged: Any, target: Any) -> None:
        create_file(staged, target)
        disk.write_bytes(path, b"the record of another process")

    monkeypatch.setattr(disk, "create_file", and_another_commits)
    with pytest.raises(FileExistsError, match=r"another content: .*00003_stats\.json"):
        write_five(str(tmp_path))
    assert disk.read_bytes(path) == b"the record of another process"


def test_a_shard_that_is_not_committed_has_no_record(tmp_path: Path) -> None:
    assert read_commit_record(PoolLayout(str(tmp_path)), 3) is None
    with pytest.raises(FileNotFoundError):
        read_sidecar(str(tmp_path), 3)


# --------------------------------------------------------------------------------------------------
# What is published is complete, what is committed is replaced by name and never overwritten.


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
    with hold_lease(pool, create=True) as out:
        old = write_five(pool)
        rows = read_sidecar(pool, 3).to_pylist()
        rows[0]["caption"] = "gone"
        tar, staged = new_tar(tmp_path)
        record = replace_shard(out, 3, as_sidecar(rows), tar, staged_tar=staged)
        assert (record.tar, record.sidecar, record.revision) == (
            "00003.r1.tar", "00003.r1.parquet", 1,
        )  # fmt: skip
        assert (record.task, record.group, record.fence) == (old.task, old.group, out.fence)
        assert (
            record == read_commit_record(PoolLayout(pool), 3) == read_commit_records(pool)["00003"]
        )
        assert disk.read_bytes(layout.tar(record)) == staged.read_bytes()
        assert read_sidecar(pool, 3, ["caption"])["caption"][0].as_py() == "gone"
        # Only the sidecar again: the tar keeps its name
        again = replace_shard(out, 3, as_sidecar(rows))
    assert (again.tar, again.sidecar) == ("00003.r1.tar", "00003.r2.parquet")
    assert disk.list_names(layout.shards) == [
        "00003.r1.tar",
        "00003.r2.parquet",
        "00003_stats.json",
    ]
    assert remove_uncommitted(PoolLayout(pool)) == []


def test_an_adopted_tar_stays_where_it_is(tmp_path: Path) -> None:
    pool = str(tmp_path / "pool")
    tar, staged = new_tar(tmp_path)
    tar = dataclasses.replace(tar, name=str(staged))
    old = publish_shard(PoolWriter(pool), 3, [], tar, task="t", group="0", duration_s=1)
    assert old.adopted
    record = replace_shard(PoolWriter(pool), 3, as_sidecar([]))
    assert (record.adopted, record.tar, record.sidecar) == (True, str(staged), "00003.r1.parquet")
    assert staged.exists()
    record = replace_shard(PoolWriter(pool), 3, as_sidecar([]), tar, staged_tar=staged)
    assert (record.adopted, record.tar) == (False, "00003.r2.tar")
    assert staged.exists()


def test_a_reader_of_a_shard_that_was_replaced_is_sent_to_read_again(tmp_path: Path) -> None:
    pool = str(tmp_path)
    write_five(pool)
    open_pool = Pool.open(pool)
    replace_shard(PoolWriter(pool), 3, as_sidecar(read_sidecar(pool, 3).to_pylist()))
    with pytest.raises(ValueError, match=r"^shard 00003 was replaced while .*: run it again$"):
        open_pool.read(3, ["caption"])
    assert Pool.open(pool).read(3, ["caption"]).num_rows == 5
    (tmp_path / "shards/00003.r1.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"00003\.r1\.parquet"):
        Pool.open(pool).read(3, ["caption"])


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
                replace_shard(PoolWriter(pool), 3, as_sidecar(table), tar, staged_tar=staged)
        record = read_commit_record(PoolLayout(pool), 3)
        assert record is not None
        assert (record == old) == (n < 3)
        remove_uncommitted(PoolLayout(pool))
        assert set(files_of(Path(pool))) == {record.tar, record.sidecar, "00003_stats.json"}
        assert disk.file_sha256(PoolLayout(pool).tar(record)) == record.tar_sha256
        assert read_sidecar(pool, 3).num_rows == 5


def test_what_is_not_committed_cannot_be_replaced_and_a_changed_record_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = str(tmp_path)
    with pytest.raises(ValueError, match=r"shard 00003 of .* is not committed"):
        replace_shard(PoolWriter(pool), 3, as_sidecar([]))
    record = write_five(pool)
    table = read_sidecar(pool, 3).to_pylist()
    create_file = disk.create_file
    changed = {**disk.to_plain(record), "task": "of another process"}

    def meanwhile(*args: Any) -> None:
        create_file(*args)
        disk.write_json(PoolLayout(pool).commit_record(3), changed)

    monkeypatch.setattr(disk, "create_file", meanwhile)
    with pytest.raises(FileExistsError, match="another content"):
        replace_shard(PoolWriter(pool), 3, as_sidecar(table))
    assert read_commit_record(PoolLayout(pool), 3) == CommitRecord.from_plain(changed)


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
    with hold_lease(pool, create=True) as lost:
        pass
    with hold_lease(pool, create=True), ShardWriter(lost, 3, "task", "0") as writer:
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
            PoolWriter(str(tmp_path)),
            3,
            [],
            tar,
            staged_tar=staged,
            task="t",
            group="0",
            duration_s=1,
        )
    assert read_commit_records(str(tmp_path)) == {}


# --------------------------------------------------------------------------------------------------
# Columns of a set are read for the rows that they were made of, or refused.


CAPTION = FilterSpec(name="caption")


def test_columns_of_the_rows_and_of_others(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "a", rows(20))
    score(PoolWriter(pool), [CAPTION], engine="inline")
    (name,) = complete_score_sets(PoolLayout(pool))
    files, columns = AlignedFiles.of_scores(PoolLayout(pool), name), ["caption_words"]

    def read(record: CommitRecord) -> pa.Table:
        return files.read_of(record.shard, record.sidecar_sha256, record.count, columns)

    table = read(read_commits(pool).record(1))
    assert table["caption_words"].to_pylist() == files.read(1)[0]["caption_words"].to_pylist()
    other = read_commits(make_pool(tmp_path / "b", rows(19)))
    write_shard(pool, 2, list(enumerate(rows(3), start=20)))
    for record in (other.record(1), read_commits(pool).record(2)):
        message = f"does not have the columns of shard {record.shard} as it is committed now"
        with pytest.raises(ValueError, match=message):
            read(record)
