"""Counts, explanations and integrity of a pool.

Counts of every stage, the history of a row, and whether each file is intact. It only reads, apart
from `pool.json`, what `repair.py` mends and what `purge.py` removes (`purge.json` while it
does).

Invariants:

* attempted = stored + the sum of the reasons, for each shard and for the pool:
  `tests/pipeline/audit/test_pool_audit.py`.
* Whatever byte of a shard or a document is changed, `verify` names the file:
  `tests/pipeline/audit/test_integrity.py`.
* What is purged is in no file, other members keep their bytes, whatever is killed:
  `tests/pipeline/audit/test_purge.py`.
* A repair changes only what is damaged (`tests/pipeline/audit/test_repair.py`).
* A stored image leads to its record (`tests/pipeline/audit/test_origins.py`); text reaches
  the terminal escaped (`tests/pipeline/audit/test_explain.py`); lines that begin with
  `WRONG` are what is wrong, `note` what is worth knowing:
  `tests/pipeline/audit/test_pool_audit.py`.

A new kind of file: its check in `integrity.py`, and a damage in
`tests/pipeline/audit/test_integrity.py`. A new stage: its dataclass in
`manifests/records.py`, counts in `counts.py`.
"""
