"""Builds on an embedded Ray whose processes are killed at random, or lose their terminal, and
tickets that need more memory than there is.

Two kills in each run of the tests; twenty where CLIPMILL_CHAOS is set. Kills without Ray, at every
single write, are in tests/chaos; workers that are killed are in tests/pipeline/executor too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout
from tests.support import commands
from tests.support.commit_records import read_commit_records
from tests.support.loopback_server import serving
from tests.support.memory_limits import memory_group
from tests.support.processes import MARK, is_alive, marked, new_mark, parent_of
from tests.support.trials import EVERYWHERE

pytestmark = [pytest.mark.ray, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[1]
KILLS = 20 if EVERYWHERE else 2
VICTIMS = ("driver", "raylet", "worker", "gcs")
RAYLET = "ray/raylet/raylet"
GCS = "gcs/gcs_server"
ROWS, HOSTS, SHARDS = 96, 12, 12
# A host is asked four times a second, so that a kill hits shards that are being fetched.
RECIPE = """
name: kills
source: {kind: table, paths: [pairs.csv], url_column: url, caption_column: caption}
fetch:
  user_agent: "clipmilltest/1.0 (+http://clipmill.example/bot)"
  image_size: 32
  rows_per_shard: 8
  per_host: 1
  delay_s: 0.25
  robots_txt: false
  site_files: []
  allow_private: true
  connect_to: {"*.kills.test": "127.0.0.1:PORT"}
filters: [tokens, caption]
views:
  all: []
  long: [{words: caption_words > 3}]
"""


@contextlib.contextmanager
def small_web() -> Iterator[int]:
    """The port of a web that draws an image for any path /N.jpg."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            number = int(re.findall(r"\d+", self.path)[-1])
            body = io.BytesIO()
            Image.new("RGB", (40, 40), (number, 255 - number, 90)).save(body, "JPEG")
            self.send_response(200)
            self.send_header("Content-Type", "image/jpeg")
            self.send_header("Content-Length", str(body.tell()))
            self.end_headers()
            self.wfile.write(body.getvalue())

    with serving(Handler) as port:
        yield port


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A recipe over 96 images in 12 shards, and a pool of it that nothing disturbed."""
    folder = tmp_path_factory.mktemp("kills")
    lines = ["url,caption"]
    for row in range(ROWS):
        caption = f"a shade of number {row}" if row % 2 else f"shade {row}"
        lines.append(f"http://h{row % HOSTS}.kills.test/{row}.jpg,{caption}")
    (folder / "pairs.csv").write_text("\n".join(lines) + "\n")
    with small_web() as port:
        text = RECIPE.replace("PORT", str(port))
        (folder / "recipe.yaml").write_text(text)
        (folder / "quick.yaml").write_text(text.replace("delay_s: 0.25", "delay_s: 0.0"))
        words = [str(folder / "quick.yaml"), "--out", str(folder / "undisturbed")]
        assert commands.build([*words, "--engine", "inline"]) == 0
        assert contents(folder / "undisturbed")["fetch"]["stored"] == ROWS
        yield folder / "recipe.yaml"


def contents(pool: Path) -> dict[str, Any]:
    """What must not depend on kills: hashes of the shards, counts, scores and views."""
    document = disk.read_json(PoolLayout(pool).pool_json)
    records = read_commit_records(str(pool)).values()
    keys = ("complete", "crawl", "fetch", "scores", "views", "problems")
    return {
        "shards": [(r.tar, r.tar_sha256, r.sidecar_sha256) for r in records],
        **{key: document[key] for key in keys},
    }


def command(recipe: Path, pool: Path) -> list[str]:
    words = [sys.executable, "pipeline/build.py", str(recipe), "--out", str(pool)]
    return [*words, "--engine", "ray"]


def start_build(recipe: Path, pool: Path, mark: str) -> subprocess.Popen[bytes]:
    with open(f"{pool}.log", "ab") as log:
        return subprocess.Popen(
            command(recipe, pool),
            cwd=ROOT,
            env={**os.environ, MARK: mark},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def workers_of(raylet: int) -> list[int]:
    """Actors of a raylet. Their titles overwrite their environment, so the mark does not help."""
    ids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            title = (folder / "cmdline").read_bytes()
            if title.startswith(b"ray::Worker") and parent_of(int(folder.name)) == raylet:
                ids.append(int(folder.name))
    return sorted(ids)


def victims(kind: str, mark: str, driver: int) -> list[int]:
    """The processes of one kind that a build has now."""
    if kind == "driver":
        return [driver]
    if kind == "gcs":
        return marked(mark, GCS)
    raylets = marked(mark, RAYLET)
    if kind == "raylet" or not raylets:
        return raylets
    return workers_of(raylets[0])


def wait_for_worker(mark: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a worker of a build is there."""
    until = time.monotonic() + 400
    while not victims("worker", mark, process.pid):
        assert process.poll() is None, "the build ended without a worker"
        assert time.monotonic() < until, "no worker started within 400 s"
        time.sleep(0.05)


def kill_one(
    kind: str, mark: str, process: subprocess.Popen[bytes], pool: Path, rng: random.Random
) -> int:
    """Kill a process of a running build, a moment after a random number of its shards are there:
    at 0 the crawl may run still. Returns that number.
    """
    wait_for_worker(mark, process)
    wanted = rng.randrange(SHARDS)
    pause = rng.uniform(0, 0.5)
    while len(list((pool / "shards").glob("*_stats.json"))) < wanted:
        assert process.poll() is None, "the build ended without its shards"
        time.sleep(0.05)
    time.sleep(pause)
    while True:
        assert process.poll() is None, "the build ended before the kill"
        if ids := victims(kind, mark, process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(ids), signal.SIGKILL)
                return wanted
        time.sleep(0.05)


def wait_for_end(mark: str, folders: set[str]) -> None:
    """Wait until no process of a build is left, then remove what a killed driver left of Ray."""
    until = time.monotonic() + 900
    while left := [process for process in marked(mark) if is_alive(process)]:
        assert time.monotonic() < until, f"processes are left: {left}"
        time.sleep(0.2)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def ray_folders(mark: str) -> set[str]:
    """Folders of the Ray that a build has embedded."""
    folders = set()
    for process in marked(mark, RAYLET):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{process}/cmdline").read_bytes().decode()
            folders.update(re.findall(r"/tmp/mill-\w+", line))
    return folders


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_process_of_ray_changes_nothing(recipe: Path, tmp_path: Path, seed: int) -> None:
    rng, kind = random.Random(seed), VICTIMS[seed % len(VICTIMS)]
    pool, mark = tmp_path / "pool", new_mark()
    process = start_build(recipe, pool, mark)
    try:
        wait_for_worker(mark, process)
        folders = ray_folders(mark)
        shards = kill_one(kind, mark, process, pool, rng)
        killed_at = time.monotonic()
        statuses = [process.wait(900)]
        ended_s = round(time.monotonic() - killed_at, 1)
        wait_for_end(mark, folders)
        left_s = round(time.monotonic() - killed_at, 1)
        if statuses[-1] != 0:
            words = [str(recipe.parent / "quick.yaml"), "--out", str(pool), "--engine", "inline"]
            statuses.append(commands.build(words))
    finally:
        process.kill()
        process.wait()
    same = contents(pool) == contents(recipe.parent / "undisturbed")
    line = {"kill": seed, "of": kind, "after_shards": shards, "statuses": statuses}
    line |= {"ended_s": ended_s, "processes_ended_s": left_s, "same": same}
    print(f"\n{json.dumps(line)}", flush=True)
    assert same
    expected = {"worker": [0], "driver": [-signal.SIGKILL, 0], "raylet": [3, 0]}
    assert statuses == expected.get(kind, statuses)
    assert statuses[-1] == 0


# --- a closed terminal ----------------------------------------------------------------------------


def test_a_build_whose_terminal_is_closed_ends_with_its_ray(recipe: Path, tmp_path: Path) -> None:
    """The kernel sends SIGHUP to every process of the terminal, those of Ray too."""
    pool, mark = tmp_path / "pool", new_mark()
    master, slave = pty.openpty()
    with subprocess.Popen(
        ["setsid", "--ctty", *command(recipe, pool)],  # the terminal becomes its own
        cwd=ROOT,
        env={**os.environ, MARK: mark},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    ) as process:
        os.close(slave)
        os.set_blocking(master, False)
        until = time.monotonic() + 400
        while not (ray := marked(mark, RAYLET)) or not workers_of(ray[0]):
            with contextlib.suppress(BlockingIOError):
                os.read(master, 1 << 20)  # a terminal that nobody reads would stop the build
            assert process.poll() is None, "the build ended without a worker"
            assert time.monotonic() < until
            time.sleep(0.05)
        os.close(master)
        status = process.wait(900)
    assert status == 128 + signal.SIGHUP
    wait_for_end(mark, set())
    words = [str(recipe.parent / "quick.yaml"), "--out", str(pool), "--engine", "inline"]
    assert commands.build(words) == 0
    assert contents(pool) == contents(recipe.parent / "undisturbed")


# --- memory ---------------------------------------------------------------------------------------

BOMB = """
import json, pathlib, sys
from clipmill.manifests import console, ray_runtime
from clipmill.pipeline.executor import tickets as outcomes
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Stage, Ticket
from tests.support.bombs import hungry

def main():
    outcomes.RETRY_PAUSE_S = 0.1
    ray_runtime.connect(cpus=2)
    tickets = [Ticket(id=f"{i:05d}", group=str(i % 6), payload=i == 7) for i in range(24)]
    done = []
    stage = Stage(name="fetch", work=hungry)
    report = execute(stage, tickets, engine="ray", on_done=lambda name, _: done.append(name))
    result = json.dumps({"done": sorted(done), "failed": report.failed})
    pathlib.Path(sys.argv[1]).write_text(result)  # Ray prints to stdout too
    return 0

console.start_logging()
raise SystemExit(console.run_command(main))
"""
GROUP_BYTES = 3 * 2**30


@pytest.mark.parametrize("by", ["kernel", "ray"] if EVERYWHERE else ["kernel"])
def test_a_ticket_that_takes_all_memory_ends_alone(by: str, tmp_path: Path) -> None:
    """The kernel kills its worker twice; Ray's monitor, which looks at memory four times a second,
    kills it six times, as it may be the victim of another process.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    if by == "kernel":
        environment["RAY_memory_monitor_refresh_ms"] = "0"
    else:
        environment["RAY_memory_usage_threshold"] = "0.7"
    with memory_group(GROUP_BYTES) as group:
        if group is None:
            pytest.skip("no control group can be made here")
        words = [sys.executable, "-c", BOMB, str(tmp_path / "ended.json")]
        if by == "ray":  # it looks where the control group of a container is
            script = f'mount --bind {group.folder} {group.folder.parent} && exec "$@"'
            words = ["unshare", "--mount", "sh", "-c", script, "sh", *words]
        done = subprocess.run(
            group.command(words),
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        kills = group.kills()
    assert done.returncode == 0, done.stderr[-4000:]
    ended = json.loads((tmp_path / "ended.json").read_text())
    assert ended["done"] == [f"{i:05d}" for i in range(24) if i != 7]
    assert list(ended["failed"]) == ["00007"]
    message = ended["failed"]["00007"]
    lines = [line for line in done.stderr.splitlines() if "stage fetch: 00007" in line]
    print(json.dumps({"bomb": by, "kernel_kills": kills, "lines": lines, "message": message}))
    assert message.startswith("the worker died: ")
    if by == "kernel":
        assert kills == 2
        assert "failed in try 2 of 2: the worker died" in lines[-1]
    else:
        assert "was lost in try 6 of 6: the worker died" in lines[-1]
        assert "memory" in message
