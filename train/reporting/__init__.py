"""Results to an HTML report."""

from __future__ import annotations

from train.reporting import page, results

__all__ = ["page", "results"]
