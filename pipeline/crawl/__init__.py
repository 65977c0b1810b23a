"""Sources to deduplicated image-caption pairs.

Reads what `source` names. Writes `POOL/pairs/part-00000.parquet` (PAIRS, the extra columns;
totals, reasons and examples in the footer) and `POOL/parts.parquet` (one row a part).
`POOL/pairs/.extracted` is scratch space, empty at the end.

Invariants:

* `links = pairs + Σ reasons` in every part (`tests/pipeline/crawl/test_crawler.py`).
* A bad row costs itself only (`tests/pipeline/crawl/test_tables.py`,
  `tests/pipeline/archives/test_wat_records.py`).
* Ray, inline and resumed builds write the same bytes (`test_crawler.py`, `test_dedup.py`).
* A changed source file is noticed (`tests/pipeline/crawl/test_sources.py`).

To add a kind of source: its module and test, a line of READERS, a line of
`manifests/schema/recipe.py`.
"""
