"""What all commands have in common: log lines, exit statuses, stop signals, one line for a mistake.

Exit statuses: 0 every task ended with its outcomes; 2 a mistake that its one line explains; 3 some
task ended without an outcome; 75 a training run was stopped and saved; 128 + N stopped by signal N
(129 for a closed terminal, 130 for Ctrl-C, 143 for SIGTERM). With CLIPMILL_TRACEBACK=1 the
traceback of a mistake is printed too. It imports the standard library only, and so does
`manifests/__init__.py`.
"""

from __future__ import annotations

import atexit
import errno
import io
import logging
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from clipmill import IS_CHECKOUT, PACKAGE, ROOT
from clipmill.manifests import installation
from clipmill.manifests.text import printable, printable_lines

EXIT_MISTAKE = 2
LONGEST_MISTAKE = 4000  # characters
EXIT_INCOMPLETE = 3
EXIT_SAVED = 75
EXIT_OUTPUT_CLOSED = 128 + signal.SIGPIPE
# Statuses that mean the same for every command; see `exit_help`.
COMMON_STATUSES = {
    EXIT_MISTAKE: "a mistake, explained in one line",
    128 + signal.SIGHUP: "the terminal was closed",
    128 + signal.SIGINT: "stopped by Ctrl-C",
    EXIT_OUTPUT_CLOSED: "the reader of its output has ended",
    128 + signal.SIGTERM: "stopped by SIGTERM",
}
OLDEST_PYTHON = (3, 11)
MAKE_VENV = f"run `make venv` in {ROOT}, then the command with {ROOT}/.venv/bin/python"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # SIGHUP: a closed terminal
# Errors of the operating system that a person mends: a path, its rights or its disk.
PATH_ERRORS = {
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}
# Also where no file is named. EHOSTDOWN: a store that does not answer.
DISK_ERRORS = {errno.EDQUOT, errno.EFBIG, errno.EHOSTDOWN, errno.EIO, errno.ENOSPC}
PARENT = "CLIPMILL_PARENT"  # the process that started this one and is to end with it
PARENT_S = 0.2  # between two looks whether it is still there
# Of sh: a watcher kills the process group of a command when standard input ends.
ATTACHED = """exec 3<&0 </dev/null
{ read -r _ <&3; kill -9 0; } >/dev/null 2>&1 &
exec 3<&-; exec "$@" """
_stopped_by: int = signal.SIGINT  # the signal of the last KeyboardInterrupt
_runs_command = _is_guest = False


class Stopped(KeyboardInterrupt):
    """One of STOP_SIGNALS arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(signal_name(number))
        self.number = number


class LineFormatter(logging.Formatter):
    """`12:34:56 fetch: message`; a warning or an error says so before its message."""

    def format(self, record: logging.LogRecord) -> str:
        parts = record.name.split(".")  # clipmill.pipeline.fetch.download is of `fetch`
        unit = parts[2] if len(parts) > 2 else parts[-1]
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        time_of_day = self.formatTime(record, "%H:%M:%S")
        line = f"{time_of_day} {unit}: {level}{printable(record.getMessage())}"
        if record.exc_info:
            line += "\n" + printable_lines(self.formatException(record.exc_info))
        return line


def key_values(words: Iterable[str]) -> list[tuple[str, str]]:
    """(key, value) of each KEY=VALUE of --set. ValueError for a text without `=` or key."""
    pairs = []
    for word in words:
        key, equals, value = word.partition("=")
        if not (equals and key.strip()):
            raise ValueError(f"--set {word!r} is not KEY=VALUE")
        pairs.append((key.strip(), value.strip()))
    return pairs


def exit_help(meanings: Mapping[int, str]) -> str:
    """The table of exit statuses for `--help`: those of a command, and COMMON_STATUSES."""
    lines = ["exit status:"]
    for status, meaning in sorted({**COMMON_STATUSES, **meanings}.items()):
        first = f"  {status:<5d}"
        lines += textwrap.wrap(meaning, 79, initial_indent=first, subsequent_indent=" " * 7)
    return "\n".join(lines) + "\n"


def start_logging(level: int = logging.INFO) -> None:
    """Log lines to stderr, in one format. Nothing happens where a handler is there already."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level, handlers=[handler])
    for library in ("botocore", "aiobotocore"):  # each process says where it found its credentials
        logging.getLogger(library).setLevel(logging.WARNING)


def signal_name(number: int) -> str:
    """SIGINT for 2."""
    return signal.Signals(number).name


def program(words: Sequence[str]) -> list[str]:
    """The process of `clipmill` and its words: with this interpreter, whatever PATH says."""
    return [sys.executable, os.path.join(PACKAGE, "__main__.py"), *words]


def child_variables(**variables: str) -> dict[str, str]:
    """The environment of a process of clipmill that ends with this one, by `end_with_parent`."""
    return {**os.environ, **variables, PARENT: str(os.getpid())}


def end_with_parent() -> None:
    """From now on this process ends when the one that started it has ended, however it ended: a
    child of a killed command must not go on writing. Nothing happens where nobody asked for it by
    `child_variables`; what this process starts does not inherit it.
    """
    parent = int(os.environ.pop(PARENT, 0))

    def watch() -> None:
        while os.getppid() == parent:  # also where it ended while this one was loaded
            time.sleep(PARENT_S)
        os._exit(EXIT_INCOMPLETE)

    if parent:
        threading.Thread(target=watch, daemon=True).start()


@contextmanager
def attached(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is not clipmill's, in a session of its own: it and all that it starts end with
    the block, and with this process, however that ends. `options` are those of Popen.
    """
    words = ["sh", "-c", ATTACHED, "sh", *command]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True, **options)
    assert child.stdin is not None
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.stdin.close()
        child.wait()


@contextmanager
def as_guest() -> Iterator[bool]:
    """While the block runs, this process is the caller's, as a notebook is: nothing ends it. Inside
    of a command it is the command's, and nothing changes; whether it is the caller's is yielded.
    """
    global _is_guest
    before = _is_guest
    _is_guest = not _runs_command
    try:
        yield _is_guest
    finally:
        _is_guest = before


def is_guest() -> bool:
    """Whether this process is that of a program which called the library."""
    return _is_guest


def in_notebook() -> bool:
    """Whether what is printed goes into the cell of a notebook; Rich knows their kinds."""
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


def stop_signals() -> list[signal.Signals]:
    """The STOP_SIGNALS that this process must act on: under nohup, SIGHUP stays ignored."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        return list(STOP_SIGNALS)
    return [number for number in STOP_SIGNALS if number != signal.SIGHUP]


def end_on_stop_signals() -> None:
    """From now on a stop signal ends the process with 128 + N and one line on stderr, and a package
    that is not installed with 2 and one line.

    For a command's imports: torch, Ray and PyArrow take seconds, in which Ctrl-C would end the
    process with a traceback and the others without a word. `run_command` then installs its own
    handlers. Closed standard streams are opened first, and a process that a command started ends
    with it (`end_with_parent`).
    """
    open_standard_streams()
    end_with_parent()
    sys.excepthook = _uncaught
    if sys.version_info < OLDEST_PYTHON:
        version = ".".join(map(str, sys.version_info[:2]))
        raise SystemExit(mistake(f"Python {version} is too old; {how_to_install()}"))
    for number in stop_signals():
        signal.signal(number, _end)


def _uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """sys.excepthook of a command. SystemExit in a hook sets the exit status."""
    package = (getattr(error, "name", None) or "").partition(".")[0]
    is_ours = package in ("", "clipmill")
    wants_trace = bool(os.environ.get("CLIPMILL_TRACEBACK"))
    if not isinstance(error, ModuleNotFoundError) or is_ours or wants_trace:
        print_error(*"".join(traceback.format_exception(kind, error, trace)).splitlines())
        return
    raise SystemExit(
        mistake(f"{sys.executable} has no package {package!r}; {how_to_install(package)}")
    ) from None


def how_to_install(package: str = "") -> str:
    """What a person does about a package that is missing here."""
    if IS_CHECKOUT and not installation.is_installed():
        return MAKE_VENV
    return f"run {installation.install_command(*installation.extras_of(package))}"


def open_standard_streams() -> None:
    """Open the null device where stdin, stdout or stderr is closed, as with `2>&-`. What is
    written is UTF-8, whatever the locale.

    Otherwise the next file that is opened gets the number of stderr, and what Ray, a C library or
    `_end` writes there lands in a tar.
    """
    for number, mode, name in ((0, "r", "stdin"), (1, "w", "stdout"), (2, "w", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            assert opened == number
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    for stream in (sys.stdout, sys.stderr):  # a locale of ASCII has no sign for ± and →
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(encoding="utf-8", errors=stream.errors)


def _end(number: int, _: FrameType | None) -> None:
    """os._exit, because an exception inside an import is caught by some libraries."""
    with suppress(OSError):  # the terminal may be gone
        os.write(2, f"\nstopped by {signal_name(number)}: run the command again\n".encode())
    os._exit(128 + number)


@contextmanager
def on_stop_signal(handler: Callable[[int], None]) -> Iterator[None]:
    """While the block runs, a stop signal calls `handler` with its number.

    A second one ends the process at once, except SIGHUP: of a closed terminal it comes twice, from
    the kernel and from the shell. A process of the caller does then what it did before. Outside the
    main thread nothing is installed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def first(number: int, frame: FrameType | None) -> None:
        for each, previous in before.items():
            default = signal.SIG_IGN if each == signal.SIGHUP else signal.SIG_DFL
            signal.signal(each, previous if _is_guest else default)
        handler(number)

    before = {number: signal.signal(number, first) for number in stop_signals()}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def end_process(command: Callable[[], int]) -> NoReturn:
    """Run the command of this process and end with its exit status, without the finalization of the
    interpreter.

    During that, a thread of a library that asks for Python's lock is unwound, and in a C++
    destructor that ends the process with SIGABRT after all of its work: Arrow's threads release the
    buffers of a Parquet file late. What Python does before is done here too: threads are joined,
    exit handlers run, output is flushed. A program that runs this one in its own process, such as a
    profiler or coverage, gets SystemExit.
    """
    if not _is_outermost(sys._getframe(1)):
        raise SystemExit(command())
    try:
        status = command()
    except SystemExit as end:  # of argparse
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    except Exception:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing ends a child
    atexit._run_exitfuncs()
    _output_is_closed()
    os._exit(status)


def _is_outermost(frame: FrameType) -> bool:
    """Whether the interpreter itself runs this frame, as a script or by -m, or the script that
    calls it in its last line.
    """
    below = frame if frame.f_code.co_name == "<module>" else frame.f_back
    below = below and below.f_back
    while below is not None and below.f_globals.get("__name__") == "runpy":
        below = below.f_back
    return below is None


def run_command(
    body: Callable[[], int],
    stopped: str = "what is committed stays; run the command again to resume",
) -> int:
    """The exit status of a command. Mistakes and stop signals end in one line on stderr.

    `body` returns its own status. ValueError, a wrong path and a full disk give 2; stop signals
    give 128 + N and the line `stopped by SIGINT: ` + `stopped`. To end may take seconds, so a line
    says at once that the signal has arrived: a second one ends the process without a word.
    """
    global _stopped_by, _runs_command
    try:
        os.getcwd()
    except FileNotFoundError:  # every relative path would fail, and torch ends the process
        return mistake("the current folder has been removed; change to one that exists")
    _stopped_by = signal.SIGINT
    disabled, before = logging.root.manager.disable, _runs_command
    _runs_command = True
    try:
        with on_stop_signal(_raise_stopped):
            status = body()
        _output_is_closed(must_fit=True)  # a reader that has ended does not change the status
        return status
    except ValueError as error:
        return mistake(str(error))
    except (ConnectionError, TimeoutError) as error:
        if isinstance(error, BrokenPipeError) and _output_is_closed():
            return EXIT_OUTPUT_CLOSED
        return mistake(str(error) or type(error).__name__)  # a server that is gone
    except OSError as error:
        if error.errno in DISK_ERRORS:  # what is committed stays; no traceback says more
            return mistake(f"{error.filename or 'a file'}: {error.strerror}")
        if error.errno not in PATH_ERRORS or error.filename is None:
            raise
        return mistake(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:  # Stopped, of which Ray makes another one
        print_error("", f"stopped by {signal_name(_stopped_by)}: {stopped}")
        _output_is_closed()  # else the interpreter fails at its end where the terminal is gone
        return 128 + _stopped_by
    except SystemExit as end:
        if end.code != signal.SIGTERM:  # Ray replaces the handler of SIGTERM by sys.exit(SIGTERM)
            raise
        print_error("", f"stopped by SIGTERM: {stopped}")
        return 128 + signal.SIGTERM
    finally:
        _runs_command = before
        logging.disable(disabled)


def mistake(message: str) -> int:
    """Print `error: message` and return the exit status of a mistake."""
    if os.environ.get("CLIPMILL_TRACEBACK") and sys.exc_info()[0] is not None:
        print_error(*traceback.format_exc().splitlines())
    if len(message) > LONGEST_MISTAKE:  # the value of a stranger's file is in it
        half = LONGEST_MISTAKE // 2
        message = f"{message[:half]} … {message[-half:]}"
    print_error(f"error: {message}")
    return EXIT_MISTAKE


def show(*lines: str) -> None:
    """Lines on stdout, made printable: strangers wrote what is in them. All output of a command
    goes through here or `print_error`, but for that of Rich.
    """
    print("\n".join(map(printable, lines)))


def print_error(*lines: str) -> None:
    """Lines on stderr, made printable and written at once: those of several ranks do not mix. A
    stream that is closed does not change how the command ends.
    """
    with suppress(OSError, ValueError):
        sys.stderr.write("".join(f"{printable(line)}\n" for line in lines))
        sys.stderr.flush()


def _output_is_closed(must_fit: bool = False) -> bool:
    """Whether nobody reads stdout any more. What is left of the output then goes nowhere, so that
    the interpreter does not complain at its end; the same for stderr.

    must_fit: OSError where stdout is a file on a full disk, so that its end is missing.
    """
    closed, full = [], None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
            closed.append(_has_no_reader(stream.fileno()))
        except (OSError, ValueError) as error:  # ValueError: the stream itself is closed
            closed.append(True)
            if stream is sys.stdout and getattr(error, "errno", None) == errno.ENOSPC:
                full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "stdout")
        if closed[-1]:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if must_fit and full is not None:
        raise full
    return closed[0]


def _has_no_reader(number: int) -> bool:
    """Whether a pipe's other end is closed. Of unbuffered output nothing is left to flush."""
    watched = select.poll()
    watched.register(number, 0)
    return any(event & select.POLLERR for _, event in watched.poll(0))


def _raise_stopped(number: int) -> None:
    global _stopped_by
    _stopped_by = number
    logging.disable(logging.CRITICAL)  # what is interrupted would log an error of its own
    with suppress(OSError):  # the terminal may be gone
        line = f"\nstopping after {signal_name(number)}; a second one ends the command at once\n"
        os.write(2, line.encode())
    raise Stopped(number)
