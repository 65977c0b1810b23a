"""A view of rows that a program selects: its masks, its document, and that no recipe lists it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from manifests import disk
from manifests.commits import read_commits
from manifests.layout import PoolLayout, read_commit_records
from manifests.schema import Recipe, Rule, Source, View
from pipeline.views.files import (
    choose_views,
    hash_view,
    selected_view,
    views_not_in,
    write_selected_view,
)
from tests.support.bundles import mask_of
from tests.support.small_pool import make_pool, rows


@pytest.fixture
def pool(tmp_path: Path) -> str:
    return make_pool(tmp_path, rows(30))


def recipe(*views: View) -> Recipe:
    return Recipe(name="r", source=Source(kind="files", paths=("x.csv",)), views=views)


def masks(pool: str, name: str) -> pa.Table:
    return pa.concat_tables(mask_of(pool, name, number) for number in read_commit_records(pool))


def test_rows_that_a_program_selects_are_a_view(pool: str) -> None:
    commits = read_commits(pool)
    asked: list[tuple[int, int]] = []

    def select(start: int, stop: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        asked.append((start, stop))
        return np.arange(start, stop) % 2 == 0

    where = "in every second row"
    assert selected_view(commits, "even", where) is None
    made = write_selected_view(commits, "even", where, select, "ab" * 32)
    assert asked[0][0] == 0
    assert asked[-1][1] == 30
    assert made.funnel == (("attempted", 30), ("stored", 24), ("selected", 12))
    assert made.rows_sha256 == "ab" * 32
    expected = [None if i % 2 == 0 else "selected" for i in range(30)]
    for i in range(4, 30, 5):
        expected[i] = "not_stored"
    assert masks(pool, "even")["rule"].to_pylist() == expected
    assert sum(masks(pool, "even")["kept"].to_pylist()) == made.kept == 12
    assert selected_view(commits, "even", where) == made
    assert selected_view(commits, "even", "in another") is None
    assert views_not_in(recipe(View(name="raw")), pool) == []
    with pytest.raises(ValueError, match=r"'none' keeps nothing: no row of the pool is in none"):
        write_selected_view(
            commits, "none", "in none", lambda start, stop: np.zeros(stop - start, np.bool_), "ab"
        )
    assert not disk.exists(PoolLayout(pool).view_json("none"))
    with pytest.raises(ValueError, match=r"a view cannot be named '\.\./x'"):
        write_selected_view(commits, "../x", where, select, "ab" * 32)


def test_its_hash_is_that_of_a_rule_that_keeps_the_same_rows(pool: str) -> None:
    commits = read_commits(pool)
    widths = pa.concat_tables(
        disk.read_parquet(commits.sidecar(shard), ["original_width"]) for shard in (0, 1, 2)
    )["original_width"]
    wide = np.array([(width or 0) >= 200 for width in widths.to_pylist()])
    made = write_selected_view(commits, "mine", "in a list", lambda start, stop: wide[start:stop])
    rule = View(name="wide", rules=(Rule(name="wide", where="original_width >= 200"),))
    assert made.rows_sha256 == choose_views(pool, recipe(rule))["wide"].rows_sha256
    assert made.rows_sha256 == hash_view(pool, "mine")


def test_a_recipe_view_with_a_hash_is_not_taken_for_one(pool: str) -> None:
    wide = View(name="wide", rules=(Rule(name="selected", where="original_width >= 200"),))
    assert choose_views(pool, recipe(wide))["wide"].rows_sha256 is not None
    assert views_not_in(recipe(View(name="raw")), pool) == ["wide"]
