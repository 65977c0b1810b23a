"""Parquet and CSV of the kept rows, read back by other readers."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from pipeline import export
from pipeline.export import KeptRows
from tests.support.exported import CAPTIONS, exported_pool, kept_samples


@pytest.mark.parametrize(("group_rows", "group_bytes"), [(7, 2**26), (20_000, 1)])
def test_parquet_in_small_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int, group_bytes: int
) -> None:
    monkeypatch.setattr(export, "GROUP_ROWS", group_rows)
    monkeypatch.setattr(export, "GROUP_BYTES", group_bytes)
    pool = exported_pool(tmp_path / "pool")
    kept = KeptRows(pool, "wide")
    count = export.write_rows_parquet(kept, tmp_path / "x.parquet")
    file = pq.ParquetFile(tmp_path / "x.parquet")
    assert file.metadata.num_rows == count == kept.document.kept
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert max(sizes) <= 8  # rows of a shard
    table = file.read()
    expected = kept_samples(pool)
    assert set(table["uid"].to_pylist()) == expected.keys()
    for row in table.to_pylist():
        assert row["caption"].encode() == expected[row["uid"]]["txt"]


def test_csv_is_read_as_it_was_by_two_readers(tmp_path: Path) -> None:
    pool = exported_pool(tmp_path / "pool")
    count = export.write_rows_csv(KeptRows(pool, "wide"), tmp_path / "x.csv")
    with open(tmp_path / "x.csv", newline="", encoding="utf-8") as f:
        read = list(csv.DictReader(f))
    assert len(read) == count
    expected = {uid: sample["txt"].decode() for uid, sample in kept_samples(pool).items()}
    assert {row["uid"]: row["caption"] for row in read} == expected
    assert set(CAPTIONS) <= {row["caption"] for row in read} | {""}
    assert list(read[0]) == list(export.CSV_COLUMNS)
    table = pa_csv.read_csv(
        tmp_path / "x.csv", parse_options=pa_csv.ParseOptions(newlines_in_values=True)
    )
    assert (
        dict(zip(table["uid"].to_pylist(), table["caption"].to_pylist(), strict=True)) == expected
    )


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    pool = exported_pool(tmp_path / "pool")
    with pytest.raises(OSError, match="No space left"):
        export.write_rows_parquet(KeptRows(pool, "wide"), Path("/dev/full"))
