"""The contract of a mode of train/bench.py."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Protocol

from train.benching.options import BenchOptions
from train.benching.report import Cell


class Mode(Protocol):
    """A module with these functions. Its docstring is the text of --help about the mode."""

    __doc__: str | None
    # Shared options that mean nothing here, by their name in the namespace, such as global_batch.
    # One that a command line states is refused. Only options whose default is None can be listed.
    UNUSED: tuple[str, ...]
    FIGURES: tuple[str, ...]  # that `lines` reads of every measured cell; the first is above 0

    def add_options(self, parser: argparse.ArgumentParser, /) -> None:
        """Add the options of this mode alone; the shared ones are there already."""

    def measure(self, options: BenchOptions, args: argparse.Namespace, /) -> Iterator[Cell]:
        """Measure, and yield every cell as soon as it has ended.

        A cell that fails is yielded with its reason, and the others go on. ValueError before the
        first cell for a mistake in the options. `args` has the options of this mode.
        """

    def lines(self, cells: Sequence[Cell], /) -> list[str]:
        """What a person reads of the cells, in plain text."""
