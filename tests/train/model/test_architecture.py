"""Sizes of the models that have a name, and settings that no model can have."""

from __future__ import annotations

import math

import pytest

from manifests import disk
from train.model.architecture import MODELS, ModelConfig


def test_impossible_models_are_refused():
    good = disk.to_plain(MODELS["test"])
    for change, message in (
        ({"image_size": 33}, "multiple of patch_size"),
        ({"text_heads": 3}, "multiple of text_heads"),
    ):
        with pytest.raises(ValueError, match=message):
            ModelConfig(**{**good, **change})
    assert math.isclose(MODELS["test"].vision_mlp / MODELS["test"].vision_width, 4)
