"""Counts, explanations and integrity of a pool."""

from __future__ import annotations

from pipeline.accounting.counts import count_pool, write_pool_json
from pipeline.accounting.explain import explain_lines, explain_row
from pipeline.accounting.integrity import verify
from pipeline.accounting.pool_audit import Audit, audit_lines, audit_plain, audit_pool
from pipeline.accounting.pool_form import migrate, reindex

__all__ = [
    "Audit",
    "audit_lines",
    "audit_plain",
    "audit_pool",
    "count_pool",
    "explain_lines",
    "explain_row",
    "migrate",
    "reindex",
    "verify",
    "write_pool_json",
]
