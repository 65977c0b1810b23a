"""A disk that fails at any operation of a build: no broken file is visible, the error is said, and
the next build ends as if nothing had happened.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import file_calls
from tests.support.forked_commands import CommandServer
from tests.support.trials import Trial, problems_of, some

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not file_calls.available(), reason="this machine has no seccomp listeners"),
]
IN_SAMPLE = 5  # operations for each fault
MESSAGES = {"EIO": "Input/output error", "ENOSPC": "No space left"}


@pytest.fixture(scope="module")
def server() -> Iterator[CommandServer]:
    with CommandServer() as server:
        yield server


@pytest.mark.parametrize("fault", file_calls.FAULTS)
def test_a_fault_at_any_operation_of_a_build_is_said_and_made_good(
    server: CommandServer, tmp_path: Path, fault: str
) -> None:
    trial = Trial(server, "build", tmp_path / "inputs", tmp_path)
    calls, expected, at_end = trial.whole()
    every = [(n, fault) for n in range(1, len(calls) + 1)]
    if fault not in MESSAGES:
        every = [point for point in every if calls[point[0] - 1].startswith("write ")]
    statuses: Counter[int] = Counter()
    wrong = []
    for n, how in some(every, fault, IN_SAMPLE):
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
    print(json.dumps({"fault": fault, "calls": len(calls), "statuses": counts}))
    assert not wrong, "\n".join(wrong)
