"""The small pool and the runs of the tests of train."""

from __future__ import annotations

from tests.train.conftest import add_view as add_view
from tests.train.conftest import captioned as captioned
from tests.train.conftest import colours as colours
from tests.train.conftest import data as data
from tests.train.conftest import make_pool as make_pool
from tests.train.conftest import model as model
from tests.train.conftest import one_thread as one_thread
from tests.train.conftest import ran as ran
from tests.train.conftest import tiny_pool as tiny_pool
