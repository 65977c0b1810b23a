"""The committed shards of a pool in memory: the same answers as a dict of records gives."""

from __future__ import annotations

import dataclasses
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.manifests import disk
from clipmill.manifests.commits import Commits
from clipmill.manifests.commits.commits import conform, schema, to_records, to_table
from clipmill.manifests.layout import SHARD_VERSION
from tests.support.commit_records import commit_record

NUMBERS = [0, 1, 2, 2999, 3000, 99_998, 99_999, 100_000, 100_001, 1_000_000]
RECORDS = [commit_record(number) for number in NUMBERS]
COMMITS = Commits.of_records("/p", reversed(RECORDS))


def test_shards_are_found_by_number_and_by_name() -> None:
    assert len(COMMITS) == len(NUMBERS)
    assert COMMITS.shards.tolist() == NUMBERS
    assert list(COMMITS.names())[:3] == ["00000", "00001", "00002"]
    assert list(COMMITS.records()) == RECORDS
    assert list(COMMITS.records(COMMITS.shards > 99_999)) == RECORDS[7:]
    for number, record in zip(NUMBERS, RECORDS, strict=True):
        assert COMMITS.record(number) == COMMITS.record(record.shard) == record
        assert number in COMMITS
        assert record.shard in COMMITS
    for missing in (3, 2998, 100_002, 2_000_000):
        assert missing not in COMMITS
        assert COMMITS.get(missing) is None
        for method in (COMMITS.record, COMMITS.tar, COMMITS.sidecar):
            with pytest.raises(KeyError):
                method(missing)


def test_the_files_of_a_shard_are_those_that_its_record_names() -> None:
    changed = dataclasses.replace(RECORDS[4], tar="03000.r2.tar", revision=2)
    adopted = dataclasses.replace(RECORDS[0], tar="s3://b/x.tar", adopted=True, revision=1)
    commits = Commits.of_records("s3://p", [changed, adopted])
    assert commits.tar(3000) == "s3://p/shards/03000.r2.tar"
    assert commits.sidecar(3000) == "s3://p/shards/03000.r2.parquet"
    assert commits.tar(0) == "s3://b/x.tar"
    assert commits.sidecar(0) == "s3://p/shards/00000.r1.parquet"


def test_the_fingerprint_is_the_hash_of_the_records_as_a_dict() -> None:
    by_name = {record.shard: record.sidecar_sha256 for record in RECORDS}
    assert COMMITS.fingerprint == disk.content_hash(by_name)
    assert Commits.of_records("/p", []).fingerprint == disk.content_hash({})
    assert COMMITS.hash_of("tar_sha256") == disk.content_hash([r.tar_sha256 for r in RECORDS])
    other = Commits.of_records("/p", [*RECORDS[1:], commit_record(0, sidecar_sha256="0" * 64)])
    assert other.fingerprint != COMMITS.fingerprint


def test_sums_over_all_shards() -> None:
    totals = COMMITS.totals
    assert (totals.shards, totals.rows, totals.stored) == (10, 50, 20)
    assert totals.reasons == {"dns": 26, "timeout": 4}
    assert (totals.bytes, totals.duration_s, totals.versions) == (
        102_400,
        5.0,
        (SHARD_VERSION,),
    )
    assert COMMITS.lost().tolist() == [3] * 10
    part = Commits("/p", COMMITS.table.slice(1, 3))
    assert part.reasons() == {"dns": 7, "timeout": 2}
    assert part.lost().tolist() == [3, 3, 3]
    assert part.first_with("timeout") == COMMITS.first_with("timeout") == "00001"
    assert COMMITS.first_with("dns") == "00000"
    assert COMMITS.first_with("decode") is None
    empty = Commits.of_records("/p", [])
    assert (empty.totals.shards, empty.totals.reasons, empty.lost().tolist()) == (0, {}, [])


# --------------------------------------------------------------------------------------------------
# Commit records as columns and back: nothing is lost, and what does not fit is named.


STAMP = {"size": 3, "mtime_ns": 10**18, "etag": None}
MANNERS = {"per_host": 2, "user_agent": "é (mailto:a@b.example)"}
ODD_RECORDS = [
    commit_record(0),
    commit_record(3000, reasons={}, fence=7, manners=MANNERS),
    commit_record(
        100_000, tar="s3://bucket/a b.tar", adopted=True, tar_stamp=STAMP, revision=2, engine="e",
        engine_version="1", duration_s=0.25,
    ),
]  # fmt: skip


def test_records_and_columns_are_inverses_through_parquet() -> None:
    sink = io.BytesIO()
    pq.write_table(to_table(ODD_RECORDS), sink)
    table = conform(pq.read_table(pa.BufferReader(sink.getvalue())), schema().names)
    assert table.schema == schema()
    assert table["shard"].to_pylist() == [0, 3000, 100_000]
    assert table["tar_sha256"][0].as_py().hex() == ODD_RECORDS[0].tar_sha256
    assert list(to_records(table)) == ODD_RECORDS
    assert list(to_records(table.slice(1, 1))) == ODD_RECORDS[1:2]
    assert to_table([]).num_rows == 0
    with pytest.raises(ValueError, match="it has no column 'count'"):
        conform(table.drop_columns(["count"]), schema().names)


@pytest.mark.parametrize("value", ["x", "", "G" * 64, "A" * 64, "a" * 63])
def test_a_hash_that_is_none_is_named(value: str) -> None:
    with pytest.raises(ValueError, match=r"record of shard 00003 has tar_sha256 .* not a sha256"):
        to_table([commit_record(2), commit_record(3, tar_sha256=value)])
