"""Masks of views in memory, where the files of a pool would be."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import pyarrow as pa


@dataclass
class Masks:
    """What `choose_parts` writes: (view, unit) -> the masks of its shards."""

    tables: dict[tuple[str, int], list[pa.Table]] = field(default_factory=dict)

    def open(self, view: str, unit: int) -> AbstractContextManager[_Unit]:
        return nullcontext(_Unit(self.tables.setdefault((view, unit), [])))

    def kept(self, view: str) -> list[bool]:
        """The column `kept` of all rows."""
        kept: list[bool] = []
        for name, unit in sorted(self.tables):
            if name == view:
                for table in self.tables[name, unit]:
                    kept += table["kept"].to_pylist()
        return kept


@dataclass
class _Unit:
    into: list[pa.Table]

    def add(self, shard: str, mask: pa.Table) -> None:
        self.into.append(mask)
