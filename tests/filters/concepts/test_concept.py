"""The filter over a user's list: its columns, its id, its errors."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest

from filters import check_filters, make
from filters.base import Batch, set_id
from filters.concepts import Concept
from manifests.schema import FilterSpec


def listed(folder: Path, *entries: str) -> str:
    path = folder / "entries.txt"
    path.write_text("\n".join(entries))
    return str(path)


def batch(*captions: str) -> Batch:
    return Batch(captions=list(captions), images=None, rows=pa.table({}))


def test_numbers_and_counts(tmp_path: Path) -> None:
    filter_ = Concept(entries=listed(tmp_path, "dog", "new york", "Dog"))
    filter_.setup()
    scores = filter_.score(batch("a dog in new york", "", "Dog dog"))
    assert scores["concept_entries"].to_pylist() == [[0, 1], [], [0, 2]]
    assert scores["concept_count"].to_pylist() == [2, 0, 2]
    for column, kind in filter_.adds.items():
        assert scores[column].type == kind


def test_the_id_is_that_of_the_list_and_not_of_its_place(tmp_path: Path) -> None:
    path = listed(tmp_path, "dog", "cat")
    first = set_id(Concept(entries=path))
    (tmp_path / "copy.txt").write_text(Path(path).read_text())
    assert set_id(Concept(entries=str(tmp_path / "copy.txt"))) == first
    assert set_id(Concept(entries=path, rule="scripts")) != first
    assert set_id(Concept(entries=path, ignore_case=True)) != first
    listed(tmp_path, "dog", "cats")
    assert set_id(Concept(entries=path)) != first


def test_lists_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file /nowhere/x\.txt; give a list"):
        Concept(entries="/nowhere/x.txt")
    with pytest.raises(ValueError, match="filter concept needs the option entries"):
        make(FilterSpec(name="concept"))
    twice = {"entries": listed(tmp_path, "dog", "dog")}
    with pytest.raises(ValueError, match="'dog' is entry 1 and entry 2"):
        check_filters([FilterSpec(name="concept", options=twice)])


def test_entries_that_can_never_occur_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Concept(entries=listed(tmp_path, "dog", "U.S.", "St. Ives")).setup()
    assert "2 of 3 entries can never occur, such as 'U.S.'" in caplog.text
