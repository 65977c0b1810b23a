"""Commit records as columns and back: nothing is lost, and what does not fit is named."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests.commits.commits import conform, schema, to_records, to_table
from tests.support.commit_records import commit_record

STAMP = {"size": 3, "mtime_ns": 10**18, "etag": None}
MANNERS = {"per_host": 2, "user_agent": "é (mailto:a@b.example)"}
RECORDS = [
    commit_record(0),
    commit_record(3000, reasons={}, fence=7, manners=MANNERS),
    commit_record(
        100_000, tar="s3://bucket/a b.tar", adopted=True, tar_stamp=STAMP, revision=2, engine="e",
        engine_version="1", duration_s=0.25,
    ),
]  # fmt: skip


def test_records_and_columns_are_inverses() -> None:
    table = to_table(RECORDS)
    assert table.schema == schema()
    assert table["shard"].to_pylist() == [0, 3000, 100_000]
    assert table["tar_sha256"][0].as_py().hex() == RECORDS[0].tar_sha256
    assert list(to_records(table)) == RECORDS
    assert list(to_records(table.slice(1, 1))) == RECORDS[1:2]
    assert to_table([]).num_rows == 0


def test_columns_survive_parquet() -> None:
    sink = io.BytesIO()
    pq.write_table(to_table(RECORDS), sink)
    read = conform(pq.read_table(pa.BufferReader(sink.getvalue())), schema().names)
    assert read.schema == schema()
    assert list(to_records(read)) == RECORDS


@pytest.mark.parametrize("name", ["count", "revision", "adopted"])
def test_a_column_that_a_file_lacks_is_named(name: str) -> None:
    table = to_table(RECORDS[:1]).drop_columns([name])
    with pytest.raises(ValueError, match=f"it has no column '{name}'"):
        conform(table, schema().names)


@pytest.mark.parametrize("value", ["x", "", "G" * 64, "A" * 64, "a" * 63])
def test_a_hash_that_is_none_is_named(value: str) -> None:
    with pytest.raises(ValueError, match=r"record of shard 00003 has tar_sha256 .* not a sha256"):
        to_table([commit_record(2), commit_record(3, tar_sha256=value)])
