"""How the rows of a view are read from a store: whole tars, or only what is kept. A cost model
chooses, from what a shard would cost either way.

mask: every part of a tar is read, and rows that are not kept are skipped. ranged: only kept rows,
and what lies between near ones. materialised: the view has tars of its own, in which every row is
kept; there is nothing to choose then.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from train.store.byte_ranges import PART, ByteRanges

Mode = Literal["mask", "ranged", "materialised"]
UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
UNITS_BYTES = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SPEED = re.compile(r"([\d.]+) ?(us|ms|s) ?, ?([\d.]+) ?(kB|MB|GB|KiB|MiB|GiB)/s")
SMALL = 1024  # bytes of a read that measures latency
SMALL_READS = 3
PARTS_AT_ONCE = 8  # that measure bandwidth
SAVING = 0.1  # parts of whole tars serve all views, so a smaller saving is none


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpeed:
    """What a store gives to one rank."""

    latency_s: float  # to the first byte of a read
    bytes_per_s: float  # of several reads together

    @classmethod
    def parse(cls, text: str) -> StoreSpeed:
        """From text such as `50ms,200MB/s`. ValueError for another text."""
        match = SPEED.fullmatch(text.strip())
        if match is None or not float(match[3]) > 0:
            raise ValueError(
                f"store_speed is {text!r}; it must be a latency and a bandwidth, like 50ms,200MB/s"
            )
        return cls(
            latency_s=float(match[1]) * UNITS_S[match[2]],
            bytes_per_s=float(match[3]) * UNITS_BYTES[match[4]],
        )

    def __str__(self) -> str:
        return f"{self.latency_s * 1e3:.3g} ms, {self.bytes_per_s / 1e6:.3g} MB/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCost:
    """What the rows of some shards cost in one mode."""

    requests: int
    bytes: int

    @classmethod
    def of(cls, ranges: ByteRanges) -> ReadCost:
        """What it costs to read these ranges."""
        return cls(requests=len(ranges.start), bytes=ranges.bytes)

    def seconds(self, speed: StoreSpeed, at_once: int) -> float:
        """With `at_once` reads at a time: the waits of one reader, or the line, whichever takes
        longer. A wait is in any case the least."""
        waits = -(-self.requests // at_once) * speed.latency_s
        return max(waits, self.bytes / speed.bytes_per_s + speed.latency_s)


def measure_speed(read: Callable[[int, int], object], size: int) -> StoreSpeed:
    """Latency and bandwidth of a store, from a few reads of a file of `size` bytes.

    read(start, length). It takes about five waits, and at most PARTS_AT_ONCE × PART bytes.
    """
    waits = []
    for k in range(SMALL_READS):
        started = time.perf_counter()
        read(k * size // SMALL_READS, min(SMALL, size))
        waits.append(time.perf_counter() - started)
    latency = sorted(waits)[len(waits) // 2]
    length = min(PART, -(-size // PARTS_AT_ONCE))
    starts = range(0, min(size, PARTS_AT_ONCE * length), length)
    started = time.perf_counter()
    with ThreadPoolExecutor(PARTS_AT_ONCE) as threads:
        list(threads.map(lambda start: read(start, length), starts))
    seconds = max(time.perf_counter() - started - latency, 1e-4)
    return StoreSpeed(latency_s=latency, bytes_per_s=len(starts) * length / seconds)


def choose_mode(
    costs: Mapping[Mode, ReadCost], speed: StoreSpeed, at_once: int
) -> tuple[Mode, str]:
    """(the mode that takes the least time, why). `mask` where nothing saves SAVING of its time."""
    seconds = {mode: cost.seconds(speed, at_once) for mode, cost in costs.items()}
    best = min(seconds, key=lambda mode: seconds[mode] * (1 - SAVING if mode == "mask" else 1))
    parts = []
    for mode, cost in costs.items():
        parts.append(
            f"{mode} takes {cost.requests} requests and {cost.bytes / 1e6:.3g} MB, about "
            f"{seconds[mode]:.3g} s"
        )
    return best, f"{'; '.join(parts)}, at {speed} and {at_once} reads at a time"
