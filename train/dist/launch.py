"""Start a command as several ranks on this machine, with the variables that torchrun sets."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence

from train.dist.process_group import STORE

GRACE_S = 30.0  # for the other ranks to end by themselves once one has failed


def launch_ranks(command: Sequence[str], world: int) -> int:
    """Run `command` as `world` ranks on this machine and pass SIGTERM on to them. The exit status of the first to fail.

    They meet through a file and talk over loopback. torchrun would do as well, but its store listens on every network
    interface and unpickles what it is sent.
    """
    threads = str(max(1, (os.cpu_count() or 1) // world))
    ranks: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        shared = {"WORLD_SIZE": str(world), STORE: os.path.join(folder, "store")}
        shared |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}

        def stop(*_: object) -> None:
            for process in ranks:
                process.terminate()

        before = signal.signal(signal.SIGTERM, stop)
        try:
            for rank in range(world):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                ranks.append(subprocess.Popen(command, env={"OMP_NUM_THREADS": threads, **os.environ, **shared, **own}))
            return _wait(ranks)
        finally:
            signal.signal(signal.SIGTERM, before)
            for process in ranks:
                process.kill()
                process.wait()


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """0 when all have ended well; else the status of the first that did not, after the others had time to end."""
    failed, until = 0, float("inf")
    while time.monotonic() < until and None in (statuses := [rank.poll() for rank in ranks]):
        if not failed and any(statuses):
            failed, until = next(status for status in statuses if status), time.monotonic() + GRACE_S
        time.sleep(0.05)
    return failed or next((rank.returncode for rank in ranks if rank.returncode), 0)
