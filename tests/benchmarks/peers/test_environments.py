"""Environments of the peers: what is reported of one that cannot be made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import environments


def test_a_peer_that_cannot_be_installed_has_a_reason_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        failed = "install" in command
        error = "WARNING: slow\nERROR: No matching distribution at https://index.example/x\n"
        return subprocess.CompletedProcess(command, int(failed), "", error if failed else "")

    monkeypatch.setattr(environments.subprocess, "run", run)
    for _ in range(2):
        made = environments.environment_of("img2dataset", tmp_path)
        assert made.python is None
        assert made.reason == "ERROR: No matching distribution at ..."
    assert len(commands) == 4
    assert commands[0][:3] == [sys.executable, "-m", "venv"]


def test_an_environment_with_the_same_packages_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "datacomp").mkdir()
    wanted = '["pandas>=2", "pyarrow>=18", "torch False"]'
    (tmp_path / "datacomp/clipmill.json").write_text(wanted)
    answer = subprocess.CompletedProcess([], 0, "2.3.1\n", "")
    monkeypatch.setattr(environments.subprocess, "run", lambda *_, **__: answer)
    made = environments.environment_of("datacomp", tmp_path)
    assert made.version == "2.3.1"
    assert made.python == str(tmp_path / "datacomp/bin/python")


def test_a_name_that_is_no_peer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no peer 'x'; there are cc2dataset, datacomp"):
        environments.environment_of("x")
