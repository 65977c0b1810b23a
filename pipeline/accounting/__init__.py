"""Counts, explanations and integrity of a pool."""

from __future__ import annotations

from pipeline.accounting.counts import count_pool, recipe_of_pool, write_pool_json
from pipeline.accounting.explain import explain_lines, explain_row
from pipeline.accounting.integrity import verify
from pipeline.accounting.origins import Trace, trace_images, trace_lines
from pipeline.accounting.pool_audit import Audit, audit_lines, audit_plain, audit_pool
from pipeline.accounting.pool_form import migrate, reindex
from pipeline.accounting.purge import Purge, purge_lines, purge_rows, read_criteria
from pipeline.accounting.repair import Repair, repair_lines, repair_pool
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
    "write_pool_json",
]
