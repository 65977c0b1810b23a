"""Numbers of rows that collide: by position in one pool, by uid over pools, by a column."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manifests.schema import Blend
from tests.train.data.test_loader import model, settings
from train.data import view_rows
from train.data.loader import Loader
from train.data.view_rows import ViewNumbers, open_view

Make = Callable[..., Any]


def every_number(numbers: ViewNumbers, source: int, rows: list[int]) -> dict[int, tuple[int, int]]:
    found = {}
    for shard, count in enumerate(rows):
        for number, row in zip(
            numbers(source, np.full(count, shard), np.arange(count)).tolist(),
            range(count),
            strict=True,
        ):
            found[number] = shard, row
    return found


def test_rows_of_one_pool_are_numbered_without_reading_uids(
    tiny_pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = [open_view(tiny_pool, "all"), open_view(tiny_pool, "half")]
    numbers = ViewNumbers(views, "uid", 4)
    assert numbers.sources == {0, 1}
    read: list[str] = []
    load_columns = view_rows.load_columns

    def reading(path: str, columns: list[str]) -> Any:
        read.extend(columns)
        return load_columns(path, columns)

    monkeypatch.setattr(view_rows, "load_columns", reading)
    every, half = every_number(numbers, 0, [16] * 3), every_number(numbers, 1, [8] * 3)
    assert len(every) == 48
    assert read == []  # of sidecars: the masks are enough
    # `half` keeps every second row: its row r is row 2r + 1 of `all`.
    assert {every[number]: place for number, place in half.items()} == {
        (shard, 2 * row + 1): (shard, row) for shard in range(3) for row in range(8)
    }


def test_views_that_share_no_shard_cost_nothing(make_pool: Make, add_view: Make, tmp_path: Path):
    pool = make_pool(tmp_path / "pool")
    add_view(pool, "early", lambda shard, row: shard == 0)
    add_view(pool, "late", lambda shard, row: shard == 2)
    add_view(pool, "both", lambda shard, row: shard < 2)
    views = [open_view(pool, name) for name in ("early", "late", "both")]
    assert ViewNumbers(views, "uid", 4).sources == {0, 2}
    assert ViewNumbers(views[:2], "uid", 4).sources == frozenset()
    assert ViewNumbers(views[:1], "uid", 4).sources == frozenset()
    assert ViewNumbers(views[:1], "caption", 4).sources == {0}


def test_uids_are_compared_over_pools_and_rows_without_a_value_never_collide(
    tiny_pool: str, tmp_path: Path
) -> None:
    shutil.copytree(tiny_pool, tmp_path / "copy")
    views = [open_view(tiny_pool, "all"), open_view(str(tmp_path / "copy"), "half")]
    numbers = ViewNumbers(views, "uid", 4)
    every, half = every_number(numbers, 0, [16] * 3), every_number(numbers, 1, [8] * 3)
    assert {every[number] for number in half} == {
        (s, 2 * r + 1) for s in range(3) for r in range(8)
    }
    nothing = ViewNumbers(views, "page_url", 4)  # NULL in every row
    assert len(every_number(nothing, 0, [16] * 3) | every_number(nothing, 1, [8] * 3)) == 72
    assert min(every_number(nothing, 0, [16] * 3)) >= 0
    with pytest.raises(ValueError, match="has no column 'dup_group'"):
        every_number(ViewNumbers(views, "dup_group", 4), 0, [16])


@pytest.mark.parametrize("copied", [False, True])
def test_a_batch_of_a_blend_holds_no_uid_twice(
    tiny_pool: str, tmp_path: Path, copied: bool
) -> None:
    other = tiny_pool
    if copied:
        other = str(tmp_path / "copy")
        shutil.copytree(tiny_pool, other)
    pools = {"web": tiny_pool, "more": other} if copied else {"web": tiny_pool}
    views = {"web/all": 0.5, "more/half" if copied else "web/half": 0.5}

    def batches(distinct: str | None) -> list[list[str]]:
        blend = Blend(name="b", pools=pools, views=views, distinct=distinct)
        loader = Loader(blend, settings(samples_seen=16 * 20), model())
        return [[key.partition(":")[2] for key in batch.keys] for batch in loader]

    assert any(len(set(keys)) < 16 for keys in batches(None))
    assert all(len(set(keys)) == 16 for keys in batches("uid"))


def test_captions_are_kept_apart_by_their_column(tiny_pool: str) -> None:
    views, pools = {"web/all": 1.0}, {"web": tiny_pool}
    blend = Blend(name="b", pools=pools, views=views, distinct="caption")
    loader = Loader(blend, settings(batch_size=8, samples_seen=8 * 40, lanes=4), model())
    for batch in loader:
        captions = {tuple(tokens) for tokens in batch.tokens_BT.tolist()}
        assert len(captions) == 8  # of 12 different ones
