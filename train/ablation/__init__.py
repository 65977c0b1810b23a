"""Arms × seeds: runs, statistics and conclusions."""

from __future__ import annotations

from train.ablation import runner, stats
from train.ablation.conclusions import conclude
from train.ablation.runner import Outcome

__all__ = ["Outcome", "conclude", "runner", "stats"]
