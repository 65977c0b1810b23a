"""What a run writes down: a line's numbers, files that are appended to, cut short and taken up, and
other places.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from clipmill.manifests import disk, telemetry
from clipmill.train.config import configure, model_config
from clipmill.train.mixture.order import Order
from clipmill.train.mixture.schedule import SourceRows
from clipmill.train.model.clip import CLIP
from clipmill.train.model.memory import training_flops
from clipmill.train.trainer import logbook
from clipmill.train.trainer.logbook import Logbook, kept_lines
from tests.support.steps import MEASURED

NUMBERS = {"loss": 4.5, "accuracy": 0.25, "lr": 1e-3, "grad_norm": None}


@pytest.fixture
def clock(monkeypatch):
    """`clock[0]` is what time it is."""
    now = [100.0]
    monkeypatch.setattr(logbook.time, "perf_counter", lambda: now[0])
    return now


def config(**changes):
    fixed = {"preset": "micro", "model": "test", "batch_size": 8, "lanes": 4, "samples_seen": 800}
    return configure({**fixed, **changes})


def book(out, changes=None, **settings):
    shards = {"a/all": (40, 8), "b/all": (16,)}
    sources = [SourceRows(name=name, weight=1.0, shard_rows=rows) for name, rows in shards.items()]
    order = Order(sources, 8, 4, 1, seed=0)
    settled = config(**(changes or {}))
    model = CLIP(model_config(settled), 0)
    return Logbook(str(out), settled, model, torch.device("cpu"), order.repeats, **settings)


def lines(out):
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def test_a_line_has_speed_waiting_operations_memory_and_every_sources_samples(
    tmp_path, clock, monkeypatch
):
    monkeypatch.setattr(logbook, "peak_flops", lambda *_: 1e9)
    one = book(tmp_path, world=2)
    for lengths in ([3, 5, 4, 4], [3, 16, 4, 5]):
        one.batch(torch.tensor(lengths), waited=0.25)
    clock[0] += 2
    line = one.line(2, NUMBERS)
    assert lines(tmp_path) == [line]
    assert {name: line[name] for name in NUMBERS} == NUMBERS
    assert (line["step"], line["samples"], line["tokens_per_caption"]) == (2, 16, 5.5)
    assert (line["samples_per_s"], line["samples_per_s_per_gpu"]) == (8, 4)
    assert (line["wait_s"], line["wait_share"]) == (0.5, 0.25)
    work = training_flops(one.model.config)
    operations = (4 * work.sample(5) + 4 * work.sample(16)) / 2
    assert line["model_flops_per_s_per_gpu"] == pytest.approx(operations)
    assert line["mfu"] == pytest.approx(operations / 1e9)
    assert line["peak_memory_bytes"] > 1e6
    assert line["sources"] == {
        "a/all": {"samples": 8, "repeats": 8 / 48, "share": 0.5},
        "b/all": {"samples": 8, "repeats": 0.5, "share": 0.5},
    }
    assert set(MEASURED) < set(line)


def test_only_the_first_rank_writes(tmp_path):
    other = book(tmp_path, rank=1, log_to=["tensorboard"])
    other.batch(torch.tensor([3]), waited=0)
    assert other.line(1, NUMBERS)["step"] == 1
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_goes_on_keeps_the_lines_up_to_its_checkpoint(tmp_path):
    one = book(tmp_path)
    for step in (10, 20, 30):
        one.line(step, NUMBERS)
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"step": 40, "los')  # as a kill leaves it
    kept = kept_lines(str(tmp_path), 20)
    two = book(tmp_path, first=20, kept=kept)
    two.line(30, NUMBERS)
    two.line(40, NUMBERS)
    assert [line["step"] for line in lines(tmp_path)] == [10, 20, 30, 40]
    assert [json.loads(line)["step"] for line in kept] == [10, 20]
    assert kept_lines(str(tmp_path / "nowhere"), 20) == []


def test_a_line_that_the_disk_loses_ends_the_run(tmp_path, monkeypatch):
    one = book(tmp_path)
    one.line(10, NUMBERS)
    one.line(20, NUMBERS)
    monkeypatch.setattr(logbook, "open", _Losing, raising=False)
    with pytest.raises(OSError, match="bytes were written"):
        one.line(30, NUMBERS)
    assert [line["step"] for line in lines(tmp_path)] == [10, 20]


class _Losing:
    """A file whose writes take no byte and say nothing."""

    def __init__(self, path, mode):
        self.size = path.stat().st_size

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def tell(self):
        return self.size

    def write(self, data):
        return len(data)


def test_a_store_is_given_whole_files(clock):
    out = "memory://logbook/run"
    one = book(out)
    for step in (1, 2):
        clock[0] += 1
        one.line(step, NUMBERS)
    lines = disk.read_bytes(disk.join(out, "log.jsonl")).decode().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_tensorboard_and_wandb_are_given_every_number(tmp_path, clock, monkeypatch):
    calls: list[Any] = []

    class Writer:
        def __init__(self, folder, purge_step):
            calls.append((Path(folder).name, purge_step))

        def add_scalar(self, name, value, step):
            calls.append((name, value, step))

        def close(self):
            calls.append("written")

    class Run:
        def log(self, numbers, step):
            calls.append((numbers, step))

        def finish(self):
            calls.append("sent")

    def init(**settings):
        calls.append(settings)
        return Run()

    board = types.ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = Writer
    wandb = types.ModuleType("wandb")
    wandb.init = init
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    one = book(tmp_path / "run", first=20, log_to=["tensorboard", "wandb"])
    clock[0] += 1
    one.line(30, NUMBERS)
    one.close()
    assert calls[0] == ("tensorboard", 21)
    assert (calls[1]["project"], calls[1]["name"], calls[1]["config"]["batch_size"]) == (
        "clipmill",
        "run",
        8,
    )
    assert ("loss", 4.5, 30) in calls
    assert ("sources/b/all/repeats", 7.5, 30) in calls
    numbers, step = calls[-3]
    assert (step, numbers["accuracy"], numbers["samples"]) == (30, 0.25, 240)
    assert not {"step", "grad_norm", "mfu"} & set(numbers)
    assert calls[-2:] == ["written", "sent"]


def test_prometheus_is_given_the_last_line_of_the_first_rank(tmp_path, clock, monkeypatch):
    pytest.importorskip("prometheus_client")
    monkeypatch.setenv(telemetry.VARIABLE, str(tmp_path))
    one, other = book(tmp_path / "run"), book(tmp_path / "run", rank=1)
    (path,) = tmp_path.glob("*.prom")  # of one process
    for each in (one, other):
        each.batch(torch.tensor([3, 5]), waited=0.25)
    clock[0] += 2
    for each in (one, other):
        each.line(2, NUMBERS)
    exported = {sample.name: sample.value for sample in one._sinks[-1]._samples()}
    assert exported["clipmill_run_step"] == 2
    assert exported["clipmill_run_samples_total"] == 16
    assert exported["clipmill_run_loss"] == NUMBERS["loss"]
    assert exported.keys() <= telemetry.METRICS.keys()
    assert other._sinks == []
    one.close()
    assert not path.exists()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("tensorbord", "log_to has 'tensorbord'; did you mean 'tensorboard'"),
        ("tensorboard", "log_to has tensorboard, which is not installed; pip install tensorboard"),
        ("wandb", "log_to has wandb, which is not installed"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_refused_at_the_start(
    kind, message, tmp_path, monkeypatch
):
    for name in ("torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=message.split("(")[0]):
        book(tmp_path, log_to=[kind])
