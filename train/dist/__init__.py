"""Processes, layouts, checkpoints and Ray Train."""

from __future__ import annotations

from train.dist import checkpoint, launch, process_group, ray_train, sharded_checkpoint
from train.dist.parallelism import parallelize
from train.dist.process_group import Ranks

__all__ = [
    "Ranks",
    "checkpoint",
    "launch",
    "parallelize",
    "process_group",
    "ray_train",
    "sharded_checkpoint",
]
