from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "train.ablation.child"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_a_child_ends_with_its_parent() -> None:
    process = start()
    process.communicate(timeout=120)  # closes its stdin
    assert process.returncode == 0


@pytest.mark.slow
def test_stdout_has_answers_only_and_a_line_that_is_no_request_ends_the_child() -> None:
    process = start()
    assert process.stdin is not None
    process.stdin.write("this is no JSON\n")
    process.stdin.flush()
    process.wait(timeout=120)
    assert process.returncode == 1
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read() == ""
    assert json.JSONDecodeError.__name__ in process.stderr.read()
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()
