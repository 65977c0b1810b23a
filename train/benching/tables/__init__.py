"""Cells of reports as tables and as a plot.

Reads and writes a Markdown page; writes the SVG file.

Invariants:

* Speedup and the perfect line are of the fewest ranks that are measured
  (tests/train/benching/tables/test_scaling.py).
* Cells of two reports are one row only where nothing but the machine differs; what only one
  report has is listed (tests/train/benching/tables/test_comparison.py).

To extend: a figure that every cell may have is a column in `figure_lines`.
"""

from __future__ import annotations

from train.benching.tables.comparison import (
    Comparison,
    compare_reports,
    comparison_document,
    comparison_lines,
)
from train.benching.tables.page_block import replace_block
from train.benching.tables.scaling import figure_lines, rate_of, scaling_lines, scaling_series
from train.benching.tables.scaling_plot import check_plot, write_plot
from train.benching.tables.text_table import short, text_table

__all__ = [
    "Comparison",
    "check_plot",
    "compare_reports",
    "comparison_document",
    "comparison_lines",
    "figure_lines",
    "rate_of",
    "replace_block",
    "scaling_lines",
    "scaling_series",
    "short",
    "text_table",
    "write_plot",
]
