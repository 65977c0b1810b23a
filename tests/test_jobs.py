"""The commands of the README as Ray jobs, against a local head with token authentication."""

from __future__ import annotations

import csv
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
pytestmark = [pytest.mark.ray, pytest.mark.slow]

RECIPE = """
name: tiny
source: {{kind: files, paths: [{captions}]}}
fetch: {{image_size: 32, rows_per_shard: 20}}
filters: [tokens, caption]
views:
  raw: []
  long: [{{words: caption_words > 3}}]
"""

ABLATION = """
name: tiny
question: Do longer captions help?
pools: {{web: {{recipe: tiny.yaml, out: {pool}}}}}
arms: {{raw: web/raw, long: web/long}}
baseline: raw
seeds: [0, 1]
train: {{model: test, samples_seen: 128, batch_size: 16, lanes: 8, warmup: 2, precision: fp32}}
evaluate: [{{name: shades, kind: classification, data: {eval}}}]
primary: shades
"""


@dataclass(frozen=True, slots=True)
class Head:
    """A running head: where jobs are sent, and the environment that is allowed to send them."""

    address: str
    environment: dict[str, str]

    def submit(self, *words: str, token: bool = True) -> subprocess.CompletedProcess[str]:
        environment = dict(self.environment)
        if not token:
            environment["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        command = [str(BIN / "ray"), "job", "submit", "--address", self.address, *words]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
        )


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    # A socket's path has at most 107 characters
    folder = tempfile.mkdtemp(prefix="mill-", dir="/tmp")
    port = free_port()
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "CLIPMILL_"))},
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    start = (
        "start --head --block --port=0 --num-cpus=2 --include-dashboard=true --disable-usage-stats "
    )
    start += "--node-ip-address=127.0.0.1 --dashboard-host=127.0.0.1 "
    start += f"--dashboard-port={port} --temp-dir={folder} "
    start += f"--object-store-memory={128 * 2**20} --dashboard-agent-listen-port={free_port()}"
    with open(Path(folder) / "head.log", "wb") as log:
        process = subprocess.Popen(
            [str(BIN / "ray"), *start.split()],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 90
        while True:
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, (Path(folder) / "head.log").read_text()
            assert time.monotonic() < deadline, "the head did not start within 90 s"
            time.sleep(0.5)
        cluster = Head(f"http://127.0.0.1:{port}", environment)
        # The agent that takes jobs comes up last
        while (done := cluster.submit("--no-wait", "--", "true")).returncode:
            assert "No available agent" in done.stderr, done.stderr
            assert time.monotonic() < deadline, "no agent took a job within 90 s"
            time.sleep(1)
        yield cluster
    finally:
        # Its own process group: nobody else's Ray is touched
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(5)  # it closes no earlier while an agent of a job is alive
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    with open(folder / "captions.csv", "w", newline="") as f:
        table = csv.writer(f)
        table.writerow(["file", "caption"])
        for i in range(48):
            Image.new("RGB", (32, 32), (5 * i, 250 - 5 * i, 90)).save(folder / f"{i}.jpg")
            table.writerow([f"{i}.jpg", f"a shade of number {i}" if i % 2 else "a shade"])
    for i, name in enumerate(("dark", "light")):
        (folder / "eval" / name).mkdir(parents=True)
        Image.new("RGB", (32, 32), (0, 200 * i, 7)).save(folder / "eval" / name / "0.png")
    (folder / "tiny.yaml").write_text(RECIPE.format(captions=folder / "captions.csv"))
    (folder / "ablation.yaml").write_text(
        ABLATION.format(pool=folder / "pool", eval=folder / "eval")
    )
    return folder


def test_a_script_by_its_path_alone(head: Head, work: Path) -> None:
    variables = {"CLIPMILL_RECIPE": str(work / "tiny.yaml"), "CLIPMILL_OUT": str(work / "bare")}
    done = head.submit(
        "--runtime-env-json", json.dumps({"env_vars": variables}), "pipeline/build.py"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((work / "bare" / "tiny" / "pool.json").read_text())["fetch"]["stored"] == 48


def test_every_stage_as_a_job_of_a_submitted_folder(head: Head, work: Path) -> None:
    pool, recipe = str(work / "pool"), str(work / "tiny.yaml")
    for words in (
        ["python", "pipeline/build.py", recipe, "--out", pool, "--until", "fetch"],
        ["python", "pipeline/score.py", pool, "--recipe", recipe],
        ["python", "pipeline/filter.py", pool, "--recipe", recipe],
        [
            "python",
            "train/ablate.py",
            str(work / "ablation.yaml"),
            "--out",
            str(work / "ablation"),
            "--engine",
            "ray",
        ],
    ):
        done = head.submit("--working-dir", ".", "--", *words)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    assert json.loads((work / "pool" / "views" / "long.json").read_text())["kept"] == 24
    arms = json.loads((work / "ablation" / "results.json").read_text())["arms"]
    assert set(arms) == {"raw", "long"}


def test_a_relative_folder_of_a_job_is_refused(head: Head, work: Path) -> None:
    done = head.submit(
        "--working-dir",
        ".",
        "--",
        "python",
        "pipeline/build.py",
        str(work / "tiny.yaml"),
        "--out",
        "here",
    )
    assert done.returncode != 0
    assert "lies in Ray's temporary copy" in done.stdout + done.stderr


def test_a_job_without_the_token_is_refused(head: Head, work: Path) -> None:
    done = head.submit("pipeline/build.py", token=False)
    assert done.returncode != 0
    assert "401" in done.stdout + done.stderr or "auth" in (done.stdout + done.stderr).lower()
