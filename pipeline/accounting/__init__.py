"""Counts, explanations and integrity of a pool."""

from __future__ import annotations

from pipeline.accounting.counts import (
    conclusion,
    count_if_readable,
    count_lines,
    count_pool,
    explain_lines,
    explain_row,
    write_pool_json,
)
from pipeline.accounting.integrity import verify

__all__ = [
    "conclusion",
    "count_if_readable",
    "count_lines",
    "count_pool",
    "explain_lines",
    "explain_row",
    "verify",
    "write_pool_json",
]
