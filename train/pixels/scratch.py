"""Memory of a thread that is used again. Pages that are new for every image would cost as much
time as resizing it."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray


class ThreadBuffer(threading.local):
    """Bytes of one thread; every thread that uses it has its own."""

    def __init__(self) -> None:
        self._array: NDArray[np.uint8] = np.empty(0, np.uint8)

    def take(self, size: int) -> NDArray[np.uint8]:
        """(size,) bytes, not initialised. The next call in this thread gives the same memory."""
        if len(self._array) < size:
            self._array = np.empty(size, np.uint8)
        return self._array[:size]
