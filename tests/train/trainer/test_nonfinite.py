from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from manifests import disk
from train.data.loader import Batch
from train.model.architecture import MODELS
from train.model.clip import CLIP
from train.parallel.process_group import Ranks
from train.trainer.loop import report_nonfinite

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
