"""Processes, layouts, checkpoints and Ray Train."""

from __future__ import annotations

from train.dist import averaging, checkpoint, launch, process_group, ray_train, sharded_checkpoint
from train.dist.parallelism import parallelize
from train.dist.process_group import Ranks
from train.dist.saver import Saver

__all__ = [
    "Ranks",
    "Saver",
    "averaging",
    "checkpoint",
    "launch",
    "parallelize",
    "process_group",
    "ray_train",
    "sharded_checkpoint",
]
