"""The modes of train/bench.py: each measures one thing."""

from __future__ import annotations

from train.benching import loader_mode, machine, options
from train.benching.mode import Mode
from train.benching.options import BenchOptions
from train.benching.report import Cell, Machine, Report, check_target, read_report, write_report

MODES: dict[str, Mode] = {"loader": loader_mode}

__all__ = [
    "MODES",
    "BenchOptions",
    "Cell",
    "Machine",
    "Mode",
    "Report",
    "check_target",
    "loader_mode",
    "machine",
    "options",
    "read_report",
    "write_report",
]
