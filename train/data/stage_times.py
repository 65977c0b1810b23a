"""Where the time of a loader goes: processor time and time by the clock of each stage, of all
threads together.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class StageTimes:
    """Adds up the calls that it was put around. A call inside another one counts for both."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        with self._lock:
            self.cpu_s: dict[str, float] = defaultdict(float)
            self.wall_s: dict[str, float] = defaultdict(float)

    def add(self, stage: str, cpu_s: float, wall_s: float) -> None:
        """Add seconds to a stage."""
        with self._lock:
            self.cpu_s[stage] += cpu_s
            self.wall_s[stage] += wall_s

    def timed(self, stage: str, call: Callable[P, T]) -> Callable[P, T]:
        """`call`, whose time is added to a stage."""

        @functools.wraps(call)
        def measured(*args: P.args, **kwargs: P.kwargs) -> T:
            cpu, wall = time.thread_time(), time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.add(stage, time.thread_time() - cpu, time.perf_counter() - wall)

        return measured
