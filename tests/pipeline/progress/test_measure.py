"""Rows and bytes of a ticket, from what each kind of worker returns."""

from __future__ import annotations

import pytest

from pipeline.progress.state import Measure, measure_commit, measure_links, measure_scored
from tests.support.commit_records import commit_record


def test_a_commit_record_gives_rows_bytes_and_reasons() -> None:
    plain = commit_record(7, successes=3, reasons={"dns": 2}).to_plain()
    measure = measure_commit(plain)
    assert measure == Measure(rows=5, stored=3, bytes=plain["tar_bytes"], reasons={"dns": 2})


def test_links_and_scores_are_rows() -> None:
    assert measure_links({"links": 9, "pairs": 4}) == Measure(rows=9, stored=4)
    # A row that two filters score is one row; of a resumed ticket one set may have fewer.
    assert measure_scored({"scored": {"a@1": 3, "b@2": 2}}) == Measure(rows=3, stored=3)
    assert measure_scored({"scored": {}}) == Measure()


def test_a_result_of_another_stage_is_an_error() -> None:
    with pytest.raises(KeyError):
        measure_commit({"links": 1})
