"""Units of work in as many threads as there are cores, their results in order."""

from __future__ import annotations

import gc
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from pipeline.progress import counted_stage

T = TypeVar("T")
THREADS = max(1, os.cpu_count() or 1)


@contextmanager
def few_collections() -> Iterator[None]:
    """Fewer garbage collections in the body: a full one looks at the objects of all imported
    modules, takes 0.1 s, and finds nothing here.
    """
    usual = gc.get_threshold()
    gc.set_threshold(100 * usual[0], *usual[1:])
    try:
        yield
    finally:
        gc.collect(1)  # of what the body made; else the old limits start a full one at once
        gc.set_threshold(*usual)


def map_units(units: int, work: Callable[[int], T], stage: str = "choose") -> Iterator[T]:
    """work(0), work(1), …: a few of them at a time, in threads. The first error ends the rest.

    DuckDB, Arrow and NumPy release Python's lock for most of their time.
    """
    with counted_stage(stage, units, brief=True) as counter:
        for unit, result in enumerate(_results(units, work)):
            counter.ended(str(unit), {})
            yield result


def _results(units: int, work: Callable[[int], T]) -> Iterator[T]:
    if units <= 1 or THREADS == 1:
        yield from map(work, range(units))
        return
    running: deque[Future[T]] = deque()
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="views")
    try:
        for unit in range(units):
            running.append(threads.submit(work, unit))
            if len(running) >= 2 * THREADS:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)
