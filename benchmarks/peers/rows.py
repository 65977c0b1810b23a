"""A row of the table of `make bench`, the machine that it was measured on, and the JSON files."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clipmill.manifests import disk

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results/bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison: medians over the turns, and the ratio ours / peer inside each turn.

    The bar is about the ratio: at most for costs, at least for rates.
    """

    title: str
    counted: str  # the unit of `ours` and `peer`
    at_least: bool  # a rate: the ratio has to reach the bar; a cost may not exceed it
    ours: float
    peer: float | None
    peer_name: str
    ratio: float | None
    ratio_range: tuple[float, float] | None
    bar: float
    turns: int
    items: int  # of one turn
    missing: str | None = None  # why there is no peer

    @property
    def met(self) -> bool | None:
        """Whether the bar is reached; None without a peer."""
        if self.ratio is None:
            return None
        return self.ratio >= self.bar if self.at_least else self.ratio <= self.bar

    def to_plain(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineKind:
    """What a result was measured on; `load` is that of all programs where it is of a stage."""

    cores: int
    processor: str
    load: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResults:
    """The JSON file of one stage."""

    stage: str
    command: str
    date: str
    machine: MachineKind
    images: str | None
    versions: dict[str, str | None]
    rows: tuple[Row, ...]


def read_stage(path: Path) -> StageResults:
    """The file of a stage. ValueError that names the file and what is wrong in it."""
    value = disk.read_json(path)
    if isinstance(value, dict) and isinstance(value.get("rows"), list):
        rows = [row for row in value["rows"] if isinstance(row, dict)]
        for row in rows:
            row.pop("met", None)  # follows from the others
    results: StageResults = checked(path, StageResults, value)
    return results


def checked(path: Path, kind: type, value: Any) -> Any:
    """JSON of a file as a dataclass. ValueError that names the file, for other keys, a value of
    another type, and a number that is not finite.
    """
    try:
        _refuse_nonfinite(value, kind.__name__)
        return disk.from_plain(kind, value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be shown: {error}") from error


def _refuse_nonfinite(value: Any, name: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}; it must be a finite number")
    if isinstance(value, dict):
        for key, each in value.items():
            _refuse_nonfinite(each, f"{name}.{key}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            _refuse_nonfinite(each, f"{name}[{number}]")


def row_of(
    title: str,
    counted: str,
    bar: float,
    peer_name: str,
    ours: Sequence[float],
    peer: Sequence[float],
    *,
    items: int,
    at_least: bool = False,
    missing: str | None = None,
) -> Row:
    """A row of the values of all turns. `peer` is empty where the peer cannot be installed."""
    ratios = [a / b for a, b in zip(ours, peer, strict=True)] if peer else []
    return Row(
        title=title,
        counted=counted,
        at_least=at_least,
        ours=statistics.median(ours),
        peer=statistics.median(peer) if peer else None,
        peer_name=peer_name,
        ratio=statistics.median(ratios) if ratios else None,
        ratio_range=(min(ratios), max(ratios)) if ratios else None,
        bar=bar,
        turns=len(ours),
        items=items,
        missing=missing,
    )


def in_turns(ways: Mapping[str, Callable[[], float]], turns: int) -> dict[str, list[float]]:
    """The value of every way in each turn. Every second turn goes through them backwards, so that
    no way always runs first.
    """
    values: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns):
        names = list(ways)
        for name in names if turn % 2 == 0 else reversed(names):
            values[name].append(ways[name]())
            print(f"  turn {turn + 1}, {name}: {values[name][-1]:.4g}", flush=True)
    return values


def machine_kind() -> dict[str, Any]:
    """Number of cores and model of the processor."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {"cores": os.cpu_count() or 1, "processor": model}


def write_stage(
    folder: Path,
    stage: str,
    rows: Sequence[Row],
    images: str | None,
    versions: Mapping[str, str | None],
    command: str,
) -> None:
    """The JSON file of one stage."""
    document = {
        "stage": stage,
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {**machine_kind(), "load": round(os.getloadavg()[0], 1)},
        "images": images,
        "versions": dict(versions),
        "rows": [row.to_plain() for row in rows],
    }
    disk.write_json(folder / f"{stage}.json", document)
