"""A pool whose folders are small: three flat shards, then a folder and a bundle for every two."""

from __future__ import annotations

import importlib

import pytest

MODULES = (
    "manifests.layout",
    "manifests.commits.index",
    "manifests.commits.index",
    "manifests.aligned",
    "pipeline.pool.lease",
    "pipeline.scoring.score_sets",
    "pipeline.views.files",
    "pipeline.views.files",
)


def make_folders_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the two constants in every module that has them."""
    for name in MODULES:
        module = importlib.import_module(name)
        for constant, value in (("FLAT_SHARDS", 3), ("SHARDS_PER_FOLDER", 2)):
            if hasattr(module, constant):
                monkeypatch.setattr(module, constant, value)
