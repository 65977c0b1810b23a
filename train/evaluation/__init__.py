"""Evaluation tasks and their metrics."""

from __future__ import annotations

from train.evaluation import zero_shot
from train.evaluation.zero_shot import HEADLINE, Metrics

__all__ = ["HEADLINE", "Metrics", "zero_shot"]
