"""Columns and rules to a view."""

from __future__ import annotations

from pipeline.views.available_columns import column_lines, list_columns
from pipeline.views.materialise import ShardCopy, copy_kept_samples, materialise_view, remove_copies
from pipeline.views.outcomes.rule_outcomes import RuleOutcome, rule_outcomes, with_derived
from pipeline.views.rules import columns_of
from pipeline.views.selected_views import selected_view, write_selected_view
from pipeline.views.steps import is_selected, rule_text
from pipeline.views.unit_threads import map_units
from pipeline.views.view_files import (
    check_views,
    choose_views,
    differing_views,
    funnel_lines,
    hash_view,
    random_like,
    unlisted_views_line,
    views_not_in,
)

__all__ = [
    "RuleOutcome",
    "ShardCopy",
    "check_views",
    "choose_views",
    "column_lines",
    "columns_of",
    "copy_kept_samples",
    "differing_views",
    "funnel_lines",
    "hash_view",
    "is_selected",
    "list_columns",
    "map_units",
    "materialise_view",
    "random_like",
    "remove_copies",
    "rule_outcomes",
    "rule_text",
    "selected_view",
    "unlisted_views_line",
    "views_not_in",
    "with_derived",
    "write_selected_view",
]
