#!/usr/bin/env python3
"""What is noticed of damaged files, and what a killed worker costs.

example: python benchmarks/orchestration/chaos.py damage
         python benchmarks/orchestration/chaos.py workers --peer-python peer/bin/python
         make chaos 2>&1 | tee chaos.log
         python benchmarks/orchestration/chaos.py kills --log chaos.log

damage: random damages of the files of two small pools (`tests/support/damages.py`) and malformed
tars (`tests/support/malformed_tars.py`), with what webdataset's strict reader notices of the same.
workers: img2dataset and our own fetch over one list from a web on loopback; while they run, one of
their worker processes is killed by SIGKILL, as the kernel does when memory is short. Then each is
started again with the same command.
kills: the lines that `make chaos` prints, as a table. Everything is written to docs/reliability.md.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from clipmill.manifests import console
from clipmill.pipeline.external.img2dataset import DRIVER, QUIET, version_of
from clipmill.pipeline.pool.tars import index_tar
from tests.support import chaos_pools, damages, malformed_tars, strict_readers
from tests.support.loopback_server import serving

DELAY_S = 0.1  # of each answer, so that a worker is in the middle of a shard when it is killed
ROWS, ROWS_PER_SHARD, PROCESSES = 400, 50, 2
PATIENCE_S = 90.0  # a run that is not over by then hangs; a whole one takes a tenth of it


# --- damages --------------------------------------------------------------------------------------


def damage_figures(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Outcomes of random damages, half of them in each pool, and of the malformed tars."""
    inputs = str(folder / "inputs")
    chaos_pools.whole_pool(inputs, str(folder / "flat"))
    chaos_pools.bundled_pool(inputs, str(folder / "bundled"))
    results = []
    for i, name in enumerate(("flat", "bundled")):
        results.append(damages.damage_many(str(folder / name), seed + i, count // 2))
        print(json.dumps(results[-1], indent=1), flush=True)
    tars = strict_readers.compare(malformed_tars.MALFORMED, folder / "tars")
    damaged_tars = strict_readers.compare_damaged(count=300, seed=seed, folder=folder / "cut")
    return {
        "damages": {
            "count": count // 2 * 2,
            "by_file": _added(results, "counts"),
            "by_damage": _added(results, "by_damage"),
            "silent": results[0]["silent"] + results[1]["silent"],
        },
        "malformed_tars": tars,
        "damaged_tars": damaged_tars,
    }


def _added(results: list[dict[str, Any]], key: str) -> dict[str, dict[str, int]]:
    total: dict[str, Counter[str]] = {}
    for result in results:
        for name, counts in result[key].items():
            total.setdefault(name, Counter()).update(counts)
    return {name: dict(sorted(counts.items())) for name, counts in sorted(total.items())}


# --- killed workers -------------------------------------------------------------------------------


@contextmanager
def slow_web() -> Iterator[int]:
    """The port of a web that answers any path with a picture after DELAY_S."""
    sink = io.BytesIO()
    Image.effect_noise((320, 240), 60).convert("RGB").save(sink, "JPEG")
    body = sink.getvalue()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            time.sleep(DELAY_S)
            self.send_response(200)
            self.send_header("Content-Type", "image/jpeg")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # its reader was killed
                self.wfile.write(body)

    with serving(Handler) as port:
        yield port


def write_list(path: Path, port: int) -> None:
    urls = [f"http://127.0.0.1:{port}/{i}.jpg" for i in range(ROWS)]
    captions = [f"picture {i}" for i in range(ROWS)]
    pq.write_table(pa.table({"url": urls, "caption": captions}), path)


def peer_command(python: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    options = {
        "url_list": str(folder / "list.parquet"),
        "input_format": "parquet",
        "caption_col": "caption",
        "output_folder": str(folder / "out"),
        "output_format": "webdataset",
        "image_size": 128,
        "processes_count": PROCESSES,
        "thread_count": 8,
        "number_sample_per_shard": ROWS_PER_SHARD,
        "timeout": 20,
    }
    (folder / "options.json").write_text(json.dumps(options))
    return [python, "-c", DRIVER, str(folder / "options.json")], QUIET


def our_command(folder: Path, port: int) -> tuple[list[str], dict[str, str]]:
    fetch = {
        "image_size": 128, "rows_per_shard": ROWS_PER_SHARD, "per_host": 8, "allow_private": True,
        "user_agent": "clipmill-benchmark/1.0 (+https://example.org/bot)", "robots_txt": False,
        "site_files": [], "allow_ports": [port],
    }  # fmt: skip
    source = {"kind": "table", "paths": [str(folder / "list.parquet")]}
    (folder / "recipe.json").write_text(
        json.dumps({"name": "killed", "source": source, "fetch": fetch})
    )
    command = console.program(["build", str(folder / "recipe.json")])
    return [*command, "--out", str(folder / "out"), "--until", "fetch"], {}


def children_of(process: int) -> list[int]:
    """Ids of all descendants of a process."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(stat.parent.name))
    descendants, waiting = [], [process]
    while waiting:
        children = parents.get(waiting.pop(), [])
        descendants += children
        waiting += children
    return descendants


def is_worker(process: int, who: str) -> bool:
    """Whether a process fetches shards: a child of img2dataset's pool, or a Ray actor of ours."""
    folder = Path(f"/proc/{process}")
    try:
        if who == "img2dataset":  # its logger is a child too: a worker has the tar of a shard open
            files = [os.readlink(handle) for handle in (folder / "fd").iterdir()]
            return any(file.endswith(".tar") for file in files)
        line = (folder / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return line.startswith("ray::Worker")  # the death of an agent ends its node


def written(folder: Path) -> dict[str, int]:
    """Shards and rows of an output folder: complete, and tars without a record."""
    shards = folder / "out" / "shards"
    out = shards if shards.is_dir() else folder / "out"
    complete = {path.name.removesuffix("_stats.json") for path in out.glob("*_stats.json")}
    tars = {path.stem for path in out.glob("*.tar")}
    names: Counter[str] = Counter()
    for tar in sorted(out.glob("*.tar")):
        if tar.stem in complete:
            for member in index_tar(str(tar)):
                if member.name.endswith(".txt"):
                    content = tar.read_bytes()[member.offset : member.offset + member.length]
                    names[content.decode()] += 1
    return {
        "complete_shards": len(complete),
        "rows": len(names),
        "rows_twice": sum(count > 1 for count in names.values()),
        "tars_without_a_record": len(tars - complete),
    }


def run_once(command: list[str], environment: dict[str, str], folder: Path, who: str, kill: bool):
    """How a run ended: {"ended", "status", "seconds", "killed"}; a hanging one is ended."""
    started = time.perf_counter()
    with open(folder / "log.txt", "ab") as log:
        child = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        killed = 0
        while child.poll() is None and time.perf_counter() - started < PATIENCE_S:
            time.sleep(0.05)
            if kill and not killed and written(folder)["complete_shards"] >= 1:
                workers = [p for p in children_of(child.pid) if is_worker(p, who)]
                if workers:
                    os.kill(workers[0], signal.SIGKILL)
                    killed = 1
        ended = child.poll() is not None
        seconds = round(time.perf_counter() - started, 1)
        if not ended:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return {"ended": ended, "status": child.returncode, "seconds": seconds, "killed": killed}


def worker_figures(peer_python: str, rounds: int, folder: Path) -> dict[str, Any]:
    """For each program: a run in peace, then runs in which a worker is killed, and the reruns."""
    figures: dict[str, Any] = {"rows": ROWS, "rows_per_shard": ROWS_PER_SHARD}
    figures["img2dataset"] = version_of(peer_python)
    with slow_web() as port:
        for who in ("img2dataset", "clipmill"):
            trials = []
            for number in range(rounds + 1):
                trial_folder = folder / f"{who}-{number}"
                trial_folder.mkdir(parents=True)
                write_list(trial_folder / "list.parquet", port)
                command, environment = (
                    peer_command(peer_python, trial_folder)
                    if who == "img2dataset"
                    else our_command(trial_folder, port)
                )
                first = run_once(command, environment, trial_folder, who, kill=number > 0)
                trial = {"first": {**first, **written(trial_folder)}}
                if number > 0:
                    again = run_once(command, environment, trial_folder, who, kill=False)
                    trial["again"] = {**again, **written(trial_folder)}
                trials.append(trial)
                print(who, json.dumps(trial), flush=True)
            figures[f"runs of {who}"] = {"in peace": trials[0], "worker killed": trials[1:]}
    return figures


# --- docs/reliability.md --------------------------------------------------------------------------


def damage_table(results: dict[str, Any]) -> list[str]:
    """Outcomes by kind of file, and the malformed tars."""
    damages_ = results["damages"]
    outcomes = ("noticed", "refused", "harmless", "note", "silent")
    lines = ["| file | damages | noticed | refused | harmless | note | silent |"]
    lines.append("|---|" + "---:|" * 6)
    total: Counter[str] = Counter()
    for name, counts in damages_["by_file"].items():
        total.update(counts)
        cells = " | ".join(str(counts.get(outcome, 0)) for outcome in outcomes)
        lines.append(f"| {name} | {sum(counts.values())} | {cells} |")
    cells = " | ".join(f"**{total[outcome]}**" for outcome in outcomes)
    lines += [f"| **all** | **{total.total()}** | {cells} |", ""]
    lines += ["| a tar that is | cases | webdataset raises | loses or alters samples silently |"]
    lines += ["|---|---:|---:|---:|"]
    for name, counts in results["damaged_tars"].items():
        lines.append(f"| {name} | {counts['cases']} | {counts['raised']} | {counts['silent']} |")
    lines += ["", "Twenty malformed tars, read for the first time:", ""]
    lines += ["| tar | webdataset, strict | clipmill, `source.kind: shards` |", "|---|---|---|"]
    noticed = [0, 0]
    for name, each in results["malformed_tars"].items():
        theirs, ours = each["webdataset"]["error"], each["clipmill"]["says"]
        noticed[0] += bool(theirs)
        noticed[1] += bool(ours)
        lines.append(f"| {name} | {_cell(theirs, each['webdataset'])} | {_cell(ours)} |")
    lines.append(f"| **noticed** | **{noticed[0]} of 20** | **{noticed[1]} of 20** |")
    return lines


def _cell(text: str, reader: dict[str, Any] | None = None) -> str:
    if not text and reader is not None:
        return f"nothing ({reader['samples']} samples)"
    return text.replace("|", "/") or "nothing"


def worker_table(results: dict[str, Any]) -> list[str]:
    """What each run left."""
    figures = results["killed_workers"]
    lines = [
        "| program | run | ended | s | complete shards | rows | tars of no record | rows twice |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for who in ("img2dataset", "clipmill"):
        runs = figures[f"runs of {who}"]
        listed = [("in peace", runs["in peace"]["first"])]
        for number, trial in enumerate(runs["worker killed"], 1):
            listed += [(f"worker killed, {number}", trial["first"]), ("again", trial["again"])]
        for title, run in listed:
            ended = f"status {run['status']}" if run["ended"] else f"hung; ended after {PATIENCE_S}"
            cells = [run["seconds"], run["complete_shards"], run["rows"]]
            cells += [run["tars_without_a_record"], run["rows_twice"]]
            lines.append(f"| {who} | {title} | {ended} | {' | '.join(map(str, cells))} |")
    lines.append("")
    lines.append(f"{figures['rows']} rows, {figures['rows_per_shard']} a shard; img2dataset ")
    lines[-1] += f"{figures['img2dataset']}, Python {results['python']}."
    return lines


def write_docs(what: str, lines: list[str]) -> None:
    """Put a table between its marks."""
    path = ROOT / "docs/reliability.md"
    begin, end = f"<!-- written by benchmarks/orchestration/chaos.py {what} -->", "<!-- end -->"
    before, _, rest = path.read_text().partition(begin)
    after = rest.partition(end)[2]
    path.write_text("\n".join([before + begin, *lines, end + after]))


def kill_figures(log: Path) -> list[dict[str, Any]]:
    """The lines of a log of the tests that tell of kill points."""
    lines = [line[line.find("{") :] for line in log.read_text().splitlines() if "scenario" in line]
    figures = [json.loads(line) for line in lines if line.endswith("}")]
    return sorted(figures, key=lambda each: str(each["scenario"]))


def kill_table(results: dict[str, Any]) -> list[str]:
    """Kill points by scenario."""
    keys = ("calls", "points", "wrong")
    lines = ["| command | calls | killed at | not as undisturbed |"]
    lines.append("|---|---:|---:|---:|")
    total: Counter[str] = Counter()
    for each in results["kills"]:
        total.update({key: each[key] for key in keys})
        cells = " | ".join(str(each[key]) for key in keys)
        lines.append(f"| {each['scenario'].replace('_', ' ')} | {cells} |")
    cells = " | ".join(f"**{total[key]}**" for key in keys)
    return [*lines, f"| **all** | {cells} |"]


# --- the command ----------------------------------------------------------------------------------


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["damage", "workers", "kills"])
    parser.add_argument("--count", type=int, default=3000, help="random damages")
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--rounds", type=int, default=3, help="runs with a killed worker")
    parser.add_argument("--peer-python", help="an interpreter that has img2dataset")
    parser.add_argument("--log", type=Path, help="what make chaos printed")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/damage.json")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    with tempfile.TemporaryDirectory(prefix="clipmill-chaos-") as name:
        if args.what == "damage":
            results |= damage_figures(args.count, args.seed, Path(name))
            results["damage_command"] = (
                f"benchmarks/orchestration/chaos.py damage --seed {args.seed}"
            )
        elif args.what == "kills":
            if args.log is None:
                raise SystemExit("error: --log is missing")
            results["kills"] = kill_figures(args.log)
        else:
            if args.peer_python is None:
                raise SystemExit("error: --peer-python is missing")
            results["killed_workers"] = worker_figures(args.peer_python, args.rounds, Path(name))
    results["python"] = platform.python_version()
    args.out.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    tables = {"damage": damage_table, "workers": worker_table, "kills": kill_table}
    write_docs(args.what, tables[args.what](results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
