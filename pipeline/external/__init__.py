"""Shards that other programs made or make.

Shards that other programs made (tars, adopted where they lie) or make (img2dataset).

Reads tars and the parquet beside them, never writes there. Writes `POOL/shards/00000.parquet` and
`00000_stats.json` for an adopted tar, and the tar too for a shard that img2dataset fetched.

Invariants:

* Every sample, and every row of the parquet, is one row with one outcome
  (`tests/pipeline/external/test_adopt.py`).
* A bad member or row costs itself only (`tests/pipeline/external/test_adopt.py`).
* A tar that another program rewrote is noticed (`tests/pipeline/external/test_adopt.py`).
* No setting of `fetch` is ignored silently (`tests/pipeline/external/test_img2dataset.py`).

To add another program: a module that gives a Stage, and its name in `fetch.engine`.
"""
