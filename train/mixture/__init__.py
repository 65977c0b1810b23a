"""How the sources of a blend share a run: weights, stages, limits, chances, and which caption.

The order of training: how the sources of a blend share a run, and which row each position has.
Pure NumPy: functions of position, without files and without state.

It reads and writes no file.

Invariants:

* In every prefix of a stage each source is within one sample of its share; after a source has
  ended, the others have their shares in every turn of the wheel
  (tests/train/mixture/test_wheel.py, tests/train/mixture/test_schedule.py).
* Draw counts of two rows of a source differ by at most 1, and no batch holds a row twice
  (tests/train/mixture/test_order.py, tests/train/mixture/test_epochs.py).
* A live run draws every new row before a row a second time
  (tests/train/mixture/test_segments.py).
* An exchange keeps the source of every position and the rows of a block
  (tests/train/mixture/test_distinct.py).

A key of a blend (manifests/schema/ablation.py) becomes a stage, a limit or a rule here. A change
of an order that exists bumps ORDER_VERSION in order.py, and the golden test.
"""

from __future__ import annotations

from train.mixture.order import (
    ORDER_VERSION,
    CaptionColumns,
    Chances,
    Order,
    Repeats,
    RowChances,
    RowNumbers,
    RunOrder,
    Segment,
    SegmentOrder,
    candidates_for,
    choose_candidates,
    expected_unique,
    next_segment,
    put_apart,
)
from train.mixture.schedule import (
    NO_LIMIT,
    PERIOD,
    Schedule,
    SourceRows,
    Stage,
    blend_schedule,
    blend_sources,
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
