from __future__ import annotations

import time

import pytest
import torch

from benchmarks.trainer.timing import mark, seconds_between, synchronize


def test_the_time_between_ends_of_steps() -> None:
    device = torch.device("cpu")
    synchronize(device)
    marks = [mark(device)]
    time.sleep(0.02)
    marks.append(mark(device))
    assert seconds_between(marks)[0] >= 0.02
    assert seconds_between([1.0, 3.0, 3.5]) == [2.0, 0.5]
    assert seconds_between([1.0]) == []


def test_events_of_a_gpu_have_milliseconds() -> None:
    class Event:
        def __init__(self, at: float) -> None:
            self.at = at

        def elapsed_time(self, other: Event) -> float:
            return other.at - self.at

    assert seconds_between([Event(10), Event(30), Event(80)]) == [0.02, 0.05]
    with pytest.raises(AttributeError):
        seconds_between(["no event", "nor this"])
