"""Tables of docs/measured.md from the JSON files of `make bench`, `make bench-growth` and
`make bench-gpu`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.rows import Row, StageResults, checked, read_stage
from clipmill.manifests import disk
from clipmill.manifests.text import printable

STAGES = ("crawl", "fetch", "loader", "scoring", "choose", "dedup", "training")


def number(value: float) -> str:
    """Three significant digits, or a whole number above a hundred."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def line_of(row: Row) -> str:
    """A row for the terminal."""
    text = f"{row.title}: {number(row.ours)} {row.counted}"
    if row.peer is None or row.ratio is None:
        return f"{text}; {row.peer_name}: not measured ({row.missing})"
    state = "met" if row.met else "NOT MET"
    return (
        f"{text}, {row.peer_name} {number(row.peer)}; ratio {row.ratio:.2f}, {_bar(row)}: {state}"
    )


def _bar(row: Row) -> str:
    return f"{'≥' if row.at_least else '≤'} {row.bar:g}"


def _cells(stage: str, row: Row) -> list[str]:
    start = [stage, row.title, row.counted, number(row.ours), row.peer_name]
    if row.peer is None or row.ratio is None or row.ratio_range is None:
        return [*start, "", "", _bar(row), f"not measured: {row.missing}"]
    low, high = row.ratio_range
    ratio = f"{row.ratio:.2f} ({low:.2f} to {high:.2f})"
    return [*start, number(row.peer), ratio, _bar(row), "met" if row.met else "**not met**"]


def _table(heads: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        cells = [printable(cell).replace("|", "\\|") for cell in row]
        yield "| " + " | ".join(cells) + " |"


def read_stages(results: Path) -> dict[str, StageResults]:
    """The stages that were measured, in the order of STAGES."""
    paths = {stage: results / f"{stage}.json" for stage in STAGES}
    return {stage: read_stage(path) for stage, path in paths.items() if path.exists()}


def stage_lines(results: Path) -> Iterator[str]:
    """The table of all stages, and what each was measured on."""
    stages = read_stages(results)
    cells = []
    for stage in STAGES:
        if stage not in stages:
            cells.append([stage, "not measured", *[""] * 7])
            continue
        cells += [_cells(stage, row) for row in stages[stage].rows]
    heads = ["stage", "what", "counted", "clipmill", "peer", "its", "ratio", "bar", ""]
    yield from _table(heads, cells)
    yield ""
    heads = ["stage", "date", "machine", "load", "images", "turns", "items a turn", "versions"]
    yield from _table(heads, [_origin(stage, stages[stage]) for stage in stages])
    yield ""


def _origin(stage: str, document: StageResults) -> list[str]:
    machine, rows = document.machine, document.rows
    versions = [f"{name} {value}" for name, value in document.versions.items() if value]
    return [
        f"[{stage}](../benchmarks/results/bench/{stage}.json)",
        document.date,
        f"{machine.cores} cores, {machine.processor}",
        "" if machine.load is None else str(machine.load),
        document.images or "",
        ", ".join(sorted({str(row.turns) for row in rows})),
        ", ".join(dict.fromkeys(f"{row.items:,}" for row in rows)),
        ", ".join(versions),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBar:
    """A bar of benchmarks/gpu.py."""

    bar: str
    measured: float | None
    goal: float | None
    measured_over_goal: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuResults:
    """What the page shows of the file of benchmarks/gpu.py."""

    command: str
    device: str
    bars: tuple[GpuBar, ...]
    date: str = ""


def gpu_lines(results: Path) -> Iterator[str]:
    """What `make bench-gpu` measured against its bars."""
    path = results.parent / "gpu.json"
    if not path.exists():
        yield "Not measured: `make bench-gpu` has not run on a machine with a GPU."
        yield ""
        return
    value = disk.read_json(path)
    shown = {field.name for field in dataclasses.fields(GpuResults)}
    if isinstance(value, dict):  # the cells are not shown
        value = {name: each for name, each in value.items() if name in shown}
    document: GpuResults = checked(path, GpuResults, value)
    date = f", {document.date}" if document.date else ""
    yield f"`{printable(document.command)}`, {printable(document.device)}{date}."
    yield ""
    rows = []
    for bar in document.bars:
        measured = "not measured" if bar.measured is None else number(bar.measured)
        goal = "" if bar.goal is None else f"≥ {number(bar.goal)}"
        met = ""
        if bar.measured is not None and bar.goal is not None:
            met = "met" if bar.measured >= bar.goal else "**not met**"
        rows.append([bar.bar, measured, goal, met])
    yield from _table(["what", "measured", "bar", ""], rows)
    yield ""


def growth_lines(results: Path) -> Iterator[str]:
    """The exponents of `make bench-growth`."""
    path = results.parent / "growth.json"
    if not path.exists():
        yield "Not measured: `make bench-growth` has not run."
        yield ""
        return
    from benchmarks.scaling.growth_page import lines, read_results

    yield from lines(read_results(path))
