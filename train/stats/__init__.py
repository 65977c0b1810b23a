"""Statistics of ablations: values of runs in, differences with intervals and verdicts out."""

from __future__ import annotations

from train.stats.multiplicity import holm

__all__ = [
    "holm",
]
