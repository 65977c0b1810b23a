"""Cells of reports as tables and as a plot."""

from __future__ import annotations

from train.benching.tables.scaling import figure_lines, rate_of, scaling_lines, scaling_series
from train.benching.tables.scaling_plot import check_plot, write_plot
from train.benching.tables.text_table import markdown_table, short, text_table

__all__ = [
    "check_plot",
    "figure_lines",
    "markdown_table",
    "rate_of",
    "scaling_lines",
    "scaling_series",
    "short",
    "text_table",
    "write_plot",
]
