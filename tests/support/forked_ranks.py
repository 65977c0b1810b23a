"""Ranks that are forked from one process: it imports torch and the rest once, in about 4 s."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable


def fork_ranks(world: int, work: Callable[[int], int | None]) -> list[int]:
    """The exit statuses of so many children that call `work(rank)`; None counts as 0.

    Where one is killed or raises, the others, which would wait for it, are ended. Call it in a
    process without threads.
    """
    children: list[int] = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = work(rank) or 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    statuses: dict[int, int] = {}
    while len(statuses) < world:
        child, ended = os.wait()
        statuses[child] = os.waitstatus_to_exitcode(ended)
        if statuses[child] in (1, -signal.SIGKILL):
            for other in set(children) - set(statuses):
                os.kill(other, signal.SIGKILL)
    return [statuses[child] for child in children]
