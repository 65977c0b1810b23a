"""The wheel: the command, the manifests and the example from any folder, without the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.test_extras import ROOT

pytestmark = pytest.mark.slow
PACKAGES = ("clipmill", "manifests", "filters", "pipeline", "train", "examples", "benchmarks")
EXAMPLE = "examples/cifar10_runs/cifar10_runs.yaml"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel is unpacked in. Skips without a package index, which has the tool
    that builds a wheel.
    """
    folder = tmp_path_factory.mktemp("wheel")
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / package, folder / "source" / package, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / "source" / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "-q",
        "-w",
        str(folder),
        "./source",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    if "Max retries exceeded" in done.stderr or "NewConnectionError" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = folder.glob("clipmill-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def run(installed: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`clipmill WORDS` of the wheel, as its script starts it."""
    code = "import sys; from clipmill.__main__ import start; sys.exit(start())"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-P", "-c", code, *words]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


def test_everything_that_is_read_travels_with_the_wheel(installed: Path) -> None:
    for package in PACKAGES[:-1]:
        for path in (ROOT / package).rglob("*"):
            name = path.relative_to(ROOT)
            if path.is_file() and path.suffix not in (".pyc", ".md"):
                assert (installed / name).is_file(), f"{name} is not in the wheel"
    (entry_points,) = installed.glob("*.dist-info/entry_points.txt")
    assert "clipmill = clipmill.__main__:start" in entry_points.read_text()


def test_a_shipped_manifest_and_example_are_found_from_any_folder(
    installed: Path, tmp_path: Path
) -> None:
    done = run(installed, tmp_path, "build", "manifests/recipes/nothing.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: manifests/recipes/nothing.yaml does not exist\n"
    (tmp_path / "web.yaml").write_text("{pairs: 40, trusted_pairs: 10}")
    recipe = "manifests/recipes/demo_trusted.yaml"
    words = ("--web", "web.yaml", "--until", "plan", "--engine", "inline")
    done = run(installed, tmp_path, "demo", recipe, *words)
    assert f"next: clipmill demo --web web.yaml {recipe} --out " in done.stdout, done.stderr
    done = run(installed, tmp_path, "decide", "examples/cifar10_120_runs.parquet")
    assert done.returncode == 0, done.stderr
    assert "+12.1 [+10.6, +13.6]  better" in done.stdout
    done = run(installed, tmp_path, "ablate", EXAMPLE, "--out", "out", "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["runs"].keys() == {
        "raw", "clip30", "clip50", "random_half", "other_order",
    }  # fmt: skip
    done = run(installed, tmp_path, "report", "out")
    assert done.returncode == 0, done.stderr
    assert "clip30" in (tmp_path / "out" / "report.html").read_text()
