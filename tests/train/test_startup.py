"""Ctrl-C and SIGTERM while a command still imports its libraries."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLOW_IMPORT = """
import os, time
open(os.environ["MARKER"], "w").close()
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "number", "status"),
    [
        ("run", signal.SIGINT, 130),
        ("run", signal.SIGTERM, 143),
        ("evaluate", signal.SIGINT, 130),
        ("ablate", signal.SIGTERM, 143),
        ("report", signal.SIGINT, 130),
        ("export", signal.SIGINT, 130),
    ],
)
def test_a_stop_signal_during_an_import_has_the_documented_status(
    tmp_path: Path, entry: str, number: signal.Signals, status: int
) -> None:
    (tmp_path / "torch.py").write_text(SLOW_IMPORT)  # in the place of the real torch
    marker = tmp_path / "marker"
    with subprocess.Popen(
        [sys.executable, str(ROOT / "train" / f"{entry}.py"), "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "MARKER": str(marker)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until = time.monotonic() + 60
        while not marker.exists() and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == status
    assert stderr == f"\nstopped by {number.name}: run the command again\n"


def test_without_it_the_status_is_none_of_the_documented_ones() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    early = f"from train import startup; startup.end_on_stop_signals(); {code}"
    for program, status in ((code, -signal.SIGTERM), (early, 128 + signal.SIGTERM)):
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60)
        assert done.returncode == status
