"""Every extra can be resolved beside the core, or the reason why not is written here."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
INSTALLED = {
    "train",
    "score",
    "cpu",
    "test",
}  # `make venv` installs them: this interpreter is the proof
RESOLVED = {"img2dataset", "s3", "gpu", "tensorboard", "wandb"}
NOT_HERE = {"flash": "flash-attn has no wheels: its setup.py needs torch and a CUDA compiler"}


def test_every_extra_is_accounted_for() -> None:
    assert set(EXTRAS) == INSTALLED | RESOLVED | set(NOT_HERE)


def test_flash_attention_is_part_of_no_other_extra() -> None:
    for name, requirements in EXTRAS.items():
        assert name == "flash" or not any("flash" in r for r in requirements)


def resolve(*words: str) -> dict[str, str]:
    """Name -> version of what pip would install. Skips without a package index."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--report",
        "-",
    ]
    done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=600)
    if "Max retries exceeded" in done.stderr or "NewConnectionError" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    return {
        item["metadata"]["name"].lower(): item["metadata"]["version"] for item in report["install"]
    }


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="img2dataset does not import on Python 3.13"
)
def test_img2dataset_and_s3_resolve_beside_the_core_and_not_to_a_release_of_years_ago() -> None:
    found = resolve(".[img2dataset,s3]")
    assert tuple(int(x) for x in found["img2dataset"].split(".")[:2]) >= (1, 47)
    assert found["webdataset"].startswith("0.2.")
    assert {"s3fs", "ray", "duckdb"} <= set(found)


@pytest.mark.skipif(sys.platform != "linux", reason="faiss-gpu is for Linux")
def test_faiss_gpu_is_a_wheel() -> None:
    assert "faiss-gpu" in resolve("--no-deps", "--only-binary", ":all:", *EXTRAS["gpu"])


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_what_a_run_may_log_to_is_there(name: str) -> None:
    assert name in resolve("--no-deps", *EXTRAS[name])
