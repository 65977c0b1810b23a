"""Any sequence of builds, kills, retries, damages, repairs, purges and changed inputs, compared
with a dict: what may have become of each row.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.support import chaos_model, file_calls
from tests.support.chaos_model import MISSING, OFFLINE, ROWS, TARGETS
from tests.support.forked_commands import CommandServer
from tests.support.trials import EVERYWHERE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not file_calls.available(), reason="this machine has no seccomp listeners"),
]
Reason = str | None
numbers = st.integers(1, 250)


@functools.cache
def server() -> CommandServer:
    """One for all examples."""
    return CommandServer()


@pytest.fixture(scope="module", autouse=True)
def server_ends() -> Iterator[None]:
    yield
    if server.cache_info().currsize:
        server().__exit__()
        server.cache_clear()


class Pool(RuleBasedStateMachine):
    """`may_be`: {row: the reasons that it may have ended with}, None for stored.

    A rule that cannot be followed does nothing. It is no precondition: which command a kill meets
    is decided by the threads of the build, and hypothesis has to draw the same numbers again.
    """

    @initialize(kill=st.none() | numbers, how=st.sampled_from(file_calls.KILLS))
    def begin(self, kill: int | None, how: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="clipmill-model-"))
        self.inputs, self.pool = str(self.folder / "inputs"), str(self.folder / "pool")
        server().run(chaos_model.write_inputs, self.inputs)
        self.offline = set(OFFLINE)
        self.may_be: dict[int, set[Reason]] = {i: {self.fresh(i)} for i in range(ROWS)}
        self.is_complete = self.is_damaged = self.is_killed = False
        self.purging: int | None = None  # a purge of this row was killed
        self.build(kill, how)

    def fresh(self, row: int) -> Reason:
        """How a request for the row ends now."""
        if row == MISSING:
            return "missing_file"
        return "dns" if row in self.offline else None

    def do(self, name: str, kill: int | None, how: str, row: int = 0) -> bool:
        """Run a command, or kill it at a call; whether it ended."""
        arguments = (chaos_model.act, name, self.inputs, self.pool, row)
        Path(self.pool).mkdir(exist_ok=True)
        if kill is None:
            assert server().run(*arguments) == 0
        else:
            ended = server().watch(Path(self.pool), kill, how, *arguments)
            if ended.watched.outcome == "killed":
                self.is_killed, self.is_complete = True, False
                return False
            assert (ended.watched.outcome, ended.value) == ("exit 0", 0), ended.output
        self.is_killed = False
        return True

    # --- rules ------------------------------------------------------------------------------------

    @rule(kill=st.none() | numbers, how=st.sampled_from(file_calls.KILLS))
    def build(self, kill: int | None, how: str) -> None:
        """What is not committed is fetched as the files are now."""
        if self.is_damaged:
            return
        if not self.is_complete:
            for row, reasons in self.may_be.items():
                if "purged" not in reasons:
                    reasons.add(self.fresh(row))
        if self.do("build", kill, how):
            self.is_complete = True

    @rule(kill=st.none() | numbers, how=st.sampled_from(file_calls.KILLS))
    def retry(self, kill: int | None, how: str) -> None:
        if not self.is_complete or self.is_damaged or self.purging is not None:
            return
        transient = [
            row for row, reasons in self.may_be.items() if reasons & {"dns", "outcome_lost"}
        ]
        for row in transient:
            self.may_be[row].add(self.fresh(row))
        if self.do("retry", kill, how):
            for row in transient:
                self.may_be[row] = {self.fresh(row)}

    @rule(online=st.booleans())
    def change_network(self, online: bool) -> None:
        """Files can be reached, or again not."""
        self.offline = set() if online else set(OFFLINE)
        names = " ".join(f"{i}.jpg" for i in self.offline)
        (Path(self.inputs) / "offline").write_text(names)

    @rule(kind=st.sampled_from(sorted(TARGETS)), position=st.integers(0, 10**6))
    def damage(self, kind: str, position: int) -> None:
        if not self.is_complete or self.is_killed:
            return
        if server().run(chaos_model.damage, self.pool, kind, position) is not None:
            self.is_damaged = True

    @rule(kill=st.none() | numbers, how=st.sampled_from(file_calls.KILLS))
    def repair(self, kill: int | None, how: str) -> None:
        """Rows of a damaged shard are fetched again, or keep their outcome where it is known."""
        if not self.is_damaged:
            return
        for row, reasons in self.may_be.items():
            if reasons != {"purged"}:
                reasons.add(self.fresh(row))
                if reasons - {None}:
                    reasons.add("outcome_lost")
        if self.do("repair", kill, how):
            self.is_damaged, self.is_complete = False, True

    @rule(
        row=st.integers(0, ROWS - 1),
        kill=st.none() | numbers,
        how=st.sampled_from(file_calls.KILLS),
    )
    def purge(self, row: int, kill: int | None, how: str) -> None:
        if not self.is_complete or self.is_damaged:
            return
        self.may_be[row].add("purged")
        if self.purging is not None:  # it is ended by this one, unless that is killed too
            self.may_be[self.purging].add("purged")
        if self.do("purge", kill, how, row):
            for gone in {row, self.purging} - {None}:
                self.may_be[gone] = {"purged"}
            self.purging = None
        elif self.purging is None:
            self.purging = row

    @rule()
    def change_input(self) -> None:
        """Another list is refused, and nothing of the pool changes."""
        if not self.is_complete or self.is_damaged:
            return
        table = Path(self.inputs) / "captions.csv"
        before = table.read_bytes()  # read_text would change the ends of its lines
        table.write_bytes(before + b"new.jpg,a new row\n")
        arguments = (chaos_model.act, "build", self.inputs, self.pool)
        ended = server().watch(Path(self.pool), 0, "kill", *arguments)
        assert ended.value == 2, ended.output
        assert ended.output.strip().splitlines()[-1].startswith("error: ")
        table.write_bytes(before)

    # --- what holds -------------------------------------------------------------------------------

    @invariant()
    def readers_see_what_the_model_allows(self) -> None:
        if not hasattr(self, "pool") or not Path(self.pool).exists() or self.is_damaged:
            return
        seen: dict[str, Any] = server().run(chaos_model.look, self.inputs, self.pool)
        assert seen["visible"] == []
        for row, reason in seen["outcomes"].items():
            assert reason in self.may_be[row], (row, reason, self.may_be[row])
        if self.is_complete and not self.is_killed:
            assert seen["problems"] == []
            assert seen["complete"]
            assert (len(seen["outcomes"]), seen["attempts"]) == (ROWS, ROWS)
            if self.purging is None:
                for row, reason in seen["outcomes"].items():
                    self.may_be[row] = {reason}
                    assert reason != "purged" or row not in seen["content"]

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


def test_no_sequence_of_commands_loses_or_repeats_a_row() -> None:
    run_state_machine_as_test(
        Pool,
        settings=settings(
            max_examples=100 if EVERYWHERE else 3,
            stateful_step_count=20 if EVERYWHERE else 9,
            derandomize=not EVERYWHERE,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
