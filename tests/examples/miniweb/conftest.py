"""One small web, written and served once for each module of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.miniweb import small_web
from tests.support.miniwebs import SETTINGS


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    small_web.write(folder, SETTINGS)
    return folder


@pytest.fixture(scope="module")
def port(web: Path) -> Iterator[int]:
    with small_web.running(web) as port:
        yield port
