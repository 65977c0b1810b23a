from __future__ import annotations

import signal
from typing import Any

import pytest

from clipmill.bench.ranks import (
    MeasurementFailed,
    measure_in_ranks,
)
from clipmill.manifests import console

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
