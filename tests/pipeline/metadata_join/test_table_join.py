"""Columns of a table for every shard of a pool: by uid, never by position."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from filters.table import Table
from manifests import disk
from manifests.commits import read_commits
from manifests.layout import uids_checksum
from pipeline import metadata_join
from pipeline.metadata_join import TableJoin
from tests.support.datacomp import write_metadata
from tests.support.small_pool import make_pool, rows

TAKE = {"score": "clip_l14_similarity_score:float", "l14_img": "fp16[8]", "text": "string"}


def uids_of(pool: str) -> list[str]:
    commits = read_commits(pool)
    uids: list[str] = []
    for shard in commits.shards.tolist():
        uids += disk.read_parquet(commits.sidecar(shard))["uid"].to_pylist()
    return uids


@pytest.mark.parametrize("partition_bytes", [200, 2**27])
def test_values_go_to_the_rows_with_their_uids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition_bytes: int
) -> None:
    monkeypatch.setattr(metadata_join, "PARTITION_BYTES", partition_bytes)
    pool = make_pool(tmp_path / "pool", rows(43), per_shard=6)
    uids = uids_of(pool)
    order = np.random.default_rng(0).permutation(43)
    given = [uids[i] for i in order if i % 9 != 5] + ["00" * 16, "00" * 15 + "01"]
    first, second = given[:20], given[20:]
    arrays = {}
    for name, part in (("0", first), ("1", second)):
        made = write_metadata(tmp_path / "meta", name, part, seed=int(name))["l14_img"]
        arrays |= dict(zip(part, made, strict=True))
    commits = read_commits(pool)
    positions = np.arange(len(commits))[1:]  # the first shard is not asked for
    table = Table(paths=(str(tmp_path / "meta"),), take=TAKE)
    with TableJoin(commits, positions, table) as join:
        shards = list(join.shards())
    assert [shard.position for shard in shards] == positions.tolist()
    for shard in shards:
        sidecar = disk.read_parquet(commits.sidecar(int(commits.shards[shard.position])))
        assert shard.uids == uids_checksum(sidecar["uid"])
        stored = [status == "success" for status in sidecar["status"].to_pylist()]
        assert shard.stored == sum(stored)
        assert shard.table.schema.types == list(table.columns().values())
        values = zip(sidecar["uid"].to_pylist(), stored, shard.table.to_pylist(), strict=True)
        for uid, is_stored, value in values:
            if is_stored and uid in arrays:
                assert value["text"] == f"a text {uid[:4]}"
                assert np.array_equal(np.array(value["l14_img"], np.float16), arrays[uid])
                assert value["score"] is not None
            else:
                assert value == {"score": None, "l14_img": None, "text": None}
    assert join.counts.keys == len(given)
    assert {"00" * 16, "00" * 15 + "01"} <= set(join.counts.missing_keys)


def test_a_pool_whose_uids_are_in_another_column(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", rows(8))
    path = read_commits(pool).sidecar(0)
    sidecar = disk.read_parquet(path)
    theirs = [f"{number:032x}" for number in range(8)]
    theirs_or_null = [*theirs[:-1], None]
    disk.write_parquet(path, sidecar.append_column("datacomp_uid", pa.array(theirs_or_null)))
    write_metadata(tmp_path / "meta", "0", theirs)
    table = Table(paths=(str(tmp_path / "meta"),), take={"text": "string"}, on="datacomp_uid")
    with TableJoin(read_commits(pool), np.array([0]), table) as join:
        (shard,) = join.shards()
    texts = shard.table["text"].to_pylist()
    assert texts[0] == "a text 0000"
    assert texts[7] is None
    for on, message in (
        ("datacomp_id", "has no column 'datacomp_id'; did you mean"),
        ("caption", "column 'caption' of .* does not have 32 hex digits"),
    ):
        wrong = Table(paths=(str(tmp_path / "meta"),), take={"text": "string"}, on=on)
        with (
            TableJoin(read_commits(pool), np.array([0]), wrong) as join,
            pytest.raises(ValueError, match=message),
        ):
            list(join.shards())


def test_no_shard_needs_no_table(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", rows(4))
    write_metadata(tmp_path / "meta", "0", ["ab" * 16])
    table = Table(paths=(str(tmp_path / "meta"),), take=TAKE)
    with TableJoin(read_commits(pool), np.zeros(0, np.int64), table) as join:
        assert list(join.shards()) == []
