"""Paths of a pool and a run, and the hashes that writer and reader share."""

from __future__ import annotations

import pyarrow as pa
import pytest

from manifests.pool_layout import (
    AblationLayout,
    PoolLayout,
    RunLayout,
    pool_fingerprint,
    shard_name,
    uids_checksum,
)


@pytest.mark.parametrize("root", ["/data/pool", "s3://bucket/pool"])
def test_paths_of_a_pool(root: str) -> None:
    pool = PoolLayout(root)
    assert pool.sidecar(7) == pool.sidecar("00007") == f"{root}/shards/00007.parquet"
    assert pool.commit_record(123456) == f"{root}/shards/123456_stats.json"
    assert pool.pairs_part(3) == f"{root}/pairs/part-00003.parquet"
    assert pool.score_columns("tokens@1", 0) == f"{root}/scores/tokens@1/00000.parquet"
    assert pool.view_mask("raw", 0) == f"{root}/views/raw/00000.parquet"
    assert pool.view_json("raw") == f"{root}/views/raw.json"


def test_the_tar_of_a_record_lies_in_the_pool_or_where_it_was_adopted() -> None:
    pool = PoolLayout("/data/pool")
    assert pool.tar({"tar": "00000.tar"}) == "/data/pool/shards/00000.tar"
    for tar in ("/elsewhere/a.tar", "s3://bucket/a.tar", "file:///elsewhere/a.tar"):
        assert pool.tar({"tar": tar}) == tar


def test_paths_of_a_run_and_an_ablation() -> None:
    assert RunLayout("/run").task_predictions("objects") == "/run/eval/objects.parquet"
    assert AblationLayout("/out").run("raw", 2) == "/out/runs/raw/seed-2"


def test_a_shard_has_five_digits_or_more_and_a_word_is_none() -> None:
    assert [shard_name(0), shard_name("42"), shard_name(1234567)] == ["00000", "00042", "1234567"]
    with pytest.raises(ValueError, match="invalid literal"):
        shard_name("pool")


def test_checksum_and_fingerprint_depend_on_every_value_and_on_the_order_of_rows() -> None:
    rows = pa.chunked_array([["a", "b"]])
    assert uids_checksum(rows) == uids_checksum(pa.chunked_array([["a"], ["b"]]))
    assert uids_checksum(rows) != uids_checksum(pa.chunked_array([["b", "a"]]))
    records = {"00000": {"sidecar_sha256": "x"}, "00001": {"sidecar_sha256": "y"}}
    assert pool_fingerprint(records) == pool_fingerprint(dict(reversed(records.items())))
    assert pool_fingerprint(records) != pool_fingerprint(
        {**records, "00001": {"sidecar_sha256": "z"}}
    )
