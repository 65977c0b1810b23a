"""Another process shows what a command does, by its progress and its lease, and changes nothing."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout
from clipmill.pipeline.audit import watch
from clipmill.pipeline.audit.watch import watch_pool, watched_lines
from clipmill.pipeline.pool.lease import LeaseWatch, hold_lease
from clipmill.pipeline.progress.state import CommandState, StageState
from clipmill.pipeline.progress.view import LogLines, write_state
from tests.support.command_states import command_state, stage_state


class Shown(LogLines):
    """A screen that keeps what it is given."""

    def __init__(self) -> None:
        self.states: list[CommandState] = []
        self.closed = 0

    def show(self, state: CommandState) -> None:
        self.states.append(state)

    def stage_ended(self, stage: StageState) -> None:
        raise AssertionError("a watcher ends no stage")

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_EVERY_S", 0.02)


def own_state(pool: str, **changes: object) -> CommandState:
    """A state as the owner of the lease writes it."""
    owner = LeaseWatch().live_owner(pool)
    assert owner is not None
    return command_state(host=owner.host, pid=owner.pid, started=owner.started, **changes)


def test_a_pool_that_nobody_writes_is_told_at_once(tmp_path: Path) -> None:
    watched = watch_pool(str(tmp_path), Shown())
    assert (watched.ending, watched.state, watched.is_fine) == ("idle", None, True)
    assert list(watched_lines("P", watched)) == [
        "no command writes into P, and none has left a progress.json"
    ]
    assert os.listdir(tmp_path) == []


def test_the_states_of_the_owner_are_shown_until_it_ends(tmp_path: Path) -> None:
    pool = str(tmp_path)
    shown = Shown()
    results = []
    with hold_lease(pool, create=True):
        write_state(pool, command_state(pid=1, phase="finished"))  # of an earlier command
        thread = threading.Thread(target=lambda: results.append(watch_pool(pool, shown)))
        thread.start()
        time.sleep(0.2)
        assert shown.states == [], "another command's state is not shown"
        before = disk.read_json(PoolLayout(pool).lease_json)
        write_state(pool, own_state(pool))
        ends = time.monotonic() + 900
        while not shown.states and time.monotonic() < ends:
            time.sleep(0.01)
        assert disk.read_json(PoolLayout(pool).lease_json) == before, "it only reads"
        write_state(pool, own_state(pool, phase="finished"))
    thread.join(300)
    (watched,) = results
    assert watched.ending == "finished"
    assert not watched.is_fine, "a task of its fetch has failed"
    assert list(watched_lines(pool, watched))[-1].endswith("has ended")
    assert shown.closed == 1
    assert shown.states[0].phase == "running"


def test_a_command_that_was_killed_is_told_from_one_that_ended(tmp_path: Path) -> None:
    pool = str(tmp_path)
    write_state(pool, command_state())
    watched = watch_pool(pool, Shown())
    assert (watched.ending, watched.is_fine) == ("killed", False)
    assert "was killed; what is committed stays" in list(watched_lines(pool, watched))[-1]
    fine = stage_state(failed=0, ended=True)
    write_state(pool, replace(command_state(fine), phase="finished"))
    watched = watch_pool(pool, Shown())
    assert (watched.ending, watched.is_fine) == ("idle", True)
    assert list(watched_lines(pool, watched))[-1].endswith("process 12 on node1): finished")


def test_a_command_that_failed_says_why(tmp_path: Path) -> None:
    pool = str(tmp_path)
    with hold_lease(pool, create=True):
        write_state(pool, own_state(pool, phase="failed", message="ValueError: no \x1b weights"))
        watched = watch_pool(pool, Shown())
    assert (watched.ending, watched.is_fine) == ("failed", False)
    assert list(watched_lines(pool, watched))[-1].endswith("failed: ValueError: no \x1b weights")
