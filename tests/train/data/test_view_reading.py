"""Batches are the same in every mode; the mode is the cheaper one, and the log says why."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from manifests.schema import Blend
from tests.support.slow_store import SlowStore
from train.config import TrainConfig, model_config
from train.data.loader import Batch, Loader

Make = Callable[..., str]
STEPS = 30


def loader_of(pool: str, view: str = "all", threads: int = 2, **changes: Any) -> Loader:
    config = TrainConfig(
        model="test",
        samples_seen=STEPS * 16,
        batch_size=16,
        lanes=8,
        window=2,
        threads=threads,
        device="cpu",
        warmup=0,
    )
    config = dataclasses.replace(config, **changes)
    blend = Blend(name="test", pools={"web": pool}, views={f"web/{view}": 1.0})
    return Loader(blend, config, model_config(config))


@pytest.fixture
def pool(make_pool: Make, add_view: Callable[..., None], tmp_path: Path) -> str:
    path = make_pool(tmp_path / "pool", 24, 6, size=32)
    add_view(path, "few", 0.4)
    return path


def assert_same(one: Batch, other: Batch) -> None:
    assert (one.step, one.keys, one.damaged) == (other.step, other.keys, other.damaged)
    for name in ("image_BHWC", "tokens_BT", "length_B"):
        assert torch.equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("mode", ["mask", "ranged", "auto"])
@pytest.mark.parametrize("threads", [0, 2])
def test_every_mode_gives_the_same_batches_and_a_warm_cache_needs_no_store(
    pool: str, store: type[SlowStore], tmp_path: Path, mode: str, threads: int
) -> None:
    expected = list(loader_of(pool, "few"))
    cache = str(tmp_path / "cache")
    for _ in range(3):  # the first ones may end before the last part has come
        store.reset()
        changes = {"read_mode": mode, "read_cache": cache, "store_speed": "50ms,100MB/s"}
        loader = loader_of(f"slow://{pool}", "few", threads, **changes)
        for one, other in zip(loader, expected, strict=True):
            assert_same(one, other)
    assert store.reads() == []  # of tars, the last time


def test_views_share_the_parts_of_whole_tars(
    pool: str, store: type[SlowStore], tmp_path: Path
) -> None:
    changes = {"read_mode": "mask", "read_cache": str(tmp_path / "cache")}
    list(loader_of(f"slow://{pool}", "all", **changes))
    time.sleep(0.2)  # parts come in the background
    store.reset()
    list(loader_of(f"slow://{pool}", "few", **changes))
    assert store.reads() == []


def test_a_part_that_is_lost_or_damaged_while_a_run_reads_it_costs_a_request(
    pool: str, store: type[SlowStore], tmp_path: Path
) -> None:
    changes = {"read_mode": "mask", "read_cache": str(tmp_path / "cache")}
    expected = list(loader_of(f"slow://{pool}", **changes))
    paths = sorted((tmp_path / "cache").rglob("*.part"))
    assert len(paths) == 6
    paths[0].unlink()
    paths[1].write_bytes(paths[1].read_bytes()[:-5])
    for one, other in zip(loader_of(f"slow://{pool}", **changes), expected, strict=True):
        assert_same(one, other)
    assert len(store.reads()) > 0


def test_a_cache_that_takes_nothing_changes_no_batch(
    pool: str, store: type[SlowStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    expected = list(loader_of(pool))
    changes = {"read_mode": "mask", "read_cache": str(tmp_path / "cache")}
    for one, other in zip(loader_of(f"slow://{pool}", **changes), expected, strict=True):
        assert_same(one, other)


def test_the_log_names_the_mode_and_why(
    pool: str, store: type[SlowStore], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "by ranged: whole tars need a folder"),
        ({"read_mode": "mask"}, "by mask: read_mode says so"),
        (
            {"read_cache": str(tmp_path / "c"), "store_speed": "50ms,100MB/s"},
            "by mask: shard 00000 by mask takes 1 requests and",
        ),
        ({"read_cache": str(tmp_path / "c")}, "at 32 reads|32 reads at a time"),
    ]
    for changes, _ in cases:
        next(loader_of(f"slow://{pool}", "few", **changes).batches())
    lines = [record.getMessage() for record in caplog.records if "is read by" in record.message]
    assert len(lines) == len(cases)
    for line, (_, expected) in zip(lines, cases, strict=True):
        assert any(part in line for part in expected.split("|")), line
    caplog.clear()
    next(loader_of(pool).batches())
    assert "is read by" not in caplog.text  # local files need no choice


def test_what_cannot_be_read_that_way_is_refused(pool: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"few. of .* has no tars of its own; run .* materialise"):
        loader_of(pool, "few", read_mode="materialised")
    with pytest.raises(ValueError, match="is a URL; name a folder of a local disk"):
        loader_of(pool, read_cache="s3://bucket/cache")
    with pytest.raises(ValueError, match="store_speed is 'fast'"):
        loader_of(pool, store_speed="fast")
    with pytest.raises(ValueError, match="read_cache_gb is 0"):
        loader_of(pool, read_cache_gb=0)


def test_a_cache_that_is_too_small_for_a_window_is_not_used(
    pool: str, store: type[SlowStore], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = list(loader_of(pool))
    changes = {"read_mode": "mask", "read_cache": str(tmp_path / "c"), "read_cache_gb": 1e-4}
    for one, other in zip(loader_of(f"slow://{pool}", **changes), expected, strict=True):
        assert_same(one, other)
    assert "GB of read_cache and has 0.0001 GB" in caplog.text
    assert not list((tmp_path / "c").rglob("*.part"))
