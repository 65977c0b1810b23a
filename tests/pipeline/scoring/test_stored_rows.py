"""A pool without a stored row: the reasons with their counts and an example, instead of a
riddle."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests.columns import PAIRS
from manifests.schema import FilterSpec, Recipe, Source, View
from pipeline.scoring import scorer
from pipeline.scoring.score_sets import example_row, reasons_text, shards_with_rows
from pipeline.views import files
from tests.support.pairs import write_part
from tests.support.small_pool import Row, make_pool, rows

RECIPE = Recipe(name="r", source=Source(kind="files", paths=("x.csv",)), views=(View(name="raw"),))


def test_the_shards_of_a_pool_with_rows(tmp_path: Path) -> None:
    commits = shards_with_rows(make_pool(tmp_path, rows(15)))
    assert list(commits.names()) == ["00000", "00001"]
    assert shards_with_rows("nowhere", commits) is commits


def test_a_pool_that_lost_all_rows_names_the_reasons_and_a_row(tmp_path: Path) -> None:
    lost = [Row(caption="x", reason="missing_file") for _ in range(8)]
    pool = make_pool(tmp_path, [*lost, Row(caption="x", reason="dns")], per_shard=5)
    expected = (
        r"none of the 9 rows is stored: missing_file 8, dns 1; "
        r"an example of missing_file: row 000000000: https://img0\.example/0\.jpg"
    )
    with pytest.raises(ValueError, match=expected):
        shards_with_rows(pool)
    with pytest.raises(ValueError, match=expected):
        files.choose_views(pool, RECIPE)
    with pytest.raises(ValueError, match=expected):
        scorer.score(pool, [FilterSpec(name="caption")], engine="inline")


def test_a_source_whose_rows_were_all_refused_is_not_told_to_build_first(tmp_path: Path) -> None:
    reasons = {"bad_url": 7700, "no_caption": 27}
    write_part(tmp_path, PAIRS.empty_table(), links=7727, reasons=reasons)
    expected = "none of the 7727 rows of the source became a pair: bad_url 7700, no_caption 27"
    with pytest.raises(ValueError, match=expected):
        files.choose_views(str(tmp_path), RECIPE)


def test_a_folder_that_is_no_pool(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no committed shard; build it first"):
        shards_with_rows(str(tmp_path))


def test_the_most_frequent_reasons_come_first_and_the_rest_is_counted() -> None:
    reasons = {"a": 1, "b": 9, "c": 3, "d": 3, "e": 2, "f": 1, "g": 1}
    assert reasons_text(reasons) == "b 9, c 3, d 3, e 2, a 1 and 2 other reasons"
    assert reasons_text({"dns": 2}) == "dns 2"


def test_an_example_of_a_reason_that_no_row_has(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(5))
    with pytest.raises(AssertionError, match="no shard has a row with reason 'dns'"):
        example_row(shards_with_rows(pool), "dns")
