"""Sources to deduplicated image-caption pairs.

Reads what `source` names. Writes `POOL/pairs/part-00000.parquet` (PAIRS, the extra columns;
totals, reasons and examples in the footer) and `POOL/parts.parquet` (one row a part).
`POOL/pairs/.extracted` is scratch space, empty at the end.

Invariants:

* `links = pairs + Σ reasons` in every part (`tests/pipeline/crawl/test_crawler.py`).
* A bad row costs itself only (`tests/pipeline/crawl/test_tables.py`,
  `tests/pipeline/archives/test_wat_records.py`).
* Ray, inline and resumed builds write the same bytes (`test_crawler.py`, `test_dedup.py`).
* A changed source file is noticed (`tests/pipeline/crawl/test_content.py`).

To add a kind of source: its module and test, a line of READERS, a line of
`manifests/schema/recipe.py`.
"""

from __future__ import annotations

from pipeline.crawl.crawler import extract, ranges_of
from pipeline.crawl.parts import (
    Loss,
    UidsDigest,
    check_stored_table,
    dropped_rows,
    part_totals,
    read_parts,
    rows_between,
    top_reasons,
    write_parts,
)
from pipeline.crawl.sources import (
    file_stamp,
    has_stamp,
    pairs_of_record,
    reads_records,
    source_files,
)
from pipeline.crawl.tables import python_values

__all__ = [
    "Loss",
    "UidsDigest",
    "check_stored_table",
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
