"""The modes of train/bench.py: each measures one thing."""

from __future__ import annotations

from train.benching import loader_mode

MODES = {"loader": loader_mode}

__all__ = ["MODES", "loader_mode"]
