"""A pool with everything in it, built once, and a copy of it for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import audited


@pytest.fixture(scope="session")
def audited_pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(audited.make(tmp_path_factory.mktemp("audited") / "pool"))


@pytest.fixture
def pool(audited_pool: Path, tmp_path: Path) -> str:
    return str(shutil.copytree(audited_pool, tmp_path / "pool"))
