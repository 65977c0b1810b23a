"""Parts on disk: whole or not there, shared, bounded, and never a reason to fail."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from train.store import HEAD, PartCache

NAME = "ab" + "0" * 30


def name_of(number: int) -> str:
    return f"{number:02x}" + "0" * 30


def never() -> bytes:
    raise AssertionError("it is in the cache")


def test_a_part_is_fetched_once_and_read_by_all(tmp_path: Path) -> None:
    caches = [PartCache(str(tmp_path), 10**6) for _ in range(3)]
    assert caches[0].open(NAME) is None
    assert not caches[0].has(NAME)
    part = caches[0].fetch(NAME, lambda: b"0123456789")
    assert part is not None
    assert part.read(2, 3) == b"234"
    assert part.read(8, 5) == b"89"
    for cache in caches:
        assert cache.has(NAME)
        assert cache.fetch(NAME, never) is not None
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f"{NAME}.part"]


@pytest.mark.parametrize("damage", ["torn", "head", "flipped", "longer", "empty"])
def test_a_damaged_part_is_fetched_again(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    PartCache(str(tmp_path), 10**6).add(NAME, b"x" * 1000)
    path = tmp_path / "ab" / f"{NAME}.part"
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[HEAD.size + 500] ^= 4
    changed = {"torn": data[:-1], "head": data[:10], "longer": data + b"x", "empty": b""}
    path.write_bytes(bytes(changed.get(damage, data)))
    cache = PartCache(str(tmp_path), 10**6)
    part = cache.fetch(NAME, lambda: b"y" * 1000)
    assert part is not None
    assert part.read(0, 1000) == b"y" * 1000
    assert f"{NAME}.part is damaged and is fetched again" in caplog.text


def test_the_least_used_parts_go_first_and_can_still_be_read(tmp_path: Path) -> None:
    cache = PartCache(str(tmp_path), 10_000)
    first = cache.fetch(name_of(0), lambda: b"0" * 1000)
    for number in range(1, 9):
        cache.add(name_of(number), bytes(1000))
        os.utime(cache._path(name_of(number)), (number, number))
    os.utime(cache._path(name_of(0)), (100, 100))
    other = PartCache(str(tmp_path), 10_000)
    assert other.open(name_of(1)) is not None  # used now
    for number in (20, 21):
        other.add(name_of(number), bytes(1000))
    left = {number for number in range(30) if other.has(name_of(number))}
    assert left == {0, 1, 4, 5, 6, 7, 8, 20, 21}
    assert first is not None
    other.limit = 1
    other.remove_old()
    assert not list(tmp_path.rglob("*.part"))
    assert first.read(0, 3) == b"000"


def test_the_limit_is_kept_while_many_parts_are_written(tmp_path: Path) -> None:
    cache = PartCache(str(tmp_path), 100_000)
    most = 0
    for number in range(200):
        cache.add(name_of(number), bytes(2000))
        most = max(most, sum(path.stat().st_size for path in tmp_path.rglob("*.part")))
    assert 80_000 < most <= 100_000 * (1 + 1 / 64) + 2020


def test_what_a_killed_process_left_is_removed_and_what_is_being_written_is_not(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "ab"
    folder.mkdir()
    old, new = folder / f".{NAME}.part.11", folder / f".{NAME}.part.22"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    PartCache(str(tmp_path), 10**6)
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_disk_that_takes_no_more_turns_it_off_with_one_warning(
    tmp_path: Path,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = PartCache(str(tmp_path), 10**6)
    cache.add(name_of(1), b"there")

    def full(self: Path, target: Any) -> None:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "rename", full)
    with caplog.at_level(logging.WARNING):
        for part in (2, 3):
            assert cache.fetch(name_of(part), lambda: b"new") is None
    assert not cache.is_on
    assert len(caplog.records) == 1
    assert "takes no more" in caplog.text
    assert ("the disk is full" in caplog.text) == (number == errno.ENOSPC)
    assert cache.fetch(name_of(1), never) is not None  # what is there is still of use
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_many_threads_and_processes_may_want_one_part(tmp_path: Path) -> None:
    caches = [PartCache(str(tmp_path), 10**6) for _ in range(4)]
    start = threading.Barrier(8)
    results: list[bytes] = []

    def want(cache: PartCache) -> None:
        start.wait(20)
        for number in range(20):
            part = cache.fetch(name_of(number), lambda n=number: bytes([n]) * 500)  # type: ignore[misc]
            assert part is not None
            results.append(part.read(0, 500))

    threads = [threading.Thread(target=want, args=(cache,)) for cache in caches * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(results)) == [bytes([n]) * 500 for n in range(20)]
    assert len(results) == 160


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"read_cache is .* is a file"):
        PartCache(str(tmp_path / "file"), 1)
