from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from filters import make
from filters.duplicates import OtherPool
from manifests.schema import FilterSpec
from pipeline.scoring.scorer import score
from tests.support.pool_filters import run_inline
from tests.support.small_pool import make_pool, rows


def scored_pool(folder: Path, count: int = 12) -> str:
    pool = make_pool(folder, rows(count), per_shard=5)
    score(pool, [FilterSpec(name="picture"), FilterSpec(name="pdq")], engine="inline")
    return pool


def test_columns_of_sidecars_and_of_score_sets_are_those_of_stored_rows(tmp_path: Path) -> None:
    other = OtherPool(scored_pool(tmp_path / "pool"))
    table = pa.concat_tables(other.columns(["uid", "phash", "sha256", "pdq_quality"]))
    assert len(table) == 10  # two of twelve attempts failed
    assert table.column_names == ["uid", "phash", "sha256", "pdq_quality"]
    assert table["phash"].null_count == 0
    assert set(table["pdq_quality"].to_pylist()) == {0}


def test_a_group_with_a_row_of_the_other_pool_has_no_survivor(tmp_path: Path) -> None:
    pool = scored_pool(tmp_path / "pool")
    known = pa.concat_tables(OtherPool(pool).columns(["url"]))["url"][3].as_py()
    own = pa.table({"uid": ["a", "b", "c"], "url": [known, known, "https://other.example/"]})
    options = {"on": "sha256", "column": "url", "against": pool}
    filter_ = make(FilterSpec(name="duplicate", options=options))
    columns = run_inline(filter_, [own], 2)  # type: ignore[arg-type]
    survives = {uid: values["duplicate_survivor"] for uid, values in columns.items()}
    assert survives == {"a": False, "b": False, "c": True}

    hashes = pa.concat_tables(OtherPool(pool).columns(["pdq"]))["pdq"]
    near = bytearray(hashes[0].as_py())
    near[0] ^= 0xFF
    random = np.random.default_rng(0).bytes(32)
    own = pa.table(
        {
            "uid": ["a", "b"],
            "pdq": pa.array([bytes(near), random], pa.binary(32)),
            "pdq_quality": pa.array([80, 80], pa.int8()),
        }
    )
    for quality, expected in ((0, [False, True]), (50, [True, True])):  # the other pool is plain
        options = {"on": "perceptual", "against": pool, "quality": quality}
        filter_ = make(FilterSpec(name="duplicate", options=options))
        columns = run_inline(filter_, [own], 2)  # type: ignore[arg-type]
        assert [columns[uid]["duplicate_survivor"] for uid in "ab"] == expected


def test_the_other_pool_is_part_of_the_identity(tmp_path: Path) -> None:
    first, second = scored_pool(tmp_path / "a"), scored_pool(tmp_path / "b", 7)
    identities = set()
    for pool in (first, second):
        options = {"on": "perceptual", "against": pool}
        filter_ = make(FilterSpec(name="duplicate", options=options))
        filter_.check()
        identities.add(filter_.identity())
    assert len(identities - {""}) == 2


def test_pools_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no pool: it has no folder shards"):
        OtherPool(str(tmp_path / "nothing"))
    pool = make_pool(tmp_path / "pool", rows(3))
    with pytest.raises(ValueError, match="no complete column 'pdq'"):
        list(OtherPool(pool).columns(["pdq"]))
