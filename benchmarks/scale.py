#!/usr/bin/env python3
"""What a stage costs as a pool grows: time, CPU and memory at 1x, 2x, 4x and 8x of a size, and the
exponent with which the CPU time grows.

example: python benchmarks/scale.py --part plan index views --sizes 1 2 4 8

Every step of a part runs in a process of its own, so that its peak memory is its own. CPU seconds
and peak memory are those of all processes that a step starts. Results are added to those of earlier
runs (--out), and the tables of docs/measured.md are made from them.

A part is a module of benchmarks/scaling with BASE (what 1x is), UNIT (what is counted),
prepare(folder, count), STEPS (names of functions of (folder, count) that may return more figures)
and, where not all steps run at all sizes, LARGEST {step: size}.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

from benchmarks import measured
from benchmarks.scaling import document, processes
from benchmarks.scaling.processes import children_cpu_s

PARTS = ("plan", "command", "index", "rows", "views", "fetch")
RESULTS = ROOT / "benchmarks/results/scale.json"
ROUND = 1000  # counts are multiples of it


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sizes", nargs="+", type=float, default=[1, 2, 4, 8])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--folder", type=Path, help="where the pools are made (default: temporary)")
    parser.add_argument("--steps", nargs="+", help="of the parts (default: all)")
    parser.add_argument("--step", help=argparse.SUPPRESS)  # of a child process
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv)
    if args.step:
        print(json.dumps(run_step(args.part[0], args.step, args.folder, args.count)))
        return 0
    failed = False
    for part in args.part:
        for size in args.sizes:
            try:
                run_size(part, size, args)
            except subprocess.CalledProcessError as error:
                print(f"{part} at {size:g}x failed: {error}", file=sys.stderr)
                failed = True
    results = json.loads(args.out.read_text())
    if args.out == RESULTS:
        measured.write()
    for name, value in document.exponents(results).items():
        print(f"exponent of {name}: {value}")
    return int(failed)


def run_size(part: str, size: float, args: argparse.Namespace) -> None:
    """All steps of a part at one size; each is in the results as soon as it has ended."""
    module = importlib.import_module(f"benchmarks.scaling.{part}")
    count = round(module.BASE * size / ROUND) * ROUND
    folder = Path(tempfile.mkdtemp(prefix=f"scale-{part}-", dir=args.folder))
    serving = getattr(module, "serving", contextlib.nullcontext)
    try:
        with serving(folder):
            child(part, "prepare", folder, count)
            for step in module.STEPS:
                if args.steps and step not in args.steps:
                    continue
                if size > getattr(module, "LARGEST", {}).get(step, size):
                    continue
                measured = child(part, step, folder, count)
                measured |= {"load": [round(each, 1) for each in os.getloadavg()]}
                add_result(args.out, part, step, {"count": count, **measured})
                print(f"{part} {step:<20} {count:>12,} {module.UNIT}: {line(measured)}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def add_result(path: Path, part: str, step: str, row: dict[str, Any]) -> None:
    """Put a figure into the file of the results, in the place of an older one of the same size."""
    results = json.loads(path.read_text()) if path.exists() else {}
    module = importlib.import_module(f"benchmarks.scaling.{part}")
    of_part = results.setdefault(part, {"unit": module.UNIT, "base": module.BASE, "steps": {}})
    of_part["cores"] = os.cpu_count()
    rows = [each for each in of_part["steps"].get(step, []) if each["count"] != row["count"]]
    of_part["steps"][step] = sorted([*rows, row], key=lambda each: each["count"])
    path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def line(measured: dict[str, Any]) -> str:
    return (
        f"{measured['wall_s']:.2f} s, {measured['cpu_s']:.2f} s of CPU, "
        f"at most {measured['peak_mib']} MiB in one process"
    )


def child(part: str, step: str, folder: Path, count: int) -> dict[str, Any]:
    """Run one step in a process of its own, and count what it starts."""
    command = [sys.executable, str(Path(__file__).resolve()), "--part", part, "--step", step]
    command += ["--folder", str(folder), "--count", str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    out, tree = processes.watched(process)
    measured: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    others = tree.descendants()
    started_s = max(measured.pop("children_cpu_s"), sum(each.cpu_s for each in others))
    measured["cpu_s"] = round(measured.pop("own_cpu_s") + started_s, 3)
    measured["processes"] = 1 + len(others)
    measured["others_peak_mib"] = max((each.peak_mib for each in others), default=0)
    measured["peak_mib"] = max(measured["own_peak_mib"], measured["others_peak_mib"])
    measured["driver_mib"] = tree.over_time()
    return measured


def run_step(part: str, step: str, folder: Path, count: int) -> dict[str, Any]:
    """What a step costs in this process, and what the children cost that it waited for."""
    module = importlib.import_module(f"benchmarks.scaling.{part}")
    function = getattr(module, step)
    imports = peak_mib()
    started, own_s, children_s = time.monotonic(), time.process_time(), children_cpu_s()
    extra = function(folder, count) or {}
    return {
        "wall_s": round(time.monotonic() - started, 3),
        "own_cpu_s": time.process_time() - own_s,
        "children_cpu_s": children_cpu_s() - children_s,
        "own_peak_mib": peak_mib(),
        "added_mib": peak_mib() - imports,
        **extra,
    }


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // processes.MIB


if __name__ == "__main__":
    raise SystemExit(main())
