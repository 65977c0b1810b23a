"""What the next steps need is read ahead: at once, in few requests, in bounded memory, and kept."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch

from clipmill.manifests import disk
from clipmill.manifests.schema import Blend
from clipmill.train import store as store_module
from clipmill.train.config import TrainConfig, model_config
from clipmill.train.data import read_ahead
from clipmill.train.data.loader import RunLoader
from clipmill.train.data.read_ahead import ReadAhead
from clipmill.train.store import PartCache, ReadFailed
from tests.support import slow_store
from tests.support.slow_store import SlowStore


@pytest.fixture
def store():
    slow_store.register()
    SlowStore.reset()
    yield SlowStore
    SlowStore.reset()


# --------------------------------------------------------------------------------------------------


def loader_of(pool, steps=12, threads=2, batch_size=16, view="all", **changes):
    config = TrainConfig(
        model="test",
        samples_seen=steps * batch_size,
        batch_size=batch_size,
        lanes=8,
        window=2,
        threads=threads,
        device="cpu",
        warmup=0,
        **changes,
    )
    blend = Blend(name="test", pools={"web": pool}, views={f"web/{view}": 1.0})
    return RunLoader(blend, config, model_config(config))


@pytest.fixture
def many_shards(make_pool, tmp_path):
    return make_pool(tmp_path / "pool", 24, 16, size=32)


def assert_same(one, other):
    assert (one.step, one.keys, one.damaged) == (other.step, other.keys, other.damaged)
    for name in ("image_BHWC", "tokens_BT", "length_B"):
        assert torch.equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("threads", [0, 3])
def test_batches_from_a_store_are_those_of_the_files_in_fewer_requests(many_shards, store, threads):
    expected = list(loader_of(many_shards, steps=60))
    batches = list(loader_of(f"slow://{many_shards}", steps=60, threads=threads))
    for one, other in zip(batches, expected, strict=True):
        assert_same(one, other)
    assert len(store.reads()) < 60 * 16 / 3


def test_shards_are_read_at_the_same_time(many_shards, store):
    loader = loader_of(f"slow://{many_shards}", threads=8, batch_size=64)
    store.reset(wait_s=0.05)
    batches = loader.batches()
    next(batches)
    names = {name for _, name, _ in store.reads(".parquet")}
    assert names == {*(f"{shard:05d}.parquet" for shard in range(16)), "bundle-00000.parquet"}
    assert store.most_at_once >= 16  # one after another it is 1
    batches.close()


def test_the_bytes_that_wait_are_bounded(many_shards, store, monkeypatch):
    loader = loader_of(f"slow://{many_shards}", steps=200)
    size = int(loader.views[0].shard(0).length.mean()) * 16  # of a step
    monkeypatch.setattr(read_ahead, "READ_BYTES", 12 * size)
    batches = loader.batches()
    next(batches)
    reads: ReadAhead = batches.gi_frame.f_locals["steps"]
    until = time.monotonic() + 900
    while reads._bytes <= 2 * size and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.5)  # in which it would read more than it may
    assert 2 * size < reads._bytes <= 12 * size
    for _ in range(30):
        next(batches)
        assert reads._bytes <= 12 * size
    batches.close()


def test_a_step_larger_than_the_bound_is_read_alone(many_shards, store, monkeypatch):
    monkeypatch.setattr(read_ahead, "READ_BYTES", 1)
    assert len(list(loader_of(f"slow://{many_shards}", steps=6))) == 6


@pytest.mark.parametrize("threads", [0, 2])
def test_time_outs_change_nothing(many_shards, store, monkeypatch, threads):
    monkeypatch.setattr("clipmill.manifests.disk.files.FIRST_PAUSE_S", 0.001)
    expected = list(loader_of(many_shards))
    loader = loader_of(f"slow://{many_shards}", threads=threads)
    store.failures = 9
    for one, other in zip(loader, expected, strict=True):
        assert_same(one, other)
    assert store.failures == 0


@pytest.mark.parametrize("threads", [0, 2])
def test_a_silent_store_ends_the_run_with_shard_and_key(many_shards, store, monkeypatch, threads):
    monkeypatch.setattr("clipmill.manifests.disk.files.RETRY_S", 0.0)
    monkeypatch.setattr(store_module, "WAITS_S", (0.0,))
    loader = loader_of(f"slow://{many_shards}", threads=threads)
    for shard in range(16):
        loader.views[0].shard(shard)
    store.failures = 10**6
    with pytest.raises(ReadFailed, match=r"image \d{9} in slow://.*\d{5}\.tar could not be read"):
        list(loader)


def test_a_tar_that_ends_early_costs_the_images_behind_its_end(many_shards, store):
    path = disk.local_path(f"{many_shards}/shards/00003.tar")
    path.write_bytes(path.read_bytes()[:-12_000])
    loaders = [loader_of(f"{prefix}{many_shards}", steps=24) for prefix in ("slow://", "")]
    damaged = []
    for one, other in zip(*loaders, strict=True):
        assert_same(one, other)
        positions = [sample.position for sample in one.damaged_samples]
        assert positions == [sample.position for sample in other.damaged_samples]
        damaged += one.damaged_samples
    assert 0 < len(damaged) < 24
    assert {sample.shard for sample in damaged} == {"00003"}


def test_closing_wakes_whoever_waits(many_shards, store):
    loader = loader_of(f"slow://{many_shards}", steps=100, threads=3)
    batches = loader.batches()
    next(batches)
    store.wait_s = 0.3
    batches.close()
    names = ("plan", "decode", "read", "columns")
    assert not [t for t in threading.enumerate() if t.name.startswith(names)]


def test_what_fails_ahead_is_raised_at_its_step(many_shards):
    loader = loader_of(many_shards, threads=2)
    compute = loader.order.batch

    def batch(step, rows=None):
        if step == 5:
            raise ZeroDivisionError("step 5")
        return compute(step, rows)

    loader.order.batch = batch
    with pytest.raises(ZeroDivisionError, match="step 5"):
        list(loader)


def test_columns_that_cannot_be_read_are_the_error_of_the_steps_that_need_them(many_shards):
    loader = loader_of(many_shards, steps=24, threads=2)
    shards = [set(loader.order.batch(step)[1].tolist()) for step in range(24)]
    shard = next(s for s in shards[23] if s not in shards[0])
    disk.remove(f"{many_shards}/shards/{shard:05d}.parquet")
    batches = loader.batches()
    assert next(batches).step == 0
    with pytest.raises((ValueError, OSError), match=f"{shard:05d}"):
        list(batches)


# --------------------------------------------------------------------------------------------------


STEPS, SHARDS = 30, 6


@pytest.fixture
def pool(make_pool, add_view, tmp_path):
    path = make_pool(tmp_path / "pool", 24, SHARDS, size=32)
    add_view(path, "few", 0.4)
    return path


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("view", ["all", "few"])
def test_batches_stay_and_a_warm_cache_needs_no_store(pool, store, tmp_path, view, threads):
    expected = list(loader_of(pool, STEPS, view=view))
    changes = {"view": view, "threads": threads, "read_cache": str(tmp_path / "cache")}
    for _ in range(3):  # the first ones may end before the last part has come
        store.reset()
        for one, other in zip(loader_of(f"slow://{pool}", STEPS, **changes), expected, strict=True):
            assert_same(one, other)
        time.sleep(0.2)
    assert store.reads() == []  # of tars, the last time


def test_no_batch_waits_for_a_part_and_each_part_comes_once(pool, store, tmp_path, monkeypatch):
    fetch, came = PartCache.fetch, list[str]()
    may_come = threading.Event()

    def late(self, name, read):
        def read_part():
            assert may_come.wait(600)
            came.append(name)  # a part that is there is opened, and not read again
            return read()

        return fetch(self, name, read_part)

    monkeypatch.setattr(PartCache, "fetch", late)
    loader = loader_of(f"slow://{pool}", STEPS, read_cache=str(tmp_path / "cache"))
    batches = loader.batches()
    for _ in range(3):
        next(batches)
    assert came == []
    may_come.set()
    batches.close()  # waits for the parts that are on their way
    assert len(came) == len(set(came)) == SHARDS
    assert len(list((tmp_path / "cache").rglob("*.part"))) == SHARDS


def test_a_damaged_part_of_a_silent_store_ends_as_a_read_does(pool, store, tmp_path, monkeypatch):
    cache = str(tmp_path / "cache")
    list(loader_of(f"slow://{pool}", STEPS, read_cache=cache))
    for path in (tmp_path / "cache").rglob("*.part"):
        path.write_bytes(path.read_bytes() + b"x")
    monkeypatch.setattr("clipmill.manifests.disk.files.RETRY_S", 0.0)
    monkeypatch.setattr(store_module, "WAITS_S", ())
    loader = loader_of(f"slow://{pool}", STEPS, read_cache=cache)
    for shard in range(SHARDS):
        loader.views[0].shard(shard)
    store.failures = 10**6
    with pytest.raises(ReadFailed, match=r"image \d{9} in slow://.*\d{5}\.tar could not be read"):
        list(loader)


def test_a_cache_that_takes_nothing_changes_no_batch(pool, store, tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    loader = loader_of(f"slow://{pool}", read_cache=str(tmp_path / "cache"))
    for one, other in zip(loader, loader_of(pool), strict=True):
        assert_same(one, other)


def test_a_cache_that_is_too_small_for_a_window_is_not_used(pool, store, tmp_path, caplog):
    changes = {"read_cache": str(tmp_path / "cache"), "read_cache_gb": 1e-4}
    for one, other in zip(loader_of(f"slow://{pool}", **changes), loader_of(pool), strict=True):
        assert_same(one, other)
    assert "GB of read_cache and have 0.0001 GB" in caplog.text
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_a_folder_that_cannot_be_used_is_refused(pool):
    with pytest.raises(ValueError, match="is a URL; name a folder of a local disk"):
        loader_of(pool, read_cache="s3://bucket/cache")
    with pytest.raises(ValueError, match="read_cache_gb is 0"):
        loader_of(pool, read_cache_gb=0)
