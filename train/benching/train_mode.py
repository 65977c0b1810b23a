"""Training steps: throughput, step time, memory, and how they scale with the ranks.

Every cell runs in processes of its own, as train/run.py starts them (gloo on a processor, nccl on
GPUs), and takes the trainer's own step. A cell that fails, by memory or by a layout that is not
possible, is reported with the reason, and the others go on.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from train.benching.cells import measured_cells
from train.benching.options import BenchOptions
from train.benching.report import Cell
from train.benching.tables import figure_lines, scaling_lines

UNUSED: tuple[str, ...] = ()
FIGURES: tuple[str, ...] = ("samples_per_s",)
RANK = "train.benching.timing.train_rank"  # the module that a rank runs


def add_options(parser: argparse.ArgumentParser) -> None:
    """This mode has no options of its own."""


def measure(options: BenchOptions, args: argparse.Namespace) -> Iterator[Cell]:
    """Every combination of the lists, one after another."""
    return measured_cells(options, RANK, trains=True)


def lines(cells: Sequence[Cell]) -> list[str]:
    """The figures of every cell, then the tables of weak and strong scaling."""
    return [*figure_lines(cells), *scaling_lines(cells)]
