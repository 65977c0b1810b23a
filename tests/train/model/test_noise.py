"""Numbers of dropout: another for every block, kind, sample, token and channel; golden."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from train.model import clip
from train.model.architecture import MODELS
from train.model.clip import CLIP

SMALL = dataclasses.replace(MODELS["test"], vocab_size=50, vision_layers=3, text_layers=3)


def kept(drawn: clip.Noise, kind: int = clip.MIXED) -> torch.Tensor:
    return clip.dropout(torch.ones(20, 10, 16), 0.5, drawn, kind) != 0


@pytest.mark.parametrize("tower", ["vision", "text"])
def test_the_blocks_of_a_model_drop_different_numbers(
    monkeypatch: pytest.MonkeyPatch, tower: str
) -> None:
    config = dataclasses.replace(SMALL, **{f"{tower}_hidden_dropout": 0.5})
    model = CLIP(config, seed=1)
    keys: dict[int, list[int]] = {}
    dropout = clip.dropout

    def noted(x: torch.Tensor, rate: float, drawn: clip.Noise, kind: int) -> torch.Tensor:
        keys.setdefault(kind, []).append(int(drawn.key))
        return dropout(x, rate, drawn, kind)

    monkeypatch.setattr(clip, "dropout", noted)
    model.reseed(3, 7, torch.arange(4))
    tokens = torch.randint(1, 48, (4, 9))
    tokens[:, -1] = 49
    model.encode_image(torch.randn(4, 3, 32, 32))
    model.encode_text(tokens)
    assert {kind: len(values) for kind, values in keys.items()} == {
        clip.EMBEDDED: 1,
        clip.MIXED: 3,
        clip.ADDED: 3,
    }
    for kind in (clip.MIXED, clip.ADDED):
        assert len(set(keys[kind])) == 3


def test_rates_are_met_and_the_mean_stays() -> None:
    drawn = clip.noise_of(torch.tensor(5), torch.arange(200), 10)
    ones = torch.ones(200, 10, 32)
    dropped = clip.dropout(ones, 0.3, drawn, clip.MIXED)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert dropped.max().item() == pytest.approx(1 / 0.7)
    paths = clip.drop_path(ones, 0.25, drawn, clip.MIXED_PATH)
    assert ((paths == 0).all(dim=(1, 2)) | (paths != 0).all(dim=(1, 2))).all()
    assert (paths == 0).float().mean().item() == pytest.approx(0.25, abs=0.08)
    assert torch.equal(clip.drop_path(ones, 0.25, drawn, clip.MIXED_PATH), paths)
    kept = clip.kept_patches(torch.arange(50), torch.tensor(5), 49, 0.5)
    assert kept.shape == (50, 24)
    assert (kept.diff(dim=1) > 0).all()
    assert len(kept.unique(dim=0)) == 50
    assert clip.kept_patches(torch.arange(2), torch.tensor(5), 4, 0.99).shape == (2, 1)
    numbers = clip.uniform(torch.tensor(1), 0, torch.arange(100_000))
    assert numbers.mean().item() == pytest.approx(0.5, abs=0.005)
    assert numbers.std().item() == pytest.approx(12**-0.5, abs=0.005)
    assert 0 <= numbers.min() <= numbers.max() < 1


def test_golden_numbers() -> None:
    numbers = clip.uniform(torch.tensor(7), clip.ADDED, torch.tensor([0, 1, 1 << 40]))
    assert numbers.tolist() == GOLDEN


GOLDEN = [0.7153298258781433, 0.7470951676368713, 0.9748315811157227]
