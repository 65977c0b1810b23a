"""The content of rows goes, everything beside it stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from manifests import disk
from manifests.records import ShardTable, ViewDocument
from pipeline.audit.purge import minus, purge_parquet, purge_shard, without_content
from pipeline.pool.lease import read_commit_record, read_sidecar
from pipeline.pool.tars import index_tar
from tests.support.small_pool import make_pool, rows


def test_only_the_named_columns_stay() -> None:
    table = pa.table({"uid": ["a", "b"], "url": ["x", "y"], "n": [1, 2]})
    left = without_content(table, np.array([False, True]))
    assert left.to_pylist() == [
        {"uid": "a", "url": "x", "n": 1},
        {"uid": "b", "url": None, "n": None},
    ]
    assert left.schema == table.schema


def test_the_other_members_are_copied_byte_for_byte(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(10))
    record = read_commit_record(pool, 0)
    assert record is not None
    old = (tmp_path / "shards/00000.tar").read_bytes()
    before = {
        m.name: old[m.offset :][: m.length] for m in index_tar(str(tmp_path / "shards/00000.tar"))
    }
    purged = np.zeros(10, np.bool_)
    purged[[0, 3, 4, 8]] = True
    new = purge_shard(pool, record, purged, None)
    assert new is not None
    assert purge_shard(pool, new, purged, None) is None  # nothing is left to remove
    assert (new.revision, new.tar, new.count) == (1, "00000.r1.tar", 10)
    assert not (tmp_path / "shards/00000.tar").exists()
    tar = tmp_path / "shards" / new.tar
    data = tar.read_bytes()
    after = {m.name: data[m.offset :][: m.length] for m in index_tar(str(tar))}
    left = {name: body for name, body in before.items() if int(name[5:9]) not in (0, 3, 4, 8)}
    assert after == left
    assert len(data) % 10240 == 0
    for row in read_sidecar(pool, 0).to_pylist():
        if row["image_name"]:
            assert data[row["image_offset"] :][: row["image_length"]] == left[row["image_name"]]


def test_a_file_without_these_uids_is_not_written(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    disk.write_parquet(path, pa.table({"uid": ["a"], "url": ["x"]}), {})
    before = (tmp_path / "a.parquet").stat().st_mtime_ns
    assert purge_parquet(path, pa.array(["b"]), drop=False) == 0
    assert (tmp_path / "a.parquet").stat().st_mtime_ns == before
    with pytest.raises(FileNotFoundError):
        purge_parquet(str(tmp_path / "none.parquet"), pa.array(["b"]), drop=False)


def test_a_funnel_without_the_purged_rows() -> None:
    document = ViewDocument(
        name="v",
        rules=({"name": "a"}, {"name": "b"}),
        thresholds={},
        funnel=(("attempted", 10), ("stored", 9), ("a", 6), ("b", 4)),
        kept=4,
        fingerprint="old",
        scores={},
        shards=ShardTable(file="shards-0.parquet", count=1, sha256=""),
    )
    changed = minus(document, {"": 1, "a": 1, "b:missing": 1, "not_stored": 5}, "new")
    assert changed.funnel == (("attempted", 10), ("stored", 6), ("a", 4), ("b", 3))
    assert (changed.kept, changed.fingerprint) == (3, "new")
