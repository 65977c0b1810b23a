"""The two programs that benchmarks/fetching/fetch.py compares: what each is given, how it is
started, what it used.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.fetching import static_web
from clipmill.manifests import console
from clipmill.pipeline.external.img2dataset import DRIVER, QUIET

# With its defaults it reads EXIF, which ours does only when asked: for comparison, no bar.
DEFAULTS = "img2dataset, its defaults"
PICTURE = {
    "image_size": 256,
    "resize_mode": "keep_ratio",
    "resize_only_if_bigger": True,
    "encode_quality": 95,
}
SAME = {
    **PICTURE,
    "skip_reencode": True,
    "extract_exif": False,
    "compute_hash": "sha256",
    "retries": 0,
}
PEERS = {"img2dataset": 1, "img2dataset, 2 processes": 2, DEFAULTS: 1}  # processes of each
OURS = "clipmill"
LIMIT_S = 1800.0
DEADLINE_S = 300  # of an image: what is counted is CPU, and a busy machine fails nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is fetched. Counts are shares of --count; the bar is about `goal_of`."""

    title: str
    kind: str  # small, large
    tls: bool = False
    raw: bool = False
    share: float = 1.0
    peer_share: float = 1.0
    peers: tuple[str, ...] = tuple(PEERS)
    goal: float
    goal_of: str  # cpu: ratio of CPU per picture, at most; rate: our pictures per second, at least


CASES = {
    "photographs": Case(
        title="photographs as they are, http, to 256", kind="small", goal=0.65, goal_of="cpu"
    ),
    "large": Case(
        title="3 megapixels, http, to 256",
        kind="large",
        share=0.25,
        peer_share=0.25,
        goal=0.40,
        goal_of="cpu",
    ),
    "raw": Case(
        title="https, bytes as they come, one process",
        kind="small",
        tls=True,
        raw=True,
        peer_share=0.125,
        peers=("img2dataset",),
        goal=1000,
        goal_of="rate",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one program."""

    pictures: int
    stored: int
    wall_s: float
    cpu_s: float
    # img2dataset's own account: from the start of its first shard to the end of its last
    busy_s: float | None = None


def measured(command: list[str], environment: dict[str, str], log: Path) -> tuple[float, float]:
    """Wall and CPU seconds of a command and its descendants. RuntimeError with its last words where
    it fails.
    """
    with open(log, "wb") as out:
        started = time.perf_counter()
        child = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        alarm = threading.Timer(LIMIT_S, os.killpg, (child.pid, signal.SIGKILL))
        alarm.start()
        try:
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            wall_s = time.perf_counter() - started
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
        finally:
            alarm.cancel()
    if child.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command[:3])} ended with {child.returncode}: {log.read_text()[-1500:]}"
        )
    return wall_s, used.ru_utime + used.ru_stime


def ours(web: static_web.Web, case: Case, count: int, threads: int, folder: Path) -> Run:
    """Our route over `count` URLs; the pool is left in folder/pool."""
    urls = web.urls(case.kind, count, tls=case.tls)
    pq.write_table(
        pa.table({"url": urls, "caption": [f"picture {i}" for i in range(count)]}),
        folder / "list.parquet",
    )
    fetch = {
        **SAME,
        "disable_all_reencoding": case.raw,
        "rows_per_shard": shard_rows(count),
        "concurrency": threads,
    }
    fetch |= {
        "user_agent": "clipmill-benchmark/1.0 (+https://example.org/bot)",
        "allow_private": True,
        "deadline_s": DEADLINE_S,
    }
    fetch |= {
        "allow_ports": [web.http, web.https],
        "robots_txt": False,
        "site_files": [],
        "per_host": threads,
    }
    recipe = {
        "name": "bench",
        "source": {"kind": "table", "paths": [str(folder / "list.parquet")]},
        "fetch": fetch,
    }
    (folder / "recipe.json").write_text(json.dumps(recipe))
    command = console.program(["build", str(folder / "recipe.json")])
    command += ["--out", str(folder / "pool"), "--engine", "inline"]
    environment = {"SSL_CERT_FILE": str(web.bundle)}
    measured([*command, "--until", "crawl"], environment, folder / "log.txt")
    wall_s, cpu_s = measured([*command, "--until", "fetch"], environment, folder / "log.txt")
    records = [
        json.loads(path.read_text()) for path in (folder / "pool/shards").glob("*_stats.json")
    ]
    return Run(
        pictures=count, stored=sum(r["successes"] for r in records), wall_s=wall_s, cpu_s=cpu_s
    )


def peer(web: static_web.Web, case: Case, count: int, args: Any, folder: Path, name: str) -> Run:
    """img2dataset over `count` URLs; its shards are left in folder/out."""
    processes, threads, python = PEERS[name], args.threads, args.peer_python
    urls = web.urls(case.kind, count, tls=case.tls)
    pq.write_table(
        pa.table({"url": urls, "caption": [f"picture {i}" for i in range(count)]}),
        folder / "list.parquet",
    )
    options = {**SAME, "disable_all_reencoding": case.raw, "url_list": str(folder / "list.parquet")}
    options |= {
        "input_format": "parquet",
        "caption_col": "caption",
        "output_folder": str(folder / "out"),
    }
    options |= {
        "output_format": "webdataset",
        "processes_count": processes,
        "thread_count": threads,
        "timeout": DEADLINE_S,
    }
    options |= {"number_sample_per_shard": 1 if count <= processes else shard_rows(count)}
    options |= {"extract_exif": name == DEFAULTS}
    options |= {"disallowed_header_directives": ["noai", "noimageai", "noindex", "noimageindex"]}
    (folder / "options.json").write_text(json.dumps(options))
    environment = {**QUIET, "SSL_CERT_FILE": str(web.bundle)}
    command = [python, "-c", DRIVER, str(folder / "options.json")]
    wall_s, cpu_s = measured(command, environment, folder / "log.txt")
    records = [json.loads(path.read_text()) for path in (folder / "out").glob("*_stats.json")]
    busy_s = max(r["end_time"] for r in records) - min(r["start_time"] for r in records)
    stored = sum(r["successes"] for r in records)
    return Run(pictures=count, stored=stored, wall_s=wall_s, cpu_s=cpu_s, busy_s=busy_s)


def shard_rows(count: int) -> int:
    """Two shards: one for each process of img2dataset's."""
    return max(1, min(10_000, math.ceil(count / 2)))


def program(name: str, web: static_web.Web, case: Case, count: int, args: Any, folder: Path) -> Run:
    folder.mkdir(parents=True)
    if name == OURS:
        run = ours(web, case, count, args.concurrency, folder)
    else:
        run = peer(web, case, count, args, folder, name)
    if run.stored != run.pictures:
        raise RuntimeError(
            f"{name} stored {run.stored} of {run.pictures}: "
            f"{(folder / 'log.txt').read_text()[-1500:]}"
        )
    return run
