"""Shards that other programs made or make."""

from __future__ import annotations

from pipeline.external.adopt import (
    adopt_tars,
    changed_tars,
    check_adopted,
    tar_changed,
    tar_tickets,
)
from pipeline.external.img2dataset_run import (
    DRIVER,
    QUIET,
    check_img2dataset,
    img2dataset_stage,
    version_of,
)

__all__ = [
    "DRIVER",
    "QUIET",
    "adopt_tars",
    "changed_tars",
    "check_adopted",
    "check_img2dataset",
    "img2dataset_stage",
    "tar_changed",
    "tar_tickets",
    "version_of",
]
