"""Different shards load in parallel, one shard loads once, and a failed load is tried again."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from train.store import ShardCache


class SlowStore:
    """Loads that wait until `together` of them run at the same time."""

    def __init__(self, together: int) -> None:
        self.barrier = threading.Barrier(together, timeout=20)
        self.loads: Counter[int] = Counter()
        self.lock = threading.Lock()

    def load(self, number: int) -> str:
        with self.lock:
            self.loads[number] += 1
        self.barrier.wait()
        return f"shard {number}"


def test_different_shards_load_in_parallel() -> None:
    store = SlowStore(together=8)
    cache = ShardCache(100, store.load)
    # Each load waits for seven others: one lock around the loads would break the barrier.
    with ThreadPoolExecutor(8) as threads:
        values = list(threads.map(cache, range(16)))
    assert values == [f"shard {number}" for number in range(16)]
    assert set(store.loads.values()) == {1}


def test_one_shard_is_loaded_once_by_many_threads() -> None:
    started, release = threading.Event(), threading.Event()
    loads = Counter[int]()

    def load(number: int) -> object:
        loads[number] += 1
        started.set()
        assert release.wait(20)
        return object()

    cache = ShardCache(4, load)
    with ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(cache, 3) for _ in range(8)]
        assert started.wait(20)
        release.set()
        values = {future.result() for future in futures}
    assert len(values) == 1
    assert loads == {3: 1}


def test_the_values_that_were_used_last_stay() -> None:
    loads: list[int] = []

    def load(number: int) -> int:
        loads.append(number)
        return number

    cache = ShardCache(2, load)
    for number in (0, 1, 0, 2, 0, 1):
        assert cache(number) == number
    assert loads == [0, 1, 2, 1]  # 1 was evicted by 2, then 2 by 1


def test_a_load_in_progress_is_not_evicted() -> None:
    store = SlowStore(together=4)
    cache = ShardCache(1, store.load)
    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(cache, range(4)))) == 4
    assert set(store.loads.values()) == {1}


def test_a_failed_load_is_told_to_all_who_wait_and_tried_again() -> None:
    failures = iter([OSError("no answer")])
    started, release = threading.Event(), threading.Event()

    def load(number: int) -> int:
        started.set()
        assert release.wait(20)
        if (error := next(failures, None)) is not None:
            raise error
        return number

    cache = ShardCache(2, load)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cache, 7)
        assert started.wait(20)
        second = threads.submit(cache, 7)
        while second.running() is False:
            pass
        release.set()
        with pytest.raises(OSError, match="no answer"):
            first.result()
        error = second.exception()
    assert error is None or str(error) == "no answer"  # it waited, or came after the failure
    assert cache(7) == 7
