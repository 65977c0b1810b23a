"""The cost model: speeds as text and as measured, and the cheaper mode."""

from __future__ import annotations

import time

import numpy as np
import pytest

from train.store import ReadCost, StoreSpeed, choose_mode, coalesce, measure_speed


@pytest.mark.parametrize(
    ("text", "latency_s", "bytes_per_s"),
    [("50ms,200MB/s", 0.05, 2e8), ("0.5 s, 1GiB/s", 0.5, 2**30), ("120us,3.5kB/s", 1.2e-4, 3500)],
)
def test_a_speed_is_read(text: str, latency_s: float, bytes_per_s: float) -> None:
    speed = StoreSpeed.parse(text)
    assert speed.latency_s == pytest.approx(latency_s)
    assert speed.bytes_per_s == pytest.approx(bytes_per_s)


@pytest.mark.parametrize("text", ["", "50ms", "50,200", "50ms,200MB", "50ms,0MB/s", "x,1GB/s"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it must be a latency and a bandwidth"):
        StoreSpeed.parse(text)


def test_a_cost_is_the_longer_of_the_waits_and_the_line() -> None:
    speed = StoreSpeed(latency_s=0.1, bytes_per_s=1e6)
    assert ReadCost(requests=100, bytes=10).seconds(speed, 10) == pytest.approx(1.0)
    assert ReadCost(requests=101, bytes=10).seconds(speed, 10) == pytest.approx(1.1)
    assert ReadCost(requests=1, bytes=3_000_000).seconds(speed, 10) == pytest.approx(3.1)


def test_the_share_kept_and_the_store_decide() -> None:
    size, rows = 20_000, 10_000
    offset, length = np.arange(rows) * (size + 1024), np.full(rows, size)
    fast_line = StoreSpeed(latency_s=0.1, bytes_per_s=1e9)
    slow_line = StoreSpeed(latency_s=0.005, bytes_per_s=2e7)
    chosen = {}
    for share in (0.005, 0.02, 0.9):
        kept = np.sort(np.random.default_rng(0).permutation(rows)[: int(share * rows)])
        costs = {
            "mask": ReadCost.of(coalesce(offset, length, None)),
            "ranged": ReadCost.of(coalesce(offset[kept], length[kept])),
        }
        for speed in (fast_line, slow_line):
            mode, why = choose_mode(costs, speed, 32)  # type: ignore[arg-type]
            chosen[share, speed.latency_s] = mode
            assert "requests and" in why
            assert str(speed) in why
    assert chosen[0.005, 0.005] == chosen[0.02, 0.005] == "ranged"  # bytes are dear
    assert chosen[0.02, 0.1] == "mask"  # waits are dear
    assert chosen[0.9, 0.005] == chosen[0.9, 0.1] == "mask"  # the same reads, nothing saved


def test_a_store_is_measured() -> None:
    reads: list[tuple[int, int]] = []

    def read(start: int, length: int) -> bytes:
        reads.append((start, length))
        time.sleep(0.02 + length / 1e9)
        return bytes(length)

    speed = measure_speed(read, 40 * 2**20)
    assert 0.02 <= speed.latency_s < 0.2
    assert speed.bytes_per_s > 1e8
    assert all(start + length <= 40 * 2**20 for start, length in reads)
    assert measure_speed(lambda start, length: bytes(length), 10).bytes_per_s > 0
