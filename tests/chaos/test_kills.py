"""Commands killed at every change of a file: run again, they end as if nothing had happened.

A point is a system call that creates, writes, syncs, links, renames or removes a file of the pool
or of the run. Without CLIPMILL_CHAOS=1 a sample of them is tried, the same one each time.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import chaos_pools, chaos_runs, file_calls
from tests.support.forked_commands import CommandServer
from tests.support.trials import Point, Trial, problems_of, some

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not file_calls.available(), reason="this machine has no seccomp listeners"),
]
IN_SAMPLE = 5  # points of each scenario
WRITES = ("write", "pwrite64", "writev")
# Calls of each scenario when this was written, and some less: far fewer would not be all.
LEAST = {
    "build": 200, "score": 80, "score_pool": 200, "choose": 40,
    "reindex": 10, "extend_index": 100, "repair": 120, "purge": 150, "lock": 5,
    "from_lock": 50,
    "checkpoint": 20, "sharded_checkpoint": 10, "train": 40,
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[CommandServer]:
    with CommandServer() as server:
        yield server


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inputs") / "inputs"


def points(calls: list[str], name: str) -> list[Point]:
    """Before each call, and in the middle of each write."""
    every = [(n, "kill") for n in range(1, len(calls) + 1)]
    every += [(n, "torn") for n in range(1, len(calls) + 1) if calls[n - 1].split()[0] in WRITES]
    return some(every, name, IN_SAMPLE)


@pytest.mark.parametrize("name", [*chaos_pools.SCENARIOS, *chaos_runs.SCENARIOS])
def test_what_is_killed_anywhere_is_resumed_to_the_same_bytes(
    server: CommandServer, inputs: Path, tmp_path: Path, name: str
) -> None:
    trial = Trial(server, name, inputs, tmp_path)
    calls, expected, at_end = trial.whole()
    assert len(calls) >= LEAST[name]
    tried = 0
    wrong = []
    for n, how in points(calls, name):
        ended = trial.watch(n, how)
        while ended.watched.outcome == "exit 0" and n > 1:
            # Threads change the order of calls: the last are not reached, or this one is no write.
            n, how = n - 1, "kill"
            ended = trial.watch(n, how)
        tried += 1
        if ended.watched.outcome != "killed":
            wrong.append(f"{n} {how}: {ended.watched.outcome}: {ended.output}")
        elif problems := problems_of(trial.resume(), expected, at_end):
            wrong.append(f"{n} {how} {ended.watched.hit}: {problems}")
    counts = {"calls": len(calls), "points": tried, "wrong": len(wrong)}
    print(json.dumps({"scenario": name, **counts}), file=sys.stderr)
    assert not wrong, "\n".join(wrong)


# --------------------------------------------------------------------------------------------------
# A disk that fails at any operation of a build: no broken file is visible, the error is said, and
# the next build ends as if nothing had happened.


FAULTS_IN_SAMPLE = 3  # of each
MESSAGES = {"EIO": "Input/output error", "ENOSPC": "No space left"}


@pytest.mark.parametrize("fault", file_calls.FAULTS)
def test_a_fault_at_any_operation_of_a_build_is_said_and_made_good(
    server: CommandServer, inputs: Path, tmp_path: Path, fault: str
) -> None:
    trial = Trial(server, "build", inputs, tmp_path)
    calls, expected, at_end = trial.whole()
    every = [(n, fault) for n in range(1, len(calls) + 1)]
    if fault not in MESSAGES:
        every = [point for point in every if calls[point[0] - 1].startswith("write ")]
    statuses: Counter[int] = Counter()
    wrong = []
    for n, how in some(every, fault, FAULTS_IN_SAMPLE):
        ended = trial.watch(n, how)
        status, lines = ended.value, ended.output.strip().splitlines()
        where = f"{n} {ended.watched.hit}"
        if ended.watched.outcome != "exit 0" or status not in (0, 2, 3):
            wrong.append(f"{where}: {ended.watched.outcome}, status {status}: {lines[-3:]}")
            continue
        statuses[status] += 1
        if status != 0 and not lines[-1].startswith("error: "):
            wrong.append(f"{where}: the last line is {lines[-1]!r}")
        if status != 0 and MESSAGES.get(fault, "") not in "\n".join(lines):
            wrong.append(f"{where}: no line says {MESSAGES[fault]}: {lines[-3:]}")
        after = trial.resume()
        if problems := problems_of(after, expected, at_end):
            wrong.append(f"{where}, status {status}: {problems}")
    counts = {str(status): count for status, count in sorted(statuses.items())}
    print(json.dumps({"fault": fault, "calls": len(calls), "statuses": counts}), file=sys.stderr)
    assert not wrong, "\n".join(wrong)
