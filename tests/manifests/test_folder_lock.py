from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from clipmill.manifests.folder_lock import locked_folder

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from clipmill.manifests.folder_lock import locked_folder
with locked_folder(sys.argv[2], "the first command"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_process_is_told_who_holds_it_and_a_dead_one_holds_nothing(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "new" / ".lock")
    words = [sys.executable, "-c", HOLD, str(ROOT), path]
    holder = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        message = f"is in use by the first command, process {holder.pid} on "
        with pytest.raises(ValueError, match=re.escape(message)), locked_folder(path, "second"):
            pytest.fail("two processes hold one lock")
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert "the first command" in Path(path).read_text()  # left behind by the dead process
    with locked_folder(path, "second"):
        assert Path(path).read_text().startswith(f"second, process {os.getpid()} on ")
    assert Path(path).read_text() == ""


def test_a_lock_is_waited_for_and_a_file_system_without_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / ".lock")
    first = locked_folder(path, "first")
    first.__enter__()
    ended = threading.Timer(0.2, first.__exit__, (None, None, None))
    ended.start()
    with locked_folder(path, "second", wait_s=60.0):
        ended.join()

    def no_locks(handle: object, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with locked_folder(path, "third"):
        assert "file system without locks (Function not implemented)" in caplog.text


def test_who_waits_for_a_folder_that_is_removed_gets_one_anew(tmp_path: Path) -> None:
    lock = tmp_path / "made" / "run" / ".lock"
    held = threading.Event()

    def wait() -> None:
        with locked_folder(str(lock), "second", wait_s=300):
            held.set()
            release.wait(900)

    release = threading.Event()
    with locked_folder(str(lock), "first"):
        second = threading.Thread(target=wait)
        second.start()
        time.sleep(2.0)  # until the second waits: on a busy machine it takes its time
    assert held.wait(900)
    with pytest.raises(ValueError, match="in use by second"), locked_folder(str(lock), "third"):
        pass
    release.set()
    second.join()
    assert not (tmp_path / "made").exists()
