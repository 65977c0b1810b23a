"""A store whose reads take time, for the tests of reading."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import slow_store
from tests.support.slow_store import SlowStore


@pytest.fixture
def store() -> Iterator[type[SlowStore]]:
    slow_store.register()
    SlowStore.reset()
    yield SlowStore
    SlowStore.reset()
