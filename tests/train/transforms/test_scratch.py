from __future__ import annotations

import threading

import numpy as np
import pytest

from train.transforms import ThreadBuffer


def test_a_thread_uses_its_memory_again() -> None:
    buffer = ThreadBuffer()
    large = buffer.take(1000)
    assert large.shape == (1000,)
    small = buffer.take(10)
    assert small.shape == (10,)
    assert np.shares_memory(large, small)
    assert buffer.take(2000).shape == (2000,)
    with pytest.raises(TypeError):
        buffer.take("10")  # type: ignore[arg-type]


def test_threads_do_not_share_memory() -> None:
    buffer, taken = ThreadBuffer(), []
    for _ in range(2):
        thread = threading.Thread(target=lambda: taken.append(buffer.take(100)))
        thread.start()
        thread.join()
    taken.append(buffer.take(100))
    for k, array in enumerate(taken):
        assert not any(np.shares_memory(array, other) for other in taken[k + 1 :])
