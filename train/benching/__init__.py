"""The modes of train/bench.py: each measures one thing.

The modes of `train/bench.py`: each measures one part of training. Reads a blend; writes the
report of `-o` whole, after every cell.

tables has the tables and the plot, timing what is timed.

Invariants:

* The stages add up to the processor time of the process, and as many batches are read ahead at
  the end as at the start (tests/train/benching/test_loader_mode.py).
* A damaged or foreign file is refused in one line, and stays
  (tests/train/benching/test_report.py).
* The timed steps are those of a run: the same log
  (tests/train/benching/timing/test_train_steps.py).
* No option is accepted and ignored (tests/train/benching/test_options.py,
  tests/train/test_bench.py).

To extend: a mode is a module with a docstring for `--help`, `UNUSED`, `add_options(parser)`,
`measure(options, args)`, which yields cells, and `lines(cells)` (see `mode.py`), and an entry in
`MODES`.
"""

from __future__ import annotations

from train.benching import infer_mode, loader_mode, score_mode, train_mode
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
    "measure_in_ranks",
    "measure_scoring",
    "measure_training",
    "parse_layout",
    "read_report",
    "replace_block",
    "score_mode",
    "train_mode",
    "write_plot",
    "write_report",
]
