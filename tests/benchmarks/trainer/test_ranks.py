from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from benchmarks.trainer import ranks
from benchmarks.trainer.ranks import (
    MeasurementFailed,
    measure_in_ranks,
    serve_rank,
)
from benchmarks.trainer.steps import StepPlan
from benchmarks.trainer.timing import Measurement
from manifests import console, disk
from train.config import configure
from train.parallel import process_group

RANK = ["tests.support.bench_rank"]


LOST = "RuntimeError: gloo/transport/tcp/pair.cc:545] Read error: Connection reset by peer"


KILLED = "^a rank was ended by SIGKILL|^a rank has ended without a reason, perhaps by a signal"


def plan(**changes: Any) -> dict[str, Any]:
    values = {"kill": -1, "fail": -1, "stop": -1, "status": 0, "signal": 9}
    return {**values, "reason": "no memory", **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fail": 1}, "^no memory$"),
        ({"kill": 1}, "^a rank was ended by SIGKILL, which the system sends where memory"),
        ({"kill": 0, "signal": int(signal.SIGSEGV)}, "^a rank was ended by SIGSEGV$"),
        ({"status": 9}, "^a rank ended with status 9$"),
        # the other rank lost the connection, which is a consequence; who is seen first differs
        ({"kill": 1, "fail": 0, "reason": LOST}, KILLED),
        ({"kill": 0, "fail": 1}, "^no memory$"),
    ],
)
def test_a_rank_that_fails_is_the_reason(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MeasurementFailed, match=message):
        measure_in_ranks(RANK, plan(**changes), 2)


def test_a_stop_signal_ends_the_ranks_and_the_command() -> None:
    asked: list[int] = []
    with console.on_stop_signal(asked.append), pytest.raises(MeasurementFailed):
        measure_in_ranks(RANK, plan(stop=1, signal=int(signal.SIGTERM)), 2)
    assert asked == [signal.SIGTERM]


def test_a_rank_ends_with_the_process_that_started_it_even_if_that_has_ended_before(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed while its ranks import torch is not their parent any more."""
    gone = 2**22 + 1  # above the largest number of a process
    ended: list[int] = []
    monkeypatch.setattr(ranks.os, "_exit", ended.append)
    monkeypatch.setenv(process_group.PARENT, str(gone))
    monkeypatch.setenv("RANK", "0")
    written = StepPlan(config=configure({"model": "test"}), blend=None, iterations=1)
    disk.write_json(tmp_path / "plan.json", written)

    def measure(*_: Any) -> Measurement:
        until = time.monotonic() + 30
        while not ended and time.monotonic() < until:
            time.sleep(0.01)
        return Measurement(figures={}, rates=())

    serve_rank(str(tmp_path), StepPlan, measure)
    assert ended == [console.EXIT_INCOMPLETE]
