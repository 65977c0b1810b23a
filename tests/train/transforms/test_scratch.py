from __future__ import annotations

import threading

import numpy as np

from train.transforms import ThreadBuffer


def test_threads_do_not_share_memory() -> None:
    buffer, taken = ThreadBuffer(), []
    for _ in range(2):
        thread = threading.Thread(target=lambda: taken.append(buffer.take(100)))
        thread.start()
        thread.join()
    taken.append(buffer.take(100))
    for k, array in enumerate(taken):
        assert not any(np.shares_memory(array, other) for other in taken[k + 1 :])
