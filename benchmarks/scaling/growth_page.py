"""The table of docs/measured.md on the cost of growing."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.rows import MachineKind, checked
from benchmarks.scaling.growth_fit import LARGEST_EXPONENT, verdict
from clipmill.manifests import disk
from clipmill.manifests.text import printable

TEXT = f"""\
A cell is the median of the CPU seconds of the repeats. The exponent p is that of
`fixed + slope * work ** p`, fitted with a fixed cost that may not be negative; its range comes from
drawing the repeats again. `plain` is the slope of the logarithms without a fixed cost. The limit is
{LARGEST_EXPONENT}. "not decided" means that the estimate is above it, and that the repeats, or a
fixed cost, allow a value below. "a fixed cost hides it" means that 8 times the work cost less than
twice the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What was measured of one step."""

    stage: str
    what: str
    unit: str
    sort: bool
    cpu_s: dict[str, tuple[float, ...]]  # the repeats of each size
    exponent: float
    exponent_range: tuple[float, float]
    plain: float
    load: float
    date: str
    machine: MachineKind
    fixed_s: float = 0.0
    share: float = 1.0  # of the usual sizes
    sizes: tuple[int, ...] = ()  # as they were made; results of before have them in cpu_s alone

    def __post_init__(self) -> None:
        if not self.cpu_s or not all(self.cpu_s.values()):
            raise ValueError(f"cpu_s of {self.what!r} is empty, or a size of it")
        for size in self.cpu_s:
            if not (size.isascii() and size.isdigit()):
                raise ValueError(f"cpu_s of {self.what!r} has a size {size!r}, which is no number")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthResults:
    """The file of benchmarks/growth.py."""

    steps: dict[str, StepResult]


def read_results(path: Path) -> dict[str, Any]:
    """The file as plain values. ValueError that names it and what is wrong in it."""
    value: dict[str, Any] = disk.read_json(path)
    checked(path, GrowthResults, value)
    return value


def lines(results: Mapping[str, Any]) -> Iterator[str]:
    """A table with a row for each step, and the machines."""
    yield TEXT
    yield ""
    yield "| stage | what grows | 1x | 2x | 4x | 8x | 8x is | exponent | plain | |"
    yield "|---|---|---:|---:|---:|---:|---|---|---:|---|"
    for step in results["steps"].values():
        counts = sorted(step["cpu_s"], key=int)  # JSON has its keys in the order of text
        medians = [statistics.median(step["cpu_s"][count]) for count in counts]
        low, high = step["exponent_range"]
        largest = max(map(int, step["cpu_s"]))
        cells = [
            step["stage"],
            step["what"],
            *(f"{value:.3g}" for value in medians),
            f"{largest:,} {step['unit']}",
            f"{step['exponent']:.2f} ({low:.2f} to {high:.2f})",
            f"{step['plain']:.2f}",
            verdict(step),
        ]
        yield "| " + " | ".join(printable(cell).replace("|", "\\|") for cell in cells) + " |"
    yield ""
    origins = {
        f"{step['date']}, {step['machine']['cores']} cores, {step['machine']['processor']}"
        for step in results["steps"].values()
    }
    if not origins:
        return
    loads = [step["load"] for step in results["steps"].values()]
    repeats = sorted(
        {len(values) for step in results["steps"].values() for values in step["cpu_s"].values()}
    )
    yield (
        f"[Results](../benchmarks/results/growth.json): {'; '.join(sorted(origins))}; load "
        f"{min(loads):g} to {max(loads):g}; repeats: {', '.join(map(str, repeats))}."
    )
    shares = [
        f"{name} {step['share']:g}"
        for name, step in results["steps"].items()
        if step.get("share", 1) != 1
    ]
    if shares:
        yield f"Measured at a share of the usual sizes: {', '.join(shares)}."
    yield ""
