"""How the sources of a blend share a run: weights, stages, limits, chances, and which caption."""

from __future__ import annotations

from train.mixing.balance import Chances, candidates_for, choose_candidates, expected_unique
from train.mixing.captions import CaptionColumns
from train.mixing.distinct import put_apart
from train.mixing.order import ORDER_VERSION, Order
from train.mixing.rules import Repeats, RowChances, RowNumbers, RunOrder
from train.mixing.schedule import NO_LIMIT, Schedule, Stage
from train.mixing.segments import Segment, SegmentOrder, next_segment
from train.mixing.stages import blend_schedule, blend_sources
from train.mixing.wheel import (
    PERIOD,
    SourceRows,
    most_in_a_batch,
    numbered_slots,
    wheel_sequence,
    wheel_slots,
)

__all__ = [
    "NO_LIMIT",
    "ORDER_VERSION",
    "PERIOD",
    "CaptionColumns",
    "Chances",
    "Order",
    "Repeats",
    "RowChances",
    "RowNumbers",
    "RunOrder",
    "Schedule",
    "Segment",
    "SegmentOrder",
    "SourceRows",
    "Stage",
    "blend_schedule",
    "blend_sources",
    "candidates_for",
    "choose_candidates",
    "expected_unique",
    "most_in_a_batch",
    "next_segment",
    "numbered_slots",
    "put_apart",
    "wheel_sequence",
    "wheel_slots",
]
