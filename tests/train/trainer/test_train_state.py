from __future__ import annotations

import dataclasses

import pytest
import torch

from manifests.records import DamagedSamples
from manifests.schema import Blend
from train.config import configure, model_config
from train.data.damage import DamagedSample
from train.data.loader import Loader
from train.formats.model_files import weights_sha256
from train.formats.open_clip_files import save_export
from train.model.architecture import MODELS
from train.model.clip import CLIP
from train.parallel import process_group
from train.parallel.process_group import Ranks
from train.trainer import loop
from train.trainer.loop import (
    damaged_samples,
    load_initial_weights,
    run_identity,
)

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
