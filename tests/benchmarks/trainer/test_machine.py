from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks.trainer import report as machine


def test_the_machine_has_no_host_name() -> None:
    this = machine.this_machine(torch.device("cpu"))
    assert (this.kind, this.gpus) == ("cpu", 0)
    assert this.cores >= 1
    assert this.versions["torch"] == torch.__version__
    assert platform.node() not in repr(this)


def test_the_commit_says_whether_files_were_changed(tmp_path: Path) -> None:
    assert machine.commit(tmp_path) is None

    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "a")
    head = git("rev-parse", "HEAD").strip()
    assert machine.commit(tmp_path) == head
    (tmp_path / "a").write_text("2")
    assert machine.commit(tmp_path) == f"{head}-dirty"
    (tmp_path / ".git" / "HEAD").write_text("damaged")
    assert machine.commit(tmp_path) is None


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine.torch_device("auto").type == "cpu"
    with pytest.raises(ValueError, match="torch finds no GPU"):
        machine.torch_device("cuda")
    with pytest.raises(ValueError, match="it must be auto, cpu or cuda"):
        machine.torch_device("tpu")


def test_a_report_names_no_folder_of_a_machine() -> None:
    assert machine.without_folders("/home/a/report.json") == "report.json"
    assert machine.without_folders("read_cache=/home/a/cache/") == "read_cache=cache"
    assert machine.without_folders("--data=/home/a/blend.yaml") == "--data=blend.yaml"
    for word in ("out/report.json", "s3://pool/view", "lr=1e-3", "-n", "/", ""):
        assert machine.without_folders(word) == word
