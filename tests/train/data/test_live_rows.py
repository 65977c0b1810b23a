"""Training on a pool that grows: what was drawn is written down, and drawn again to the bit."""

from __future__ import annotations

import random
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch

from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout, RunLayout
from clipmill.manifests.schema import Blend
from clipmill.train.data import live_rows
from clipmill.train.data.live_rows import FoundShard, LivePool, committed_shards
from clipmill.train.data.loader import RunLoader
from clipmill.train.mixture.order import SegmentOrder
from tests.train.data.test_loader import model, settings

BATCH = 2048  # the order works out one step at a time


class Growing:
    """Shards that are committed in any order, some at each look."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        numbers = list(range(12))
        self._random.shuffle(numbers)
        self._waiting = numbers
        self._found: dict[int, FoundShard] = {}

    def grow(self):
        for _ in range(self._random.choice([0, 0, 1, 2])):
            if self._waiting:
                number = self._waiting.pop()
                rows = 256 * (3 + number * 5 % 17)
                self._found[number] = FoundShard(
                    shard=number, rows=rows, tar="", sidecar="", sha256=f"{number:064d}"
                )

    def finish(self):
        while self._waiting:
            self.grow()

    def __call__(self):
        self.grow()
        return dict(self._found), not self._waiting


class Process:
    """A rank of a run, with its own view of the segments."""

    def __init__(self, shards, folder, **kind):
        sleep = lambda _: shards.grow()  # noqa: E731
        self.live = LivePool("pool", shards, BATCH, folder, sleep=sleep, **kind)
        self.order = SegmentOrder("web/stored", self.live, BATCH, 4, 2, 5)

    def batch(self, step):
        """(shard of the pool, row) of each row of a batch."""
        _, shard, row = self.order.batch(step)
        numbers = [self.live.found[k].shard for k in shard.tolist()]
        return list(zip(numbers, row.tolist(), strict=True))


@pytest.mark.slow
def test_a_replay_draws_what_a_live_run_drew_in_any_interleaving(tmp_path):
    for seed in range(6):
        shards, folder = Growing(seed), str(tmp_path / str(seed))
        chance = random.Random(seed)
        first = Process(shards, folder, decides=True)
        drawn: dict[int, list[tuple[int, int]]] = {}
        step = 0
        while step < 30:
            drawn[step] = first.batch(step)
            assert len(set(drawn[step])) == BATCH
            if chance.random() < 0.2:  # another rank, which reads what the first has written
                assert Process(shards, folder, decides=False).batch(step) == drawn[step]
            if chance.random() < 0.1:  # killed, and resumed at an earlier step
                first = Process(shards, folder, decides=True)
                step = chance.randrange(step + 1)
                assert first.batch(step) == drawn[step]
            step += 1
        shards.finish()
        replay = Process(shards, folder, decides=False, replay=True)
        for step in (chance.randrange(30), *range(30)):
            assert replay.batch(step) == drawn[step]
        every = {row for batch in drawn.values() for row in batch}
        assert len({shard for shard, _ in every}) > 3


def test_a_replay_needs_the_same_shards_and_no_more_steps(tmp_path):
    shards = Growing(3)
    Process(shards, str(tmp_path), decides=True).batch(4)
    replay = Process(shards, str(tmp_path), decides=False, replay=True)
    with pytest.raises(ValueError, match=r"end before step 9000; replay at most as many steps"):
        replay.batch(9000)
    for number, shard in list(shards._found.items()):
        shards._found[number] = FoundShard(
            shard=number, rows=shard.rows, tar="", sidecar="", sha256="0" * 63 + "x"
        )
    with pytest.raises(ValueError, match=r"has changed since; the run cannot be repeated from"):
        Process(shards, str(tmp_path), decides=False, replay=True).batch(0)


def live(pool, **keys):
    keys = keys or {"live": True}
    return Blend(name="live", pools={"web": pool}, views={"web/stored": 1}, **keys)


def test_a_run_trains_while_shards_arrive_and_a_replay_is_equal_to_the_bit(
    make_pool, tmp_path, monkeypatch
):
    monkeypatch.setattr(live_rows, "POLL_S", 0.02)
    done = Path(make_pool(tmp_path / "done", 12, 5, failed=2))
    growing = tmp_path / "growing"
    (growing / "shards").mkdir(parents=True)
    config = settings(batch_size=8, lanes=4, samples_seen=8 * 24, threads=1)
    loader = RunLoader(live(str(growing)), config, model(), out=str(tmp_path / "run"))

    def build():
        for shard in (1, 0, 3, 2, 4):
            time.sleep(0.2)
            for name in ("tar", "parquet"):
                shutil.copy(done / "shards" / f"{shard:05d}.{name}", growing / "shards")
            record = f"{shard:05d}_stats.json"
            shutil.copy(done / "shards" / record, growing / "shards" / f".{record}")
            (growing / "shards" / f".{record}").rename(growing / "shards" / record)

    builder = threading.Thread(target=build)
    builder.start()
    batches = []
    for batch in loader:
        batches.append(batch)
        time.sleep(0.05)
    builder.join()
    assert batches[0].keys[0].startswith("web/stored:00001")
    segments = disk.list_names(RunLayout(str(tmp_path / "run")).segments)
    assert len(segments) >= 3
    assert loader.sources()["web/stored"]["drawn"] == 192
    keys = {key for batch in batches for key in batch.keys}
    assert all(int(key[-4:]) < 10 for key in keys)  # rows without an image are not drawn
    replay = RunLoader(live(str(growing), segments=str(tmp_path / "run")), config, model())
    for one, other in zip(batches, replay, strict=True):
        assert one.keys == other.keys
        assert torch.equal(one.tokens_BT, other.tokens_BT)
        assert torch.equal(one.image_BHWC, other.image_BHWC)


def test_a_complete_pool_that_is_too_small_is_refused(make_pool, tmp_path, monkeypatch):
    pool = make_pool(tmp_path / "pool", 2, 2)
    found, complete = committed_shards(pool)
    assert sorted(found) == [0, 1]
    assert [shard.rows for shard in found.values()] == [2, 2]
    assert len(found[0].sha256) == 64
    assert not complete  # no build has counted it
    monkeypatch.setattr(live_rows, "committed_shards", lambda _: (found, True))
    with pytest.raises(ValueError, match="is complete and has 4 stored rows, fewer than a batch"):
        next(iter(RunLoader(live(pool), settings(), model())))
    with pytest.raises(ValueError, match="makes tokens of the tokenizer clip, and the run's is"):
        RunLoader(live(pool), settings(tokenizer="other"), model())
    sidecar = PoolLayout(pool).sidecar(0)
    table = disk.read_parquet(sidecar)
    disk.write_parquet(sidecar, table.slice(0, 1), {})
    with pytest.raises(ValueError, match="has 1 stored rows, its commit record 2"):
        next(iter(RunLoader(live(pool), settings(batch_size=4, lanes=1), model())))


def test_settings_that_a_live_run_would_ignore_are_refused(make_pool, tmp_path):
    pool = make_pool(tmp_path / "pool")
    blend = Blend(name="b", pools={"p": pool}, views={"p/stored": 1}, live=True)
    with pytest.raises(ValueError, match="a live run, its replay and a run on streams read"):
        RunLoader(blend, settings(read_cache=str(tmp_path / "c")), model())
