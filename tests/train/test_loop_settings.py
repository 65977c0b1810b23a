"""The loop hands every setting on: what the model and the step see differs as the settings say."""

from __future__ import annotations

import pytest
import torch

from manifests.schema import Blend
from tests.support.steps import RUN_SETTINGS
from train.config import configure, model_config
from train.formats.open_clip_files import load_export, to_open_clip
from train.model.clip import CLIP, QKV, PackedCaptions
from train.trainer import loop

SETTINGS = {**RUN_SETTINGS, "samples_seen": 24, "warmup": 1}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def blend(tiny_pool):
    return Blend(name="tiny", pools={"p": tiny_pool}, views={"p/all": 1.0})


def weights_of(folder):
    return to_open_clip(load_export(str(folder / "export")))


@pytest.mark.parametrize(("micro_batch", "sizes"), [(None, {8}), (3, {2, 3}), (8, {8})])
def test_no_more_than_a_micro_batch_is_computed_at_once(
    blend, tmp_path, monkeypatch, micro_batch, sizes
):
    seen, encode = [], CLIP.encode_image

    def counted(model, image_BCHW):
        seen.append(len(image_BCHW))
        return encode(model, image_BCHW)

    monkeypatch.setattr(CLIP, "encode_image", counted)
    loop.train(blend, configure({**SETTINGS, "micro_batch": micro_batch}), str(tmp_path))
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
    loop.train(blend, configure({**SETTINGS, "captions": captions}), str(tmp_path))
    assert seen == {kind}


@pytest.mark.parametrize(("recompute", "passes"), [("none", 4), ("every_2", 6), ("full", 8)])
def test_blocks_are_recomputed_as_the_settings_say(blend, tmp_path, monkeypatch, recompute, passes):
    calls, forward = [], QKV.forward

    def counted(layer, *arguments, **rest):
        calls.append(layer)
        return forward(layer, *arguments, **rest)

    monkeypatch.setattr(QKV, "forward", counted)
    changes = {"samples_seen": 8, "recompute": recompute}
    loop.train(blend, configure({**SETTINGS, **changes}), str(tmp_path))
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
    loop.train(blend, configure({**SETTINGS, "seed": 9}), str(tmp_path / "first"))
    settings = {**SETTINGS, **changes, "init": str(tmp_path / "first"), "checkpoint_every": 1}
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
