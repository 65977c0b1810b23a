"""A cache of shards for many threads: one shard is loaded once, different shards in parallel."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class ShardCache(Generic[T]):
    """The `capacity` values that were used last. `cache(number)` loads what is not there.

    The lock is held only to look up and to evict, never while a value is loaded. A thread that
    asks for a value that another thread loads waits for that one. A load that fails is forgotten:
    its error goes to every thread that waited, and the next call tries again.
    """

    def __init__(self, capacity: int, load: Callable[[int], T]) -> None:
        assert capacity > 0
        self._capacity, self._load = capacity, load
        self._futures: OrderedDict[int, Future[T]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, number: int) -> T:
        with self._lock:
            future = self._futures.get(number)
            is_loader = future is None
            if future is None:
                future = self._futures[number] = Future()
                self._evict()
            self._futures.move_to_end(number)
        if is_loader:
            self._fill(number, future)
        return future.result()

    def _fill(self, number: int, future: Future[T]) -> None:
        try:
            future.set_result(self._load(number))
        except BaseException as error:
            with self._lock:
                self._futures.pop(number)
            future.set_exception(error)

    def _evict(self) -> None:
        """Remove the values that were used longest ago; those that are being loaded stay."""
        excess = len(self._futures) - self._capacity
        loaded = [number for number, future in self._futures.items() if future.done()]
        for number in loaded[: max(0, excess)]:
            del self._futures[number]
