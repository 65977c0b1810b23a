"""The state of a run, its steps, its identity, and its report of NaN."""

import contextlib
import dataclasses
import json
import math

import pytest
import torch

from clipmill.bench.synthetic import SyntheticLoader
from clipmill.manifests import disk
from clipmill.manifests.records import DamagedSamples
from clipmill.manifests.schema import Blend
from clipmill.train.config import TrainConfig, configure, model_config
from clipmill.train.data.damage import DamagedSample
from clipmill.train.data.loader import RunBatch, RunLoader
from clipmill.train.formats.model_files import weights_sha256
from clipmill.train.formats.open_clip_files import save_export
from clipmill.train.identity import INCIDENTAL, check_same_run, deciding_settings, view_hashes
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP
from clipmill.train.parallel import checkpoint, process_group
from clipmill.train.parallel.process_group import Ranks
from clipmill.train.step import accumulate, feed
from clipmill.train.step.feed import Feed
from clipmill.train.trainer import loop
from clipmill.train.trainer.loop import (
    SaveTimer,
    StepNumbers,
    StepRunner,
    StopRequest,
    damaged_samples,
    load_initial_weights,
    report_nonfinite,
    run_identity,
)
from tests.support import no_numbers
from tests.support.steps import MEASURED, RUN_SETTINGS
from tests.support.streams import FakeStreams

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
    loader = RunLoader(blend, config, model_config(config))
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
    state.loader = RunLoader(blend, config, model_config(config), rank, world)
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
    loader = RunLoader(blend, config, model_config(config))
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


# --------------------------------------------------------------------------------------------------


CONFIG = configure(
    {
        "model": "test", "samples_seen": 48, "batch_size": 8, "lanes": 4, "warmup": 2,
        "precision": "fp32", "threads": 0, "device": "cpu",
    }
)  # fmt: skip


def test_what_is_saved_is_what_is_prepared_again(blend, tmp_path):
    state = prepared(blend, CONFIG, str(tmp_path))
    assert (state.first_step, state.damaged_before.count) == (0, 0)
    with torch.no_grad():
        state.model.visual.proj.add_(1)
    assert loop.save(state, 3) >= 0
    with torch.no_grad():
        state.model.visual.proj.add_(-1)  # training goes on
    state.saver.finish()
    with torch.no_grad():
        state.model.visual.proj.add_(1)
    again = prepared(blend, CONFIG, str(tmp_path))
    assert again.first_step == 3
    assert torch.equal(again.model.visual.proj, state.model.visual.proj)
    with pytest.raises(ValueError, match="holds another run"):
        prepared(blend, dataclasses.replace(CONFIG, seed=5), str(tmp_path))


def test_a_sigmoid_loss_starts_its_bias_anew(tmp_path):
    source = CLIP(MODELS["test"], seed=4)
    save_export(source, str(tmp_path / "export"))
    model = CLIP(dataclasses.replace(MODELS["test"], logit_bias=True), seed=1)
    bias = model.logit_bias.clone()
    sha256 = load_initial_weights(model, str(tmp_path / "export"))
    assert sha256 == weights_sha256(source.state_dict())
    assert torch.equal(model.visual.proj, source.visual.proj)
    assert torch.equal(model.logit_bias, bias)
    with pytest.raises(ValueError, match=r"init: .*nowhere does not exist"):
        load_initial_weights(model, str(tmp_path / "nowhere"))


def test_damaged_samples_of_a_tensor_parallel_group_count_once(blend, tmp_path, monkeypatch):
    state = prepared(blend, CONFIG, str(tmp_path))
    own = DamagedSample(step=5, position=1, source="p/all", shard="00000", key="k", reason="r")
    state.damage.add([own])
    before = {**dataclasses.asdict(own), "step": 2}
    state.damaged_before = DamagedSamples(count=1, samples=(before,))
    state.ranks = Ranks(rank=0, world=4, device=torch.device("cpu"), owns_group=False, tp=2)
    monkeypatch.setattr(process_group, "all_gather_json", lambda value, ranks: [value] * 4)
    damaged = damaged_samples(state)
    assert damaged.count == 3  # one before the resume, one on each of two groups
    assert [sample["step"] for sample in damaged.samples] == [2, 5, 5]


@pytest.mark.parametrize(
    ("changes", "reduced"),
    [({}, True), ({"precision": "bf16"}, True), ({"precision": "fp16"}, False)],
)
def test_the_token_table_is_reduced_only_where_unused_rows_just_decay(
    blend, tmp_path, changes, reduced
):
    state = prepared(blend, dataclasses.replace(CONFIG, **changes), str(tmp_path))
    assert (state.reduced_table is not None) == reduced


def test_settings_of_memory_and_speed_do_not_decide():
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    assert set(INCIDENTAL) <= names
    deciding = deciding_settings(TrainConfig())
    assert set(deciding) == names - set(INCIDENTAL)
    assert {"lr", "seed", "init", "precision", "lanes"} <= set(deciding)
    other = TrainConfig(micro_batch=8, loss_tile=64, dp_shard=2, threads=9)
    assert deciding_settings(other) == deciding


def test_the_hash_of_initial_weights_comes_from_the_saved_run():
    config = deciding_settings(TrainConfig(init="somewhere"))
    saved = {"config": config, "initial_weights": "abc"}
    assert check_same_run(saved, {"config": config}, "out") == saved
    scratch = {"config": deciding_settings(TrainConfig())}
    with pytest.raises(ValueError, match=r"config.init: somewhere -> None"):
        check_same_run(saved, scratch, "out")


def test_a_view_that_changes_has_another_hash(make_pool, tmp_path, add_view):
    pool = make_pool(tmp_path / "pool")
    blend = Blend(name="b", pools={"p": pool}, views={"p/all": 1.0})
    before = view_hashes(blend)
    assert view_hashes(blend) == before
    add_view(pool, "all", 0.5)
    assert view_hashes(blend) != before
    disk.remove(f"{pool}/views/all.json")
    with pytest.raises(FileNotFoundError):
        view_hashes(blend)


ALONE = Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)


@pytest.fixture
def batch():
    known = {field.name for field in dataclasses.fields(RunBatch)}
    values = {
        "step": 6,
        "image_BHWC": torch.zeros(2, 4, 4, 3, dtype=torch.uint8),
        "tokens_BT": torch.zeros(2, 4, dtype=torch.int64),
        "length_B": torch.ones(2, dtype=torch.int64),
        "keys": ("p/all:000010003", "p/all:000020001"),
    }
    return RunBatch(**{name: values.get(name, 0) for name in known})


def report(tmp_path, batch, features, model=None):
    model = model or CLIP(MODELS["test"])
    error = report_nonfinite(str(tmp_path), ALONE, model, batch, math.nan, 1.5, features)
    return str(error), disk.read_json(tmp_path / "nonfinite-0.json")


def test_a_gradient_alone_names_its_parameter_and_every_sample(tmp_path, batch):
    model = CLIP(MODELS["test"])
    model.visual.proj.grad = torch.full_like(model.visual.proj, math.nan)
    model.logit_scale.grad = torch.zeros_like(model.logit_scale)
    message, document = report(tmp_path, batch, {"image": torch.zeros(2, 3)}, model)
    assert document["tensors"] == ["gradient of visual.proj"]
    assert document["keys"] == list(batch.keys)
    assert "first in gradient of visual.proj on rank 0; 2 samples" in message
