"""Start a command as several ranks on this machine, with the variables that torchrun sets."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from manifests import console
from train.dist.process_group import STORE

GRACE_S = 30.0  # for the other ranks to end by themselves once one has failed


def launch_ranks(
    command: Sequence[str], world: int, variables: Mapping[str, str] | None = None
) -> int:
    """Run `command` as `world` ranks on this machine. The exit status of the first that fails, or
    0. `variables` go over those of this process.

    The first stop signal is passed on to every rank; the second kills them, unless it is SIGHUP,
    which comes twice of a closed terminal. Ranks have a session of their own, so that Ctrl-C
    reaches them once, through this process. 128 + N where signal N ended them. They find each other
    through a file and communicate over loopback: the store of torchrun listens on every network
    interface and unpickles what it receives.
    """
    threads = str(max(1, (os.cpu_count() or 1) // world))
    ranks: list[subprocess.Popen[bytes]] = []
    received: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        if received and number == signal.SIGHUP:
            return
        received.append(number)
        for process in ranks:
            if len(received) > 1:
                process.kill()
            else:
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in console.stop_signals()}
    try:
        with tempfile.TemporaryDirectory() as folder:
            shared = {"WORLD_SIZE": str(world), STORE: os.path.join(folder, "store")}
            shared |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
            shared = {"OMP_NUM_THREADS": threads, **os.environ, **(variables or {}), **shared}
            for rank in range(world):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                process = subprocess.Popen(command, env={**shared, **own}, start_new_session=True)
                ranks.append(process)
                if received:  # while the ranks before this one were started
                    ranks[-1].terminate()
            status = _wait(ranks)
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
        for process in ranks:
            process.kill()
            process.wait()
    # Ended by the signal: there was nothing to save yet, or there were two signals
    if status < 0 and received:
        return 128 + received[-1]
    return status


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """0 when every rank ends with 0; else the status of the first that fails, after the others had
    time to end.
    """
    failed, until = 0, float("inf")
    while time.monotonic() < until:
        statuses = [rank.poll() for rank in ranks]
        if None not in statuses:
            break
        if not failed and any(statuses):
            failed = next(status for status in statuses if status)
            until = time.monotonic() + GRACE_S
        time.sleep(0.05)
    return failed or next((rank.returncode for rank in ranks if rank.returncode), 0)
