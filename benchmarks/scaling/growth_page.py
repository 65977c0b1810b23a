"""The section of docs/benchmarks.md on the cost of growing."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.scaling.growth_fit import LARGEST_EXPONENT, verdict

TEXT = f"""\
`make bench-growth` runs each step at 1x, 2x, 4x and 8x of its work. A cell is the median of
the CPU seconds of the repeats. The exponent p is that of `fixed + slope * work ** p`, fitted with a
fixed cost that may not be negative; its range comes from drawing the repeats again. `plain` is the
slope of the logarithms without a fixed cost. The limit is {LARGEST_EXPONENT}. "not decided" means
that the estimate is above it, and that the repeats, or a fixed cost, allow a value below. "a fixed
cost hides it" means that 8 times the work cost less than twice the time. Plans, indexes and views
at the sizes of large pools are in [scale.md](scale.md)."""


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
        yield "| " + " | ".join(cells) + " |"
    yield ""
    origins = {
        f"{step['date']}, {step['machine']['cores']} cores, {step['machine']['processor']}"
        for step in results["steps"].values()
    }
    loads = [step["load"] for step in results["steps"].values()]
    repeats = sorted(
        {len(values) for step in results["steps"].values() for values in step["cpu_s"].values()}
    )
    yield (
        f"[Results](../benchmarks/results/growth.json): {'; '.join(sorted(origins))}; load "
        f"{min(loads):g} to {max(loads):g}; repeats: {', '.join(map(str, repeats))}."
    )
    yield ""
