"""A model of the test size, and settings for one training step and for a short run."""

from __future__ import annotations

import dataclasses

from clipmill.train.config import configure
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP

SETTINGS = {
    "model": "test",
    "samples_seen": 80,
    "batch_size": 8,
    "lanes": 4,
    "warmup": 4,
    "precision": "fp32",
}
# Of a whole run of six steps, in this process.
RUN_SETTINGS = {
    **SETTINGS,
    "samples_seen": 48,
    "warmup": 2,
    "lr": 1e-3,
    "threads": 0,
    "log_every": 1,
    "device": "cpu",
}
SMALL = dataclasses.replace(MODELS["test"], vocab_size=60)


def config_of(**changes):
    """SETTINGS with a learning rate of 0.01 and the changes."""
    return configure({**SETTINGS, "lr": 1e-2, **changes})


def model_of(seed=0):
    """A small model with 60 tokens."""
    return CLIP(SMALL, seed)


# Fields of a line that depend on the clock, the machine or an interruption. All others repeat.
MEASURED = (
    "tokens_per_caption",
    "samples_per_s",
    "samples_per_s_per_gpu",
    "model_flops_per_s_per_gpu",
    "mfu",
    "wait_s",
    "wait_share",
    "peak_memory_bytes",
)
