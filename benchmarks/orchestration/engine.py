#!/usr/bin/env python3
"""How to run 10,000 tickets on Ray: our actors (pipeline/executor), Ray Data, or bare tasks.
Written to docs/engine.md.

example: python benchmarks/orchestration/engine.py --out benchmarks/results/engine.json

Each way runs the same tickets in 500 groups, on an embedded Ray of its own process, under four
circumstances: no trouble; a worker that dies (SIGKILL) in the middle of a group; a ticket that
always raises; a ticket that always kills its worker. The tickets append a line to a log when they
begin and end, so that what ran twice or side by side is counted from the outside.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

from clipmill.manifests.ray_runtime import connect, disconnect
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Stage, Ticket

WAYS = {
    "actors": "our actors",
    "ray_data": "Ray Data",
    "ray_data_limited": "Ray Data, limited",
    "ray_tasks": "Ray tasks",
}
TROUBLES = {
    "none": "no trouble",
    "ticket_kills_once": "a worker dies once",
    "ticket_raises": "a ticket always raises",
    "ticket_kills": "a ticket always kills its worker",
}
BEGIN, END = "<!-- written by benchmarks/orchestration/engine.py -->", "<!-- end -->"
LIMIT_S = 180.0


def work(config: dict[str, Any]) -> Any:
    """A ticket that does nothing but say so in the log, raise, or kill its worker."""
    log = os.open(config["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def run(ticket: Ticket) -> dict[str, Any]:
        os.write(
            log, f"{ticket.id} {ticket.group} begin {os.getpid()} {time.monotonic_ns()}\n".encode()
        )
        if ticket.payload.get("trouble") == "ticket_raises":
            raise OSError("this ticket always raises")
        if ticket.payload.get("trouble") == "ticket_kills":
            os.kill(os.getpid(), signal.SIGKILL)
        if (
            ticket.payload.get("trouble") == "ticket_kills_once"
            and not Path(config["log"] + ".died").exists()
        ):
            Path(config["log"] + ".died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(
            log, f"{ticket.id} {ticket.group} end {os.getpid()} {time.monotonic_ns()}\n".encode()
        )
        return {"id": ticket.id}

    return run


def run_group(run: Any, group: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tickets of one group in order, each tried twice: what both other ways need around the
    work.
    """
    outcomes = []
    for fields in group:
        for last in (False, True):
            try:
                outcomes.append(
                    {"id": fields["id"], "error": None, "result": json.dumps(run(Ticket(**fields)))}
                )
                break
            except OSError as error:
                if last:
                    outcomes.append({"id": fields["id"], "error": str(error), "result": None})
    return outcomes


class DataWorker:
    """What Ray Data's actor pool holds: rows are whole groups, as order inside a group must be
    kept.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.run = work(config)

    def __call__(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        return run_group(self.run, json.loads(row["group"]))


def with_actors(tickets: list[Ticket], log: str) -> dict[str, int]:
    """clipmill.pipeline.executor.execute."""
    # this script itself is __main__
    from benchmarks.orchestration.engine import work as importable_work

    report = execute(
        Stage(name="bench", work=importable_work, config={"log": log}),
        tickets,
        engine="ray",
    )
    return {"done": report.done, "failed": report.failures}


def by_group(tickets: list[Ticket]) -> list[list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for t in tickets:
        groups.setdefault(t.group, []).append({"id": t.id, "group": t.group, "payload": t.payload})
    return list(groups.values())


def with_ray_data(tickets: list[Ticket], log: str, limited: bool = False) -> dict[str, int]:
    """ray.data.from_items(groups).flat_map over a pool of actors, one group per block. `limited`:
    one retry per block, after which the block is given up.
    """
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.max_errored_blocks = -1 if limited else 0
    limits: dict[str, Any] = {"max_restarts": -1, "max_task_retries": 1} if limited else {}
    items = [{"group": json.dumps(group)} for group in by_group(tickets)]
    rows = ray.data.from_items(items, override_num_blocks=len(items)).flat_map(
        DataWorker,
        fn_constructor_args=({"log": log},),
        compute=ray.data.ActorPoolStrategy(size=os.cpu_count()),
        num_cpus=1,
        **limits,
    )
    outcomes = [row["error"] for row in rows.iter_rows()]
    done = sum(error is None for error in outcomes)
    return {"done": done, "failed": len(tickets) - done}


def with_ray_tasks(tickets: list[Ticket], log: str) -> dict[str, int]:
    """One Ray task per group, twice as many in flight as there are cores, retried by Ray."""
    import ray

    def group_task(group: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return run_group(work({"log": log}), group)

    remote = ray.remote(group_task).options(num_cpus=1, max_retries=1)
    waiting = by_group(tickets)
    flying: dict[Any, int] = {}
    done = failed = 0
    while waiting or flying:
        while waiting and len(flying) < 2 * (os.cpu_count() or 1):
            group = waiting.pop()
            flying[remote.remote(group)] = len(group)
        for reference in ray.wait(list(flying), num_returns=1)[0]:
            size = flying.pop(reference)
            try:
                outcomes = ray.get(reference)
                done += sum(o["error"] is None for o in outcomes)
                failed += sum(o["error"] is not None for o in outcomes)
            except ray.exceptions.RayError:
                failed += size
    return {"done": done, "failed": failed}


def from_log(log: Path) -> dict[str, int]:
    """Tickets that ended more than once, and those that ran beside another of their group."""
    begun: dict[str, str] = {}
    ended: collections.Counter[str] = collections.Counter()
    beside = 0
    for line in log.read_text().splitlines():
        ticket, group, what, pid, _ = line.split()
        if what == "begin":
            beside += (
                group in begun and begun[group] != pid and Path(f"/proc/{begun[group]}").exists()
            )
            begun[group] = pid
        else:
            ended[ticket] += 1
            begun.pop(group, None)
    return {
        "ended_once": len(ended),
        "ended_twice": sum(n > 1 for n in ended.values()),
        "beside": beside,
    }


def child(way: str, trouble: str, count: int, groups: int, log: str) -> dict[str, Any]:
    """One way under one circumstance, in this process."""
    tickets = [Ticket(id=f"t{i}", group=f"g{i % groups}", payload={}) for i in range(count)]
    if trouble.startswith("ticket_"):
        tickets[count // 2] = Ticket(
            id="bad", group=f"g{count // 2 % groups}", payload={"trouble": trouble}
        )
    started = time.monotonic()
    connect()
    up = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if way.startswith("ray_data"):
        report = with_ray_data(tickets, log, limited=way.endswith("limited"))
    else:
        report = {"actors": with_actors, "ray_tasks": with_ray_tasks}[way](tickets, log)
    ended = time.monotonic()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    disconnect()
    return {
        **report,
        **from_log(Path(log)),
        "start_s": round(up - started, 2),
        "wall_s": round(ended - up, 2),
        "driver_peak_mib": round(peak / 1024),
        "driver_growth_mib": round((peak - before) / 1024),
    }


def measure(way: str, trouble: str, count: int, groups: int, folder: Path) -> dict[str, Any]:
    """`child` in a process of its own; what it had done at the limit, if it did not end."""
    log = folder / f"{way}-{trouble}-{count}.log"
    command = [
        sys.executable,
        __file__,
        "--child",
        way,
        trouble,
        "--tickets",
        str(count),
        "--groups",
        str(groups),
    ]
    process = subprocess.Popen(
        [*command, "--log", str(log)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=LIMIT_S)
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
    except subprocess.TimeoutExpired:
        result = {
            "did_not_end_in_s": LIMIT_S,
            "begun": log.read_text().count(" begin "),
            **from_log(log),
        }
        process.terminate()  # Ray ends its children when the driver goes
        process.communicate(timeout=60)
    return {"way": way, "trouble": trouble, "tickets": count, **result}


def table(result: dict[str, Any]) -> str:
    """The runs as a Markdown table, for docs/engine.md."""
    lines = [
        "| circumstance | way | tickets | done | failed | ended twice | wall, s | driver grew by, "
        "MiB |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for run in result["runs"]:
        cells = [TROUBLES[run["trouble"]], WAYS[run["way"]], run["tickets"]]
        if "did_not_end_in_s" in run:
            again = run["begun"] - run["ended_once"] - run["ended_twice"]
            cells += [
                run["ended_once"],
                f"never: killed its worker {again} times",
                run["ended_twice"],
            ]
            cells += [f"stopped after {run['did_not_end_in_s']:g}", ""]
        else:
            cells += [
                run["done"],
                run["failed"],
                run["ended_twice"],
                run["wall_s"],
                run["driver_growth_mib"],
            ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    versions = result["versions"]
    return "\n".join(
        [
            *lines,
            "",
            f"`{result['command']}`, Ray {versions['ray']}, Python {versions['python']}, "
            f"{result['cores']} cores.",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tickets", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results" / "engine.json"))
    parser.add_argument(
        "--docs", default=str(ROOT / "docs" / "engine.md"), help="the page whose table is replaced"
    )
    parser.add_argument("--child", nargs=2, metavar=("WAY", "TROUBLE"), help=argparse.SUPPRESS)
    parser.add_argument("--log", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        way, trouble = args.child
        print(json.dumps(child(way, trouble, args.tickets, args.groups, args.log)), flush=True)
        return 0
    import ray

    plan = [(way, trouble, args.tickets) for trouble in TROUBLES for way in WAYS]
    runs = []
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        for way, trouble, count in [*plan, ("actors", "none", 5 * args.tickets)]:
            runs.append(measure(way, trouble, count, args.groups, Path(folder)))
            print(json.dumps(runs[-1]), flush=True)
    result = {
        "command": "python benchmarks/orchestration/engine.py "
        f"--tickets {args.tickets} --groups {args.groups}",
        "versions": {"python": sys.version.split()[0], "ray": ray.__version__},
        "cores": os.cpu_count(),
        "runs": runs,
    }
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    page = Path(args.docs).read_text()
    before, rest = page.split(BEGIN)
    Path(args.docs).write_text(
        before + BEGIN + "\n" + table(result) + "\n" + END + rest.split(END)[1]
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
