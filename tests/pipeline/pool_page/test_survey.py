from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.pool_page import Survey, survey_pool
from pipeline.pool_page.survey import DETAILED_VIEWS
from tests.support import looked


def test_one_view_or_all(pool: str, survey: Survey) -> None:
    assert list(survey.detailed) == ["basic", "drawn", "raw", "top"]
    assert list(survey_pool(pool, "top").effects) == ["top"]
    with pytest.raises(ValueError, match="has no view 'none'"):
        survey_pool(pool, "none")


def test_of_many_views_the_first_have_details(tmp_path: Path) -> None:
    view = looked.VIEWS[0]
    views = tuple(type(view)(name=f"v{number:02d}", rules=view.rules) for number in range(15))
    survey = survey_pool(looked.make(tmp_path / "pool", 10, views))
    assert len(survey.rows.views) == 15
    assert list(survey.effects) == [f"v{number:02d}" for number in range(DETAILED_VIEWS)]


def test_no_pool_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is it the folder of a pool"):
        survey_pool(str(tmp_path))
