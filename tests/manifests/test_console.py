"""Commands end in one line: mistakes, wrong paths and stop signals."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import console

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=900, **options)


def test_a_mistake_is_one_line_and_status_2_with_its_traceback_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def body() -> int:
        raise ValueError("image_size is -1; it must be at least 1")

    assert console.run_command(body) == console.EXIT_MISTAKE == 2
    line = "error: image_size is -1; it must be at least 1\n"
    assert capsys.readouterr().err == line
    monkeypatch.setenv("CLIPMILL_TRACEBACK", "1")
    assert console.run_command(body) == 2
    trace = capsys.readouterr().err
    assert trace.startswith("Traceback")
    assert trace.endswith(line)


@pytest.mark.parametrize("wrong", ["folder", "missing", "under a file"])
def test_a_wrong_path_is_one_line_that_names_it(
    wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    path = {
        "folder": tmp_path,
        "missing": tmp_path / "no",
        "under a file": tmp_path / "file" / "x",
    }[wrong]
    assert console.run_command(lambda: len(path.read_text())) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: {path}: ")
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_stop_signal_is_one_line_at_once_one_at_the_end_and_128_more(
    number: signal.Signals, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)

    said_at_once = []

    def body() -> int:
        try:
            os.kill(os.getpid(), number)
            threading.Event().wait(10)
        finally:
            said_at_once.append(capfd.readouterr().err)
        return 0

    assert console.run_command(body) == status
    assert said_at_once == [
        f"\nstopping after {number.name}; a second one ends the command at once\n"
    ]
    lines = capfd.readouterr().err.split("\n")
    assert lines[1].startswith(f"stopped by {number.name}: ")
    assert signal.getsignal(number) is before


def test_signals_that_pass_through_ray_have_their_own_status() -> None:
    def body() -> int:
        try:
            os.kill(os.getpid(), signal.SIGHUP)
            threading.Event().wait(10)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None  # as its C++ core does
        return 0

    def interrupted() -> int:
        raise KeyboardInterrupt

    assert console.run_command(body) == 129
    assert console.run_command(interrupted) == 130
    assert console.run_command(lambda: sys.exit(signal.SIGTERM)) == 143  # its handler of SIGTERM


def test_log_lines_name_the_unit_and_the_level() -> None:
    def line(name: str, level: int) -> str:
        record = logging.LogRecord(name, level, "x.py", 1, "%d shards", (3,), None)
        return console.LineFormatter().format(record)[9:]

    assert line("clipmill.pipeline.fetch.plan", logging.INFO) == "fetch: 3 shards"
    assert line("clipmill.train.trainer.loop", logging.WARNING) == "trainer: warning: 3 shards"
    assert line("__main__", logging.ERROR) == "__main__: error: 3 shards"


# --- the end of the process -----------------------------------------------------------------------

LATE_READER = """
import atexit, io, sys, threading, time
import pyarrow, pyarrow.csv
from clipmill.manifests import console

class Slow(io.BytesIO):
    def read(self, *size):
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.2)
        return super().read(*size)

def body():
    file = pyarrow.PythonFile(Slow(b"a,b\\n" + b"1,2\\n" * 50_000), mode="r")
    options = pyarrow.csv.ReadOptions(block_size=1 << 14)
    print(pyarrow.csv.open_csv(file, read_options=options).read_next_batch().num_rows)
    atexit.register(print, "exit handler")
    threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
    return 3

main = lambda: console.run_command(body)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status"),
    [("console.end_process(main)", 3), ("sys.exit(main())", -signal.SIGABRT)],
    ids=["end_process", "python"],
)
def test_a_thread_of_arrow_that_is_late_does_not_abort_the_end(end: str, status: int) -> None:
    done = python(LATE_READER + end)
    if end.startswith("sys") and done.returncode == 3:
        pytest.skip("this Python and this Arrow end without an abort")
    assert done.returncode == status
    assert done.stdout.split() == [b"4095", b"thread", b"exit", b"handler"]
    assert done.stderr == b"" or end.startswith("sys")


IMPORTS = "import os, signal, sys, time; from clipmill.manifests import console\n"
# A body that gets a signal, and another one while it puts its work away.
TWICE = """
def body():
    try:
        os.kill(os.getpid(), signal.NAME)
        time.sleep(30)
    finally:
        os.kill(os.getpid(), signal.NAME)
        time.sleep(30 if signal.NAME == signal.SIGINT else 0)
        print("saved", flush=True)
    return 0
raise SystemExit(console.run_command(body))
"""
HANGUPS = TWICE.replace("NAME", "SIGHUP")  # the kernel sends it, and then the shell
IGNORED = HANGUPS.replace("sleep(30)", "sleep(0)")  # under nohup
PROFILED = "import cProfile; cProfile.run(\"console.end_process(lambda: print('work') or 0)\")"


@pytest.mark.parametrize(
    ("code", "status", "output", "error"),
    [
        (TWICE.replace("NAME", "SIGINT"), -signal.SIGINT, "", ""),
        (f"signal.signal(signal.SIGHUP, signal.SIG_DFL)\n{HANGUPS}", 129, "saved", "resume"),
        (f"signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{IGNORED}", 0, "saved", ""),
        ("console.end_process(lambda: sys.exit(2))", 2, "", ""),
        ("console.end_process(lambda: sys.exit())", 0, "", ""),
        ("console.end_process(lambda: sys.exit('a word'))", 1, "", "a word"),
        ("console.end_process(lambda: 1 / 0)", 1, "", "ZeroDivisionError: division by zero"),
        (PROFILED, 0, "work function calls", ""),
    ],
)
def test_how_a_process_ends(code: str, status: int, output: str, error: str) -> None:
    done = python(IMPORTS + code)
    assert done.returncode == status
    words = done.stdout.decode().split()
    assert set(output.split()) <= set(words)
    assert bool(words) == bool(output)
    assert done.stderr.decode().strip().endswith(error)


# --- streams that are closed ----------------------------------------------------------------------

CLOSED_STREAMS = """
import os, sys
from clipmill.manifests import console
console.end_on_stop_signals()
with open(sys.argv[1], "wb") as f:
    f.write(b"a tar")
    f.flush()
    os.write(1, b"out")
    os.write(2, b"from a library")
    print("error", file=sys.stderr)
    print("result")
sys.exit(console.run_command(lambda: 3))
"""


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", "1>&-", "0<&- 1>&- 2>&-"])
def test_what_is_written_to_a_closed_stream_lands_in_no_file(tmp_path: Path, closed: str) -> None:
    path = tmp_path / "00000.tar"
    command = f'exec "$0" -c "$1" "$2" {closed}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, CLOSED_STREAMS, str(path)], cwd=ROOT, timeout=900
    )
    assert done.returncode == 3
    assert path.read_bytes() == b"a tar"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "unbuffered", "status"), [(1, "", 3), (100_000, "", 141), (1, "1", 141)]
)
def test_a_reader_that_ends_before_the_command_is_no_traceback(
    lines: int, unbuffered: str, status: int
) -> None:
    code = (
        "import sys\n"
        "from clipmill.manifests import console\n"
        f"def body():\n  for _ in range({lines}): print('x' * 100)\n  return 3\n"
        "sys.stdin.readline()\n"
        "sys.exit(console.run_command(body))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"go\n")
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(900) == status


@pytest.mark.parametrize("end", ["sys.exit(main())", "console.end_process(main)"])
def test_output_that_a_full_disk_cuts_is_a_mistake(end: str) -> None:
    code = (
        "import sys; from clipmill.manifests import console\n"
        f"main = lambda: console.run_command(lambda: print('result') or 0)\n{end}"
    )
    with open("/dev/full", "wb") as full:
        done = python(code, env={**os.environ, "PYTHONUNBUFFERED": ""}, stdout=full)
    assert done.stderr == b"error: stdout: No space left on device\n"
    assert done.returncode == 2


@pytest.mark.parametrize("kind", [ConnectionResetError, BrokenPipeError])
def test_a_broken_connection_is_one_line(
    kind: type[OSError], capfd: pytest.CaptureFixture[str]
) -> None:
    def body() -> int:
        raise kind("the store has closed the connection")

    assert console.run_command(body) == 2
    assert capfd.readouterr().err == "error: the store has closed the connection\n"


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("path", [None, "/pool/x"])
def test_a_disk_that_fails_is_one_line(
    number: int, path: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> int:
        raise OSError(number, os.strerror(number), path)

    assert console.run_command(body) == 2
    assert capsys.readouterr().err == f"error: {path or 'a file'}: {os.strerror(number)}\n"


def test_a_current_folder_that_was_removed_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    code = "import os, sys; os.rmdir(os.getcwd()); from clipmill.commands.app import main\n"
    code += "sys.exit(main(['decide', 'results.csv']))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    said = "error: the current folder has been removed; change to one that exists\n"
    assert (done.returncode, done.stderr) == (console.EXIT_MISTAKE, said)
