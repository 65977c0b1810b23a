"""Columns by name, of a pool or a view, with what the view makes of each row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from manifests import disk
from manifests.layout import PoolLayout
from manifests.records import ScoreSetDocument, ViewDocument, read_document
from tests.support.bundles import write_scores
from train.data.view_rows import open_view, read_columns

Make = Callable[..., Any]


def kept(pool: str, view: str | None, name: str) -> list[Any]:
    values: list[Any] = []
    for shard in read_columns(pool, view, [name]):
        values += shard.kept_columns()[name].to_pylist()
    return values


def test_columns_of_the_kept_rows_come_in_tar_order(tiny_pool: str) -> None:
    assert len(kept(tiny_pool, "all", "sha256")) == 48
    assert kept(tiny_pool, "half", "uid") == kept(tiny_pool, "all", "uid")[1::2]
    half = open_view(tiny_pool, "half")
    keys = [key for s in range(3) for key in half.shard(s).keys.to_pylist()]
    assert kept(tiny_pool, "half", "key") == keys


def test_every_row_of_a_view_has_its_outcome(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", 4, 2, keep=lambda shard, row: row == 1, failed=1)
    shards = list(read_columns(pool, "all", ["caption", "key"]))
    assert [shard.shard for shard in shards] == ["00000", "00001"]
    for shard in shards:
        assert shard.columns.column_names == ["caption", "key"]
        assert len(shard.columns) == 4
        assert shard.kept.tolist() == [False, True, False, False]
        assert shard.rule.to_pylist() == ["chosen", None, "chosen", "not_stored"]
        assert len(shard.kept_columns()) == 1


def test_without_a_view_a_row_is_kept_where_it_is_stored(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", 4, 1, failed=2)
    (shard,) = read_columns(pool, columns=["key"])
    assert shard.kept.tolist() == [True, True, False, False]
    assert shard.rule.to_pylist() == [None, None, "not_stored", "not_stored"]
    assert shard.kept_columns()["key"].to_pylist() == ["000000000", "000000001"]
    (bare,) = read_columns(pool, "all")
    assert bare.columns.num_rows == 4
    assert bare.kept.dtype == np.bool_


def test_a_column_may_come_from_a_score_set_of_the_view(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", 3, 2)
    layout = PoolLayout(pool)
    tokens = read_document(layout.score_set_json("tokens@0123456789ab"), ScoreSetDocument)
    scores = dataclasses.replace(tokens, name="clip_score", columns=("clip_score",))
    disk.write_json(layout.score_set_json("clip_score@ab"), scores)
    values = pa.table({"clip_score": [0.1, None, 0.3]})
    write_scores(pool, "clip_score@ab", {0: (values, {}), 1: (values, {})})
    view = read_document(layout.view_json("all"), ViewDocument)
    view = dataclasses.replace(view, scores={"clip_score": "clip_score@ab"})
    disk.write_json(layout.view_json("all"), view)
    first, _ = read_columns(pool, "all", ["clip_score", "key"])
    assert first.columns.column_names == ["clip_score", "key"]
    assert first.columns["clip_score"].to_pylist() == [0.1, None, 0.3]
    write_scores(pool, "clip_score@ab", {0: (values.slice(1), {})})
    with pytest.raises(ValueError, match="other rows than its shard"):
        next(read_columns(pool, "all", ["clip_score"]))


@pytest.mark.parametrize("view", [None, "all"])
def test_an_unknown_column_is_named_with_the_nearest(tiny_pool: str, view: str | None) -> None:
    with pytest.raises(ValueError, match="no column 'capton'; did you mean 'caption'"):
        next(read_columns(tiny_pool, view, ["key", "capton"]))


def test_one_shard_is_read_at_a_time(tiny_pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    read = disk.read_parquet

    def counted(path: str, *rest: Any) -> pa.Table:
        paths.append(path)
        return read(path, *rest)

    monkeypatch.setattr(disk, "read_parquet", counted)
    shards = read_columns(tiny_pool, "all", ["key"])
    assert paths == []
    next(shards)
    assert [path.endswith("shards/00000.parquet") for path in paths] == [True]
