"""Counts, explanations and integrity of a pool."""

from __future__ import annotations

from pipeline.accounting import counts, integrity

__all__ = ["counts", "integrity"]
