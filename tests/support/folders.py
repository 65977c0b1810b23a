"""A pool whose bundles are small: two shards each."""

from __future__ import annotations

import importlib

import pytest


def make_bundles_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the constant in every module that has it."""
    for name in ("clipmill.manifests.layout", "clipmill.pipeline.scoring.score_sets"):
        monkeypatch.setattr(importlib.import_module(name), "BUNDLE_SHARDS", 2)
