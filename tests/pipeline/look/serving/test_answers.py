from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.audit.purge import purge_rows, read_criteria
from pipeline.look.page import NoImage
from pipeline.look.server import Answers, Changed
from pipeline.look.survey import Survey, survey_pool
from tests.support import looked, purged


@pytest.fixture(scope="module")
def answers(survey: Survey) -> Answers:
    return Answers(survey)


@pytest.mark.parametrize("view", ["", "basic", "top", "drawn"])
def test_counts_of_a_typed_number_are_exact(answers: Answers, survey: Survey, view: str) -> None:
    values = np.asarray(survey.rows.table["original_width"].fill_null(-1).to_numpy())
    scope = survey.scope(view, "original_width")
    for text in ("0", "250", "250.5", "1e9", "-3"):
        answer = answers.count("original_width", view, text)
        assert answer["below"] == (scope & (values < float(text))).sum()
        assert answer["values"] == answer["rows"] == scope.sum()
        assert all(one["values"]["original_width"] < float(text) for one in answer["low"])
        assert all(one["values"]["original_width"] >= float(text) for one in answer["high"])


@pytest.mark.parametrize(
    ("column", "view", "value"),
    [
        ("no_column", "", "1"),
        ("caption", "", "1"),
        ("height", "no_view", "1"),
        ("height", "", "nan"),
        ("height", "", "1e999"),
        ("height", "", "1; DROP"),
        ("height", "", "9" * 1000),
    ],
)
def test_what_is_no_question_is_refused(
    answers: Answers, column: str, view: str, value: str
) -> None:
    with pytest.raises(ValueError, match=r"."):
        answers.count(column, view, value)


def test_a_search_counts_all_rows_and_lists_some(answers: Answers) -> None:
    assert answers.search("DOG", "")["count"] == 46
    hits = answers.search("onerror", "")
    assert hits["count"] == len(hits["images"]) == 1
    assert hits["images"][0]["row"] == 1
    assert answers.search("dog", "basic")["count"] < 46
    for text in ("", "x" * 201):
        with pytest.raises(ValueError, match="1 to 200 characters"):
            answers.search(text, "")


def test_images_are_of_stored_rows_only(answers: Answers) -> None:
    assert answers.image(0, 3).startswith(b"\xff\xd8")
    for shard, row in ((0, 4), (0, 2), (0, 10), (9, 0)):
        with pytest.raises(NoImage):
            answers.image(shard, row)
    with pytest.raises(ValueError, match="no embedding"):
        answers.similar(0, 0)


def test_a_purged_row_is_not_shown_any_more(tmp_path: Path) -> None:
    pool = purged.make(tmp_path / "pool", 24)
    survey = survey_pool(pool)
    answers = Answers(survey)
    row = int(np.flatnonzero(survey.rows.stored)[0])
    shard, of_shard = survey.rows.location(row)
    url = survey.rows.table["url"][row].as_py()
    caption = survey.rows.table["caption"][row].as_py()
    assert answers.image(shard, of_shard)
    assert answers.search(caption, "")["images"]
    purge_rows(pool, read_criteria([f"url={url}"]))
    with pytest.raises(NoImage):
        answers.image(shard, of_shard)
    with pytest.raises(Changed):
        answers.search(caption, "")
    after = survey_pool(pool)
    assert Answers(after).search(caption, "")["count"] == 0
    assert not after.rows.stored[row]
    assert looked.sidecars(pool)["caption"][row].as_py() is None
