from __future__ import annotations

import pytest

from pipeline.look.server import CaptionSearch
from pipeline.look.survey import Survey


def test_a_text_is_found_as_it_is_written(survey: Survey) -> None:
    search = CaptionSearch(survey)
    count, rows = search.find("Dog dog dog", "", 5)
    captions = survey.rows.table["caption"].to_pylist()
    expected = [
        row
        for row in range(60)
        if survey.rows.stored[row] and "dog dog dog" in captions[row].lower()
    ]
    assert (count, rows) == (len(expected), expected[:5])
    assert search.find("%", "", 5) == (0, []), "no pattern"
    assert search.find("' OR 1=1 --", "", 5) == (0, [])
    with pytest.raises(KeyError):
        search.find("dog", "no_view", 5)
