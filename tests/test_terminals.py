"""A build where nobody looks: stderr closed, a dumb or narrow terminal, nohup, a pipe whose reader
has ended, and a watcher beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from clipmill.manifests import console
from tests.support.terminals import terminal

pytestmark = pytest.mark.slow
RECIPE = """
name: small
source: {kind: image_folder, paths: [images], captions: m.csv, file_column: f, caption_column: t}
fetch: {image_size: 32, rows_per_shard: 5}
filters: [caption]
views: {all: []}
"""
WAIT_S = 1800  # for a build beside thirty busy processes, which takes over 300 s
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
    done = subprocess.run(["sh", "-c", shell, "sh", *command], cwd=folder, timeout=WAIT_S)
    assert done.returncode == 0
    check_complete(folder, "pool")


def test_a_build_in_a_pipe_whose_reader_has_ended(folder: Path) -> None:
    script = 'set -o pipefail; "$@" 2>&1 | head -c 1 >/dev/null'
    command = ["bash", "-c", script, "bash", *BUILD, "--out", "pool", "--json"]
    # Without buffers the first line that nobody reads would end the build, with status 141.
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_S
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
            timeout=WAIT_S,
        )
        text = shown.text()
    assert done.returncode == 0
    assert ("\x1b[" in text) == (term == "xterm")
    assert "Traceback" not in text
    check_complete(folder, "pool")
