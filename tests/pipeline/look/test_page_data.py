from __future__ import annotations

import json
from itertools import accumulate

import numpy as np
import pytest

from pipeline.look.page import Bounds, page_data
from pipeline.look.survey import Survey


def test_every_count_of_a_slider_is_exact(survey: Survey) -> None:
    data = page_data(survey, Bounds(images=10))
    width = next(one for one in data["columns"] if one["name"] == "original_width")
    values = np.asarray(survey.rows.table["original_width"].fill_null(-1).to_numpy())
    for name, scope in width["scopes"].items():
        mask = survey.scope(name, "original_width")
        assert scope["rows"] == mask.sum()
        below = list(accumulate(scope["steps"]))
        for text, count in zip(width["thresholds"], below, strict=True):
            assert count == (mask & (values < int(text))).sum()


def test_histograms_sum_to_the_stored_and_the_kept_rows(survey: Survey) -> None:
    for column in page_data(survey, Bounds(images=0))["columns"]:
        assert column["n"] + column["nulls"] + column["nans"] == 48
        if "histogram" in column:
            assert sum(column["histogram"]["counts"]) == column["n"]
            for name, counts in column["histogram"]["kept"].items():
                view = survey.detailed[name]
                assert view.kept is not None
                valid = survey.rows.table[column["name"]].is_valid().to_numpy()
                assert sum(counts) == (view.kept & valid).sum()


def test_a_server_page_has_no_images(survey: Survey) -> None:
    data = page_data(survey)
    assert data["server"]
    assert not any("src" in image for image in data["images"])
    assert data["images"], "the groups are listed; the server sends their images"


def test_images_are_bounded_and_every_kind_gets_some(survey: Survey) -> None:
    data = page_data(survey, Bounds(images=30))
    assert len(data["images"]) == 30
    shown = [group for group in data["groups"] if group["of"]]
    assert all(group["images"] for group in shown)
    assert page_data(survey, Bounds(images=30, image_bytes=1))["images"] == []
    json.dumps(data, allow_nan=False)


def test_a_caption_has_no_direction_marks(survey: Survey) -> None:
    data = page_data(survey)
    (hostile,) = [one["caption"] for one in data["images"] if "script" in one["caption"]][:1]
    assert "\\u202e" in hostile
    assert "\n" not in hostile
    with pytest.raises(KeyError):
        data["no_such_part"]
