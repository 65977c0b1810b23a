"""The report of train/bench.py: cells with their figures, and what they were measured on."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manifests import disk
from manifests.records import read_document

FORMAT = "clipmill bench report"
VERSION = 1
LARGEST = 1e30  # of a figure: sums and squares of those below are finite
LARGEST_SIZE = 10**12  # of ranks and batches
STATES = ("measured", "failed", "not run")

Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a report was measured on. It has no host name and no path."""

    device: str  # name of the GPU or of the processor
    kind: str  # cuda or cpu
    gpus: int
    gpu_memory_bytes: int | None
    processor: str
    cores: int  # logical processors that this process may use
    memory_bytes: int | None  # of the host
    system: str
    versions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One measurement: what was measured, and its figures by name.

    A figure is None where this machine cannot measure it. `reason` says why a cell has no figures.
    """

    model: str
    dtype: str
    ranks: int
    batch: int  # samples of a data-parallel rank
    global_batch: int  # samples of a step, of all ranks
    data: str  # synthetic, or the name of a blend
    scaling: str = ""  # weak, strong, or nothing where only one of them makes sense
    parallel: str = "dp"
    variant: str = ""  # what else differs between cells, such as the back end of inference
    state: str = "measured"
    reason: str | None = None
    figures: Figures = field(default_factory=dict)
    rates: tuple[float, ...] = ()  # samples/s of each repeat

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state is {self.state!r}; it must be one of {', '.join(STATES)}")
        for name, least in (("ranks", 1), ("batch", 0), ("global_batch", 1)):
            size = getattr(self, name)
            if not least <= size <= LARGEST_SIZE:
                shown = str(size)[:30]
                raise ValueError(f"{name} is {shown}; it must be {least} to {LARGEST_SIZE:,}")
        for name, value in self.figures.items():
            if value is not None and not -LARGEST <= value <= LARGEST:
                raise ValueError(f"figure {name} is {str(value)[:30]}; it must be finite, or null")
        for rate in self.rates:
            if not 0 < rate <= LARGEST:
                raise ValueError(f"a rate is {str(rate)[:30]}; it must be finite and above 0")

    @property
    def measured(self) -> bool:
        """Whether the cell has figures."""
        return self.state == "measured"

    @property
    def key(self) -> tuple[str, str, str, str, int, int, int, str]:
        """What is the same for cells of two reports that are compared."""
        return (
            self.model,
            self.variant,
            self.parallel,
            self.dtype,
            self.global_batch,
            self.batch,
            self.ranks,
            self.scaling,
        )

    @property
    def label(self) -> str:
        """The cell in words, for a line of the log."""
        words = [self.model, self.variant, self.dtype, f"{self.ranks} rank{'s'[: self.ranks != 1]}"]
        words.append(f"batch {self.batch}" if self.batch else f"global batch {self.global_batch}")
        words += [self.parallel if self.parallel != "dp" else "", self.data]
        return ", ".join(word for word in words if word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The figures of a cell by name, and the samples/s of each repeat."""

    figures: Figures
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one command has measured."""

    mode: str
    date: str  # UTC, as 2026-01-31T12:00:00Z
    command: str
    commit: str | None  # of the checkout, with -dirty where files were changed; None outside git
    machine: Machine
    options: dict[str, Any]
    cells: tuple[Cell, ...] = ()
    ended: bool = False  # False while cells are still to come, and where the command was stopped
    format: str = FORMAT
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format is {self.format!r}; it must be {FORMAT!r}")
        if self.version != VERSION:
            raise ValueError(f"version is {self.version}; this program reads version {VERSION}")

    @property
    def complete(self) -> bool:
        """Whether every cell of the command has figures."""
        return self.ended and all(cell.measured for cell in self.cells)

    def with_cells(self, cells: tuple[Cell, ...], *, ended: bool = False) -> Report:
        """The same report with these cells; `ended`: there are no more."""
        return dataclasses.replace(self, cells=cells, ended=ended)


def read_report(path: str | Path) -> Report:
    """A report from its file.

    FileNotFoundError where there is none; ValueError that names the file where it is damaged, or
    another document.
    """
    value = disk.read_json(path)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ValueError(f"{path} is no report of train/bench.py: it has no format {FORMAT!r}")
    return read_document(path, Report)


def check_target(path: str) -> None:
    """ValueError where a report cannot be written to `path`, or would replace another document."""
    disk.output_folder(os.path.dirname(path) or ".", "-o")
    if not disk.is_url(path) and os.path.isdir(path):
        raise ValueError(f"-o {path} is a folder; name a file, like {path.rstrip('/')}/report.json")
    if not disk.exists(path):
        return
    try:
        read_report(path)
    except ValueError as error:
        raise ValueError(
            f"-o would replace a file that is no whole report ({error}); name another file, or "
            "remove that one"
        ) from error


def write_report(path: str, report: Report) -> None:
    """Write a report whole, in place of an older one."""
    disk.write_json(path, report)
