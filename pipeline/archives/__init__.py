"""Records of WAT and WARC archives as pairs, and URLs as browsers request them."""

from __future__ import annotations

from pipeline.archives.lookup import RecordPair, pairs_of_warc_record, pairs_of_wat_record
from pipeline.archives.row_counts import PartCounts, reject, shortened
from pipeline.archives.urls import LONGEST_URL, SPACE, ascii_host, resolve, trimmed
from pipeline.archives.warc import rows_of_warc
from pipeline.archives.wat import batches_of_wat

__all__ = [
    "LONGEST_URL",
    "SPACE",
    "PartCounts",
    "RecordPair",
    "ascii_host",
    "batches_of_wat",
    "pairs_of_warc_record",
    "pairs_of_wat_record",
    "reject",
    "resolve",
    "rows_of_warc",
    "shortened",
    "trimmed",
]
