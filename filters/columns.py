"""The columns of filters: what filters return as Arrow columns of a shard, partitions by value, and
the names that the columns have in an instance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from clipmill.filters.base import GROUP, FilterBase
from clipmill.manifests.arrays import Float32Array, Hashes, Integers, Mask
from clipmill.manifests.columns import DERIVED_NAMES, SIDECAR

# --------------------------------------------------------------------------------------------------
# What filters return, as Arrow columns: values of some rows become values of all.


class WrongColumns(ValueError):
    """A filter returned other columns or another number of values than it must: its mistake."""


def arrow_columns(
    name: str, values: Mapping[str, object], kinds: Mapping[str, pa.DataType], rows: int
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


def arrow_array(values: object, kind: pa.DataType) -> pa.Array:
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


def _python_type(values: object, kind: pa.DataType) -> pa.DataType | None:
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
    parts: Sequence[pa.Array], positions: Integers, kind: pa.DataType, rows: int
) -> pa.Array:
    """(rows,) the values of the parts at `positions`, NULL at all others."""
    values = pa.concat_arrays([pa.array([], kind), *parts])
    index = np.full(rows, -1, np.int64)
    index[positions] = np.arange(len(positions))
    return values.take(pa.array(index, mask=index < 0))


def unit_vectors(
    column: pa.Array | pa.ChunkedArray,
) -> tuple[Float32Array, Mask]:
    """((rows, width) of length 1, which rows have an embedding). The others are zero.

    A row of NULL, of NaN or of zeros has none. ValueError for a column of another type.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not pa.types.is_fixed_size_list(array.type):
        raise ValueError(
            f"embeddings are of type {array.type}; lists of a fixed size are needed, as the filter "
            "embed stores them"
        )
    width = array.type.list_size
    there = np.asarray(array.is_valid())
    rows = np.zeros((len(array), width), np.float32)
    rows[there] = array.drop_null().flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    usable: Mask = there & np.isfinite(lengths[:, 0]) & (lengths[:, 0] > 0)
    rows[~usable] = 0
    np.divide(rows, lengths, out=rows, where=usable[:, None])
    return rows, usable


def valid_in_all(columns: Sequence[pa.Array | pa.ChunkedArray]) -> int:
    """How many rows have a value in every column."""
    is_valid = None
    for column in columns:
        own = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        is_valid = own if is_valid is None else is_valid & own
    return 0 if is_valid is None else int(is_valid.sum())


# --------------------------------------------------------------------------------------------------
# A partition for each value: equal values are in the same one, on every machine.


# Multipliers of splitmix64's finaliser.
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(values: Hashes) -> Hashes:
    """(rows,) 64-bit integers with all bits mixed (splitmix64): different ones stay different."""
    bits = values.copy()
    bits ^= bits >> np.uint64(30)
    bits *= MIX_1
    bits ^= bits >> np.uint64(27)
    bits *= MIX_2
    bits ^= bits >> np.uint64(31)
    return bits


def route_by_uid(rows: pa.Table, is_known: Mask, partitions: int) -> tuple[Integers, Integers]:
    """(numbers of the rows that are known, the partition of each by its uid)."""
    numbers = np.flatnonzero(is_known).astype(np.int64)
    return numbers, partition_of(rows["uid"], partitions)[numbers]


def partition_of(values: pa.Array | pa.ChunkedArray, partitions: int) -> Integers:
    """(rows,) 0 to partitions - 1, of integers or texts. NULLs are in partition 0.

    Texts are hashed once per different value.
    """
    column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(column, pa.ChunkedArray):  # of more than 2 GB
        column = pa.concat_arrays([chunk.cast(pa.large_string()) for chunk in column.chunks])
    is_null = np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)
    if pa.types.is_integer(column.type):
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        hashes = mixed(numbers.astype(np.int64).view(np.uint64))
    else:
        encoded = column.dictionary_encode()
        words = encoded.dictionary.to_pylist()
        by_word = [xxhash.xxh3_64_intdigest(_as_bytes(word)) for word in words]
        indices = encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
        hashes = np.array([*by_word, 0], np.uint64)[indices]
    partition = (hashes % np.uint64(partitions)).astype(np.int64)
    partition[is_null] = 0
    return partition


def _as_bytes(word: object) -> bytes:
    if isinstance(word, bytes):
        return word
    return str(word).encode("utf-8", "surrogatepass")


# --------------------------------------------------------------------------------------------------
# Instances: the filters of a recipe by the names that the recipe gives them.
#
# The columns of an instance that has another name than its filter carry the instance's name.


INSTANCE_NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")
# GROUP is a name that a pass gives to a column of its own.
RESERVED = frozenset({*SIDECAR.names, *DERIVED_NAMES, GROUP})


def instance_column(kind: str, instance: str, column: str) -> str:
    """The name of a filter's column in an instance: `clip_score` of the filter clip_score is
    `clip_l14` in the instance clip_l14, and `duplicate_group` is `near_group` in `near`.
    """
    if instance == kind:
        return column
    if column == kind:
        return instance
    return f"{instance}_{column.removeprefix(kind + '_')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A filter under the name that the recipe gives it."""

    name: str
    kind: str  # a key of FILTERS, or PATH.py:CLASS
    filter: FilterBase

    @property
    def is_own_kind(self) -> bool:
        """True where the recipe names the filter by its own name."""
        return self.name == self.kind

    def column_names(self) -> dict[str, str]:
        """The filter's own name of each column -> its name in this instance."""
        own = self.name if self.is_own_kind else self.filter.name
        return {each: instance_column(own, self.name, each) for each in self.filter.columns()}

    def columns(self) -> dict[str, pa.DataType]:
        """The columns by their names in this instance."""
        names = self.column_names()
        return {names[column]: kind for column, kind in self.filter.columns().items()}

    def meanings(self) -> dict[str, str]:
        """A line for each column that the filter explains."""
        names = self.column_names()
        meanings = self.filter.meanings
        return {names[column]: meanings[column] for column in names if column in meanings}


def check_instance_name(name: str, filters: Mapping[str, type[FilterBase]]) -> None:
    """ValueError for a name that is no name of a column and of a folder, or that is taken."""
    if not INSTANCE_NAME.fullmatch(name):
        raise ValueError(
            f"filters: an instance cannot be named {name!r}: use a letter a-z, then a-z, 0-9 and "
            "'_', at most 60 characters, as in {clip_l14: {clip_score: {…}}}"
        )
    taken: dict[str, str] = {}
    for filter_name, filter_class in filters.items():
        taken |= dict.fromkeys(filter_class.adds, f"a column of the filter {filter_name}")
    taken |= dict.fromkeys(filters, "another filter")
    taken |= dict.fromkeys(RESERVED, "a column of every pool")
    if name in taken:
        raise ValueError(
            f"filters: an instance cannot be named {name!r}, which is {taken[name]}; give it "
            "another name"
        )
