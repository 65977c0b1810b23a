"""Columns of a table for every shard of a pool: by uid, never by position."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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


@pytest.mark.parametrize("batch_rows", [4, 10_000])
def test_values_go_to_the_rows_with_their_uids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int
) -> None:
    monkeypatch.setattr(metadata_join, "BATCH_ROWS", batch_rows)
    pool = make_pool(tmp_path / "pool", rows(43), per_shard=6)
    uids = uids_of(pool)
    order = np.random.default_rng(0).permutation(43)
    given = [uids[i] for i in order if i % 9 != 5] + ["00" * 16, "00" * 15 + "01"]
    first, second = given[:20], [*given[20:], *given[:5], given[-3]]  # the first of each counts
    arrays = {}
    for name, part in (("0", first), ("1", second)):
        made = write_metadata(tmp_path / "meta", name, part, seed=int(name))["l14_img"]
        for uid, array in zip(part, made, strict=True):
            arrays.setdefault(uid, array)
    commits = read_commits(pool)
    positions = np.arange(len(commits))[1:]  # the first shard is not asked for
    table = Table(paths=(str(tmp_path / "meta"),), take=TAKE)
    join = TableJoin(commits, positions, table)
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
    asked = set[str]()
    for shard in shards:
        sidecar = disk.read_parquet(commits.sidecar(int(commits.shards[shard.position])))
        stored_uids = sidecar["uid"].filter(pc.equal(sidecar["status"], "success"))
        asked |= set(stored_uids.to_pylist())
    counts = join.counts
    assert (counts.table_rows, counts.keys) == (len(given) + 6, len(given))
    assert (counts.pool_rows, counts.matched_rows) == (len(asked), len(asked & set(given)))
    assert counts.missing == len(set(given) - asked)
    assert counts.missing_keys == sorted(set(given) - asked)[:10]


def test_a_pool_whose_uids_are_in_another_column(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", rows(8))
    path = read_commits(pool).sidecar(0)
    sidecar = disk.read_parquet(path)
    theirs = [f"{number:032x}" for number in range(8)]
    theirs_or_null = [*theirs[:-1], None]
    disk.write_parquet(path, sidecar.append_column("datacomp_uid", pa.array(theirs_or_null)))
    write_metadata(tmp_path / "meta", "0", theirs)
    table = Table(paths=(str(tmp_path / "meta"),), take={"text": "string"}, on="datacomp_uid")
    (shard,) = TableJoin(read_commits(pool), np.array([0]), table).shards()
    texts = shard.table["text"].to_pylist()
    assert texts[0] == "a text 0000"
    assert texts[7] is None
    for on, message in (
        ("datacomp_id", "has no column 'datacomp_id'; did you mean"),
        ("caption", "column 'caption' of .* does not have 32 hex digits"),
    ):
        wrong = Table(paths=(str(tmp_path / "meta"),), take={"text": "string"}, on=on)
        with pytest.raises(ValueError, match=message):
            list(TableJoin(read_commits(pool), np.array([0]), wrong).shards())


def test_no_shard_needs_no_table(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", rows(4))
    write_metadata(tmp_path / "meta", "0", ["ab" * 16])
    table = Table(paths=(str(tmp_path / "meta"),), take=TAKE)
    assert list(TableJoin(read_commits(pool), np.zeros(0, np.int64), table).shards()) == []
