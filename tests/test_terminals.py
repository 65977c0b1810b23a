"""A build where nobody looks: stderr closed, a dumb or narrow terminal, nohup, a pipe whose reader
has ended, and a watcher beside it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from manifests import console
from tests.support.terminals import terminal

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow
RECIPE = """
name: small
source: {kind: image_folder, paths: [images], captions: m.csv, file_column: f, caption_column: t}
fetch: {image_size: 32, rows_per_shard: 5}
filters: [caption]
views: {all: []}
"""
BUILD = console.program(["build", "recipe.yaml", "--engine", "inline"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    rows = ["f,t"]
    for number in range(20):
        Image.new("RGB", (40, 40), (9 * number, 0, 0)).save(tmp_path / f"images/{number}.jpg")
        rows.append(f"{number}.jpg,dog")
    (tmp_path / "images/m.csv").write_text("\n".join(rows))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def check_complete(folder: Path, out: str) -> None:
    totals = json.loads((folder / out / "pool.json").read_text())
    assert totals["complete"]
    assert totals["fetch"]["stored"] == 20


@pytest.mark.parametrize(
    "shell",
    [
        'exec "$@" 2>&-',
        'exec "$@" 0<&- 1>&- 2>&-',
        'exec nohup "$@" </dev/null >nohup.log 2>&1',
        'exec "$@" 2>/dev/full',
    ],
)
def test_a_build_ends_well_whatever_its_streams_are(folder: Path, shell: str) -> None:
    command = [*BUILD, "--out", "pool", "--json"]
    done = subprocess.run(["sh", "-c", shell, "sh", *command], cwd=folder, timeout=300)
    assert done.returncode == 0
    check_complete(folder, "pool")


def test_a_build_in_a_pipe_whose_reader_has_ended(folder: Path) -> None:
    script = 'set -o pipefail; "$@" 2>&1 | head -c 1 >/dev/null'
    command = ["bash", "-c", script, "bash", *BUILD, "--out", "pool", "--json"]
    # Without buffers the first line that nobody reads would end the build, with status 141.
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    check_complete(folder, "pool")


@pytest.mark.parametrize(("term", "columns"), [("xterm", 20), ("dumb", 80)])
def test_a_build_on_a_narrow_and_on_a_dumb_terminal(folder: Path, term: str, columns: int) -> None:
    environment = {**os.environ, "TERM": term}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    with terminal(columns) as shown:
        done = subprocess.run(
            [*BUILD, "--out", "pool"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=shown.stream,
            timeout=300,
        )
        text = shown.text()
    assert done.returncode == 0
    assert ("\x1b[" in text) == (term == "xterm")
    assert "Traceback" not in text
    check_complete(folder, "pool")


SLOW_STAGE = """
import sys, time
from pipeline.executor.stage import execute
from pipeline.executor.tickets import Stage, Ticket
from pipeline.pool.lease import hold_lease
from pipeline.progress.view import shown_progress
from tests.test_terminals import sleeping

with hold_lease("pool", create=True), shown_progress("pool"):
    tickets = [Ticket(id=f"t{i}", group=str(i)) for i in range(1000)]
    execute(Stage(name="slow", work=sleeping), tickets, engine="inline")
"""


def sleeping(config: object) -> object:
    def work(ticket: object) -> dict[str, int]:
        time.sleep(0.2)
        return {}

    return work


def test_a_killed_command_is_told_by_a_watcher_beside_it(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writer = subprocess.Popen(
        [sys.executable, "-c", SLOW_STAGE],
        cwd=folder,
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        ends = time.monotonic() + 120
        while not (folder / "pool/progress.json").exists() and time.monotonic() < ends:
            time.sleep(0.1)
        watcher = subprocess.Popen(
            console.program(["audit", "watch", "pool", "--json"]),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(5)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait(30)
    output, errors = watcher.communicate(timeout=120)
    assert watcher.returncode == 3, errors
    *lines, last = output.splitlines()
    assert re.match(r"slow: \d+ of 1,000 tasks", lines[0])
    assert lines[-1].endswith("was killed; what is committed stays: run it again to resume")
    state = json.loads(last)["state"]
    assert state["pid"] == writer.pid
    assert (folder / "pool/lease.json").exists()
