#!/usr/bin/env python3
"""Whether the cost model of reading chooses right: a grid of shares kept, latencies and bandwidths,
with each mode measured at every point.

example: python benchmarks/reading/read_modes.py --out benchmarks/results/read_modes.json

The store waits in this process, without processor time (`tests/support/slow_store.py`), so other
work on the machine changes little. The model knows the store only from its own measurement at that
point. A choice is right if no other mode is faster by more than a tenth.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

import numpy as np

from manifests import disk
from tests.support import slow_store
from tests.support.slow_store import SlowStore
from train.data.read_ahead import READS_AT_ONCE
from train.store import ByteRanges, Mode, ReadCost, choose_mode, coalesce, measure_speed

SHARES = (0.002, 0.01, 0.05, 0.2, 0.6)
LATENCIES_MS = (5.0, 50.0, 200.0)
BANDWIDTHS_MB = (50.0, 200.0, 800.0)
ROWS, IMAGE_BYTES, SHARDS = 4_000, 20_000, 2
TIE = 1.1  # a mode that takes so much of the fastest one's time is as good
Point = dict[str, Any]


def ranges_of(share: float) -> dict[Mode, ByteRanges]:
    """The reads of one shard in each mode."""
    rng = np.random.default_rng(0)
    length = rng.integers(IMAGE_BYTES // 2, 3 * IMAGE_BYTES // 2, ROWS)
    offset = np.cumsum(length + 2560) - length  # members of text and JSON lie between
    kept = np.sort(rng.permutation(ROWS)[: max(1, round(share * ROWS))])
    own = np.cumsum(length[kept] + 2560) - length[kept]
    return {
        "mask": coalesce(offset, length, None),
        "ranged": coalesce(offset[kept], length[kept]),
        "materialised": coalesce(own, length[kept], None),
    }


def seconds_of(url: str, ranges: ByteRanges) -> float:
    """The time that the reads of all shards take."""
    spans = list(zip(ranges.start.tolist(), ranges.length.tolist(), strict=True)) * SHARDS
    started = time.perf_counter()
    with ThreadPoolExecutor(READS_AT_ONCE) as threads:
        list(threads.map(lambda span: len(disk.read_bytes(url, *span)), spans))
    return time.perf_counter() - started


def measure_point(url: str, share: float, latency_ms: float, mb_per_s: float) -> Point:
    """Every mode at one point, what the model chose, and whether it was right."""
    SlowStore.reset(latency_ms / 1e3, mb_per_s * 1e6)
    ranges = ranges_of(share)
    size = int(ranges["mask"].start[-1] + ranges["mask"].length[-1])
    speed = measure_speed(lambda start, length: disk.read_bytes(url, start, length), size)
    costs = {}
    for mode, of_mode in ranges.items():
        cost = ReadCost.of(of_mode)
        costs[mode] = ReadCost(requests=SHARDS * cost.requests, bytes=SHARDS * cost.bytes)
    own = {mode: costs[mode] for mode in ("mask", "ranged")}  # tars of its own are always best
    chosen, _ = choose_mode(own, speed, READS_AT_ONCE)  # type: ignore[arg-type]
    seconds = {mode: seconds_of(url, of_mode) for mode, of_mode in ranges.items()}
    fastest = min(seconds["mask"], seconds["ranged"])
    return {
        "share": share,
        "latency_ms": latency_ms,
        "mb_per_s": mb_per_s,
        "measured_store": str(speed),
        "seconds": seconds,
        "predicted": {mode: cost.seconds(speed, READS_AT_ONCE) for mode, cost in costs.items()},
        "chosen": chosen,
        "right": seconds[chosen] <= TIE * fastest,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", metavar="FILE", help="write the figures here, as JSON")
    parser.add_argument("--points", type=int, help="measure only so many, evenly spread")
    args = parser.parse_args(arguments)
    slow_store.register()
    grid = list(itertools.product(SHARES, LATENCIES_MS, BANDWIDTHS_MB))
    if args.points:
        grid = grid[:: max(1, len(grid) // args.points)]
    points = []
    with tempfile.TemporaryDirectory() as folder:
        tar = Path(folder, "00000.tar")
        last = ranges_of(1.0)["mask"]
        with tar.open("wb") as f:
            f.truncate(int(last.start[-1] + last.length[-1]))
        for share, latency_ms, mb_per_s in grid:
            point = measure_point(f"slow://{tar}", share, latency_ms, mb_per_s)
            points.append(point)
            times = "  ".join(f"{mode} {s:6.2f} s" for mode, s in point["seconds"].items())
            print(
                f"{share:6.3f} {latency_ms:5g} ms {mb_per_s:5g} MB/s  {times}  "
                f"{point['chosen']}: {'right' if point['right'] else 'wrong'}",
                flush=True,
            )
    right = sum(point["right"] for point in points)
    print(f"right at {right} of {len(points)} points (goal: 9 of 10)")
    if args.out:
        disk.write_json(args.out, {"points": points, "right": right, "of": len(points)})
    return 0 if right >= 0.9 * len(points) else 1


if __name__ == "__main__":
    sys.exit(main())
