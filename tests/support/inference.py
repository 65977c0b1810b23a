"""A small model with what its back ends are made from."""

from __future__ import annotations

from pathlib import Path

import torch

from clipmill.bench.backends import Setup
from clipmill.train.config import configure
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP


def small_setup(folder: Path, precision: str = "fp32", device: str = "cpu") -> Setup:
    """The model `test` with texts of 9 tokens."""
    sizes = {"batch_size": 8, "lanes": 8, "samples_seen": 8, "warmup": 0}
    config = configure({"model": "test", "precision": precision, **sizes})
    return Setup(
        model=CLIP(MODELS["test"], seed=4).eval(),
        config=config,
        device=torch.device(device),
        text_length=9,
        threads=1,
        folder=folder,
    )
