from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from manifests.folder_lock import locked_folder

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from manifests.folder_lock import locked_folder
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


def test_a_folder_in_an_object_store_is_not_locked() -> None:
    with locked_folder("memory://bucket/.lock", "one"), locked_folder("memory://bucket/.lock", "b"):
        pass
