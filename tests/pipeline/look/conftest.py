from __future__ import annotations

import pytest

from clipmill.pipeline.look.survey import Survey, survey_pool
from tests.support import looked


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A pool that no test changes."""
    return looked.make(tmp_path_factory.mktemp("looked") / "pool")


@pytest.fixture(scope="session")
def survey(pool: str) -> Survey:
    return survey_pool(pool)
