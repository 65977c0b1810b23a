"""Read-only results that the processes of pytest-xdist share: the first that asks makes them."""

from __future__ import annotations

import fcntl
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

Result = TypeVar("Result")


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Result]) -> Result:
    """What `make(folder)` returns. The others wait for it and read it from a pickle."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of a worker is its own
    pickled = folder / f"{name}.pickle"
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not pickled.exists():
            result = make(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder)))
            pickled.write_bytes(pickle.dumps(result))
    restored: Result = pickle.loads(pickled.read_bytes())
    return restored
