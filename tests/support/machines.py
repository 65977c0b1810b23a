"""Machines of a cluster on this one: network, process and mount namespaces where they work.

With namespaces (Linux, as root) each machine has its own network interface, /tmp, processes and
host name; they see each other through a bridge that ends with them. Nothing of it is visible
outside. Elsewhere a machine is a folder and an address of the loopback network.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
NETWORK = "10.77.0"
TOOLS = ("unshare", "nsenter", "ip", "mount", "hostname")


@functools.cache
def namespaces_work() -> bool:
    """Whether this process may make namespaces with a network between them."""
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in TOOLS):
        return False
    probe = (
        "mount -t tmpfs none /tmp && hostname probe && ip link set lo up"
        " && ip link add type veth && ip link add br0 type bridge"
    )
    command = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run([*command, "sh", "-c", probe], capture_output=True)
    return done.returncode == 0


@dataclass
class Machine:
    """One machine: where its processes run, and how they are ended."""

    name: str
    address: str
    folder: str  # its own; with namespaces it exists inside the machine only
    holder: int = 0  # the process whose namespaces these are; 0 without namespaces
    has_ended: bool = False
    _unshare: subprocess.Popen[bytes] | None = None
    _started: list[subprocess.Popen[Any]] = field(default_factory=list)

    def command(self, words: Sequence[str], cwd: str | None = None) -> list[str]:
        """The command line that runs `words` on this machine."""
        if not self.holder:
            return list(words)
        enter = ["nsenter", "--target", str(self.holder), "--net", "--mount", "--uts", "--pid"]
        return [*enter, f"--wdns={cwd or self.folder}", "--", *words]

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        cwd: str | None = None,
        log: IO[bytes] | int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start a process on this machine; it ends with the machine."""
        process = subprocess.Popen(
            self.command(words, cwd),
            cwd=None if self.holder else (cwd or self.folder),
            env={**environment, "TMPDIR": self.folder},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        cwd: str | None = None,
        seconds: float = 1200,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on this machine to its end."""
        return subprocess.run(
            self.command(words, cwd),
            cwd=None if self.holder else (cwd or self.folder),
            env={**environment, "TMPDIR": self.folder},
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def end(self) -> None:
        """End all processes of the machine at once, as a power cut does."""
        if self.has_ended:
            return
        self.has_ended = True
        if self.holder:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.holder, signal.SIGKILL)
            assert self._unshare is not None
            self._unshare.wait(30)
        for process in self._started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
        self._started.clear()
        if not self.holder:
            shutil.rmtree(self.folder, ignore_errors=True)


def loopback_machine(name: str, address: str = "127.0.0.1") -> Machine:
    """A machine without namespaces. Its folder is in /tmp: the path of a socket has at most 107
    characters.
    """
    return Machine(name, address, tempfile.mkdtemp(prefix="mill-", dir="/tmp"))


def _new_namespaces(name: str) -> tuple[subprocess.Popen[bytes], int]:
    """A process that holds new namespaces, and its id out here.

    The /tmp of the machine is its own, but for this checkout and its interpreter.
    """
    needed = dict.fromkeys(os.path.realpath(path) for path in (ROOT, sys.prefix, sys.base_prefix))
    shown = [path for path in needed if path.startswith("/tmp/")]
    lines = [f"exec {3 + number}< {shlex.quote(path)}" for number, path in enumerate(shown)]
    lines.append("mount -t tmpfs -o size=2g none /tmp")
    for number, path in enumerate(map(shlex.quote, shown)):
        # not the path, which the tmpfs hides
        lines.append(f"mkdir -p {path}")
        lines.append(f"mount --no-canonicalize --bind /proc/self/fd/{3 + number} {path}")
    lines += [f"hostname {name}", "exec sleep 86400"]
    command = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child"]
    unshare = subprocess.Popen(
        [*command, "--mount-proc", "sh", "-ec", "\n".join(lines)], stderr=subprocess.DEVNULL
    )
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
    until = time.monotonic() + 30
    while time.monotonic() < until:
        ids = children.read_text().split()
        if ids and Path(f"/proc/{ids[0]}/comm").read_text().strip() == "sleep":
            return unshare, int(ids[0])
        time.sleep(0.02)
    unshare.kill()
    raise AssertionError(f"the namespaces of {name} were not ready within 30 s")


def _in_network(holder: int, *words: str) -> None:
    subprocess.run(["nsenter", "--target", str(holder), "--net", "--", *words], check=True)


class Laboratory:
    """Machines that see each other. The first one has the bridge."""

    def __init__(self) -> None:
        self.machines: list[Machine] = []

    def add(self, name: str) -> Machine:
        """One more machine."""
        number = len(self.machines) + 1
        if not namespaces_work():
            machine = loopback_machine(name, f"127.0.0.{number}")
        else:
            unshare, holder = _new_namespaces(name)
            machine = Machine(name, f"{NETWORK}.{number}", "/tmp", holder=holder, _unshare=unshare)
            _in_network(holder, "ip", "link", "set", "lo", "up")
            self._connect(machine, number)
        self.machines.append(machine)
        return machine

    def _connect(self, machine: Machine, number: int) -> None:
        """The network interface of a machine."""
        address = f"{machine.address}/24"
        if number == 1:
            _in_network(machine.holder, "ip", "link", "add", "br0", "type", "bridge")
            _in_network(machine.holder, "ip", "addr", "add", address, "dev", "br0")
            _in_network(machine.holder, "ip", "link", "set", "br0", "up")
            return
        bridge, port = self.machines[0].holder, f"port{number}"
        peer = ["type", "veth", "peer", "name", "eth0", "netns", str(machine.holder)]
        _in_network(bridge, "ip", "link", "add", port, *peer)
        _in_network(bridge, "ip", "link", "set", port, "master", "br0", "up")
        _in_network(machine.holder, "ip", "addr", "add", address, "dev", "eth0")
        _in_network(machine.holder, "ip", "link", "set", "eth0", "up")

    def close(self) -> None:
        """End all machines."""
        for machine in reversed(self.machines):
            machine.end()


@contextlib.contextmanager
def laboratory(names: Sequence[str]) -> Iterator[list[Machine]]:
    """Machines with these names."""
    lab = Laboratory()
    try:
        for name in names:
            lab.add(name)
        yield lab.machines
    finally:
        lab.close()
