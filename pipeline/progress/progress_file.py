"""POOL/progress.json: what a running command writes for those who watch it from elsewhere.

It is no part of the pool: nothing reads it but a person's view, it is not synced, and a write that
fails is tried again with the next state.
"""

from __future__ import annotations

import json
import os

from manifests import disk
from manifests.pool_layout import PoolLayout
from pipeline.progress.state import CommandState, state_from_plain

LOCAL_EVERY_S = 2.0
REMOTE_EVERY_S = 15.0  # a put is paid for


def write_every_s(pool: str) -> float:
    """Seconds between two writes."""
    return REMOTE_EVERY_S if disk.is_url(pool) else LOCAL_EVERY_S


def write_state(pool: str, state: CommandState) -> None:
    """Write progress.json, whole or not at all, over the one of before.

    The name of the partial file does not change, so that killed commands leave at most one.
    """
    path = PoolLayout(pool).progress_json
    if disk.is_url(path):
        disk.write_json(path, state)
        return
    target = disk.local_path(path)
    partial = target.with_name(f".{target.name}.partial")
    with open(partial, "w") as f:
        json.dump(disk.to_plain(state), f)
    os.replace(partial, target)


def read_state(pool: str) -> CommandState | None:
    """The last state that a command has written; None where there is none that can be read."""
    try:
        return state_from_plain(disk.read_json(PoolLayout(pool).progress_json))
    except (FileNotFoundError, ValueError):
        return None
