"""Starting values: the seed alone decides them, and their spread is open_clip's."""

from __future__ import annotations

import dataclasses
import hashlib
import math

import pytest
import torch

from train.model.architecture import MODELS
from train.model.clip import CLIP

TINY = dataclasses.replace(MODELS["test"], vocab_size=50)


def test_the_seed_alone_decides_the_start():
    state = torch.get_rng_state()
    one, same, other = CLIP(TINY, 3), CLIP(TINY, 3), CLIP(TINY, 4)
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn from the global generator
    for (name, a), b, c in zip(
        one.named_parameters(), same.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b), name
        if a.ndim > 1:
            assert not torch.equal(a, c), name


def test_the_start_is_open_clip_s():
    torch.manual_seed(0)
    from open_clip.model import CLIP as Theirs

    from train.formats.open_clip_files import from_open_clip, open_clip_config

    config = dataclasses.replace(
        TINY, vision_width=128, text_width=128, embed_dim=64, vocab_size=500
    )
    theirs = from_open_clip(Theirs(**open_clip_config(config)["model_cfg"]).state_dict(), config)
    for name, ours in CLIP(config).state_dict().items():
        if ours.numel() > 1000:
            assert ours.std().item() == pytest.approx(theirs[name].std().item(), rel=0.05), name
            assert ours.abs().max().item() == pytest.approx(
                theirs[name].abs().max().item(), rel=0.35
            ), name
        elif ours.numel() > 1 and theirs[name].std() == 0:
            assert torch.equal(ours, theirs[name]), name
        elif ours.numel() > 1:
            assert ours.std().item() == pytest.approx(theirs[name].std().item(), rel=0.3), name
    assert math.isclose(theirs["logit_scale"].item(), math.log(1 / 0.07), rel_tol=1e-6)


def test_golden_start():
    digest = hashlib.sha256()
    for name, parameter in sorted(CLIP(TINY, 3).named_parameters()):
        if name.endswith("_embedding"):
            digest.update(parameter.detach().numpy().tobytes())
    assert digest.hexdigest()[:16] == GOLDEN


GOLDEN = "4b932d887728bd72"
