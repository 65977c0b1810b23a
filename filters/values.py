"""What filters return, as Arrow columns of a shard: values of some rows become values of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


class WrongColumns(ValueError):
    """A filter returned other columns or another number of values than it must: its mistake."""


def arrow_columns(
    name: str, values: Mapping[str, Any], kinds: Mapping[str, pa.DataType], rows: int
) -> dict[str, pa.Array]:
    """The values of `rows` rows as Arrow arrays of these types. NaN and infinity become NULL.

    name: of the filter, for errors. WrongColumns for other columns or another number of values;
    ValueError for values that are not of the type.
    """
    if not isinstance(values, Mapping) or set(values) != set(kinds):
        shown = ", ".join(map(str, values)) if isinstance(values, Mapping) else type(values)
        raise WrongColumns(
            f"filter {name} must give the columns {', '.join(kinds)}; it gave {shown}"
        )
    arrays = {}
    for column, kind in kinds.items():
        try:
            array = arrow_array(values[column], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"filter {name}: the values of {column} are not of type {kind}: {reason}"
            ) from error
        if len(array) != rows:
            raise WrongColumns(
                f"filter {name} gave {len(array)} values of {column} for {rows} rows"
            )
        arrays[column] = array
    return arrays


def arrow_array(values: Any, kind: pa.DataType) -> pa.Array:
    """Values as an Arrow array; NULL for NaN and infinity, and for a list that has one of them.

    ValueError for a text, a mapping and a set: their items are in no order of rows.
    """
    if isinstance(values, (str, bytes, Mapping, Set)):
        raise ValueError(f"they are a {type(values).__name__}, and a value per row is needed")
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        raise ValueError("they are more than one Arrow array can hold")
    if isinstance(values, np.ndarray) and values.ndim == 2 and pa.types.is_fixed_size_list(kind):
        if values.shape[1] != kind.list_size:
            raise ValueError(f"they are lists of {values.shape[1]} values")
        flat = np.ascontiguousarray(values).astype(kind.value_type.to_pandas_dtype(), copy=False)
        array = pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), kind.list_size)
    elif isinstance(values, pa.Array):
        array = values
    else:
        array = pa.array(values, _python_type(values, kind), from_pandas=True)
    if not array.type.equals(kind):
        array = _finite(array).cast(kind)
    return _finite(array)


def _python_type(values: Any, kind: pa.DataType) -> pa.DataType | None:
    """The type to read Python values by. Floats are read as they are and cast then, so that in a
    column of integers an infinity is NULL and 1.5 is refused."""
    is_float = isinstance(values, np.ndarray) and values.dtype.kind == "f"
    if isinstance(values, Sequence) and pa.types.is_integer(kind):
        is_float = any(isinstance(value, (float, np.floating)) for value in values)
    return None if is_float and not pa.types.is_floating(kind) else kind


def _finite(array: pa.Array) -> pa.Array:
    """NULL in place of NaN and infinity."""
    if pa.types.is_float16(array.type):
        numbers = array.to_numpy(zero_copy_only=False)
        is_finite = np.isfinite(numbers.astype(np.float32))
        if is_finite.all():
            return array
        return pa.array(numbers.astype(np.float16), mask=~is_finite)
    if pa.types.is_floating(array.type):
        is_finite = pc.fill_null(pc.is_finite(array), True)
        if pc.all(is_finite, min_count=0).as_py():
            return array
        return pc.if_else(is_finite, array, pa.scalar(None, array.type))
    if pa.types.is_fixed_size_list(array.type) and pa.types.is_floating(array.type.value_type):
        return _finite_lists(array)
    return array


def _finite_lists(array: pa.FixedSizeListArray) -> pa.Array:
    """NULL in place of lists with NaN or infinity."""
    width = array.type.list_size
    values = array.values.slice(array.offset * width, len(array) * width)
    numbers = values.to_numpy(zero_copy_only=False).reshape(-1, width)
    is_finite = np.isfinite(numbers).all(axis=1)
    is_valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    if (is_finite | ~is_valid).all():
        return array
    positions = np.arange(len(array))
    return array.take(pa.array(positions, mask=~(is_finite & is_valid)))


def aligned(
    parts: Sequence[pa.Array], positions: NDArray[np.int64], kind: pa.DataType, rows: int
) -> pa.Array:
    """(rows,) the values of the parts at `positions`, NULL at all others."""
    values = pa.concat_arrays([pa.array([], kind), *parts])
    index = np.full(rows, -1, np.int64)
    index[positions] = np.arange(len(positions))
    return values.take(pa.array(index, mask=index < 0))


def valid_in_all(columns: Sequence[pa.Array | pa.ChunkedArray]) -> int:
    """How many rows have a value in every column."""
    is_valid = None
    for column in columns:
        own = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        is_valid = own if is_valid is None else is_valid & own
    return 0 if is_valid is None else int(is_valid.sum())
