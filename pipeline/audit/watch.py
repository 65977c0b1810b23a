"""Shows what another process does to a pool: its progress.json, beside the lease. It only reads."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from typing import Literal

from clipmill.pipeline.pool.lease import LeaseOwner, LeaseWatch
from clipmill.pipeline.progress.state import CommandState
from clipmill.pipeline.progress.view import LogLines, read_state, screen_for, stage_line

LOOK_EVERY_S = 2.0
Ending = Literal["idle", "finished", "failed", "killed"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """How the command ended that wrote into a pool, and its last state, if it left one."""

    ending: Ending  # idle: no command was writing
    state: CommandState | None

    @property
    def is_fine(self) -> bool:
        """False where the command failed or was killed, or a task ended without an outcome."""
        stages = () if self.state is None else self.state.stages
        return self.ending in ("idle", "finished") and not any(stage.failed for stage in stages)


def watch_pool(pool: str, screen: LogLines | None = None) -> Watched:
    """Show what the command does that holds the pool's lease, until it has ended.

    Returns at once where none holds it, after a minute where a process of another machine might.
    The lease is read and never taken.
    """
    screen = screen or screen_for(sys.stderr)
    watched: CommandState | None = None
    was_running, lease = False, LeaseWatch()
    try:
        while (owner := lease.live_owner(pool)) is not None:
            was_running = True
            state = read_state(pool)
            if state is not None and _is_of(state, owner):
                watched = state
                screen.show(state)
                if state.phase != "running":
                    break
            time.sleep(LOOK_EVERY_S)
    finally:
        screen.close()
    last = read_state(pool)
    if watched is None or (last is not None and last.started >= watched.started):
        watched = last
    if watched is None:
        return Watched(ending="idle", state=None)
    if watched.phase == "running":
        return Watched(ending="killed", state=watched)
    return Watched(ending=watched.phase if was_running else "idle", state=watched)


def watched_lines(pool: str, watched: Watched) -> Iterator[str]:
    """How the stages ended, for a terminal; the conclusion comes last."""
    state = watched.state
    if state is None:
        yield f"no command writes into {pool}, and none has left a progress.json"
        return
    for stage in state.stages:
        yield stage_line(stage)
    command = f"{state.command} (process {state.pid} on {state.host})"
    if watched.ending == "killed":
        yield f"{command} was killed; what is committed stays: run it again to resume"
    elif watched.ending == "failed":
        yield f"{command} failed: {state.message}"
    elif watched.ending == "finished":
        yield f"{command} has ended"
    else:
        yield f"no command writes into {pool}; the last one was {command}: {state.phase}"


def _is_of(state: CommandState, owner: LeaseOwner) -> bool:
    """Whether the owner of the lease has written this state."""
    return (state.host, state.pid) == (owner.host, owner.pid) and state.started >= owner.started - 1
