"""Balanced views: chances from a column, and a run that draws by them and by text columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from filters.tokens import Tokens
from manifests import disk
from manifests.schema import Balance, Blend
from tests.train.data.test_loader import model, settings
from train.data.loader import Loader
from train.data.view_rows import ViewChances, open_view

Make = Callable[..., Any]


@pytest.fixture
def counted_pool(make_pool: Make, tmp_path: Path) -> str:
    """A pool of 2 shards of 64 rows with the columns `entry_count` and `synthetic`."""
    pool: str = make_pool(tmp_path / "pool", 64, 2, size=24)
    for shard in range(2):
        path = disk.join(pool, "shards", f"{shard:05d}.parquet")
        table = disk.read_parquet(path)
        counts = [1000 if r % 2 else 10 for r in range(64)]
        texts = [None if shard == 1 and r == 5 else f"synthetic {shard} {r}" for r in range(64)]
        table = table.append_column("entry_count", pa.array(counts, pa.int64()))
        table = table.append_column("synthetic", pa.array(texts, pa.string()))
        disk.write_parquet(path, table, {})
    return pool


def blend_of(pool: str, **keys: Any) -> Blend:
    return Blend(name="b", pools={"web": pool}, views={"web/all": 1.0}, **keys)


def test_chances_are_the_limit_over_the_column(counted_pool: str) -> None:
    rule = {"web/all": Balance(column="entry_count", limit=100)}
    chances = ViewChances([open_view(counted_pool, "all")], ["web/all"], rule, 4)
    shard, row = np.array([1, 0, 1]), np.array([3, 2, 4])
    assert chances(0, shard, row).tolist() == [0.1, 1.0, 1.0]
    assert chances.candidates == {0: 6}  # of the mean chance 0.55
    assert chances.unique(0, 128, 10**6) == 128
    assert chances.identity() == {"web/all": {"column": "entry_count", "limit": 100}}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("caption", r"column 'caption' has no number above 0 in a kept row of shard 00000; add"),
        ("warc_offset", "add the rule warc_offset > 0 to the view"),  # NULL in every row
        ("entry_counts", "has no column 'entry_counts'; did you mean 'entry_count'"),
    ],
)
def test_a_column_that_is_no_count_is_refused(counted_pool: str, column: str, message: str) -> None:
    rule = {"web/all": Balance(column=column, limit=100)}
    with pytest.raises(ValueError, match=message):
        ViewChances([open_view(counted_pool, "all")], ["web/all"], rule, 4)


def test_a_run_draws_balanced_rows_and_says_how_many(counted_pool: str) -> None:
    blend = blend_of(counted_pool, balance={"web/all": Balance(column="entry_count", limit=100)})
    loader = Loader(blend, settings(samples_seen=8 * 150, batch_size=8, lanes=2), model())
    seen = Counter(key for batch in loader for key in batch.keys)
    rare = sum(count for key, count in seen.items() if int(key[-4:]) % 2 == 0)
    assert abs(rare / 1200 - 1 / 1.1) < 0.04
    source = loader.sources()["web/all"]
    assert source["drawn"] == 1200
    assert abs(source["unique"] - len(seen)) < 15


def test_captions_come_from_the_columns_by_their_shares(counted_pool: str) -> None:
    blend = blend_of(counted_pool, captions={"web/all": {"caption": 0.25, "synthetic": 0.75}})
    loader = Loader(blend, settings(samples_seen=8 * 32, batch_size=8, lanes=2), model())
    tokens = Tokens()
    tokens.setup()
    kinds: Counter[str] = Counter()
    damaged = 0
    for batch in loader:
        damaged += batch.damaged
        for key, row, length in zip(batch.keys, batch.tokens_BT, batch.length_B, strict=True):
            text = f"synthetic {int(key[-9:-4])} {int(key[-4:])}"
            own = row[: int(length)].tolist()
            kinds["synthetic" if own == tokens.encode(text).tolist() else "caption"] += 1
    # The row without a synthetic caption was replaced by another row, with one.
    assert kinds == loader.sources()["web/all"]["captions"] == {"caption": 64, "synthetic": 192}
    assert damaged > 0
    wrong = blend_of(counted_pool, captions={"web/all": {"entry_count": 1}})
    with pytest.raises(ValueError, match="name 'entry_count', which is no column of text"):
        list(Loader(wrong, settings(), model()))
