"""A sample, counts of those that could not be used, and the limit that ends a run."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, ParamSpec, TypeVar

import pyarrow as pa

from clipmill.manifests.clip_tokenizer import TokenArray

FREE, SHARE = 10, 0.001  # more damaged samples than both of these end the run
LISTED = 1000  # damaged samples that are kept by name


def too_many_damaged(count: int, drawn: int) -> bool:
    """Whether more than 1 in 1,000 of the `drawn` samples, and more than ten, are damaged.

    The counts are those of the whole run, so the answer does not depend on the number of ranks.
    """
    return count > max(FREE, SHARE * drawn)


class Sample(NamedTuple):
    """An image and its caption, of a row of a pool or of a tar that is streamed. A tuple is made in
    a fifth of the time of a frozen dataclass.

    read: gives the image. ValueError for damage, ReadFailed or OSError where it cannot be read.
    """

    source: str  # of the blend
    shard: str  # its name, or the tar of a stream
    tar: str
    key: str
    name: str  # as in `Batch.keys`
    tokens: TokenArray  # (length,) start-of-text … end-of-text; none where there are none
    read: Callable[[], bytes]
    text: str | None = None  # the text column of its caption, where the source has several
    columns: pa.Table | None = None  # of the rows of its shard, where columns were asked for
    row: int = 0  # its row there


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedSample:
    """A row that could not be used, and where the run met it."""

    step: int
    position: int  # in the global batch
    source: str  # POOL/VIEW of the blend
    shard: str
    key: str
    reason: str


@dataclass(slots=True, kw_only=True)
class DamageCounts:
    """How many samples were damaged, and the first LISTED of these."""

    count: int = 0
    samples: list[DamagedSample] = field(default_factory=list)

    def add(self, damaged: Sequence[DamagedSample]) -> None:
        """Count those of a batch."""
        self.count += len(damaged)
        self.samples += damaged[: LISTED - len(self.samples)]


def sum_damage(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum of the counts of several ranks and starts, all as plain values; samples in the order
    of step and position.
    """
    count, samples = 0, []
    for part in parts:
        count += part["count"]
        samples += part["samples"]
    samples.sort(key=lambda sample: (sample["step"], sample["position"]))
    return {"count": count, "samples": samples[:LISTED]}


# --------------------------------------------------------------------------------------------------
# Where the time of a loader goes: processor time and time by the clock of each stage, of all
# threads together.


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
