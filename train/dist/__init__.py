"""Processes, layouts, checkpoints and Ray Train."""

from __future__ import annotations

from train.dist import checkpoint, process_group, ray_train, sharded_checkpoint
from train.dist.parallelism import spread
from train.dist.process_group import Ranks

__all__ = ["Ranks", "checkpoint", "process_group", "ray_train", "sharded_checkpoint", "spread"]
