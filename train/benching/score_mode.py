"""Scoring: both towers' forward on decoded images and captions, as a CLIP score takes it.

With --data the samples are those of a blend, a view or tars, through the loader, and every repeat
is measured on synthetic samples too: the share of synthetic says what reading costs. Ranks score by
themselves, each in a process of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from train.benching.cells import measured_cells
from train.benching.options import BenchOptions
from train.benching.report import Cell
from train.benching.tables import figure_lines, scaling_lines

UNUSED: tuple[str, ...] = ("global_batch", "parallel")
FIGURES: tuple[str, ...] = ("samples_per_s",)
RANK = "train.benching.timing.score_rank"  # the module that a rank runs


def add_options(parser: argparse.ArgumentParser) -> None:
    """This mode has no options of its own."""


def measure(options: BenchOptions, args: argparse.Namespace) -> Iterator[Cell]:
    """Every combination of the lists, one after another. ValueError for what trains alone."""
    if "bf16_o2" in options.dtypes:
        raise ValueError("dtype is bf16-o2, which is of an optimizer; choose bf16 for scoring")
    if "micro_batch" in options.changes:
        raise ValueError("micro_batch is a setting of training; set the batch by -b")
    return measured_cells(options, RANK, trains=False)


def lines(cells: Sequence[Cell]) -> list[str]:
    """The figures of every cell, the share of synthetic, then the table of scaling."""
    shares = []
    for cell in cells:
        share = cell.figures.get("share_of_synthetic")
        if share is not None:
            synthetic = cell.figures.get("synthetic_samples_per_s") or 0.0
            shares.append(
                f"{cell.label}: {share:.2f} of the {synthetic:,.1f} samples/s of synthetic"
            )
    return [*figure_lines(cells), *(["", *shares] if shares else []), *scaling_lines(cells)]
