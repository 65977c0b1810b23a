"""The wheel: the package clipmill alone, with its manifests and examples; nothing of a user's is
overwritten, or run in the place of ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.test_layout import FOLDERS, OWN, ROOT

pytestmark = pytest.mark.slow
EXAMPLE = "examples/cifar10_runs/cifar10_runs.yaml"
# A folder of the repository, and its name in the package
INSTALLED = {folder: name for folder, name in FOLDERS.items() if name not in OWN}
# A lab's own modules, which have the names of our folders; each ends the program that imports it.
OF_THE_LAB = ("filters/__init__.py", "train.py", "pipeline.py", "manifests/__init__.py",
              "examples/__init__.py", "benchmarks/__init__.py", "tests/__init__.py")  # fmt: skip
ENDS = "import os; os._exit(99)\n"


def checkout(folder: Path) -> Path:
    """A copy of what a wheel is made from, with its links."""
    ignored = shutil.ignore_patterns("__pycache__", "results")
    for name in ("clipmill", *INSTALLED):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def pip(folder: Path, *words: str) -> None:
    """pip of this interpreter, in a folder. Skips without a package index."""
    command = [sys.executable, "-m", "pip", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    if "Max retries exceeded" in done.stderr or "NewConnectionError" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel of the checkout, and one of the sdist of the checkout."""
    folder = tmp_path_factory.mktemp("wheels")
    source = checkout(folder / "source")
    pip(folder, "wheel", "--no-deps", "-q", "-w", "direct", "./source")
    pip(folder, "install", "-q", "--target", "tools", "setuptools>=77")
    code = "from setuptools import build_meta; build_meta.build_sdist('../dist')"
    environment = {**os.environ, "PYTHONPATH": str(folder / "tools")}
    subprocess.run(
        [sys.executable, "-c", code], cwd=source, env=environment, check=True, capture_output=True
    )
    (archive,) = (folder / "dist").glob("*.tar.gz")
    pip(folder, "wheel", "--no-deps", "-q", "-w", "of_sdist", str(archive))
    (direct,), (of_sdist,) = (folder.glob(f"{name}/*.whl") for name in ("direct", "of_sdist"))
    return direct, of_sdist


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_wheel_holds_the_package_clipmill_alone_and_all_that_it_reads(
    wheels: tuple[Path, Path],
) -> None:
    names = {name for name in contents(wheels[0]) if ".dist-info/" not in name}
    expected = {f"clipmill/{path.name}" for path in (ROOT / "clipmill").glob("*.py")}
    expected.add("clipmill/py.typed")
    for name in OWN:
        expected |= {f"clipmill/{name}/{p.name}" for p in (ROOT / "clipmill" / name).glob("*.py")}
    for folder, name in INSTALLED.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix != ".pyc" and path.name != "README.md":
                expected.add(f"clipmill/{name}/{path.relative_to(ROOT / folder).as_posix()}")
    assert names == expected
    (points,) = (text for name, text in contents(wheels[0]).items() if "entry_points" in name)
    assert b"clipmill = clipmill.__main__:start" in points


def test_a_wheel_of_the_sdist_is_the_wheel_of_the_checkout(wheels: tuple[Path, Path]) -> None:
    direct, of_sdist = (contents(wheel) for wheel in wheels)
    assert direct.keys() == of_sdist.keys()
    assert [name for name in direct if direct[name] != of_sdist[name]] == []


@pytest.fixture(scope="module")
def lab(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The Python of a lab's environment, whose site-packages and whose working folder have modules
    of the lab under the names of our folders. They are as before when clipmill is uninstalled.
    """
    folder = tmp_path_factory.mktemp("lab")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    python = folder / "env/bin/python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "env/lib" / version / "site-packages"
    for name in OF_THE_LAB:
        for place in (packages, folder / "work"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(ENDS)
    before = digests(packages)
    pip(folder, "--python", str(python), "install", "-q", "--no-deps", str(wheels[0]))
    dependencies = packages / "outer.pth"
    dependencies.write_text(sysconfig.get_path("purelib") + "\n")
    yield python
    dependencies.unlink()
    pip(folder, "--python", str(python), "uninstall", "-q", "-y", "clipmill")
    assert digests(packages) == before


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def run(python: Path, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A program of the lab's environment, in the lab's folder."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [python.with_name(words[0]), *words[1:]], cwd=cwd or python.parents[2] / "work",
        env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        (("clipmill",), "inline"),
        pytest.param(("python", "-m", "clipmill"), "ray", marks=pytest.mark.ray),
    ],
)
def test_nothing_of_a_lab_is_run_in_the_place_of_ours(
    lab: Path, command: tuple[str, ...], engine: str, tmp_path: Path
) -> None:
    done = run(lab, *command, "decide", "examples/cifar10_120_runs.parquet")
    assert "+12.1 [+10.6, +13.6]  better" in done.stdout, done.stderr
    done = run(lab, "python", "-c", "import clipmill.train.config; print(clipmill.PACKAGE)")
    assert str(lab.parents[1] / "lib") in done.stdout, done.stderr
    (tmp_path / "web.yaml").write_text("{pairs: 40, trusted_pairs: 10}")
    recipe = "manifests/recipes/demo_trusted.yaml"
    words = ("demo", recipe, "--web", str(tmp_path / "web.yaml"), "--out", str(tmp_path / "out"))
    done = run(lab, *command, *words, "--until", "fetch", "--engine", engine)  # decodes in children
    assert "next: clipmill demo " in done.stdout, done.stdout + done.stderr
    assert list((tmp_path / "out").rglob("00000.tar"))


def test_runs_of_an_ablation_train_in_children_beside_a_labs_modules(
    lab: Path, tmp_path: Path
) -> None:
    done = run(lab, "clipmill", "ablate", EXAMPLE, "--out", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["failed"] == []
    table = pq.read_table(tmp_path / "measurements.parquet", columns=["arm"])
    assert set(table["arm"].to_pylist()) == {
        "raw", "clip30", "clip50", "random_half", "other_order",
    }  # fmt: skip
    done = run(lab, "clipmill", "report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "clip30" in (tmp_path / "report.html").read_text()


def test_a_shipped_manifest_is_found_from_any_folder(lab: Path, tmp_path: Path) -> None:
    done = run(lab, "clipmill", "build", "manifests/recipes/nothing.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: manifests/recipes/nothing.yaml does not exist\n"
    (tmp_path / "web.yaml").write_text("{pairs: 40, trusted_pairs: 10}")
    recipe = "manifests/recipes/demo_trusted.yaml"
    words = ("--web", "web.yaml", "--until", "plan", "--engine", "inline")
    done = run(lab, "clipmill", "demo", recipe, *words, cwd=tmp_path)
    assert f"next: clipmill demo --web web.yaml {recipe} --out " in done.stdout, done.stderr


def test_a_checkout_without_its_links_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """Some tools write a link into a zip as a small file that holds its target."""
    folder = checkout(tmp_path / "copy")
    for link in (folder / "clipmill").iterdir():
        if link.is_symlink():
            target = os.readlink(link)
            link.unlink()
            link.write_text(target)
    done = subprocess.run(
        [sys.executable, "clipmill/__main__.py", "--help"], cwd=folder, capture_output=True,
        text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {folder}/clipmill was copied without its symbolic links")
