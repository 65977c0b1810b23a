"""One training step: loss, accumulation, schedules, update."""

from __future__ import annotations

from train.step import accumulate
from train.step.feed import GROUPS, Captions, Feed, ReadyBatch
from train.step.loss import DataParallel, contrastive, loss_tile
from train.step.optimizers import parameter_groups
from train.step.precision import matmul_precision, precision_context
from train.step.schedule import decay_factor, learning_rate
from train.step.update import Update

__all__ = [
    "GROUPS",
    "Captions",
    "DataParallel",
    "Feed",
    "ReadyBatch",
    "Update",
    "accumulate",
    "contrastive",
    "decay_factor",
    "learning_rate",
    "loss_tile",
    "matmul_precision",
    "parameter_groups",
    "precision_context",
]
