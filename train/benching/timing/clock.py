"""The ends of steps on a device: events of a GPU, the time on a processor."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import torch


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def mark(device: torch.device) -> Any:
    """The end of a step: an event of the device, or the time."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(marks: Sequence[Any]) -> list[float]:
    """Seconds between marks. The device must have passed all of them."""
    seconds = []
    for one, other in itertools.pairwise(marks):
        is_time = isinstance(one, float)
        seconds.append(other - one if is_time else one.elapsed_time(other) / 1000)
    return seconds
