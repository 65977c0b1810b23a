"""Histograms of columns of numbers: every value is in exactly one bin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.pool_page.number_columns import NumberColumn
from pipeline.pool_page.pool_rows import Mask

BINS = 40
TAIL = 0.005  # of the values on each side that may lie in one bin
LONG_TAIL = 4.0  # times the range without the tails: above it, tails are put into the end bins


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """`places`: (bins + 1,) where each bin begins in the sorted values. The first bin holds
    everything below its upper edge, the last one everything from its lower edge on."""

    edges: tuple[float, ...]  # (bins + 1,) finite
    places: NDArray[np.int64]
    cut_below: bool  # values lie below the first edge
    cut_above: bool


def histogram(column: NumberColumn, bins: int = BINS) -> Histogram | None:
    """The bins of a column; None where it has no finite value."""
    values = column.values
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if not len(finite):
        return None
    low, high = float(finite[0]), float(finite[-1])
    inner_low = float(finite[int(TAIL * (len(finite) - 1))])
    inner_high = float(finite[int((1 - TAIL) * (len(finite) - 1))])
    if inner_high > inner_low and high / LONG_TAIL - low / LONG_TAIL > inner_high - inner_low:
        low, high = inner_low, inner_high
    edges = _edges(low, high, bins, whole=values.dtype.kind != "f")
    inner = np.searchsorted(values, np.asarray(edges[1:-1]), side="left")
    places = np.concatenate([[0], inner, [len(values)]]).astype(np.int64)
    return Histogram(
        edges=tuple(edges),
        places=places,
        cut_below=bool(values[0] < edges[0]),
        cut_above=bool(values[-1] > edges[-1]),
    )


def _edges(low: float, high: float, bins: int, *, whole: bool) -> list[float]:
    if high <= low:
        return [low - 0.5, low + 0.5]
    if whole:  # bins of whole numbers, each as wide as the others
        width = max(1, -(-int(high - low + 1) // bins))
        count = -(-int(high - low + 1) // width)
        return [low + width * i for i in range(count + 1)]
    return [low * (1 - i / bins) + high * (i / bins) for i in range(bins)] + [high]


def bin_counts(column: NumberColumn, shown: Histogram, scope: Mask) -> list[int]:
    """Rows of a scope in each bin. scope: (rows of the table,)."""
    ends = np.concatenate([[0], np.cumsum(scope[column.rows], dtype=np.int64)])
    counts: list[int] = np.diff(ends[shown.places]).tolist()
    return counts
