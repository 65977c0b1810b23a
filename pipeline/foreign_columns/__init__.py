"""Columns of tables that other programs made, joined by uid."""

from __future__ import annotations

from pipeline.foreign_columns.key_match import MatchCounts
from pipeline.foreign_columns.table_join import ShardColumns, TableJoin
from pipeline.foreign_columns.uid_arrays import (
    read_uid_array,
    uid_bits,
    uid_records,
    uid_spill,
    write_uid_array,
)

__all__ = [
    "MatchCounts",
    "ShardColumns",
    "TableJoin",
    "read_uid_array",
    "uid_bits",
    "uid_records",
    "uid_spill",
    "write_uid_array",
]
