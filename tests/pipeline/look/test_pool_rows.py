from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from manifests.commits import read_commits
from manifests.layout import PoolLayout
from pipeline.look.survey import read_rows
from tests.support import looked, small_pool


def test_rows_masks_and_scores_are_those_of_the_files(pool: str) -> None:
    rows = read_rows(read_commits(pool))
    sidecars = looked.sidecars(pool)
    assert rows.table["uid"].to_pylist() == sidecars["uid"].to_pylist()
    assert int(rows.stored.sum()) == 48
    assert [view.name for view in rows.views] == ["basic", "drawn", "raw", "top"]
    for view in rows.views:
        assert view.kept is not None
        assert int(view.kept.sum()) == view.document.kept
    assert rows.meanings["caption_words"][0].startswith("caption@")
    assert {"caption_words", "aspect", "url_host"} <= set(rows.table.column_names)
    assert rows.problems == ()


def test_a_row_has_its_place_in_its_shard(pool: str) -> None:
    rows = read_rows(read_commits(pool))
    assert rows.location(0) == (0, 0)
    assert rows.location(59) == (5, 9)
    assert rows.row_at(5, 9) == 59
    assert rows.row_at(5, 10) is None
    assert rows.row_at(6, 0) is None
    assert rows.row_at(5, -1) is None


def test_a_large_pool_is_read_by_whole_shards(pool: str) -> None:
    commits = read_commits(pool)
    sample = read_rows(commits, most_rows=25)
    assert sample.table.num_rows == 20
    assert not sample.whole
    again = read_rows(commits, most_rows=25)
    assert np.array_equal(sample.shards, again.shards)
    assert read_rows(commits, most_rows=1).table.num_rows == 10, "at least one shard"


def test_an_unknown_view_is_named(pool: str) -> None:
    with pytest.raises(ValueError, match="has no view 'basik'; did you mean 'basic'"):
        read_rows(read_commits(pool), "basik")
    assert [view.name for view in read_rows(read_commits(pool), "top").views] == ["top"]


def test_what_is_older_than_the_shards_is_said_and_not_shown(tmp_path: Path) -> None:
    pool = looked.make(tmp_path / "pool", 20)
    small_pool.write_shard(pool, 2, [(20 + i, row) for i, row in enumerate(small_pool.rows(5))])
    rows = read_rows(read_commits(pool))
    assert all(view.kept is None for view in rows.views)
    assert "caption_words" not in rows.table.column_names
    assert any("scores caption@" in problem for problem in rows.problems)
    assert any("view basic is older" in problem for problem in rows.problems)


def test_a_damaged_view_does_not_end_the_page(tmp_path: Path) -> None:
    pool = looked.make(tmp_path / "pool", 20)
    Path(PoolLayout(pool).view_bundle("basic", 1)).write_bytes(b"nothing")
    Path(PoolLayout(pool).view_json("top")).write_text("{")
    rows = read_rows(read_commits(pool))
    assert {view.name: view.kept is None for view in rows.views}["basic"]
    assert len([p for p in rows.problems if "basic" in p or "top.json" in p]) == 2
