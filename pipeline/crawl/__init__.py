"""Sources to deduplicated image-caption pairs."""

from __future__ import annotations

from pipeline.crawl import crawler
from pipeline.crawl.content import file_stamp, has_stamp
from pipeline.crawl.crawler import extract
from pipeline.crawl.dedup import ranges_of
from pipeline.crawl.losses import Loss, top_reasons
from pipeline.crawl.parts import UidsDigest, read_parts, rows_between
from pipeline.crawl.table_files import python_values

__all__ = [
    "Loss",
    "UidsDigest",
    "crawler",
    "extract",
    "file_stamp",
    "has_stamp",
    "python_values",
    "ranges_of",
    "read_parts",
    "rows_between",
    "top_reasons",
]
