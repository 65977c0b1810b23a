"""What a rank says of its waits, when it ends the run, and when it must not."""

from __future__ import annotations

import dataclasses
import json
import logging
import signal

import pytest

from clipmill.manifests import waits
from clipmill.train.parallel.process_group import ALONE
from clipmill.train.trainer import watch as watching
from clipmill.train.trainer.watch import BATCH, SAVE, START, STEP, Watch

LIMIT_S = 1800.0


class Ended(Exception):
    pass


class Store(dict):
    def check(self, keys):
        return all(key in self for key in keys)

    def set(self, key, value):
        self[key] = value.encode()


class Rank:
    """A watch with a clock and signs of its own. `wait` gives the seconds at which it logged."""

    def __init__(self, monkeypatch, caplog, rank=0, world=1):
        self.now, self.ended, self.life, self.named, self.number = 0.0, 0, 0, None, None
        self.watch = Watch(dataclasses.replace(ALONE, rank=rank, world=world), LIMIT_S)
        for name in ("_lasts", "_still"):
            still = waits.Stillness(LIMIT_S, clock=lambda: self.now)
            setattr(self.watch, name, still)
        self.watch._life.look = lambda: self.life
        self.watch.stop_signal = lambda: self.number
        self.caplog = caplog
        caplog.set_level(logging.INFO)
        monkeypatch.setattr(waits, "begun_and_ended", lambda: (0, self.ended))
        monkeypatch.setattr(waits, "longest", lambda: self.named)
        monkeypatch.setattr(waits, "end_now", self.end)

    def end(self, status, message):
        raise Ended(status, self.now, message)

    def wait(self, seconds, each_second=lambda now: None):
        lines = []
        for _ in range(int(seconds)):
            self.now += 1
            each_second(self.now)
            before = len(self.caplog.records)
            self.watch.look()
            lines += [self.now] * (len(self.caplog.records) - before)
        return lines


@pytest.fixture
def rank(monkeypatch, caplog):
    return Rank(monkeypatch, caplog)


def test_a_step_may_take_hours_and_ends_nothing(rank):
    rank.watch.begin(STEP, 0)
    assert rank.wait(7200) == [61, 121, 241, 481, 961, 1921, 3841]
    assert rank.caplog.records[0].levelno == logging.INFO
    assert rank.caplog.messages[0].startswith("step 1 takes long: 60 s up to now (")


def test_a_slow_store_that_answers_ends_nothing(rank):
    def read(now):
        rank.ended = int(now // 600)  # a part in ten minutes

    rank.named = "image 7 in s3://b/00017.tar"
    rank.watch.begin(BATCH, 3)
    assert len(rank.wait(7200, read)) == 7
    said = "rank 0 has waited 60 s for the batch of step 4: image 7 in s3://b/00017.tar"
    assert rank.caplog.messages[0] == said
    rank.watch.begin(STEP, 3)
    assert rank.wait(59) == []


def test_a_batch_that_does_not_come_ends_the_run(rank):
    rank.named = "image 7 in web.tar (view_rows.py:1 in _read)"
    rank.life = 5
    rank.watch.begin(BATCH, 3)

    def computes(now):
        rank.life += 1  # other threads: it does not count

    with pytest.raises(Ended) as ended:
        rank.wait(7200, computes)
    status, now, message = ended.value.args
    assert (status, now) == (3, LIMIT_S + 1)
    assert message == (
        "rank 0 has waited 1800 s for the batch of step 4: image 7 in web.tar (view_rows.py:1 in "
        "_read); nothing was read or written for 1800 s (hang_seconds): checkpoints stay, and the "
        "same command goes on from the last one"
    )


@pytest.mark.parametrize("what", [START, SAVE])
def test_files_that_are_written_slowly_end_nothing_and_those_that_are_not_do(rank, what):
    def write(now):
        rank.life = int(now // 60)

    rank.watch.begin(what, 3)
    assert len(rank.wait(7200, write)) == 7
    with pytest.raises(Ended, match="nothing was read or written for 1800 s"):
        rank.wait(7200)


def test_a_rank_that_waits_for_files_of_another_one_ends_nothing(monkeypatch, caplog):
    rank = Rank(monkeypatch, caplog, rank=1, world=2)
    rank.watch.begin(SAVE, 3)
    monkeypatch.setattr(watching, "_store", Store)
    assert rank.wait(7200) == [], "rank 0 speaks for all"
    rank.named = "the writing of a checkpoint"
    with pytest.raises(Ended):
        rank.wait(1)


def test_a_stop_signal_ends_a_wait_after_20_s_without_a_read(rank):
    rank.watch.begin(BATCH, 3)
    rank.wait(50)
    rank.number = signal.SIGTERM
    rank.wait(15)
    rank.ended += 1  # a read has ended
    with pytest.raises(Ended) as ended:
        rank.wait(100)
    assert ended.value.args[:2] == (143, 86)
    assert "; SIGTERM ends the run before that step: checkpoints stay" in ended.value.args[2]


@pytest.mark.parametrize("what", [STEP, SAVE])
def test_a_step_and_its_save_are_not_ended_by_a_stop_signal(rank, what):
    rank.watch.begin(what, 3)
    rank.number = signal.SIGTERM
    rank.named = "image 7 in web.tar"  # of a later step
    assert len(rank.wait(1700)) == 5
    assert rank.caplog.messages[0].startswith("step 4 takes long") == (what == STEP)


def test_rank_0_names_the_rank_that_the_others_wait_for(monkeypatch, caplog):
    store = Store()
    monkeypatch.setattr(watching, "_store", lambda: store)
    rank = Rank(monkeypatch, caplog, rank=0, world=4)
    rank.watch.begin(STEP, 8)
    for other, what in ((1, STEP), (3, BATCH)):
        peer = Rank(monkeypatch, caplog, rank=other, world=4)
        peer.watch.begin(what, 8)
        peer.wait(29)
        assert f"clipmill/waits/{other}" not in store
        peer.wait(3)
        assert json.loads(store[f"clipmill/waits/{other}"])["reading"] == (what == BATCH)
    monkeypatch.setattr(waits, "longest", lambda: None)
    rank.wait(61)
    assert caplog.messages[-1].startswith(
        "rank 0 has waited 60 s in step 9 for rank 3, which waits for the batch of step 9: "
    )
    del store["clipmill/waits/3"]
    rank.wait(60)
    said = "rank 0 has waited 120 s in step 9; nothing was heard of rank 2 since it began"
    assert caplog.messages[-1] == said
    rank.watch.begin(STEP, 9)
    rank.wait(61)
    assert "step 10; nothing was heard of rank 1" in caplog.messages[-1]


def test_a_store_that_is_gone_ends_nothing(monkeypatch, caplog):
    def gone():
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(watching, "_store", gone)
    rank = Rank(monkeypatch, caplog, rank=0, world=2)
    rank.watch.begin(STEP, 8)
    assert rank.wait(61) == [61]
