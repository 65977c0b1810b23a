#!/usr/bin/env python3
"""What the live view costs: CPU of 100,000 tickets with and without it, and of one refresh.

example: python benchmarks/orchestration/progress.py --tickets 100000

The tickets do nothing and return a commit record, as tickets of fetch do. "refresh" is the state,
the table on a terminal of 120 columns, and progress.json, once a second at most while a stage runs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import pty
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

import numpy as np

from clipmill.pipeline.executor import stage as stage_module
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Stage, Ticket, Tickets
from clipmill.pipeline.progress.state import StageCounter, WorkerReport, measure_commit
from clipmill.pipeline.progress.view import Bars, View, shown_progress, write_state

RESULT = {
    "count": 10_000,
    "successes": 7_000,
    "tar_bytes": 250_000_000,
    "reasons": {"dns": 1_000, "http_4xx": 1_900, "deadline": 100},
}
REFRESHES = 100


def nothing(config: dict[str, Any]) -> Any:
    return lambda ticket: RESULT


class NoCounter(StageCounter):
    """Counts nothing: the executor alone."""

    def started(self, ticket: str) -> None: ...

    def ended(self, ticket: str, result: Any) -> None: ...


def tickets_of(count: int) -> Tickets:
    return Tickets(np.arange(count) % 500, lambda i: Ticket(id=str(i), group=str(i % 500)))


def cpu_of_tickets(count: int, *, counted: bool) -> float:
    """CPU seconds of a stage. What the tickets return is read in both cases, as a build does."""
    from benchmarks.orchestration.progress import nothing  # a worker imports its work

    stage = Stage(name="nothing", work=nothing, measure=measure_commit if counted else None)
    started = time.process_time()
    if counted:
        with shown_progress(tempfile.mkdtemp(prefix="mill-progress-")):
            execute(stage, tickets_of(count), engine="inline", on_done=lambda *_: None)
    else:
        before = stage_module.counted_stage
        stage_module.counted_stage = lambda name, total, _: nullcontext(NoCounter(name, total))  # type: ignore[assignment]
        execute(stage, tickets_of(count), engine="inline", on_done=lambda *_: None)
        stage_module.counted_stage = before
    return time.process_time() - started


def refresh_cost(workers: int, hosts: int) -> dict[str, float]:
    """CPU milliseconds of one refresh with that many workers, each with so many bad hosts."""
    view = View(None, None)
    counter = StageCounter("fetch", 100_000, measure_commit)
    view._running.append(counter)
    report = WorkerReport()
    for host in range(hosts):
        report.losses.add(f"host{host}.example", 20.0, "deadline")
    text = report.to_json()
    for worker in range(workers):
        counter.started(f"t{worker}")
        counter.ended(f"t{worker}", RESULT)
        counter.reported(str(worker), text)
    master, slave = pty.openpty()
    threading.Thread(target=drain, args=(master,), daemon=True).start()
    os.environ.update(TERM="xterm", COLUMNS="120", LINES="50")
    folder = tempfile.mkdtemp(prefix="mill-progress-")
    costs: dict[str, float] = {}
    with os.fdopen(slave, "w") as stream:
        bars = Bars(stream)
        state = view.state()
        bars.show(state)
        for name, action in (
            ("state_ms", view.state),
            ("bars_ms", lambda: bars.show(state)),
            ("file_ms", lambda: write_state(folder, state)),
            ("report_ms", lambda: counter.reported("0", text)),
        ):
            started = time.thread_time()
            for _ in range(REFRESHES):
                action()
            costs[name] = round((time.thread_time() - started) / REFRESHES * 1000, 3)
        bars.close()
    return costs


def drain(master: int) -> None:
    try:
        while os.read(master, 65_536):
            pass
    except OSError:
        return


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tickets", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", help="a JSON file for the results")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    without, counted = [], []
    for _ in range(args.rounds):
        without.append(round(cpu_of_tickets(args.tickets, counted=False), 2))
        counted.append(round(cpu_of_tickets(args.tickets, counted=True), 2))
    each = (sorted(counted)[len(counted) // 2] - sorted(without)[len(without) // 2]) / args.tickets
    result: dict[str, Any] = {
        "tickets": args.tickets,
        "cpu_s_without": without,
        "cpu_s_with_view": counted,
        "view_us_per_ticket": round(each * 1e6, 2),
        "refresh_1_worker": refresh_cost(1, 10),
        "refresh_1000_workers_1000_hosts": refresh_cost(1_000, 1_000),
    }
    print(json.dumps(result, indent=1))
    if args.out:
        command = " ".join(["python benchmarks/orchestration/progress.py", *sys.argv[1:]])
        Path(args.out).write_text(json.dumps({"command": command, **result}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
