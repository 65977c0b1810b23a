"""A folder for parts of remote tars: the same batches, each part once, no wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.slow_store import SlowStore
from tests.train.data.test_read_ahead import assert_same, loader_of
from train.data import view_rows
from train.data.view_rows import ReadFailed
from train.store import PartCache

STEPS, SHARDS = 30, 6


@pytest.fixture
def pool(make_pool: Callable[..., str], add_view: Callable[..., None], tmp_path: Path) -> str:
    path = make_pool(tmp_path / "pool", 24, SHARDS, size=32)
    add_view(path, "few", 0.4)
    return path


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("view", ["all", "few"])
def test_batches_stay_and_a_warm_cache_needs_no_store(
    pool: str, store: type[SlowStore], tmp_path: Path, view: str, threads: int
) -> None:
    expected = list(loader_of(pool, STEPS, view=view))
    changes = {"view": view, "threads": threads, "read_cache": str(tmp_path / "cache")}
    for _ in range(3):  # the first ones may end before the last part has come
        store.reset()
        for one, other in zip(loader_of(f"slow://{pool}", STEPS, **changes), expected, strict=True):
            assert_same(one, other)
        time.sleep(0.2)
    assert store.reads() == []  # of tars, the last time


def test_no_batch_waits_for_a_part_and_each_part_comes_once(
    pool: str, store: type[SlowStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, begun = PartCache.fetch, list[str]()

    def late(self: PartCache, name: str, read: Callable[[], bytes]) -> object:
        begun.append(name)
        time.sleep(1.0)
        return fetch(self, name, read)

    monkeypatch.setattr(PartCache, "fetch", late)
    loader = loader_of(f"slow://{pool}", STEPS, read_cache=str(tmp_path / "cache"))
    batches = loader.batches()
    started = time.perf_counter()
    for _ in range(3):
        next(batches)
    assert time.perf_counter() - started < 1.0
    batches.close()  # waits for the parts that are on their way
    assert len(begun) == len(set(begun)) == SHARDS
    assert len(list((tmp_path / "cache").rglob("*.part"))) == SHARDS


def test_a_part_that_is_lost_or_damaged_costs_a_request(
    pool: str, store: type[SlowStore], tmp_path: Path
) -> None:
    cache = str(tmp_path / "cache")
    expected = list(loader_of(f"slow://{pool}", STEPS, read_cache=cache))
    paths = sorted((tmp_path / "cache").rglob("*.part"))
    assert len(paths) == SHARDS
    paths[0].unlink()
    paths[1].write_bytes(paths[1].read_bytes()[:-5])
    store.reset()
    loader = loader_of(f"slow://{pool}", STEPS, read_cache=cache)
    for one, other in zip(loader, expected, strict=True):
        assert_same(one, other)
    assert len(store.reads()) > 0


def test_a_damaged_part_of_a_silent_store_ends_as_a_read_does(
    pool: str, store: type[SlowStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = str(tmp_path / "cache")
    list(loader_of(f"slow://{pool}", STEPS, read_cache=cache))
    for path in (tmp_path / "cache").rglob("*.part"):
        path.write_bytes(path.read_bytes() + b"x")
    monkeypatch.setattr("manifests.disk.files.RETRY_S", 0.0)
    monkeypatch.setattr(view_rows, "WAITS_S", ())
    loader = loader_of(f"slow://{pool}", STEPS, read_cache=cache)
    for shard in range(SHARDS):
        loader.views[0].shard(shard)
    store.failures = 10**6
    with pytest.raises(ReadFailed, match=r"image \d{9} in slow://.*\d{5}\.tar could not be read"):
        list(loader)


def test_a_cache_that_takes_nothing_changes_no_batch(
    pool: str, store: type[SlowStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    loader = loader_of(f"slow://{pool}", read_cache=str(tmp_path / "cache"))
    for one, other in zip(loader, loader_of(pool), strict=True):
        assert_same(one, other)


def test_a_cache_that_is_too_small_for_a_window_is_not_used(
    pool: str, store: type[SlowStore], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = {"read_cache": str(tmp_path / "cache"), "read_cache_gb": 1e-4}
    for one, other in zip(loader_of(f"slow://{pool}", **changes), loader_of(pool), strict=True):
        assert_same(one, other)
    assert "GB of read_cache and have 0.0001 GB" in caplog.text
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_a_folder_that_cannot_be_used_is_refused(pool: str) -> None:
    with pytest.raises(ValueError, match="is a URL; name a folder of a local disk"):
        loader_of(pool, read_cache="s3://bucket/cache")
    with pytest.raises(ValueError, match="read_cache_gb is 0"):
        loader_of(pool, read_cache_gb=0)
