"""Counts, explanations and integrity of a pool.

Counts of every stage, the history of a row, and whether each file is intact. It only reads, apart
from `pool.json`, what `pool_form.py` mends and what `purge.py` removes (`purge.json` while it
does).

Invariants:

* attempted = stored + the sum of the reasons, for each shard and for the pool:
  `tests/pipeline/accounting/test_counts.py`.
* Whatever byte of a shard or a document is changed, `verify` names the file:
  `tests/pipeline/accounting/test_integrity.py`.
* What is purged is in no file, other members keep their bytes, whatever is killed:
  `tests/pipeline/accounting/test_purge.py`.
* A migration keeps every row (`tests/pipeline/accounting/test_pool_form.py`); a repair changes
  only what is damaged (`tests/pipeline/accounting/test_repair.py`).
* A stored image leads to its record (`tests/pipeline/accounting/test_origins.py`); text reaches
  the terminal escaped (`tests/pipeline/accounting/test_explain.py`); lines that begin with
  `WRONG` are what is wrong, `note` what is worth knowing:
  `tests/pipeline/accounting/test_pool_audit.py`.

A new kind of file: its check in `shard_checks.py`, and a damage in
`tests/pipeline/accounting/test_integrity.py`. A new stage: its dataclass in
`manifests/records.py`, counts in `counts.py`.
"""

from __future__ import annotations

from pipeline.accounting.counts import count_pool, recipe_of_pool, write_pool_json
from pipeline.accounting.explain import Trace, explain_lines, explain_row, trace_images, trace_lines
from pipeline.accounting.integrity import Audit, audit_lines, audit_plain, audit_pool, verify
from pipeline.accounting.purge import Purge, purge_lines, purge_rows, read_criteria, would_purge
from pipeline.accounting.repair import Repair, migrate, reindex, repair_lines, repair_pool
from pipeline.accounting.row_index import extend_row_index
from pipeline.accounting.watch import Watched, watch_pool, watched_lines

__all__ = [
    "Audit",
    "Purge",
    "Repair",
    "Trace",
    "Watched",
    "audit_lines",
    "audit_plain",
    "audit_pool",
    "count_pool",
    "explain_lines",
    "explain_row",
    "extend_row_index",
    "migrate",
    "purge_lines",
    "purge_rows",
    "read_criteria",
    "recipe_of_pool",
    "reindex",
    "repair_lines",
    "repair_pool",
    "trace_images",
    "trace_lines",
    "verify",
    "watch_pool",
    "watched_lines",
    "would_purge",
    "write_pool_json",
]
