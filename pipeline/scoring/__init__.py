"""Rows to score columns: models are loaded once per worker."""

from __future__ import annotations

from pipeline.scoring.scorer import filter_specs, score, score_set, score_set_name

__all__ = ["filter_specs", "score", "score_set", "score_set_name"]
