"""Paths of a pool and a run, and the hashes that writer and reader share."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clipmill.manifests import disk
from clipmill.manifests.layout import (
    SHARD_VERSION,
    CommitRecord,
    PoolLayout,
    shard_name,
    uids_checksum,
)
from clipmill.manifests.records import PoolDocument, ViewDocument, read_document
from tests.support.commit_records import pool_fingerprint, read_commit_records


def commit_record(shard: int, sidecar_sha256: str) -> CommitRecord:
    return CommitRecord(
        shard=shard_name(shard), tar=f"{shard_name(shard)}.tar", tar_bytes=10240, tar_sha256="t",
        count=3, successes=1, reasons={"dns": 2}, failed_to_download=2, failed_to_resize=0,
        retries=0, sidecar_bytes=99, sidecar_file_sha256="f", sidecar_sha256=sidecar_sha256,
        task="task", group="0", version=SHARD_VERSION, duration_s=0.5, adopted=False,
    )  # fmt: skip


def test_the_tar_of_a_record_lies_in_the_pool_or_where_it_was_adopted() -> None:
    pool = PoolLayout("/data/pool")
    record = commit_record(0, "x")
    assert pool.tar(record) == pool.shard_tar(0) == "/data/pool/shards/00000.tar"
    for tar in ("/elsewhere/a.tar", "s3://bucket/a.tar", "file:///elsewhere/a.tar"):
        assert pool.tar(dataclasses.replace(record, tar=tar)) == tar


def test_checksum_and_fingerprint_depend_on_every_value_and_on_the_order_of_rows() -> None:
    rows = pa.chunked_array([["a", "b"]])
    assert uids_checksum(rows) == uids_checksum(pa.chunked_array([["a"], ["b"]]))
    assert uids_checksum(rows) != uids_checksum(pa.chunked_array([["b", "a"]]))
    records = {"00000": commit_record(0, "x"), "00001": commit_record(1, "y")}
    assert pool_fingerprint(records) == pool_fingerprint(dict(reversed(records.items())))
    assert pool_fingerprint(records) != pool_fingerprint(
        {**records, "00001": commit_record(1, "z")}
    )


def test_commit_records_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    layout = PoolLayout(str(tmp_path))
    assert read_commit_records(layout.root) == {}
    for shard in (100000, 2, 99999):
        disk.write_json(layout.commit_record(shard), commit_record(shard, "x"))
    records = read_commit_records(layout.root)
    assert list(records) == ["00002", "99999", "100000"]
    assert records["00002"].shard == "00002"


def test_a_commit_record_and_its_document_are_inverses() -> None:
    record = commit_record(3, "x")
    document = disk.to_plain(record)
    assert not document.keys() & {"engine", "engine_version", "tar_stamp", "fence", "revision"}
    assert document["adopted"] is False
    assert CommitRecord.from_plain(document) == record
    later = {**document, "lease": 7}  # a key that this version does not know
    assert CommitRecord.from_plain(later) == record
    other = dataclasses.replace(
        record, tar="/data/a.tar", adopted=True, engine="e", engine_version="1", fence=7, revision=2
    )
    assert CommitRecord.from_plain(json.loads(json.dumps(disk.to_plain(other)))) == other


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"version": SHARD_VERSION + 1},
            f"has shard version {SHARD_VERSION + 1}; this clipmill reads version {SHARD_VERSION}",
        ),
        ({"version": SHARD_VERSION - 1}, f"has shard version {SHARD_VERSION - 1}; this clipmill"),
        ({"version": None}, "has shard version None"),
        ({"tar_sha256": ...}, "has no 'tar_sha256'"),
        ({"adopted": ...}, "has no 'adopted'"),
        ({"count": "3"}, "CommitRecord.count is '3'; it must be a whole number"),
        ({"reasons": {"dns": None}}, r"CommitRecord.reasons\['dns'\] is None; it must be a whole"),
        ({"tar_bytes": 10**30}, "tar_bytes is 10000000000000000000; it must lie in"),
        ({"reasons": {"dns": 10**30}}, r"reasons\.dns is 1000000000000"),
        ({"count": -5}, "count is -5; it must lie in"),
        ({"revision": -1}, "revision is -1"),
        ({"duration_s": float("nan")}, "duration_s is nan"),
        ({"shard": "abc"}, "shard is 'abc'; it must be a number of five digits or more"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    document = disk.to_plain(commit_record(0, "x")) | change
    document = {name: value for name, value in document.items() if value is not ...}
    path = PoolLayout(str(tmp_path)).commit_record(0)
    disk.write_json(path, document)
    with pytest.raises(ValueError, match=rf"00000_stats.json is not a commit record.*{message}"):
        CommitRecord.read(path)


# --- JSON documents keep their bytes, and a file that is no such document is named


VIEW = {
    "name": "clip",
    "rules": [{"name": "clip", "where": "clip_score >= top(clip_score, 0.3)"}],
    "thresholds": {
        "top(clip_score, 0.3)": {"value": 0.25, "asked": 0.3, "share": 0.5, "kept": 1, "rows": 2}
    },
    "funnel": [["attempted", 3], ["stored", 2], ["clip", 1]],
    "kept": 1,
    "fingerprint": "f",
    "scores": {"clip_score": "clip_score@1"},
    "shards": {"file": "shards-0.parquet", "count": 1, "sha256": "ab"},
}
FETCH = {
    "shards": 1,
    "planned": 1,
    "attempted": 3,
    "retries": 0,
    "stored": 2,
    "reasons": {"dns": 1},
    "classes": {"transient": 1},
    "final": {"stored": 2, "reasons": {"dns": 1}},
    "bytes": 10240,
}
POOL = {
    "crawl": None,
    "fetch": FETCH,
    "scores": {"clip_score@1": {"rows": 3, "stored": 2, "scored": 2}},
    "views": {"clip": {key: VIEW[key] for key in ("kept", "funnel", "thresholds")}},
    "complete": True,
    "problems": [],
    "recipe": "r",
    "recipe_hash": "h",
    "source": "s",
    "fingerprint": "f",
    "seconds": {"fetch": 1.5},
    "task_seconds": 1.0,
    "versions": {"python": "3.12", "shard": [1]},
}


@pytest.mark.parametrize(("kind", "value"), [(ViewDocument, VIEW), (PoolDocument, POOL)])
def test_a_document_that_is_read_and_written_again_has_the_same_bytes(
    kind: type, value: dict[str, object], tmp_path: Path
) -> None:
    disk.write_json(tmp_path / "a.json", value)
    document = read_document(tmp_path / "a.json", kind)
    plain = disk.to_plain(document)
    disk.write_json(tmp_path / "b.json", plain)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize(
    "value", [{}, [], "x", {**VIEW, "shard": {}}, {**VIEW, "thresholds": {"top(x, 1)": 3}}]
)
def test_a_file_that_is_no_such_document_is_named(value: object, tmp_path: Path) -> None:
    disk.write_json(tmp_path / "a.json", value)
    with pytest.raises(ValueError, match=r"a\.json is no ViewDocument"):
        read_document(tmp_path / "a.json", ViewDocument)
    with pytest.raises(FileNotFoundError):
        read_document(tmp_path / "b.json", ViewDocument)
