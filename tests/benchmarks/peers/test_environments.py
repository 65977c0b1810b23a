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
    (tmp_path / "datacomp/bin").mkdir(parents=True)
    (tmp_path / "datacomp/bin/python").touch()
    wanted = '["pandas>=2", "pyarrow>=18", "torch False"]'
    (tmp_path / "datacomp/clipmill.json").write_text(wanted)
    answer = subprocess.CompletedProcess([], 0, "2.3.1\n", "")
    monkeypatch.setattr(environments.subprocess, "run", lambda *_, **__: answer)
    made = environments.environment_of("datacomp", tmp_path)
    assert made.version == "2.3.1"
    assert made.python == str(tmp_path / "datacomp/bin/python")


def test_an_environment_of_another_checkout_is_made_again_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "imagededup"
    packages = home / "lib/python3.11/site-packages"

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if command[1:3] == ["-m", "venv"]:
            packages.mkdir(parents=True)
            (home / "bin").mkdir()
            (home / "bin/python").symlink_to(sys.executable)
        return subprocess.CompletedProcess(command, 0, "0.3.3\n", "")

    monkeypatch.setattr(environments.subprocess, "run", run)

    def lines() -> list[str]:
        assert environments.environment_of("imagededup", tmp_path).version == "0.3.3"
        return capsys.readouterr().out.splitlines()

    assert lines() == []
    path_file = packages / environments.PATH_FILE
    own = path_file.read_text()
    assert lines() == []
    path_file.write_text("/gone/site-packages\n")
    start = "imagededup: it was made by another checkout"
    assert lines() == [f"{start}: /gone/site-packages does not exist; it is made again"]
    assert path_file.read_text() == own
    path_file.write_text(f"{tmp_path}\n")
    assert lines() == [f"{start}, with the packages of {tmp_path}; it is made again"]
    (home / "bin/python").unlink()
    (home / "bin/python").symlink_to("/gone/python3")
    assert lines() == ["imagededup: its interpreter /gone/python3 is missing; it is made again"]
    (home / "clipmill.json").write_text("[")
    path_file.unlink()
    assert lines() == []
    assert path_file.read_text() == own, "a damaged file is no environment: it is made again"


def test_a_name_that_is_no_peer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no peer 'x'; there are cc2dataset, datacomp"):
        environments.environment_of("x")
