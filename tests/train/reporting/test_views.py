from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from manifests.layout import PoolLayout
from manifests.schema import Blend
from tests.support.bundles import change_shard
from train.reporting.data import ArmView, open_views, read_columns


@pytest.fixture
def pool(views: list[ArmView], tmp_path: Path) -> str:
    """A copy of the pool that a test may damage."""
    shutil.copytree(views[0].path, tmp_path / "pool")
    return str(tmp_path / "pool")


def blend(pool: str, view: str) -> dict[str, Blend]:
    return {"x": Blend(name="x", pools={"web": pool}, views={f"web/{view}": 1.0})}


def test_views_of_one_pool_are_read_row_by_row(views: list[ArmView]) -> None:
    raw, half, a_a = views
    assert (raw.arm, half.arm, a_a.arm) == ("raw", "half", "a_a")
    assert raw.columns.sizes == (16, 16, 16)
    assert half.kept.sum() == half.document.kept
    assert half.stored.all()
    assert a_a.kept is raw.kept, "a view of two arms is read once"
    assert a_a.columns is half.columns, "views of one pool share its columns"
    rejected = int(np.flatnonzero(~half.kept)[0])
    assert half.rule_of(rejected) == "chosen"
    assert half.rule_of(int(np.flatnonzero(half.kept)[0])) is None


def test_a_score_column_is_read_once(views: list[ArmView]) -> None:
    half = views[1]
    scores = half.scores("clip_score")
    assert scores is not None
    assert scores is half.scores("clip_score")
    assert len(scores) == 48
    assert half.scores("nothing") is None
    assert half.thresholds("clip_score") == [0.25]
    assert half.thresholds("aspect") == []


def test_a_view_or_pool_that_is_not_there_is_refused(pool: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no view 'none'"):
        open_views(blend(pool, "none"))
    with pytest.raises(ValueError, match=r"it has no pool\.json"):
        open_views(blend(str(tmp_path / "gone"), "raw"))


def test_masks_and_scores_of_other_rows_are_refused(pool: str) -> None:
    layout = PoolLayout(pool)
    scores = layout.score_bundle("clip_score@ab", 1)
    change_shard(scores, 1, lambda table: table.slice(0, 1))
    (half,) = open_views(blend(pool, "half"))
    with pytest.raises(ValueError, match="has 1 rows, its shard 16"):
        half.scores("clip_score")
    change_shard(layout.view_bundle("half", 1), 1, lambda mask: mask.slice(0, 1))
    with pytest.raises(ValueError, match="does not fit its shard or its view"):
        open_views(blend(pool, "half"))


def test_columns_that_a_file_does_not_have(pool: str) -> None:
    path = PoolLayout(pool).sidecar("00000")
    with pytest.raises(ValueError, match="has no column 'nothing'"):
        read_columns(path, ["nothing"])
    assert read_columns(path, ["uid", "nothing"], optional=True).column_names == ["uid"]
    os.truncate(path, 100)
    with pytest.raises(ValueError, match="Parquet"):
        read_columns(path, ["uid"])
