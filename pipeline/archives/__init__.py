"""Records of WAT and WARC archives as pairs, and URLs as browsers request them.

Reads WAT and WARC archives as rows of image-caption pairs, and URLs as browsers request them. It
needs no pool and downloads no image.

Reads the WAT and WARC files that a source names, local or remote. Writes nothing.

Invariants:

* Each image of a page is a pair or is counted with a reason
  (`tests/pipeline/archives/test_wat.py`).
* A damaged record costs itself only (`tests/pipeline/archives/test_wat_records.py`,
  `tests/pipeline/archives/test_warc_records.py`); memory is bounded by the largest record.
* A page gives the same rows from its WAT and its WARC (`tests/pipeline/archives/test_warc.py`).
* Each pair is found again by the offset of its record (`tests/pipeline/archives/test_lookup.py`).
* The fast ways through `resolve` agree with the reference
  (`tests/pipeline/archives/test_urls.py`).

To add an archive format: one module for its records, one for its rows, and a line of READERS in
`pipeline/crawl/sources.py`.
"""
