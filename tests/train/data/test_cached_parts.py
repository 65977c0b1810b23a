"""Parts that are not there come in the background; nothing waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import slow_store
from tests.support.slow_store import SlowStore
from train.data.read_ahead import CachedParts
from train.data.view_rows import ReadFailed, ViewRows, open_view
from train.store import PartCache

Make = Callable[..., str]


@pytest.fixture
def view(make_pool: Make, tmp_path: Path) -> Iterator[ViewRows]:
    slow_store.register()
    SlowStore.reset()
    pool = make_pool(tmp_path / "pool", 12, 2, size=32)
    rows = open_view(f"slow://{pool}", "all")
    rows.part_mode = "mask"
    yield rows
    SlowStore.reset()


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_part_is_fetched_once_in_the_background_and_then_used(
    view: ViewRows, tmp_path: Path
) -> None:
    cache = PartCache(str(tmp_path / "cache"), 10**9)
    parts, rows = CachedParts(cache), view.shard(1)
    assert rows.parts is not None
    kept = np.arange(12)
    expected = {row: view.read_image(1, row) for row in range(12)}
    SlowStore.reset(wait_s=0.1)
    for _ in range(5):
        assert parts.images(view, 1, rows, kept) == {}
    until(lambda: cache.has(rows.parts.names[0]))  # type: ignore[union-attr]
    assert len(SlowStore.reads()) == 1
    images = parts.images(view, 1, rows, np.array([3, 7]))
    assert {row: future.result()[row] for row, future in images.items()} == {
        row: expected[row] for row in (3, 7)
    }
    assert len(SlowStore.reads()) == 1
    cache.limit = 1
    cache.remove_old()  # another rank made room
    cache._open.clear()
    assert images[3].result()[3] == expected[3]
    assert len(SlowStore.reads()) == 2
    parts.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("read-")]


def test_without_parts_nothing_is_cached(view: ViewRows, tmp_path: Path) -> None:
    view.part_mode = None
    view.forget_shards()
    parts = CachedParts(PartCache(str(tmp_path / "cache"), 10**9))
    assert parts.images(view, 0, view.shard(0), np.arange(12)) == {}
    parts.close()
    assert SlowStore.reads() == []


def test_a_damaged_part_of_a_silent_store_ends_as_the_read_does(
    view: ViewRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manifests.disk.files.RETRY_S", 0.0)
    monkeypatch.setattr("train.data.view_rows.WAITS_S", ())
    cache = PartCache(str(tmp_path / "cache"), 10**9)
    parts, rows = CachedParts(cache), view.shard(0)
    assert rows.parts is not None
    cache.add(rows.parts.names[0], b"x")
    path = cache._path(rows.parts.names[0])
    path.write_bytes(path.read_bytes() + b"x")
    SlowStore.failures = 100
    (future,) = set(parts.images(view, 0, rows, np.arange(12)).values())
    with pytest.raises(ReadFailed, match=r"image 000000000 in slow://.*00000\.tar could not"):
        future.result()
    parts.close()
