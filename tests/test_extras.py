"""Every extra can be resolved beside the core, or the reason why not is written here."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PACKAGES = ("clipmill", "manifests", "filters", "pipeline", "train", "verdict", "study", "examples")
# Imported where a run asks for it, or by the example for those who have it; not part of this
# interpreter.
OPTIONAL_IMPORTS = {"rapidocr", "wandb", "tensorboard", "flash_attn", "lightning", "IPython"}
# `make venv` installs them: this interpreter is the proof.
# concepts, faces, onnx and stream by way of test
INSTALLED = {"build", "train", "score", "concepts", "faces", "onnx", "stream", "test", "docs"}
RESOLVED = {"captions", "ocr", "cpu", "img2dataset", "s3", "gpu", "tensorboard", "wandb"}
NOT_HERE = {"flash": "flash-attn has no wheels: its setup.py needs torch and a CUDA compiler"}


def test_every_extra_is_accounted_for() -> None:
    assert set(EXTRAS) == INSTALLED | RESOLVED | set(NOT_HERE)


def distribution_names(requirements: list[str]) -> set[str]:
    """Names of requirements as package indexes compare them."""
    return {normalized(re.split(r"[\[<>=!~; ]", text)[0]) for text in requirements}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported_by(folder: Path) -> set[str]:
    """Top-level names that the Python files of a folder import, anywhere in them."""
    names: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
    return names - sys.stdlib_module_names - {"clipmill"}


@pytest.mark.slow
def test_the_product_imports_what_it_declares_and_declares_what_it_imports() -> None:
    installed = packages_distributions()
    core = distribution_names(PROJECT["dependencies"])
    extras = set().union(*(distribution_names(EXTRAS[name]) for name in EXTRAS if name != "test"))
    imported: set[str] = set()
    for package in PACKAGES:
        for name in imported_by(ROOT / package) - OPTIONAL_IMPORTS:
            distributions = {normalized(distribution) for distribution in installed.get(name, [])}
            assert distributions & (core | extras), f"{package} imports {name}: declare it"
            imported |= distributions
    assert core <= imported, f"nothing imports {sorted(core - imported)}: leave it out"


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


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="img2dataset does not import on Python 3.13"
)
def test_img2dataset_and_s3_resolve_beside_the_core_and_not_to_a_release_of_years_ago() -> None:
    versions = resolve(".[build,img2dataset,s3]")
    assert tuple(int(x) for x in versions["img2dataset"].split(".")[:2]) >= (1, 47)
    assert versions["webdataset"].startswith("0.2.")
    assert {"s3fs", "ray", "duckdb"} <= set(versions)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="faiss-gpu is for Linux")
def test_what_a_run_may_use_is_there_as_a_wheel() -> None:
    names = ("gpu", "cpu", "tensorboard", "wandb", "ocr")
    asked = [requirement for name in names for requirement in EXTRAS[name]]
    packages = {"faiss-gpu", "faiss-cpu", "tensorboard", "wandb", "rapidocr"}
    assert packages <= set(resolve("--no-deps", "--only-binary", ":all:", *asked))
