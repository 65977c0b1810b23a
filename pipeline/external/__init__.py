"""Shards that other programs made or make."""

from __future__ import annotations

from pipeline.external import adopt, img2dataset_run
from pipeline.external.img2dataset_run import DRIVER, QUIET, version_of

__all__ = ["DRIVER", "QUIET", "adopt", "img2dataset_run", "version_of"]
