"""Rows to score columns: models are loaded once per worker."""

from __future__ import annotations

from pipeline.scoring import scorer
from pipeline.scoring.scorer import uids_checksum

__all__ = ["scorer", "uids_checksum"]
