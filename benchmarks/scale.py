#!/usr/bin/env python3
"""What a stage costs as a pool grows: time, CPU and memory at 1x, 2x, 4x and 8x of a size, and the
exponent with which they grow. Rows that need no images.

example: python benchmarks/scale.py --part a b c --sizes 1 2 4 8

Every step of a part runs in a process of its own, so that its peak memory is its own. A part is a
module with BASE (what 1x is), UNIT (what is counted), prepare(folder, count), and STEPS: functions
of (folder, count).
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
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

# Part -> its module. 8x is the size that the bar of a part is stated for.
PARTS = {
    "a": "benchmarks.scale_plan",
    "b": "benchmarks.scale_index",
    "c": "benchmarks.scale_views",
}
RESULTS = ROOT / "benchmarks/results/scale.json"
MIB = 2**20


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=sorted(PARTS), default=sorted(PARTS))
    parser.add_argument("--sizes", nargs="+", type=float, default=[1, 2, 4, 8])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--folder", type=Path, help="where the pools are made (default: temporary)")
    parser.add_argument("--step", help=argparse.SUPPRESS)  # of a child process
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv)
    if args.step:
        print(json.dumps(run_step(args.part[0], args.step, args.folder, args.count)))
        return 0
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    for part in args.part:
        results[part] = run_part(part, args.sizes, args.folder)
        args.out.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    return 0


def run_part(part: str, sizes: Sequence[float], parent: Path | None) -> dict[str, Any]:
    """All steps of a part at all sizes, and the exponents."""
    module = importlib.import_module(PARTS[part])
    steps: dict[str, list[dict[str, Any]]] = {}
    for size in sizes:
        count = int(module.BASE * size)
        folder = Path(tempfile.mkdtemp(prefix=f"scale-{part}-", dir=parent))
        try:
            child(part, "prepare", folder, count)
            for step in module.STEPS:
                measured = child(part, step, folder, count)
                steps.setdefault(step, []).append({"count": count, **measured})
                print(f"{part} {step:<16} {count:>12,} {module.UNIT}: {line(measured)}", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    exponents = {}
    for step, rows in steps.items():
        for key in ("wall_s", "cpu_s"):
            exponents[f"{step} {key}"] = exponent([(r["count"], r[key]) for r in rows])
    for name, value in exponents.items():
        print(f"{part} exponent of {name}: {value}", flush=True)
    return {
        "unit": module.UNIT,
        "steps": steps,
        "exponents": exponents,
        "cores": os.cpu_count(),
        "load": [round(each, 1) for each in os.getloadavg()],
        "command": f"python benchmarks/scale.py --part {part} --sizes "
        + " ".join(f"{size:g}" for size in sizes),
    }


def line(measured: dict[str, Any]) -> str:
    return (
        f"{measured['wall_s']:.2f} s, {measured['cpu_s']:.2f} s of CPU, "
        f"{measured['peak_mib']} MiB at most, {measured['added_mib']} MiB above the imports"
    )


def child(part: str, step: str, folder: Path, count: int) -> dict[str, Any]:
    """Run one step in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--part", part, "--step", step]
    command += ["--folder", str(folder), "--count", str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    measured: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


def run_step(part: str, step: str, folder: Path, count: int) -> dict[str, Any]:
    """What a step costs: seconds, seconds of CPU of all threads, peak resident memory."""
    module = importlib.import_module(PARTS[part])
    function = getattr(module, step)
    before = peak_mib()
    started, cpu = time.monotonic(), time.process_time()
    extra = function(folder, count) or {}
    wall, used = time.monotonic() - started, time.process_time() - cpu
    return {
        "wall_s": round(wall, 3),
        "cpu_s": round(used, 3),
        "peak_mib": peak_mib(),
        "added_mib": peak_mib() - before,
        **extra,
    }


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // MIB


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """The slope of the line of least squares through the logarithms; None for one point."""
    xs = [math.log(x) for x, y in points if y > 0]
    ys = [math.log(y) for _, y in points if y > 0]
    if len(xs) < 2:
        return None
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return round(covariance / sum((x - mean_x) ** 2 for x in xs), 3)


if __name__ == "__main__":
    raise SystemExit(main())
