"""Results to an HTML report."""

from __future__ import annotations

from train.reporting.collect import collect_report
from train.reporting.page import render
from train.reporting.results import collect_results, read_results
from train.reporting.schema import Report, Results
from train.reporting.text import report_lines

__all__ = [
    "Report",
    "Results",
    "collect_report",
    "collect_results",
    "read_results",
    "render",
    "report_lines",
]
