"""The modes of train/bench.py: each measures one thing."""

from __future__ import annotations

from train.benching import infer_mode, loader_mode, machine, options, score_mode, train_mode
from train.benching.mode import Mode
from train.benching.options import BenchOptions, parse_layout
from train.benching.report import Cell, Machine, Report, check_target, read_report, write_report
from train.benching.tables import (
    check_plot,
    compare_reports,
    comparison_document,
    comparison_lines,
    replace_block,
    write_plot,
)
from train.benching.timing import StepPlan, measure_in_ranks, measure_scoring, measure_training

MODES: dict[str, Mode] = {
    "infer": infer_mode,
    "loader": loader_mode,
    "score": score_mode,
    "train": train_mode,
}

__all__ = [
    "MODES",
    "BenchOptions",
    "Cell",
    "Machine",
    "Mode",
    "Report",
    "StepPlan",
    "check_plot",
    "check_target",
    "compare_reports",
    "comparison_document",
    "comparison_lines",
    "infer_mode",
    "loader_mode",
    "machine",
    "measure_in_ranks",
    "measure_scoring",
    "measure_training",
    "options",
    "parse_layout",
    "read_report",
    "replace_block",
    "score_mode",
    "train_mode",
    "write_plot",
    "write_report",
]
