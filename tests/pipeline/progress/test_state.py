"""A state is the same after it was stored; anything else is refused."""

from __future__ import annotations

import json

import pytest

from manifests import disk
from pipeline.progress.state import state_from_plain
from tests.support.command_states import command_state, stage_state


def test_a_state_is_the_same_after_it_was_stored() -> None:
    state = command_state()
    assert state_from_plain(json.loads(json.dumps(disk.to_plain(state)))) == state


def test_the_current_stage_is_the_one_that_runs_else_the_last_one() -> None:
    running, ended = stage_state(name="a"), stage_state(name="b", ended=True)
    assert command_state(running, ended).current == running
    assert command_state(ended).current == ended
    assert command_state(stages=()).current is None


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"version": 99},
        {**disk.to_plain(command_state()), "stages": [{"name": "x"}]},
        {**disk.to_plain(command_state()), "pid": "many"},
        {**disk.to_plain(command_state()), "stages": 7},
    ],
)
def test_what_is_no_state_is_refused(document: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        state_from_plain(document)
