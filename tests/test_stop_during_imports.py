"""Ctrl-C, SIGTERM and SIGHUP while a command still imports its libraries, and none to import."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SLOW_IMPORT = """
import os, time
open(os.environ["MARKER"], "w").close()
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "number", "status"),
    [
        ("train/run.py", signal.SIGINT, 130),
        ("train/ablate.py", signal.SIGTERM, 143),
        ("clipmill/__main__.py report", signal.SIGHUP, 129),
        ("pipeline/build.py", signal.SIGINT, 130),
        ("clipmill/__main__.py audit", signal.SIGTERM, 143),
    ],
)
def test_a_stop_signal_during_an_import_has_the_documented_status(
    tmp_path: Path, entry: str, number: signal.Signals, status: int
) -> None:
    library = "pyarrow" if "pipeline" in entry or "report" in entry else "numpy"
    (tmp_path / f"{library}.py").write_text(SLOW_IMPORT)  # in the place of the real one
    marker = tmp_path / "marker"
    with subprocess.Popen(
        [sys.executable, *str(ROOT / entry).split(), "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "MARKER": str(marker)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until = time.monotonic() + 900
        while not marker.exists() and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=900)
    assert process.returncode == status
    assert stderr == f"\nstopped by {number.name}: run the command again\n"


def test_nothing_heavy_is_imported_before_stop_signals_are_handled() -> None:
    code = "import sys, clipmill.manifests.console;"
    code += "print(*{'pyarrow', 'numpy', 'torch'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, timeout=900, capture_output=True, text=True
    )
    assert done.stdout == "\n"


@pytest.mark.slow
def test_without_its_packages_every_entry_names_the_environment_in_one_line() -> None:
    thin = [*(ROOT / "pipeline").glob("*.py"), *(ROOT / "train").glob("*.py")]
    entries = [path for path in thin if "start(" in path.read_text() and os.access(path, os.X_OK)]
    entries += [ROOT / "clipmill/__main__.py", ROOT / "benchmarks/trainer/bench.py"]
    assert len(entries) == 9
    for entry in entries:
        done = subprocess.run(  # -S: without site-packages
            [sys.executable, "-S", entry, "x"],
            cwd=ROOT,
            timeout=900,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2, (entry, done.stderr)
        (line,) = done.stderr.splitlines()
        assert re.fullmatch(r"error: .* has no package '\w+'; run `make venv` in .*", line), entry
        assert line.endswith("then the command with " + str(ROOT / ".venv/bin/python"))


def test_a_python_that_is_too_old_and_a_module_of_ours_that_is_gone() -> None:
    old = "import sys; sys.version_info = (3, 10); "
    for code, status, line in (
        (old, 2, "error: Python 3.10 is too old; run `make venv`"),
        (
            "import signal; from clipmill.manifests import gone",
            1,
            "ImportError: cannot import name 'gone'",
        ),
        (
            "import clipmill.train.gone",
            1,
            "ModuleNotFoundError: No module named 'clipmill.train.gone'",
        ),
    ):
        early = "import sys; from clipmill.manifests import console; "
        start = "console.end_on_stop_signals(); "
        program = early + (code + start if status == 2 else start + code)
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, timeout=900, capture_output=True, text=True
        )
        assert done.returncode == status
        assert done.stderr.splitlines()[-1].startswith(line)
