"""Rows that show the same image: equal bytes, near hashes, near embeddings."""

from __future__ import annotations

from filters.duplicates.decontaminate import Decontaminate
from filters.duplicates.duplicate import Duplicate

__all__ = ["Decontaminate", "Duplicate"]
