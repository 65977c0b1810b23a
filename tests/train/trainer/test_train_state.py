"""The state of a run: what is saved and prepared again, its identity, and its report of NaN."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from manifests import disk
from manifests.records import DamagedSamples
from manifests.schema import Blend
from train.config import TrainConfig, configure, model_config
from train.data.damage import DamagedSample
from train.data.loader import Batch, Loader
from train.formats.model_files import weights_sha256
from train.formats.open_clip_files import save_export
from train.identity import INCIDENTAL, check_same_run, deciding_settings, differences, view_hashes
from train.model.architecture import MODELS
from train.model.clip import CLIP
from train.parallel import process_group
from train.parallel.process_group import Ranks
from train.trainer import loop
from train.trainer.loop import damaged_samples, load_initial_weights, report_nonfinite, run_identity

CONFIG = configure(
    {
        "model": "test", "samples_seen": 48, "batch_size": 8, "lanes": 4, "warmup": 2,
        "precision": "fp32", "threads": 0, "device": "cpu",
    }
)  # fmt: skip


@pytest.fixture
def blend(tiny_pool):
    return Blend(name="tiny", pools={"p": tiny_pool}, views={"p/all": 1.0})


def prepared(blend, config, out):
    ranks = process_group.init_distributed("cpu")
    loader = Loader(blend, config, model_config(config))
    return loop.prepare(config, out, ranks, loader, run_identity(blend, config, loader))


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
    [
        ({}, True),
        ({"precision": "bf16"}, True),
        ({"precision": "fp16"}, False),
    ],
)
def test_the_token_table_is_reduced_only_where_unused_rows_just_decay(
    blend, tmp_path, changes, reduced
):
    state = prepared(blend, dataclasses.replace(CONFIG, **changes), str(tmp_path))
    assert (state.reduced_table is not None) == reduced


def test_differences_are_named_by_their_path():
    saved = {"config": {"lr": 1.0, "seed": 0}, "views": {"a": "x"}}
    now = {"config": {"lr": 2.0, "seed": 0}, "views": {"a": "x", "b": "y"}, "order": 1}
    assert differences(saved, now) == [
        "config.lr: 1.0 -> 2.0",
        "order: None -> 1",
        "views.b: None -> y",
    ]
    assert differences(saved, saved) == []


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
    known = {field.name for field in dataclasses.fields(Batch)}
    values = {
        "step": 6,
        "image_BHWC": torch.zeros(2, 4, 4, 3, dtype=torch.uint8),
        "tokens_BT": torch.zeros(2, 4, dtype=torch.int64),
        "length_B": torch.ones(2, dtype=torch.int64),
        "keys": ("p/all:000010003", "p/all:000020001"),
    }
    return Batch(**{name: values.get(name, 0) for name in known})


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
