"""Patch dropout: another choice for every sample and key, the same for every cut; golden."""

from __future__ import annotations

import pytest
import torch

from train.model import clip


def test_every_sample_and_key_keeps_patches_of_its_own() -> None:
    kept = clip.kept_patches(torch.arange(50), torch.tensor(5), 49, 0.5)
    assert kept.shape == (50, 24)
    assert (kept.diff(dim=1) > 0).all()
    assert len(kept.unique(dim=0)) == 50
    other = clip.kept_patches(torch.arange(50), torch.tensor(6), 49, 0.5)
    assert not (kept == other).all(dim=1).any()
    counts = torch.bincount(clip.kept_patches(torch.arange(400), torch.tensor(5), 49, 0.5).ravel())
    assert (counts / 400).tolist() == pytest.approx([24 / 49] * 49, abs=0.12)
    assert clip.kept_patches(torch.arange(2), torch.tensor(5), 4, 0.99).shape == (2, 1)


def test_golden_numbers() -> None:
    assert clip.uniform(torch.tensor(7), torch.tensor([0, 1, 1 << 40])).tolist() == GOLDEN


GOLDEN = [0.5243459343910217, 0.3021389842033386, 0.5452271699905396]
