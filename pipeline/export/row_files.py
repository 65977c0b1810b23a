"""Rows to one Parquet or CSV file, row group by row group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from manifests import disk
from pipeline.export.kept_rows import KeptRows

GROUP_ROWS = 20_000  # of a row group, at most
GROUP_BYTES = 64 * 2**20  # embeddings of 768 fp16 values: 30,000 rows
CSV_COLUMNS = ("url", "caption", "uid", "sha256")


def write_rows_parquet(rows: KeptRows, staged: Path) -> int:
    """Write sidecar and score columns of the kept rows; the number of rows."""
    written = 0
    with disk.parquet_writer(
        staged, rows.schema, compression="zstd", write_page_checksum=True
    ) as writer:
        for table in _row_groups(rows.tables()):
            writer.write_table(table.cast(rows.schema), row_group_size=max(1, table.num_rows))
            written += table.num_rows
    _sync(staged)
    return written


def write_rows_csv(rows: KeptRows, staged: Path) -> int:
    """Write CSV_COLUMNS of the kept rows (RFC 4180: every text in quotes, a quote doubled); the
    number of rows.

    Line breaks inside a caption stay. A caption that a spreadsheet takes for a formula stays too.
    """
    schema = pa.schema([rows.sidecar_schema.field(name) for name in CSV_COLUMNS])
    written = 0
    with disk.CountedFile(staged) as file, _csv_writer(file, schema) as writer:
        for table in rows.tables(CSV_COLUMNS):
            writer.write_table(table)
            written += table.num_rows
    _sync(staged)
    return written


def _csv_writer(file: Any, schema: pa.Schema) -> pa_csv.CSVWriter:
    options = pa_csv.WriteOptions(quoting_style="needed", quoting_header="none")
    return pa_csv.CSVWriter(file, schema, write_options=options)


def _row_groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Tables of at most GROUP_ROWS rows and about GROUP_BYTES: small ones are joined."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        for piece in _pieces(table):
            if waiting and (rows + len(piece) > GROUP_ROWS or size + piece.nbytes > GROUP_BYTES):
                yield pa.concat_tables(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(piece)
            rows, size = rows + len(piece), size + piece.nbytes
    if waiting:
        yield pa.concat_tables(waiting)


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    per_row = max(1, table.nbytes // max(1, len(table)))
    count = max(1, min(GROUP_ROWS, GROUP_BYTES // per_row))
    for start in range(0, len(table), count):
        yield table.slice(start, count)


def _sync(path: Path) -> None:
    with open(path, "rb") as f:
        os.fsync(f.fileno())
