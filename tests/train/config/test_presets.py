"""Presets against the published settings."""

from __future__ import annotations

import pytest

from train.config import PRESETS, configure


def test_presets_are_the_published_recipes():
    small, xlarge = PRESETS["datacomp_small"](), PRESETS["datacomp_xlarge"]()
    assert (small.model, small.batch_size, small.samples_seen, small.lr) == (
        "ViT-B-32",
        4096,
        12_800_000,
        5e-4,
    )
    assert (small.warmup, small.beta1, small.beta2, small.eps, small.weight_decay) == (
        500,
        0.9,
        0.98,
        1e-6,
        0.2,
    )
    assert (xlarge.model, xlarge.batch_size, xlarge.lr, xlarge.beta2) == (
        "ViT-L-14",
        90_112,
        1e-3,
        0.95,
    )
    assert (PRESETS["laion400m_b32"]().batch_size, PRESETS["laion400m_b32"]().warmup) == (
        32_768,
        2000,
    )
    assert PRESETS["datacomp_debug"]().steps == 125
    assert PRESETS["micro"]().steps == 100


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_can_be_trained_and_changed(name):
    config = PRESETS[name]()
    assert config.warmup <= config.steps
    assert config.batch_size % config.lanes == 0
    assert configure({"preset": name, "seed": 3}).seed == 3
