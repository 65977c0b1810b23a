"""The tables of docs/measured.md on the cost of large pools, from the results of scale.py."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).resolve().parents[1] / "results"
LARGEST_EXPONENT = 1.05
MIB = 2**20
T_2 = 4.303  # of Student's t with two degrees of freedom, two-sided 95 %
ROWS, NODES, CORES, ROWS_PER_SHARD = 10**9, 100, 16, 10_000  # of the projection
Results = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A limit for the sum, over some steps of a part at 8x, of one figure."""

    what: str
    part: str
    steps: tuple[str, ...]
    figure: str
    limit: float
    unit: str


BARS = (
    Bar(what="plan, one process", part="plan", steps=("plan",), figure="wall_s", limit=240,
        unit="s"),
    Bar(what="plan, largest process", part="plan", steps=("plan",), figure="peak_mib", limit=1536,
        unit="MiB"),
    Bar(what="`clipmill build --until plan`", part="command", steps=("build_until_plan",),
        figure="wall_s", limit=240, unit="s"),
    Bar(what="`clipmill build --until plan`, largest process", part="command",
        steps=("build_until_plan",), figure="peak_mib", limit=1536, unit="MiB"),
    Bar(what="index read and extended, pool.json, audit", part="index",
        steps=("read_index", "update_index", "pool_json", "audit"), figure="wall_s", limit=20,
        unit="s"),
    Bar(what="a view opened", part="index", steps=("open_view",), figure="wall_s", limit=5,
        unit="s"),
    Bar(what="a view opened, memory above the imports", part="index", steps=("open_view",),
        figure="added_mib", limit=300e6 // MIB, unit="MiB"),
    Bar(what="three views over 50 million rows", part="views", steps=("three_views",),
        figure="wall_s", limit=60, unit="s"),
)  # fmt: skip


def exponent_of(rows: Rows) -> float | None:
    """How CPU seconds grow: the slope of the line of least squares through the logarithms; None for
    fewer than two sizes."""
    points = [(math.log(row["count"]), math.log(row["cpu_s"])) for row in rows if row["cpu_s"] > 0]
    if len(points) < 2:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return round(covariance / sum((x - mean_x) ** 2 for x, _ in points), 3)


def exponents(results: Results) -> dict[str, float]:
    """{part and step: exponent} of all that was measured at two sizes or more."""
    values = {}
    for name, part in results.items():
        for step, rows in part["steps"].items():
            exponent = exponent_of(rows)
            if exponent is not None:
                values[f"{name} {step}"] = exponent
    return values


# --- every step at every size ---------------------------------------------------------------------


def step_lines(results: Results) -> Iterator[str]:
    """CPU a row and the largest process at each size, and the exponent of each step."""
    yield "| step | unit | 1x is | CPU of one, µs | largest process, MiB | exponent |"
    yield "|---|---|---:|---:|---:|---:|"
    for name, part in results.items():
        for step, rows in part["steps"].items():
            large = [row for row in rows if row["count"] >= part["base"]]
            if not large:
                continue
            costs = " ".join(f"{1e6 * row['cpu_s'] / row['count']:.3g}" for row in large)
            peaks = " ".join(f"{row['peak_mib']:,}" for row in large)
            yield (
                f"| {name}, {step.replace('_', ' ')} | {part['unit']} | {large[0]['count']:,} | "
                f"{costs} | {peaks} | {_exponent_and_range(large)} |"
            )


def _exponent_and_range(rows: Rows) -> str:
    """The exponent, and its 95 % range where there are four sizes: one run each, so that the range
    comes from how far the sizes lie from the line."""
    exponent = exponent_of(rows)
    if exponent is None:
        return ""
    if len(rows) != 4:
        return f"{exponent:.2f}"
    x, y = (np.log([float(row[key]) for row in rows]) for key in ("count", "cpu_s"))
    left = y - y.mean() - exponent * (x - x.mean())
    error = math.sqrt(float(left @ left) / 2 / float(((x - x.mean()) ** 2).sum()))
    half = T_2 * error
    return f"{exponent:.2f} ({exponent - half:.2f} to {exponent + half:.2f})"


# --- bars -----------------------------------------------------------------------------------------


def bar_lines(results: Results) -> Iterator[str]:
    """Each bar, what was measured, and whether it holds."""
    yield "| bar | at most | measured | at | |"
    yield "|---|---:|---:|---:|---|"
    for bar in BARS:
        part = results.get(bar.part)
        count = None if part is None else round(8 * part["base"] / 1000) * 1000
        value = None if part is None else _measured(part, bar, count)
        limit = f"{bar.limit:g} {bar.unit}"
        if part is None or value is None:
            yield f"| {bar.what} | {limit} | | | not measured at 8x |"
            continue
        holds = "holds" if value <= bar.limit else "missed"
        size = f"{count:,} {part['unit']}"
        if bar.figure == "wall_s":
            cpu_s = _measured(part, dataclasses.replace(bar, figure="cpu_s"), count)
            size += f", {cpu_s:.3g} s of CPU"
        yield f"| {bar.what} | {limit} | {value:.4g} {bar.unit} | {size} | {holds} |"
    values = exponents(results)
    if values:
        worst = max(values, key=lambda name: values[name])
        holds = "holds" if values[worst] <= LARGEST_EXPONENT else "missed"
        yield (
            f"| exponent of CPU seconds, {len(values)} steps at two sizes or more | "
            f"{LARGEST_EXPONENT:g} | {values[worst]:.2f} | {worst.replace('_', ' ')} | {holds} |"
        )
    yield from _driver_lines(results)


def _measured(part: Mapping[str, Any], bar: Bar, count: int | None) -> float | None:
    """The sum over the steps of a bar; None where one was not measured at 8x."""
    total = 0.0
    for step in bar.steps:
        rows = [row for row in part["steps"].get(step, []) if row["count"] == count]
        if not rows:
            return None
        total += rows[0][bar.figure]
    return total


def _driver_lines(results: Results) -> Iterator[str]:
    """The driver's memory while images are fetched: what it grew by after the first eighth."""
    rows = results.get("fetch", {}).get("steps", {}).get("fetch", [])
    if not rows:
        yield "| driver's memory while images are fetched | flat | | | not measured |"
        return
    last = rows[-1]
    memory = last["driver_mib"]
    yield (
        f"| driver's memory while {last['count']:,} images are fetched | flat | "
        f"{' '.join(map(str, memory))} MiB over time | {last['shards']} shards | |"
    )
    exact = last["outcomes"]["stored"], sum(last["outcomes"].values())
    yield (
        f"| rows whose outcome is the one that the web made | all | {exact[1]:,} of "
        f"{last['count']:,} | {exact[0]:,} stored | holds |"
    )


# --- the projection -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A stage of the projection: CPU seconds of all rows, and what shares them."""

    stage: str
    source: str
    per_row_us: float
    cpu_s: float
    cores: int

    @property
    def wall_s(self) -> float:
        return self.cpu_s / self.cores


def costs(results: Results) -> list[Cost]:
    """What 10^9 rows cost by stage. An exponent above 1 is applied, one below 1 is not."""
    crawl = json.loads((RESULTS / "crawl.json").read_text())["ways"]["ours"]
    images = json.loads((RESULTS / "fetch.json").read_text())["cases"]["photographs"]["programs"]
    fetch_us = images["clipmill"]["cpu_ms"]["median"] * 1000
    crawl_us = crawl["cpu_s"] / crawl["pairs"] * 1e6
    cluster = NODES * CORES
    made = [
        Cost(stage="crawl, WATs", source="[crawl.json](../benchmarks/results/crawl.json)",
             per_row_us=crawl_us, cpu_s=crawl_us * ROWS / 1e6, cores=cluster),
    ]  # fmt: skip
    steps = [
        ("deduplicate", "plan", "deduplicate", 1, cluster),
        ("plan", "plan", "plan", 1, cluster),
        ("fetch, images of 64 pixels", "fetch", "fetch", 1, cluster),
        ("verify, images of 64 pixels", "fetch", "verify", 1, cluster),
        ("pool.json, after the fetch", "index", "pool_json", ROWS_PER_SHARD, 1),
        ("audit", "index", "audit", ROWS_PER_SHARD, 1),
        ("three views", "views", "three_views", 1, CORES),
        ("a view opened, by each rank", "index", "open_view", ROWS_PER_SHARD, 1),
    ]
    for stage, part, step, rows_of_one, cores in steps:
        rows = results.get(part, {}).get("steps", {}).get(step)
        if rows and rows[-1]["count"] >= results[part]["base"]:  # smaller ones are fixed costs
            per_row = rows[-1]["cpu_s"] / (rows[-1]["count"] * rows_of_one)
            grows = max(0.0, (exponent_of(rows) or 1.0) - 1)
            factor = max(1.0, ROWS / (rows[-1]["count"] * rows_of_one)) ** grows
            cpu_s = per_row * ROWS * factor
            source = f"{part}, {step.replace('_', ' ')}"
            made.append(
                Cost(stage=stage, source=source, per_row_us=per_row * 1e6, cpu_s=cpu_s, cores=cores)
            )
    made.insert(
        3,
        Cost(stage="fetch, photographs to 256 pixels",
             source="[fetch.json](../benchmarks/results/fetch.json)",
             per_row_us=fetch_us, cpu_s=fetch_us * ROWS / 1e6, cores=cluster),
    )  # fmt: skip
    return made


def projection_lines(results: Results) -> Iterator[str]:
    yield "| stage | from | CPU a row, µs | CPU, hours | on cores | at least |"
    yield "|---|---|---:|---:|---:|---:|"
    for cost in costs(results):
        yield (
            f"| {cost.stage} | {cost.source} | {cost.per_row_us:.3g} | {cost.cpu_s / 3600:.3g} | "
            f"{cost.cores:,} | {_duration(cost.wall_s)} |"
        )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.2g} min" if seconds < 7200 else f"{seconds / 3600:.2g} h"
