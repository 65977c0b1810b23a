"""Sizes of the models that have a name, and settings that no model can have."""

from __future__ import annotations

import dataclasses
import math

import pytest

from manifests import disk
from train.model.architecture import MODELS, ModelConfig


def test_widths_are_those_that_were_published():
    heads = {
        name: model.vision_heads
        for name, model in MODELS.items()
        if name[-2:] in ("14", "32", "16")
    }
    assert heads["ViT-H-14"] == heads["ViT-g-14"] == heads["ViT-bigG-14"] == heads["ViT-e-14"] == 16
    assert [MODELS[f"ViT-{size}-14"].vision_mlp for size in ("H", "g", "bigG", "e")] == [
        5120,
        6144,
        8192,
        15360,
    ]
    assert MODELS["ViT-B-32"].patch_size == 32  # NVIDIA's table has these two swapped
    assert MODELS["ViT-B-16"].patch_size == 16
    assert dataclasses.replace(MODELS["ViT-L-14-quickgelu"], quick_gelu=False) == MODELS["ViT-L-14"]


def test_impossible_models_are_refused():
    good = disk.to_plain(MODELS["test"])
    for change, message in (
        ({"image_size": 33}, "multiple of patch_size"),
        ({"text_heads": 3}, "multiple of text_heads"),
    ):
        with pytest.raises(ValueError, match=message):
            ModelConfig(**{**good, **change})
    assert math.isclose(MODELS["test"].vision_mlp / MODELS["test"].vision_width, 4)
