"""The small pool of the trainer's tests."""

from __future__ import annotations

from tests.train.conftest import tiny_pool as tiny_pool
