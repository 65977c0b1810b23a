"""Which row of a group survives: the best by a score; of equally good ones the smallest uid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Bools = NDArray[np.bool_]


def as_score(column: pa.Array | pa.ChunkedArray, name: str) -> pa.Array:
    """Numbers to compare rows by; NULL for NaN. ValueError for a column of anything else."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if pa.types.is_boolean(kind):
        return array.cast(pa.int8())
    if pa.types.is_float16(kind):
        array = array.cast(pa.float32())
    if pa.types.is_floating(array.type):
        return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return array
    raise ValueError(
        f"best names the column {name!r} of type {kind}; a column of numbers is needed"
    )


def survivors(uids: pa.Array, groups: pa.Array, scores: pa.Array | None) -> Bools:
    """(rows,) True for one row of each group: the highest score, NULL last; then the smallest uid.

    Of two rows with one uid the first one survives.
    """
    columns: dict[str, Any] = {"group": groups, "uid": uids}
    columns["row"] = pa.array(np.arange(len(uids)))
    keys = [("group", "ascending"), ("uid", "ascending"), ("row", "ascending")]
    if scores is not None:
        columns["score"] = scores
        keys.insert(1, ("score", "descending"))
    order = pc.sort_indices(pa.table(columns), sort_keys=keys).to_numpy()
    number = group_numbers(groups)[order]
    survives = np.zeros(len(uids), np.bool_)
    survives[order[np.diff(number, prepend=-1) != 0]] = True
    return survives


def sizes(groups: pa.Array) -> NDArray[np.int64]:
    """(rows,) how many rows the group of each row has."""
    number = group_numbers(groups)
    count: NDArray[np.int64] = np.bincount(number)[number]
    return count


def group_numbers(groups: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """(rows,) a number for each different group."""
    array = groups.combine_chunks() if isinstance(groups, pa.ChunkedArray) else groups
    indices: NDArray[np.int64] = array.dictionary_encode().indices.to_numpy().astype(np.int64)
    return indices
