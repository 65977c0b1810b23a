"""Rows in partitions by files, for stages in which every ticket needs some rows of all others."""

from __future__ import annotations

from pipeline.exchange.partition_files import PartitionFiles
from pipeline.exchange.runs import (
    NUMBER,
    Run,
    opened,
    read_index,
    read_keys,
    read_rows,
    write_run,
)

__all__ = [
    "NUMBER",
    "PartitionFiles",
    "Run",
    "opened",
    "read_index",
    "read_keys",
    "read_rows",
    "write_run",
]
