"""Packages that are imported when something of them is used.

torch takes a second and gigabytes of disk, which the report of an ablation does not need; a command
with nothing to do takes twice as long with DuckDB.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb
    import torch
else:

    class _Late:
        def __init__(self, package: str) -> None:
            self._package = package

        def __getattr__(self, name: str) -> Any:
            value = getattr(importlib.import_module(self._package), name)
            self.__dict__[name] = value  # is not asked for again
            return value

    duckdb, torch = _Late("duckdb"), _Late("torch")

__all__ = ["duckdb", "torch"]
