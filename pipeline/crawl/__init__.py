"""Sources to deduplicated image-caption pairs."""

from __future__ import annotations

from pipeline.crawl import crawler
from pipeline.crawl.content import file_stamp, has_stamp
from pipeline.crawl.crawler import extract
from pipeline.crawl.dedup import ranges_of
from pipeline.crawl.losses import Loss, top_reasons
from pipeline.crawl.parts import (
    UidsDigest,
    check_stored_table,
    dropped_rows,
    part_totals,
    read_parts,
    rows_between,
    write_parts,
)
from pipeline.crawl.sources import pairs_of_record, reads_records, source_files
from pipeline.crawl.table_files import python_values

__all__ = [
    "Loss",
    "UidsDigest",
    "check_stored_table",
    "crawler",
    "dropped_rows",
    "extract",
    "file_stamp",
    "has_stamp",
    "pairs_of_record",
    "part_totals",
    "python_values",
    "ranges_of",
    "read_parts",
    "reads_records",
    "rows_between",
    "source_files",
    "top_reasons",
    "write_parts",
]
