from __future__ import annotations

from pathlib import Path

import pytest

from manifests import disk
from pipeline.look.page import Bounds, page_data, render
from pipeline.look.server import Answers
from pipeline.look.survey import DETAILED_VIEWS, Survey, survey_pool
from tests.support import audited, looked, plans, s3_server


def test_one_view_or_all(pool: str, survey: Survey) -> None:
    assert list(survey.detailed) == ["basic", "drawn", "raw", "top"]
    assert list(survey_pool(pool, "top").effects) == ["top"]
    with pytest.raises(ValueError, match="has no view 'none'"):
        survey_pool(pool, "none")


@pytest.mark.slow
def test_of_many_views_the_first_have_details(tmp_path: Path) -> None:
    view = looked.VIEWS[0]
    views = tuple(type(view)(name=f"v{number:02d}", rules=view.rules) for number in range(15))
    survey = survey_pool(looked.make(tmp_path / "pool", 10, views))
    assert len(survey.rows.views) == 15
    assert list(survey.effects) == [f"v{number:02d}" for number in range(DETAILED_VIEWS)]


def test_no_pool_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is it the folder of a pool"):
        survey_pool(str(tmp_path))


def test_a_pool_under_construction_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    pool = str(tmp_path / "pool")
    audited.write_pairs(pool, 24)
    tasks = plans.planned(pool, audited.RECIPE)
    before = survey_pool(pool)
    assert dict(before.totals.funnel)["pairs"] == 24
    assert dict(before.totals.funnel)["stored"] == 0
    assert before.columns.keys() <= {"aspect", *before.rows.table.column_names}
    audited.write_shard(pool, tasks[0])
    page = render(survey_pool(pool), page_data(survey_pool(pool), Bounds()))
    assert f"1 of {len(tasks)} planned shards are committed" in page


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of botocore
def test_a_pool_in_a_store_gives_the_same_page(
    tmp_path: Path, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("localbucket")
    with s3_server.s3_server(tmp_path) as url:
        for name, value in s3_server.s3_variables(url).items():
            monkeypatch.setenv(name, value)
        for path in Path(pool).rglob("*"):
            if path.is_file():
                target = f"s3://pools/pool/{path.relative_to(pool).as_posix()}"
                disk.write_bytes(target, path.read_bytes())
        survey = survey_pool("s3://pools/pool")
        there = render(survey, page_data(survey, Bounds()))
        assert Answers(survey).image(0, 3).startswith(b"\xff\xd8")
        assert Answers(survey).search("dog", "")["images"]
    here = survey_pool(pool)
    assert there == render(here, page_data(here, Bounds()))
