"""Rows to score columns: models are loaded once per worker."""

from __future__ import annotations

from pipeline.scoring.pool_sets import PoolSets, score_set
from pipeline.scoring.score_bundles import write_bundle
from pipeline.scoring.score_sets import (
    complete_score_sets,
    filter_specs,
    read_score_set,
    score_set_names,
)
from pipeline.scoring.scorer import score
from pipeline.scoring.stored_rows import example_row, reasons_text, shards_with_rows

__all__ = [
    "PoolSets",
    "complete_score_sets",
    "example_row",
    "filter_specs",
    "read_score_set",
    "reasons_text",
    "score",
    "score_set",
    "score_set_names",
    "shards_with_rows",
    "write_bundle",
]
