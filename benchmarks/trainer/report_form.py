"""The report of a measured speed: cells with their figures, what they were measured on, layouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clipmill.manifests import disk
from clipmill.manifests.records import read_document

FORMAT = "clipmill bench report"
VERSION = 1
LARGEST_FIGURE = 1e30  # of a figure: sums and squares of those below are finite
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
            if value is not None and not -LARGEST_FIGURE <= value <= LARGEST_FIGURE:
                raise ValueError(f"figure {name} is {str(value)[:30]}; it must be finite, or null")
        for rate in self.rates:
            if not 0 < rate <= LARGEST_FIGURE:
                raise ValueError(f"a rate is {str(rate)[:30]}; it must be finite and above 0")

    @property
    def measured(self) -> bool:
        """Whether the cell has figures."""
        return self.state == "measured"

    @property
    def label(self) -> str:
        """The cell in words, for a line of the log."""
        words = [self.model, self.variant, self.dtype, f"{self.ranks} rank{'s'[: self.ranks != 1]}"]
        words.append(f"batch {self.batch}" if self.batch else f"global batch {self.global_batch}")
        words += [self.parallel if self.parallel != "dp" else "", self.data]
        return ", ".join(word for word in words if word)


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


def read_report(path: str | Path) -> Report:
    """A report from its file.

    FileNotFoundError where there is none; ValueError that names the file where it is damaged, or
    another document.
    """
    value = disk.read_json(path)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ValueError(f"{path} is no report of clipmill bench: it has no format {FORMAT!r}")
    return read_document(path, Report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the ranks share a model: the text of --parallel, and the settings it stands for."""

    name: str
    dp_shard: int = 1  # 0: all ranks
    tp: int = 1

    def shards(self, ranks: int) -> int:
        """The setting dp_shard for so many ranks."""
        return self.dp_shard or max(1, ranks // self.tp)


def parse_layout(text: str) -> Layout:
    """`dp`, `fsdp`, `fsdp4`, `tp2` or `tp2+fsdp4`. ValueError for another text."""
    sizes: dict[str, int] = {}
    for part in text.split("+"):
        kind = part.rstrip("0123456789")
        number = part[len(kind) :]
        allowed = kind == "fsdp" or (kind == "tp" and number) or part == "dp"
        if not allowed or kind in sizes or (number and int(number) < 2):
            raise ValueError(
                f"--parallel is {text!r}; it must be dp, fsdp, fsdpN, tpN or tpN+fsdpN with N of "
                "at least 2, like tp2"
            )
        sizes[kind] = int(number or 0)
    if "dp" in sizes and len(sizes) > 1:
        raise ValueError(f"--parallel is {text!r}; dp stands alone")
    return Layout(name=text, dp_shard=sizes.get("fsdp", 1), tp=sizes.get("tp", 1))
