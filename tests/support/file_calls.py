"""The system calls of a process that change files, decided on by its parent.

A process installs a seccomp filter: each call that writes, syncs, creates, links, renames or
removes a file waits until its parent has answered. The parent counts the calls on files below one
folder and lets the n-th one fail, or kills the process there. So every thread is seen, and what
Arrow, DuckDB or torch write is too. It needs Linux 5.9 and no rights; `available()` tries it.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import platform
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# (x86-64, AArch64) numbers; AArch64 has only the calls that take a folder.
NUMBERS = {
    "write": (1, 64),
    "pwrite64": (18, 68),
    "writev": (20, 66),
    "pwritev": (296, 70),
    "sendfile": (40, 71),
    "copy_file_range": (326, 285),
    "ftruncate": (77, 46),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "link": (86, None),
    "linkat": (265, 37),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "open": (2, None),
    "openat": (257, 56),
}
SECCOMP = {"x86_64": 317, "aarch64": 277}
PIDFD_GETFD = 438
OF_FILE = ("write", "pwrite64", "writev", "pwritev", "sendfile", "ftruncate", "fsync", "fdatasync")
PATH_ARGUMENT = {"rename": 1, "link": 1, "unlink": 0, "mkdir": 0, "rmdir": 0, "open": 0}
FOLDER_ARGUMENT = {  # the folder that a relative path begins in; the path follows it
    "renameat": 2, "renameat2": 2, "linkat": 2, "unlinkat": 0, "mkdirat": 0, "openat": 0,
}  # fmt: skip
CREATING, REMOVING = ("mkdir", "mkdirat"), ("unlink", "unlinkat", "rmdir")
RECEIVE, SEND = 0xC0502100, 0xC0182101  # ioctls of a listener
NOTIFICATION = struct.Struct("=QIIiIQ6Q")
ANSWER = struct.Struct("=QqiI")
GO_ON = 1  # the kernel does the call
# torn: killed when half of the bytes are written. short_write: half is written, and the call says
# so. lost_write: half is written, and the call says that all is.
KILLS = ("kill", "torn")
FAULTS = ("EIO", "ENOSPC", "short_write", "lost_write")
HANG_S = 600.0  # a busy machine is no hang
_libc = ctypes.CDLL(None, use_errno=True)


def _column() -> int:
    return {"x86_64": 0, "aarch64": 1}[platform.machine()]


@functools.cache
def _numbers() -> dict[int, str]:
    """{number of a call on this machine: its name}."""
    column = _column()
    return {row[column]: name for name, row in NUMBERS.items() if row[column] is not None}  # type: ignore[misc]


# --- the process that is watched ------------------------------------------------------------------


def install() -> int:
    """Send this process's calls to a listener from now on; returns the listener. OSError where
    the kernel does not allow it.
    """
    if platform.system() != "Linux" or platform.machine() not in SECCOMP:
        raise OSError(errno.ENOSYS, "no numbers of system calls for this machine")
    numbers = _numbers()
    program: list[tuple[int, int, int, int]] = [(0x20, 0, 0, 0)]  # load the number
    creating = [number for number, name in numbers.items() if name in ("open", "openat")]
    always = [number for number in numbers if number not in creating]
    rest = len(always) + 4 * len(creating)
    for i, number in enumerate(always):
        program.append((0x15, rest - i, 0, number))  # equal: jump to `notify`
    for i, number in enumerate(creating):
        flags = 16 + 8 * (2 if numbers[number] == "openat" else 1)
        to_notify = 4 * (len(creating) - 1 - i) + 2
        program.append((0x15, 0, 3, number))
        program.append((0x20, 0, 0, flags))
        program.append((0x45, to_notify, 0, os.O_CREAT))
        program.append((0x05, 0, 0, 4 * (len(creating) - 1 - i)))
    program.append((0x06, 0, 0, 0x7FFF0000))  # allow
    program.append((0x06, 0, 0, 0x7FC00000))  # notify
    code = b"".join(struct.pack("=HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code)
    # struct sock_fprog: a length, padding, a pointer
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(buffer)))
    if _libc.prctl(38, 1, 0, 0, 0):  # no new rights, which lets anybody install a filter
        raise OSError(ctypes.get_errno(), "prctl")
    listener = _libc.syscall(SECCOMP[platform.machine()], 1, 8, head)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return int(listener)


def send_listener(channel: socket.socket) -> None:
    """Install the filter and hand the listener to the parent."""
    listener = install()
    socket.send_fds(channel, [b"1"], [listener])
    os.close(listener)
    channel.recv(1)  # the parent listens


@functools.cache
def available() -> bool:
    """Whether this machine lets a process watch another one so."""
    outcome = watch(lambda: None, "/nonexistent", 0, "kill").outcome
    return outcome == "exit 0"


# --- its parent -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Watched:
    """What became of a process."""

    outcome: str = ""  # killed, hangs, or `exit N`
    calls: list[str] = field(default_factory=list)  # `name path`, those on files below the folder
    hit: str | None = None  # the call that failed, or at which it was killed


class Watcher:
    """Answers the calls of one process and its children."""

    def __init__(self, process: int, folder: str, n: int, how: str) -> None:
        assert how in (*KILLS, *FAULTS), how
        self.process, self.folder, self.n, self.how = process, os.path.realpath(folder), n, how
        self.result = Watched()

    def serve(self, listener: int, until: float) -> None:
        """Answer until the process has ended; it is killed where it takes too long."""
        ended = os.pidfd_open(self.process)
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(ended, select.POLLIN)
        try:
            while True:
                ready = dict(poll.poll(1000))
                if listener in ready and ready[listener] & select.POLLIN:
                    self._answer(listener)
                elif ended in ready:
                    return
                if time.monotonic() > until and not self.result.outcome:
                    self.result.outcome = "hangs"
                    os.kill(self.process, signal.SIGKILL)
        finally:
            os.close(ended)

    def _answer(self, listener: int) -> None:
        buffer = array.array("B", bytes(NOTIFICATION.size))
        try:
            fcntl.ioctl(listener, RECEIVE, buffer, True)
        except OSError:  # the caller has died
            return
        unpacked = NOTIFICATION.unpack(buffer.tobytes())
        number, caller, call, arguments = unpacked[0], unpacked[1], unpacked[3], unpacked[6:]
        try:
            value, error = self._decide(caller, _numbers()[call], arguments)
        except (FileNotFoundError, ProcessLookupError):  # it has died meanwhile
            value, error = None, 0
        flags = GO_ON if value is None and not error else 0
        answer = ANSWER.pack(number, value or 0, -error, flags)
        with contextlib.suppress(OSError):
            fcntl.ioctl(listener, SEND, answer)

    def _decide(self, caller: int, name: str, arguments: tuple[int, ...]) -> tuple[int | None, int]:
        """(what the call returns or None, its error or 0); (None, 0): the kernel does it."""
        path = self._path(caller, name, arguments)
        if path is None or not f"{path}/".startswith(f"{self.folder}/"):
            return None, 0
        if name in CREATING and os.path.lexists(path):
            return None, 0  # it changes nothing
        if name in REMOVING and not os.path.lexists(path):
            return None, 0
        self.result.calls.append(f"{name} {os.path.relpath(path, self.folder)}")
        if len(self.result.calls) != self.n:
            return None, 0
        self.result.hit = self.result.calls[-1]
        if self.how in ("EIO", "ENOSPC"):
            return None, getattr(errno, self.how)
        if self.how in KILLS:
            if self.how == "torn" and name == "write":
                self._write_half(caller, arguments)
            os.kill(self.process, signal.SIGKILL)
            return None, 0
        if name != "write" or arguments[2] < 2:
            self.result.hit = None  # it cannot be cut
            return None, 0
        written = self._write_half(caller, arguments)
        return (written if self.how == "short_write" else arguments[2]), 0

    def _write_half(self, caller: int, arguments: tuple[int, ...]) -> int:
        """Do half of a write in the place of the caller."""
        half = arguments[2] // 2
        with open(f"/proc/{caller}/mem", "rb", buffering=0) as memory:
            data = os.pread(memory.fileno(), half, arguments[1])
        handle = os.pidfd_open(self.process)
        try:
            copy = _libc.syscall(PIDFD_GETFD, handle, arguments[0], 0)
            if copy < 0:
                raise OSError(ctypes.get_errno(), "pidfd_getfd")
            try:
                return os.write(copy, data)
            finally:
                os.close(copy)
        finally:
            os.close(handle)

    def _path(self, caller: int, name: str, arguments: tuple[int, ...]) -> str | None:
        """The file or folder that a call changes; None for pipes and sockets."""
        if name in OF_FILE:
            path = os.readlink(f"/proc/{caller}/fd/{_signed(arguments[0])}")
            return path if path.startswith("/") else None
        if name == "copy_file_range":
            return os.readlink(f"/proc/{caller}/fd/{arguments[2]}")
        start = f"/proc/{caller}/cwd"
        if name in FOLDER_ARGUMENT:
            position = FOLDER_ARGUMENT[name]
            folder, address = _signed(arguments[position]), arguments[position + 1]
            if folder >= 0:
                start = f"/proc/{caller}/fd/{folder}"
        else:
            address = arguments[PATH_ARGUMENT[name]]
        path = self._text(caller, address)
        if not path.startswith("/"):
            path = os.path.join(os.readlink(start), path)
        parent, last = os.path.split(path)
        return os.path.join(os.path.realpath(parent), last)

    def _text(self, caller: int, address: int) -> str:
        data = b""
        with open(f"/proc/{caller}/mem", "rb", buffering=0) as memory:
            while b"\0" not in data and len(data) < 8192:
                in_page = 4096 - address % 4096
                data += os.pread(memory.fileno(), in_page, address)
                address += in_page
        return os.fsdecode(data.partition(b"\0")[0])


def wait_for_end(handle: int, until: float) -> bool:
    """Whether the process of a pidfd ends in time."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(max(0.0, until - time.monotonic()) * 1000))


def _signed(value: int) -> int:
    """A 32-bit argument that may be negative."""
    return int(struct.unpack("=i", struct.pack("=I", value & 0xFFFFFFFF))[0])


def watch(body: Callable[[], None], folder: str, n: int, how: str) -> Watched:
    """Run `body` in a child; the n-th call on a file below `folder` ends in `how` (0: none does).

    Call it in a process without threads. The child ends with status 0 after `body`, else with 1.
    """
    ours, theirs = socket.socketpair()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            ours.close()
            try:
                send_listener(theirs)
            except OSError:
                os._exit(99)
            body()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        finally:
            os._exit(status)
    theirs.close()
    watcher = Watcher(process, folder, n, how)
    with ours:
        message, handles, _, _ = socket.recv_fds(ours, 1, 1)
        if message:
            ours.send(b"1")
            try:
                watcher.serve(handles[0], time.monotonic() + HANG_S)
            finally:
                os.close(handles[0])
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    result = watcher.result
    if not result.outcome:
        result.outcome = "killed" if code == -signal.SIGKILL else f"exit {code}"
    return result
