"""One training step: loss, accumulation, update."""

from __future__ import annotations

from train.step import accumulate
from train.step.loss import Shards, contrastive
from train.step.update import Update, groups_of, learning_rate, matmul_precision, precision_context

__all__ = [
    "Shards",
    "Update",
    "accumulate",
    "contrastive",
    "groups_of",
    "learning_rate",
    "matmul_precision",
    "precision_context",
]
