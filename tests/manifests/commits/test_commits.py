"""The committed shards of a pool in memory: the same answers as a dict of records gives."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from manifests import disk
from manifests.commits import Commits
from manifests.layout import SHARD_VERSION
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
    assert part.first_with("timeout") == "00001"
    empty = Commits.of_records("/p", [])
    assert (empty.totals.shards, empty.totals.reasons, empty.lost().tolist()) == (0, {}, [])


def test_the_first_shard_with_a_reason() -> None:
    assert COMMITS.first_with("timeout") == "00001"
    assert COMMITS.first_with("dns") == "00000"
    assert COMMITS.first_with("decode") is None


def test_a_table_out_of_order_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="not in order"):
        Commits("/p", COMMITS.table.take(np.array([1, 0])))
