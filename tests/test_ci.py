"""Which Pythons CI runs on: the usual one, and the newest other one that is supported."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def choice(tmp_path: Path, of_path: dict[str, str], of_pyenv: dict[str, str]) -> list[str]:
    """What `.ci/run --pythons` prints. `of_path`: {name of a program: version that it says}, and
    "" for a shim that names no version; `of_pyenv`: {folder: version}."""
    folder, pyenv = tmp_path / "bin", tmp_path / "pyenv"
    programs = {folder / name: version for name, version in of_path.items()}
    programs |= {pyenv / "versions" / n / "bin/python": v for n, v in of_pyenv.items()}
    for program, version in programs.items():
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {version}\n" if version else "#!/bin/sh\nexit 127\n")
        program.chmod(0o755)
    for tool in ("bash", "sh", "sed", "seq", "sort", "awk", "dirname", "env"):
        found = next(p / tool for p in map(Path, os.defpath.split(":")) if (p / tool).exists())
        (folder / tool).symlink_to(found)
    done = subprocess.run(
        [str(folder / "bash"), str(ROOT / ".ci" / "run"), "--pythons"],
        env={"PATH": str(folder), "PYENV_ROOT": str(pyenv)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(str(tmp_path) + "/", "").splitlines()


@pytest.mark.parametrize(
    ("of_path", "of_pyenv", "lines"),
    [
        ({"python3": "3.11"}, {}, []),
        ({"python3": "3.11", "python3.11": "3.11"}, {"3.11.7": "3.11", "3.10.13": "3.10"}, []),
        (
            {"python3": "3.11", "python3.13": "", "python3.12": "3.12"},  # a shim runs nothing
            {"3.13.0": "3.13"},
            [
                "pyenv/versions/3.13.0/bin/python is Python 3.13: the checks and the quick tests",
                "bin/python3.12 is Python 3.12: nothing runs on it, 3.13 is newer",
            ],
        ),
        (
            {"python3": "3.13", "python3.14": "3.14", "python3.12": "3.12"},
            {"3.12.1": "3.12"},
            [
                "bin/python3.14 is Python 3.14, which is not supported",
                "bin/python3.12 is Python 3.12: the checks and the quick tests run on it",
            ],
        ),
    ],
)
def test_the_newest_other_python_that_is_supported_runs_too(
    tmp_path: Path, of_path: dict[str, str], of_pyenv: dict[str, str], lines: list[str]
) -> None:
    usual, *others = choice(tmp_path, of_path, of_pyenv)
    assert usual == f"python3 is Python {of_path['python3']}: the checks and all tests run on it"
    assert len(others) == len(lines)
    assert all(given.startswith(line) for given, line in zip(others, lines, strict=True)), others


def test_a_run_that_fails_on_the_other_python_fails() -> None:
    """No exit status is dropped, and each Python has an environment of its own."""
    text = (ROOT / ".ci" / "run").read_text()
    assert "set -eu" in text
    assert 'make quick VENV=".venv-$other" PYTHON="$path"' in text
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")]).returncode == 0
    plan = subprocess.run(
        ["make", "-n", "quick-tests", "VENV=.venv-none", "PYTHON=python3.none"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "python3.none -m venv .venv-none" in plan
    assert ".venv-none/bin/python -m pytest" in plan


def test_the_quick_tests_of_a_change_are_those_that_import_it() -> None:
    """Nearest first, then those of the whole repository."""
    test_files = runpy.run_path(str(ROOT / ".ci/nearest.py"))["test_files"]
    near, far = test_files(["train/step/loss.py"], 1), test_files(["train/step/loss.py"], 2)
    assert "tests/train/step/test_loss.py" in near[:5]
    assert set(near) < set(far)
    assert "tests/pipeline/fetch/test_guard.py" not in far
    everywhere = test_files(["docs/index.md"], 2)
    assert set(everywhere) == {f"tests/{path.name}" for path in ROOT.glob("tests/test_*.py")}
    assert near[-1] == everywhere[-1]
    assert test_files(["tests/study/test_influence.py"], 1)[0] == "tests/study/test_influence.py"
    words = [sys.executable, ".ci/nearest.py", "all"]
    assert subprocess.check_output(words, cwd=ROOT) == b""
