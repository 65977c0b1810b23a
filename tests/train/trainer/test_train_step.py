from __future__ import annotations

import contextlib
import dataclasses
import json

import pytest
import torch

from benchmarks.trainer.synthetic import SyntheticLoader
from manifests.schema import Blend
from tests.support import no_numbers
from tests.support.steps import MEASURED, RUN_SETTINGS
from tests.support.streams import FakeStreams
from train.config import configure, model_config
from train.data.loader import Loader
from train.parallel import checkpoint, process_group
from train.parallel.process_group import Ranks
from train.step import accumulate, feed
from train.step.feed import Feed
from train.trainer import loop
from train.trainer.loop import SaveTimer, StepNumbers, StepRunner, StopRequest, run_identity

SETTINGS = RUN_SETTINGS

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def blend(tiny_pool):
    return Blend(name="tiny", pools={"p": tiny_pool}, views={"p/all": 2.0, "p/half": 1.0})


@pytest.fixture
def late(monkeypatch):
    """Numbers are read late, as on a GPU."""
    monkeypatch.setattr(loop, "reads_late", lambda state: state.update.skips_on_device)


def prepared(blend, config, out):
    ranks = process_group.init_distributed("cpu")
    loader = Loader(blend, config, model_config(config))
    return loop.prepare(config, out, ranks, loader, run_identity(blend, config, loader))


def runner_of(state, finished=lambda launched, numbers: None):
    return StepRunner(state, StopRequest(0), SaveTimer(state.config), finished)


def ready_batches(state, count):
    batches = state.loader.batches()
    feed = Feed(state.config, state.ranks.device)
    return [feed.ready(next(batches)) for _ in range(count)]


CHANGES = [
    {},
    {"captions": "packed", "micro_batch": 3, "grad_clip": 0.5},
    {
        "captions": "packed",
        "loss": "siglip",
        "loss_tile": 3,
        "recompute": "full",
        "model.drop_patch_rate": 0.25,
        "precision": "bf16",
    },
]


NUMBERS = StepNumbers(
    loss=1.0, accuracy=0.5, grad_norm=1.0, stopping=0.0, save_due=0.0, damaged=0.0, logit_scale=2.0
)


OTHERS = [*CHANGES[1:], {"precision": "bf16", "micro_batch": 2, "log_every": 2}]


@pytest.mark.parametrize(
    "changes", [{}, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)]
)
def test_no_operation_of_a_step_needs_a_number_of_the_device(tmp_path, monkeypatch, late, changes):
    """From the feed to the log on a device that has no numbers; one tensor of a step is read."""
    arrived = []
    if changes:
        monkeypatch.setattr(feed, "AHEAD_BYTES", 0)  # images are copied by micro-batches
    monkeypatch.setattr(loop, "_numbers_of", lambda values: arrived.append(values) or NUMBERS)
    config = configure({**SETTINGS, **changes})
    ranks = Ranks(rank=0, world=1, device=no_numbers.DEVICE, owns_group=False)
    loader = SyntheticLoader(config, model_config(config))
    with no_numbers.without_numbers():
        state = loop.prepare(config, str(tmp_path), ranks, loader, {})
        batches = Feed(config, ranks.device, FakeStreams()).batches(loader.batches())
        with contextlib.closing(loop.Records(state)) as records:
            runner = runner_of(state, records.finished)
            runner.step(next(batches), 0.0)  # constants are sent once
            for ready in (next(batches), next(batches)):
                with no_numbers.refuses_waiting():
                    runner.step(ready, 0.0)
            runner.read()
    assert [(x.shape, x.device) for x in arrived] == [((7,), no_numbers.DEVICE)] * 3
    assert len(log_of(tmp_path)) == (2 if config.log_every == 2 else 3)


def log_of(out):
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in MEASURED} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [*CHANGES, {"precision": "fp16"}])
def test_what_is_read_late_trains_and_records_the_same(blend, tmp_path, monkeypatch, changes):
    config = configure({**SETTINGS, **changes, "checkpoint_every": 4, "threads": 1})
    loop.train(blend, config, str(tmp_path / "at_once"))
    monkeypatch.setattr(loop, "reads_late", lambda state: state.update.skips_on_device)
    loop.train(blend, config, str(tmp_path / "late"))
    one, other = (checkpoint.latest(str(tmp_path / run)) for run in ("at_once", "late"))
    assert one.record.sha256 == other.record.sha256
    assert log_of(tmp_path / "at_once") == log_of(tmp_path / "late")
    lines = [(tmp_path / run / "log.jsonl").read_text() for run in ("at_once", "late")]
    keys = [[list(json.loads(line)) for line in text.splitlines()] for text in lines]
    assert keys[0] == keys[1]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_signal_ends_the_run_after_a_step_that_is_complete(blend, tmp_path, monkeypatch, is_late):
    monkeypatch.setattr(loop, "reads_late", lambda _: is_late)
    state = prepared(blend, configure(SETTINGS), str(tmp_path))
    finished = []
    stop = StopRequest(1)
    runner = StepRunner(
        state, stop, SaveTimer(state.config), lambda launched, _: finished.append(launched.step)
    )
    batches = ready_batches(state, 3)
    runner.step(batches[0], 0.0)
    stop.number = 15
    runner.step(batches[1], 0.0)
    assert runner.stopping == (not is_late)
    runner.read()
    assert runner.stopping
    assert finished == [0, 1]
    assert not runner.save_due


class Captured(Exception):
    """Ends a step once its inputs are known."""


@pytest.mark.parametrize(("rank", "world"), [(0, 1), (0, 2), (1, 2), (3, 4)])
def test_the_rows_of_a_rank_are_numbered_as_in_the_global_batch(
    blend, tmp_path, monkeypatch, rank, world
):
    config = configure({**SETTINGS, "model.drop_patch_rate": 0.25, "micro_batch": 2})
    state = prepared(blend, config, str(tmp_path))
    device = torch.device("cpu")
    state.ranks = Ranks(rank=rank, world=world, device=device, owns_group=False)
    state.loader = Loader(blend, config, model_config(config), rank, world)
    rows = []
    monkeypatch.setattr(
        type(state.model), "reseed", lambda _, seed, step, row_B: rows.append(row_B.tolist())
    )

    def capture(wrapped, model_inputs, count, loss_of, **options):
        assert count == 8 // world
        assert loss_of.keywords["data_parallel"].rank == rank
        assert options["micro_batch"] == 2
        for each in accumulate.micro_batches(count, options["micro_batch"]):
            model_inputs(each)
        raise Captured

    monkeypatch.setattr(accumulate, "backward", capture)
    with pytest.raises(Captured):
        runner_of(state).step(ready_batches(state, 1)[0], 0.0)
    first = rank * 8 // world
    assert [row for each in rows for row in each] == list(range(first, first + 8 // world))
    assert len(rows) == 8 // world // 2


def test_a_checkpoint_is_due_by_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    timer = SaveTimer(configure(SETTINGS))
    for seconds, due in ((899, False), (1, True), (50, True)):
        now[0] += seconds
        assert timer.due() == due
    timer.saved(2.0)
    now[0] += 899
    assert not timer.due()
    now[0] += 1
    assert timer.due()
    timer.saved(30.0)  # a slow store: training may wait 1 % of the time
    now[0] += 2999
    assert not timer.due()
    now[0] += 1
    assert timer.due()
    by_steps = SaveTimer(configure({**SETTINGS, "checkpoint_every": 5}))
    now[0] += 10_000
    assert not by_steps.due()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("changes", CHANGES)
def test_on_a_gpu_no_step_synchronises(blend, tmp_path, changes):
    config = configure({**SETTINGS, **changes, "device": "cuda", "threads": 1})
    ranks = process_group.init_distributed("cuda")
    loader = Loader(blend, config, model_config(config))
    state = loop.prepare(config, str(tmp_path), ranks, loader, run_identity(blend, config, loader))
    runner, batches = runner_of(state), ready_batches(state, 3)
    assert runner.late
    runner.step(batches[0], 0.0)  # the optimizer makes its state
    torch.cuda.set_sync_debug_mode("error")
    try:
        runner.step(batches[1], 0.0)
        runner.step(batches[2], 0.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    runner.read()


@pytest.mark.slow
def test_an_automatic_checkpoint_is_taken_and_the_run_goes_on(blend, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "MOST_WAITING", 1e9)
    config = configure({**SETTINGS, "checkpoint_seconds": 1e-9, "keep_checkpoints": 9})
    loop.train(blend, config, str(tmp_path / "often"))
    assert checkpoint.saved_steps(str(tmp_path / "often")) == [1, 2, 3, 4, 5, 6]
    loop.train(blend, dataclasses.replace(config, checkpoint_seconds=900.0), str(tmp_path / "end"))
    assert checkpoint.saved_steps(str(tmp_path / "end")) == [6]
    one, other = (checkpoint.latest(str(tmp_path / run)) for run in ("often", "end"))
    assert one.record.sha256["model.safetensors"] == other.record.sha256["model.safetensors"]
