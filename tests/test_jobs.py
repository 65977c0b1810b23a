"""The commands of the README as Ray jobs, against a local head with token authentication."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from clipmill.manifests import console
from tests.support.clusters import (
    Cluster,
    ray_environment,
    running_cluster,
    skip_without_ray_start,
)
from tests.support.machines import loopback_machine
from tests.support.processes import MARK, marked, new_mark
from tests.support.slurm import write_stand_ins
from tests.support.trials import EVERYWHERE

ROOT = Path(__file__).resolve().parents[1]
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


@pytest.fixture(scope="module")
def head() -> Iterator[Cluster]:
    machine = loopback_machine("head")
    try:
        with running_cluster(machine, head_cpus=2, head_cwd=str(ROOT)) as cluster:
            yield cluster
    finally:
        machine.end()


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
        ABLATION.format(pool=folder / "tiny", eval=folder / "eval")
    )
    return folder


def test_a_script_by_its_path_alone_and_an_ablation_of_a_submitted_folder(
    head: Cluster, work: Path
) -> None:
    """A job for each stage is in test_nodes.py."""
    variables = {"CLIPMILL_RECIPE": str(work / "tiny.yaml"), "CLIPMILL_OUT": str(work)}
    runtime = json.dumps({"env_vars": variables})
    ablation = ["train/ablate.py", str(work / "ablation.yaml"), "--out", str(work / "ablation")]
    for words in (
        ["--runtime-env-json", runtime, "pipeline/build.py"],
        ["--working-dir", ".", "--", "python", *ablation, "--engine", "ray"],
    ):
        done = head.submit(*words)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    document = json.loads((work / "tiny" / "pool.json").read_text())
    assert (document["fetch"]["stored"], document["complete"]) == (48, True)
    assert json.loads((work / "tiny" / "views" / "long.json").read_text())["kept"] == 24
    table = pq.read_table(work / "ablation" / "measurements.parquet", columns=["arm"])
    assert set(table["arm"].to_pylist()) == {"raw", "long"}


def test_a_job_without_the_token_is_refused(head: Cluster, work: Path) -> None:
    done = head.submit("pipeline/build.py", token=False)
    assert done.returncode != 0
    assert "401" in done.stdout + done.stderr or "auth" in (done.stdout + done.stderr).lower()


# --- Slurm ----------------------------------------------------------------------------------------


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """An environment with stand-ins for Slurm's commands, and a job id of its own."""
    environment = ray_environment()
    stand_ins = write_stand_ins(tmp_path / "slurm")
    environment["PATH"] = f"{stand_ins}:{environment['PATH']}"
    environment["SLURM_TEST_LOG"] = str(tmp_path / "slurm.log")
    environment["SLURM_TEST_JOB"] = str(os.getpid())
    return environment


def test_a_job_without_a_command_is_refused(slurm: dict[str, str]) -> None:
    without = subprocess.run(
        ["sbatch", "cluster/slurm.sh"], cwd=ROOT, env=slurm, capture_output=True, text=True
    )
    assert without.returncode == console.EXIT_MISTAKE
    assert "the command is missing" in without.stderr


# The last command of a job, and the status of the job: of a stop, or of that command.
ENDS = [("sleep 600", 143), ("clipmill build none.yaml --out /x/y", console.EXIT_MISTAKE)]


@pytest.mark.parametrize(("last", "status"), ENDS if EVERYWHERE else ENDS[:1])
def test_a_build_on_the_nodes_of_slurm_leaves_no_process(
    slurm: dict[str, str], work: Path, tmp_path: Path, last: str, status: int
) -> None:
    skip_without_ray_start()
    pool, mark, ready = work / "slurm-pool", new_mark(), tmp_path / "ready"
    script = f"clipmill build {work / 'tiny.yaml'} --out {pool}; touch {ready}; exec {last}"
    with open(tmp_path / "job.log", "wb") as output:
        process = subprocess.Popen(
            ["sbatch", "--nodes=2", "cluster/slurm.sh", "sh", "-c", script],
            cwd=ROOT,
            env={**slurm, MARK: mark},
            stdout=output,
            stderr=output,
        )
    until = time.monotonic() + 900
    while not ready.exists():
        assert process.poll() is None, (tmp_path / "job.log").read_text()
        assert time.monotonic() < until
        time.sleep(0.2)
    if status == 143:
        assert len(marked(mark, "raylet")) >= 2
        process.send_signal(signal.SIGTERM)
    assert process.wait(900) == status
    until = time.monotonic() + 900
    while left := marked(mark):
        assert time.monotonic() < until, left
        time.sleep(0.2)
    assert "2 nodes with" in (tmp_path / "job.log").read_text()
    assert json.loads((pool / "pool.json").read_text())["fetch"]["stored"] == 48
    assert not Path(f"/tmp/ray-{slurm['SLURM_TEST_JOB']}").exists()
    log = Path(slurm["SLURM_TEST_LOG"]).read_text()
    assert log.count("ray start --head") == 1
    assert "node1: ray start --head --node-ip-address=127.0.0.1" in log
    assert "node2: ray start --address=127.0.0.1:" in log
    assert "0.0.0.0" not in log
