"""Results to an HTML report."""

from __future__ import annotations

from train.reporting.collect import collect_report
from train.reporting.compare import (
    ReportComparison,
    compare_reports,
    comparison_lines,
    render_comparison,
)
from train.reporting.markdown import report_markdown
from train.reporting.page.document import render
from train.reporting.results import collect_results, read_results, saved_scores
from train.reporting.schema import Report, Results
from train.reporting.text import report_lines

__all__ = [
    "Report",
    "ReportComparison",
    "Results",
    "collect_report",
    "collect_results",
    "compare_reports",
    "comparison_lines",
    "read_results",
    "render",
    "render_comparison",
    "report_lines",
    "report_markdown",
    "saved_scores",
]
