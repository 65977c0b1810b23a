#!/usr/bin/env python3
"""How the cost of every stage grows with its work: CPU seconds at 1x, 2x, 4x and 8x.

example: python benchmarks/growth.py --steps views export

A step runs at every size in turn, several times; the first run is not counted. What is counted are
CPU seconds of the process and its children, without imports and without making the input. The
exponent p is that of `fixed + slope * work ** p`, fitted to the medians with fixed >= 0: a fixed
cost is fitted, not subtracted by hand. Its range comes from drawing the repeats of each size again,
200 times. `plain` is the slope of the logarithms, without a fixed cost. Results go to
benchmarks/results/growth.json and docs/measured.md. Sizes are small: minutes on two cores.
benchmarks/scale.py measures plans, indexes and views at the sizes of large pools, in hours.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)
# Threads of torch that wait for each other count as work, beside other programs as a lot of it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks import measured
from benchmarks.peers.rows import machine_kind
from benchmarks.scaling import growth_fit, growth_page, growth_results, growth_retry, growth_steps
from benchmarks.scaling.growth_steps import Step
from benchmarks.scaling.processes import children_cpu_s
from clipmill.manifests import disk

STEPS = {**growth_steps.STEPS, **growth_retry.STEPS, **growth_results.STEPS}
RESULTS = ROOT / "benchmarks/results/growth.json"
REPEATS = 3


def cpu_seconds(
    step: Step, folder: Path, counts: Sequence[int], repeats: int
) -> dict[int, list[float]]:
    """CPU seconds of a step at every size, in turn: {count: seconds of each repeat}."""
    folders = {count: folder / str(count) for count in counts}
    for count, home in folders.items():
        home.mkdir()
        step.prepare(home, count)
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    for repeat in range(-1, repeats):  # the first run loads modules and is not counted
        for count in counts[:1] if repeat < 0 else counts if repeat % 2 else reversed(counts):
            step.reset(folders[count])
            started = time.process_time() + children_cpu_s()
            step.run(folders[count], count)
            spent = time.process_time() + children_cpu_s() - started
            if repeat >= 0:
                seconds[count].append(round(spent, 4))
    return seconds


def measure(name: str, folder: Path, share: float, repeats: int) -> dict[str, Any]:
    """The result of one step, measured in this process."""
    step = STEPS[name]
    with step.around(folder):
        seconds = cpu_seconds(step, folder, step.counts(share), repeats)
    return {
        "stage": step.stage,
        "what": step.what,
        "unit": step.unit,
        "sort": step.sort,
        "share": share,
        "sizes": list(seconds),
        "cpu_s": {str(count): values for count, values in seconds.items()},
        **growth_fit.fitted(seconds),
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine_kind(),
    }


def measured_alone(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """`measure` in a temporary folder. RuntimeError: the step failed."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix="growth-") as folder,
            contextlib.redirect_stdout(sys.stderr),
        ):
            return measure(name, Path(folder), args.share, args.repeats)
    except Exception as error:
        raise RuntimeError(f"{name} failed: {type(error).__name__}: {error}") from error


def add_result(path: Path, name: str, result: Mapping[str, Any]) -> None:
    """Put the result of one step into the file."""
    results = growth_page.read_results(path) if path.exists() else {"steps": {}}
    results["steps"][name] = dict(result)
    results["steps"] = {key: results["steps"][key] for key in STEPS if key in results["steps"]}
    disk.write_json(path, results)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks/growth.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--steps", nargs="+", default=list(STEPS), metavar="STEP")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual sizes")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    unknown = [name for name in args.steps if name not in STEPS]
    if unknown or not 0 < args.share < math.inf or args.repeats < 1:
        problem = (
            f"there is no step {unknown[0]!r}; there are {', '.join(STEPS)}" if unknown else ""
        )
        print(
            f"error: {problem or '--share has to be a number above 0, --repeats at least 1'}",
            file=sys.stderr,
        )
        return 2
    try:
        return measure_steps(args)
    except ValueError as error:  # of a file of results
        print(f"error: {error}", file=sys.stderr)
        return 2


def measure_steps(args: argparse.Namespace) -> int:
    """Measure, write and print. The exit status 0 or 3. ValueError for a file that is damaged."""
    if args.out.exists():
        growth_page.read_results(args.out)  # is refused before anything is measured
    failed = False
    for name in args.steps:
        try:
            result = measured_alone(name, args)
        except RuntimeError as error:
            failed = True
            print(error, file=sys.stderr, flush=True)
            continue
        add_result(args.out, name, result)
        low, high = result["exponent_range"]
        print(
            f"{name:20} exponent {result['exponent']:.2f} ({low:.2f} to {high:.2f}), plain "
            f"{result['plain']:.2f}: {growth_fit.verdict(result)}",
            flush=True,
        )
    if args.out == RESULTS:
        measured.write()
    return 3 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
