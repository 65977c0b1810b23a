"""Reading from a store: ranges of bytes, a cache on disk, and what it costs."""

from __future__ import annotations

from train.store.byte_ranges import GAP, PART, ByteRanges, coalesce
from train.store.part_cache import Part, PartCache
from train.store.range_client import RangeClient
from train.store.read_modes import Mode, ReadCost, StoreSpeed, choose_mode, measure_speed
from train.store.shard_cache import ShardCache

__all__ = [
    "GAP",
    "PART",
    "ByteRanges",
    "Mode",
    "Part",
    "PartCache",
    "RangeClient",
    "ReadCost",
    "ShardCache",
    "StoreSpeed",
    "choose_mode",
    "coalesce",
    "measure_speed",
]
