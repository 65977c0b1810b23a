"""The small pool and the runs of the tests of train."""

from __future__ import annotations

from tests.train.conftest import add_view as add_view
from tests.train.conftest import data as data
from tests.train.conftest import make_pool as make_pool
from tests.train.conftest import tiny_pool as tiny_pool
