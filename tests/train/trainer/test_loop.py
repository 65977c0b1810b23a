"""The loop: its books, kills, starts, numbers that are none, and settings that it hands on."""

import dataclasses
import json
import math
import os
import signal

import pytest
import torch

from clipmill.manifests import disk
from clipmill.manifests.records import DamagedSamples
from clipmill.manifests.schema import Blend
from clipmill.train.config import configure, model_config
from clipmill.train.formats.open_clip_files import load_export, to_open_clip
from clipmill.train.model.clip import CLIP, QKV, PackedCaptions
from clipmill.train.parallel import checkpoint
from clipmill.train.step.update import Update, decay_factor
from clipmill.train.trainer import loop
from clipmill.train.trainer.loop import NonFinite, StepRunner
from tests.support.steps import MEASURED, RUN_SETTINGS

SETTINGS = {**RUN_SETTINGS, "log_every": 2}
CONFIG = configure(SETTINGS)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def blend(tiny_pool):
    return Blend(name="tiny", pools={"p": tiny_pool}, views={"p/all": 2.0, "p/half": 1.0})


def weights_of(out):
    return to_open_clip(load_export(str(out / "export")))


def assert_same(one, other):
    assert set(one) == set(other)
    for name in one:
        assert torch.equal(one[name], other[name]), name


def log_of(out):
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def without_times(lines):
    return [{k: v for k, v in line.items() if k not in MEASURED} for line in lines]


@pytest.mark.slow
def test_a_run_leaves_its_books(blend, tmp_path):
    done = loop.train(blend, CONFIG, str(tmp_path))
    assert disk.to_plain(done) == disk.read_json(tmp_path / "run.json")
    assert (done.steps, done.samples, done.seed, done.resumed_at) == (6, 48, 0, 0)
    columns = ("rows", "drawn", "repeats", "share")
    assert {name: tuple(of[key] for key in columns) for name, of in done.sources.items()} == {
        "p/all": (48, 32, 32 / 48, 2 / 3),
        "p/half": (24, 16, 16 / 24, 1 / 3),
    }
    assert done.blend_hash == disk.content_hash(blend.document())
    assert done.config_hash == disk.content_hash(CONFIG)
    assert done.bad == DamagedSamples(count=0, samples=())
    assert done.samples_per_s > 0
    lines = log_of(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 4, 6]
    assert set(lines[0]) == {
        "step", "samples", "loss", "accuracy", "lr", "logit_scale", "grad_norm",
        "sources", *MEASURED,
    }  # fmt: skip
    assert lines[-1]["sources"]["p/half"] == {
        "samples": 16, "repeats": 16 / 24, "share": 1 / 3,
    }  # fmt: skip
    assert os.listdir(tmp_path / "checkpoints") == ["step-6"]
    newest = checkpoint.latest(str(tmp_path))
    assert_same(newest.model, weights_of(tmp_path))
    assert newest.record.identity == done.identity


class Killed(Exception):
    pass


def kill_at(monkeypatch, step, how):
    """Make the run end in its step number `step`."""
    real = StepRunner.step

    def step_or_end(runner, ready, waited):
        if ready.batch.step == step:
            how()
        real(runner, ready, waited)

    monkeypatch.setattr(StepRunner, "step", step_or_end)


@pytest.mark.slow
def test_killed_and_resumed_it_ends_the_same_to_the_bit_also_in_fp16(blend, tmp_path, monkeypatch):
    """Each step and SIGKILL are in tests/train/test_resume.py."""
    whole = configure({**SETTINGS, "precision": "fp16", "micro_batch": 3})
    config = dataclasses.replace(whole, checkpoint_every=2)
    loop.train(blend, whole, str(tmp_path / "whole"))

    def end():
        raise Killed

    with monkeypatch.context() as patch:
        kill_at(patch, 3, end)
        with pytest.raises(Killed):
            loop.train(blend, config, str(tmp_path / "killed"))
    assert not (tmp_path / "killed" / "run.json").exists()
    done = loop.train(blend, config, str(tmp_path / "killed"))
    assert done.resumed_at == 2
    assert_same(weights_of(tmp_path / "killed"), weights_of(tmp_path / "whole"))
    one, other = (checkpoint.latest(str(tmp_path / run)) for run in ("killed", "whole"))
    for name, moments in one.optimizer.items():
        assert_same(moments, other.optimizer[name])
    assert without_times(log_of(tmp_path / "killed")) == without_times(log_of(tmp_path / "whole"))


@pytest.mark.slow
def test_an_overflow_of_fp16_costs_a_step_and_a_loss_that_is_none_the_run(
    blend, tmp_path, monkeypatch
):
    real, infinite = Update.grad_norm, [True, True, False, True]

    def norm(update):
        value = real(update)
        return value * math.inf if infinite and infinite.pop(0) else value

    monkeypatch.setattr(Update, "grad_norm", norm)
    config = configure({**SETTINGS, "precision": "fp16", "log_every": 1})
    loop.train(blend, config, str(tmp_path / "run"))
    lines = log_of(tmp_path / "run")
    assert [line["skipped"] for line in lines] == [1, 2, 2, 3, 3, 3]
    assert lines[-1]["loss_scale"] == 2.0**13
    assert (lines[0]["grad_norm"], lines[2]["grad_norm"] > 0) == (None, True)
    monkeypatch.setattr(Update, "grad_norm", lambda update: real(update) * math.nan)
    with pytest.raises(NonFinite, match="the gradients' norm nan"):
        loop.train(blend, dataclasses.replace(config, samples_seen=8 * 40), str(tmp_path / "never"))


def stopped_after(blend, config, out, step, monkeypatch):
    """A run that SIGTERM ended after `step` steps."""
    with monkeypatch.context() as patch:
        kill_at(patch, step - 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            loop.train(blend, config, str(out))


# --- start from weights ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_resumed_run_does_not_read_its_initial_weights_again(blend, tmp_path, monkeypatch):
    loop.train(blend, dataclasses.replace(CONFIG, seed=9), str(tmp_path / "first"))
    config = dataclasses.replace(CONFIG, init=str(tmp_path / "first"))
    whole = loop.train(blend, config, str(tmp_path / "whole"))
    stopped_after(blend, config, tmp_path / "run", 3, monkeypatch)
    os.rename(tmp_path / "first", tmp_path / "moved")
    resumed = loop.train(blend, config, str(tmp_path / "run"))
    assert resumed.resumed_at == 3
    assert resumed.identity == whole.identity
    assert_same(weights_of(tmp_path / "run"), weights_of(tmp_path / "whole"))
    assert loop.train(blend, config, str(tmp_path / "run")) == resumed
    with pytest.raises(ValueError, match="init: nowhere does not exist"):
        loop.train(blend, dataclasses.replace(CONFIG, init="nowhere"), str(tmp_path / "other"))
    with pytest.raises(ValueError, match=r"holds another run .*config.init: .*first -> None"):
        loop.train(blend, CONFIG, str(tmp_path / "run"))


@pytest.mark.slow
def test_many_runs_in_one_process_leave_nothing_behind(blend, tmp_path):
    torch.manual_seed(11)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    for run in ("a", "b"):
        loop.train(blend, CONFIG, str(tmp_path / run))
    loop.train(blend, dataclasses.replace(CONFIG, seed=1), str(tmp_path / "c"))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert not torch.distributed.is_initialized()
    assert_same(weights_of(tmp_path / "a"), weights_of(tmp_path / "b"))
    assert not torch.equal(
        weights_of(tmp_path / "a")["visual.proj"], weights_of(tmp_path / "c")["visual.proj"]
    )


@pytest.mark.parametrize("late", [False, True])
def test_a_number_that_is_none_stops_before_the_step_and_is_traced_to_its_sample(
    blend, tmp_path, monkeypatch, late
):
    states, batches = [], []
    real_prepare, real_backward, real_normalise = (loop.prepare, loop._backward, loop.normalise)

    def prepare(*args):
        states.append(real_prepare(*args))
        return states[0]

    def backward(state, ready):
        batches.append(ready.batch)
        return real_backward(state, ready)

    def normalise(*args):
        image = real_normalise(*args).contiguous()
        if batches[-1].step == 2:
            image[5, 0, 0, 0] = math.nan
        return image

    monkeypatch.setattr(loop, "prepare", prepare)
    monkeypatch.setattr(loop, "_backward", backward)
    monkeypatch.setattr(loop, "normalise", normalise)
    monkeypatch.setattr(loop, "reads_late", lambda _: late)
    config = dataclasses.replace(CONFIG, checkpoint_every=2)
    with pytest.raises(
        NonFinite, match=r"step 3: the loss is nan .*first in image features on rank 0; 1 samples"
    ) as error:
        loop.train(blend, config, str(tmp_path))
    key = batches[2].keys[5]
    assert key in str(error.value)
    report = disk.read_json(tmp_path / "nonfinite-0.json")
    assert (report["step"], report["keys"], report["tensors"][0]) == (3, [key], "image features")
    assert (report["rank"], report["shards"]) == (0, [key[:-4]])
    assert "gradient of visual.proj" in report["tensors"]
    saved = checkpoint.latest(str(tmp_path))
    assert saved.step == 2
    state = states[0]
    state.reduced_table.restore(state.model.text, decay_factor(config, 2))
    assert_same(to_open_clip(state.model), saved.model)
    assert all(torch.isfinite(value).all() for value in saved.model.values())
    # Read late, the step after it has been computed too, and then this one again for the report.
    assert [batch.step for batch in batches] == [0, 1, 2, *([3, 2] if late else [])]


@pytest.mark.slow
def test_the_reduced_token_table_trains_the_same_weights(blend, tmp_path, monkeypatch):
    config = dataclasses.replace(CONFIG, checkpoint_every=3)
    loop.train(blend, config, str(tmp_path / "reduced"))
    monkeypatch.setattr(loop, "TABLE_ROWS", 0)
    loop.train(blend, config, str(tmp_path / "whole"))
    sizes = [
        os.path.getsize(tmp_path / run / "checkpoints" / "step-6" / "optimizer.pt")
        for run in ("reduced", "whole")
    ]
    assert sizes[0] * 5 < sizes[1]
    one, other = weights_of(tmp_path / "reduced"), weights_of(tmp_path / "whole")
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-6, msg=name)
    start = to_open_clip(CLIP(load_export(str(tmp_path / "whole" / "export")).config, 0))[
        "token_embedding.weight"
    ]
    assert (one["token_embedding.weight"][40_000] / start[40_000]).mean().item() == pytest.approx(
        decay_factor(config, 6), rel=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "siglip"},
        {"grad_clip": 0.1, "schedule": "constant", "context_length": 6, "threads": 2},
        {"precision": "tf32", "decay_groups": "open_clip", "loss_tile": 3},
        {"micro_batch": 3, "schedule": "constant_cooldown", "cooldown": 2, "captions": "packed"},
        {"recompute": "selective", "captions": "packed", "precision": "bf16"},
    ],
)
def test_each_setting_trains(blend, tmp_path, changes):
    config = configure({**SETTINGS, **changes})
    loop.train(blend, config, str(tmp_path))
    lines = log_of(tmp_path)
    assert all(math.isfinite(line["loss"]) for line in lines)
    assert all(line["grad_norm"] is None or line["grad_norm"] > 0 for line in lines)
    assert config.precision == "fp16" or lines[0]["grad_norm"]
    assert lines[-1]["loss"] < lines[0]["loss"]
    model = load_export(str(tmp_path / "export"))
    assert model.config.context_length == (config.context_length or 16)
    assert (model.logit_bias is not None) == (config.loss == "siglip")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize(("precision", "near"), [("fp32", 1e-3), ("bf16", 0.05)])
def test_on_a_gpu_the_losses_are_those_of_the_processor(blend, tmp_path, precision, near):
    loop.train(blend, CONFIG, str(tmp_path / "cpu"))
    config = dataclasses.replace(CONFIG, device="cuda", precision=precision)
    loop.train(blend, config, str(tmp_path / "gpu"))
    for one, other in zip(log_of(tmp_path / "cpu"), log_of(tmp_path / "gpu"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=near)


# --------------------------------------------------------------------------------------------------


SHORT = {**RUN_SETTINGS, "samples_seen": 24, "warmup": 1}


@pytest.mark.parametrize(("micro_batch", "sizes"), [(None, {8}), (3, {2, 3}), (8, {8})])
def test_no_more_than_a_micro_batch_is_computed_at_once(
    blend, tmp_path, monkeypatch, micro_batch, sizes
):
    seen, encode = [], CLIP.encode_image

    def counted(model, image_BCHW):
        seen.append(len(image_BCHW))
        return encode(model, image_BCHW)

    monkeypatch.setattr(CLIP, "encode_image", counted)
    loop.train(blend, configure({**SHORT, "micro_batch": micro_batch}), str(tmp_path))
    assert set(seen) == sizes
    passes = 2 if micro_batch == 3 else 1
    assert sum(seen) == 24 * passes


@pytest.mark.parametrize(
    ("captions", "kind"), [("padded", torch.Tensor), ("packed", PackedCaptions)]
)
def test_captions_reach_the_model_as_the_settings_say(blend, tmp_path, monkeypatch, captions, kind):
    seen, encode = set(), CLIP.encode_text

    def noted(model, tokens):
        seen.add(type(tokens))
        return encode(model, tokens)

    monkeypatch.setattr(CLIP, "encode_text", noted)
    loop.train(blend, configure({**SHORT, "captions": captions}), str(tmp_path))
    assert seen == {kind}


@pytest.mark.parametrize(("recompute", "passes"), [("none", 4), ("every_2", 6), ("full", 8)])
def test_blocks_are_recomputed_as_the_settings_say(blend, tmp_path, monkeypatch, recompute, passes):
    calls, forward = [], QKV.forward

    def counted(layer, *arguments, **rest):
        calls.append(layer)
        return forward(layer, *arguments, **rest)

    monkeypatch.setattr(QKV, "forward", counted)
    changes = {"samples_seen": 8, "recompute": recompute}
    loop.train(blend, configure({**SHORT, **changes}), str(tmp_path))
    assert len(calls) == passes  # two blocks in each tower, and one step


LOCKS = [
    {"lock_image": True},
    {"lock_image": True, "lock_image_unlocked_groups": 1, "micro_batch": 3, "loss": "siglip"},
    {"lock_text": True, "lock_text_unlocked_layers": 2, "captions": "packed"},
    {"lock_image": True, "lock_text": True, "precision": "bf16"},
]


@pytest.mark.slow
@pytest.mark.parametrize("changes", LOCKS)
def test_a_locked_tower_keeps_its_weights_over_steps_and_resumes(blend, tmp_path, changes):
    loop.train(blend, configure({**SHORT, "seed": 9}), str(tmp_path / "first"))
    settings = {**SHORT, **changes, "init": str(tmp_path / "first"), "checkpoint_every": 1}
    config = configure({**settings, "weight_decay": 10.0, "keep_checkpoints": 9})
    loop.train(blend, config, str(tmp_path / "run"))
    start, end = weights_of(tmp_path / "first"), weights_of(tmp_path / "run")
    moved = {name for name, value in start.items() if not torch.equal(value, end[name])}
    model = CLIP(model_config(config))
    loop.lock_towers(model, config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float(parameter.requires_grad))
    trained = {name for name, value in to_open_clip(model).items() if bool(value.all())}
    assert moved == trained - {"logit_bias"}
    assert moved >= {"logit_scale"}
    checkpoints = tmp_path / "run" / "checkpoints"
    for path in [tmp_path / "run" / "run.json", *(checkpoints / "step-3").iterdir()]:
        path.unlink()
    assert loop.train(blend, config, str(tmp_path / "run")).resumed_at == 2
    again = weights_of(tmp_path / "run")
    assert all(torch.equal(value, again[name]) for name, value in end.items())
