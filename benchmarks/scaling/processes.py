"""What a process and everything that it starts costs: CPU seconds of all, peak memory of any.

The process tree is read from /proc a few times a second, as the processes of Ray are neither waited
for by the process that started Ray nor counted by getrusage.
"""

from __future__ import annotations

import os
import resource
import subprocess
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

INTERVAL_S = 0.2
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
MIB = 2**20
POINTS = 9  # of the memory over time that are reported


@dataclass(slots=True)
class Usage:
    """A process as it was seen last."""

    name: str
    cpu_s: float = 0.0  # of its own threads
    peak_mib: int = 0  # of its resident memory, shared pages included


@dataclass(slots=True)
class Tree:
    """A process and its descendants, until it ends."""

    pid: int
    seen: dict[tuple[int, int], Usage] = field(default_factory=dict)  # by (pid, start time)
    resident: list[int] = field(default_factory=list)  # MiB of `pid` itself, over time

    def look(self) -> None:
        """Read /proc once. Processes that lost their parent stay part of the tree."""
        stats = {int(name): _stat(int(name)) for name in os.listdir("/proc") if name.isdecimal()}
        children = defaultdict(list)
        for pid, stat in stats.items():
            if stat is not None:
                children[stat.parent].append(pid)
        waiting = [self.pid, *(pid for pid, _ in self.seen)]
        done = set()
        while waiting:
            pid = waiting.pop()
            stat = stats.get(pid)
            if pid in done or stat is None:
                continue
            done.add(pid)
            waiting += children[pid]
            usage = self.seen.setdefault((pid, stat.start), Usage(stat.name))
            usage.cpu_s = stat.cpu_s
            usage.peak_mib = max(usage.peak_mib, _status(pid, "VmHWM"))
        self.resident.append(_status(self.pid, "VmRSS"))

    def descendants(self) -> list[Usage]:
        return [usage for (pid, _), usage in self.seen.items() if pid != self.pid]

    def over_time(self) -> list[int]:
        """MiB of the first process at points of equal distance in time, without the last 2 %, in
        which it ends."""
        values = [value for value in self.resident if value][: -max(1, len(self.resident) // 50)]
        if len(values) < POINTS:
            return values
        return [values[i * (len(values) - 1) // (POINTS - 1)] for i in range(POINTS)]


@dataclass(frozen=True, slots=True)
class _Stat:
    name: str
    parent: int
    start: int
    cpu_s: float


def _stat(pid: int) -> _Stat | None:
    try:
        head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:  # it has ended
        return None
    values = rest.split()
    return _Stat(
        name=head.partition("(")[2],
        parent=int(values[1]),
        start=int(values[19]),
        cpu_s=(int(values[11]) + int(values[12])) * TICK_S,
    )


def _status(pid: int, key: str) -> int:
    """A size in /proc/PID/status in MiB; 0 of a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    kib = [int(line.split()[1]) for line in lines if line.startswith(f"{key}:")]
    return kib[0] * 1024 // MIB if kib else 0


def watched(process: subprocess.Popen[str]) -> tuple[str, Tree]:
    """What a process writes to its pipe, and its tree. CalledProcessError where it fails."""
    tree = Tree(process.pid)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(INTERVAL_S):
            tree.look()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        out, _ = process.communicate()
    finally:
        ended.set()
        watcher.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return out, tree


def cpu_s(pid: int) -> float:
    """CPU seconds of one process so far."""
    stat = _stat(pid)
    return 0.0 if stat is None else stat.cpu_s


def children_cpu_s() -> float:
    """CPU seconds of the children that this process waited for, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
