#!/usr/bin/env python3
"""The memory of the driver while many trivial tickets run on Ray. Written to docs/engine.md.

example: python benchmarks/orchestration/tickets.py --tickets 100000

A ticket returns what a fetched shard returns, about 300 bytes. Memory is the resident size of the
driver at each tenth of the tickets; CPU seconds are those of the driver.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

import numpy as np

from clipmill.manifests import ray_runtime
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Stage, Ticket, Tickets, Work

BEGIN, END = "<!-- written by benchmarks/orchestration/tickets.py -->", "<!-- end -->"
TICKETS_PER_GROUP = 10
POINTS = 10


def work(config: dict[str, Any]) -> Work:
    """A factory: a ticket costs nothing and returns what a fetched shard returns."""
    reasons = {"http_4xx": 90, "dns": 40, "too_small": 12}

    def run(ticket: Ticket) -> dict[str, Any]:
        return {"rows": 10_000, "stored": 9_858, "reasons": reasons, "sha256": ticket.id * 8}

    return run


def ticket(number: int) -> Ticket:
    group = str(number // TICKETS_PER_GROUP)
    return Ticket(id=f"{number:08d}", group=group, payload={"shard": number})


def memory_mib() -> int:
    """Resident size of this process in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024
    raise OSError("/proc/self/status has no VmRSS")


def measure(count: int) -> dict[str, Any]:
    """Run `count` tickets on an embedded Ray."""
    # this script itself is __main__
    from benchmarks.orchestration.tickets import work as importable_work

    ray_runtime.connect()
    points: list[dict[str, float]] = []
    ended = 0

    def on_done(name: str, result: dict[str, Any]) -> None:
        nonlocal ended
        ended += 1
        if ended % (count // POINTS) == 0:
            cpu = round(time.process_time(), 1)
            points.append({"tickets": ended, "driver_mib": memory_mib(), "cpu_s": cpu})
            print(json.dumps(points[-1]), flush=True)

    tickets = Tickets(np.arange(count) // TICKETS_PER_GROUP, ticket)
    started = time.monotonic()
    stage = Stage(name="bench", work=importable_work)
    report = execute(stage, tickets, engine="ray", on_done=on_done)
    seconds = round(time.monotonic() - started)
    ray_runtime.disconnect()
    return {"done": report.done, "failed": report.failures, "wall_s": seconds, "points": points}


def table(result: dict[str, Any]) -> str:
    """The points as a Markdown table."""
    points = result["points"]
    lines = ["| tickets that ended | " + " | ".join(f"{p['tickets']:,}" for p in points) + " |"]
    lines.append("|---|" + "---:|" * len(points))
    rows = {"driver, MiB": "driver_mib", "its CPU seconds": "cpu_s"}
    for title, key in rows.items():
        lines.append(f"| {title} | " + " | ".join(f"{p[key]:g}" for p in points) + " |")
    lines += ["", f"`{result['command']}`, Ray {result['ray']}, {result['cores']} cores, "]
    lines[-1] += f"{result['done']:,} tickets done, {result['failed']} failed."
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tickets", type=int, default=100_000)
    parser.add_argument("--out", default=str(ROOT / "benchmarks/results/tickets.json"))
    parser.add_argument("--docs", default=str(ROOT / "docs/engine.md"))
    args = parser.parse_args(argv)
    import ray

    result = {
        "command": f"python benchmarks/orchestration/tickets.py --tickets {args.tickets}",
        "python": platform.python_version(),
        "ray": ray.__version__,
        "cores": os.cpu_count(),
        **measure(args.tickets),
    }
    Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    page = Path(args.docs)
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{table(result)}\n{END}{rest.split(END, 1)[1]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
