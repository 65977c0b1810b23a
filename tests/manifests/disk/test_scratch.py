"""Temporary folders: gone at the end, and gone after a kill when the next process begins."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clipmill.manifests.disk import scratch_folder
from clipmill.manifests.disk.files import NEW_S, remove_abandoned

# Holds a folder until it is killed; the lock ends with it.
CHILD = """
import sys, time
from clipmill.manifests.disk.files import scratch_folder
with scratch_folder("work-", sys.argv[1]) as folder:
    (folder / "large").write_bytes(b"x")
    print(folder, flush=True)
    time.sleep(600)
"""


def make_old(folder: Path) -> None:
    os.utime(folder, (time.time() - 2 * NEW_S,) * 2)


def test_the_folder_is_removed_at_the_end_also_after_an_error(tmp_path: Path) -> None:
    def fail() -> None:
        with scratch_folder("work-", tmp_path) as folder:
            (folder / "inner").mkdir()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_goes_when_its_process_was_killed_and_no_sooner(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        folder = Path(child.stdout.readline().strip())
        make_old(folder)
        while_it_lives = remove_abandoned(tmp_path, "work-")
        child.kill()
    assert while_it_lives == []
    assert remove_abandoned(tmp_path, "other-") == []
    assert remove_abandoned(tmp_path, "work-") == [folder]
    assert list(tmp_path.iterdir()) == []


def test_a_young_folder_a_file_and_a_link_stay(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    young = tmp_path / "work-young"
    young.mkdir()
    (tmp_path / "work-link").symlink_to(tmp_path / "kept")
    (tmp_path / "work-file").write_text("x")
    make_old(tmp_path / "kept")
    make_old(tmp_path / "work-file")
    assert remove_abandoned(tmp_path, "work-") == []
    make_old(young)
    assert remove_abandoned(tmp_path, "work-") == [young]
    assert remove_abandoned(tmp_path / "missing", "work-") == []
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "work-link", "work-file"}
