"""Results to an HTML report.

Results to an HTML report. The page itself is in page.

Read: `ablation.json`, `results.json`, predictions, `run.json`, `log.jsonl`, `costs.json`, pools.
Written (by the commands): `results.json`, `report.json`, `report.html`, `report.md`.

Invariants:

* Metrics are computed again from the samples (`tests/train/reporting/test_results.py`).
* Written again from the same runs, the JSON has the same bytes
  (`tests/train/reporting/test_collect.py`).
"""

from __future__ import annotations

from train.reporting.collect import collect_report
from train.reporting.compare import MARK as MARKDOWN_MARK
from train.reporting.compare import (
    ReportComparison,
    compare_reports,
    comparison_lines,
    render_comparison,
    report_lines,
    report_markdown,
)
from train.reporting.page import render
from train.reporting.results import collect_results, read_results, saved_scores
from train.reporting.schema import Report, Results

__all__ = [
    "MARKDOWN_MARK",
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
