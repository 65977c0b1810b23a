"""Commit records as columns: one row a shard, hashes as bytes, and back again.

The columns follow the fields of `CommitRecord`. A field that an older file lacks has its default.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from manifests import disk
from manifests.pool_layout import CommitRecord, shard_name

KEYS = ("shard", "revision")  # every table has these
REPEATED = pa.dictionary(pa.int32(), pa.string())  # a text that many shards share
REPEATED_FIELDS = ("group", "engine", "engine_version", "manners")
REASON_KEYS = "reasons.key_value.key"  # as Parquet calls it
COUNTS = pa.map_(REPEATED, pa.int64())
SHA256_BYTES = 32
SHA256 = re.compile("[0-9a-f]{64}")
CHUNK = 4_096  # rows that are Python objects at a time


@functools.cache
def _fields() -> dict[str, tuple[Any, Any]]:
    """Field -> (its type without None, its default or dataclasses.MISSING)."""
    hints = typing.get_type_hints(CommitRecord)
    fields = {}
    for field in dataclasses.fields(CommitRecord):
        kind = hints[field.name]
        if isinstance(kind, types.UnionType):
            kind = next(each for each in typing.get_args(kind) if each is not type(None))
        fields[field.name] = kind, field.default
    return fields


def _arrow_type(name: str, kind: Any) -> pa.DataType:
    if name == "shard":
        return pa.int64()
    if name.endswith("sha256"):
        return pa.binary(SHA256_BYTES)
    if kind == dict[str, int]:
        return COUNTS
    if name in REPEATED_FIELDS:
        return REPEATED
    simple = {int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    return simple.get(kind, pa.string())  # what else a dict holds is JSON


@functools.cache
def schema() -> pa.Schema:
    """The columns of a table of commit records."""
    columns = {name: _arrow_type(name, kind) for name, (kind, _) in _fields().items()}
    return pa.schema(columns.items())


def dictionaries(columns: Iterable[str]) -> list[str]:
    """What Parquet must be told to read as dictionaries, of these columns."""
    present = set(columns)
    names = [name for name in REPEATED_FIELDS if name in present]
    return [*names, REASON_KEYS] if "reasons" in present else names


def to_table(records: Sequence[CommitRecord]) -> pa.Table:
    """A row for each record, in their order. ValueError for a hash that is no sha256."""
    arrays = []
    for field in schema():
        values = [getattr(record, field.name) for record in records]
        arrays.append(_array(field, values, records))
    return pa.Table.from_arrays(arrays, schema=schema())


def _array(field: pa.Field, values: list[Any], records: Sequence[CommitRecord]) -> pa.Array:
    if field.name == "shard":
        return pa.array([int(value) for value in values], field.type)
    if field.type == pa.binary(SHA256_BYTES):
        return _hashes(field.name, values, records)
    if field.type == COUNTS:
        return _counts(values)
    if _fields()[field.name][0] not in (str, int, float, bool):
        values = [None if value is None else _json(value) for value in values]
    if field.type == REPEATED:
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, field.type)


def _hashes(name: str, values: list[str], records: Sequence[CommitRecord]) -> pa.Array:
    for value, record in zip(values, records, strict=True):
        if not SHA256.fullmatch(value):
            raise ValueError(
                f"the commit record of shard {record.shard} has {name} {value!r}, which is not "
                "a sha256 of 64 hex digits"
            )
    content = bytes.fromhex("".join(values))
    buffers = [None, pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(SHA256_BYTES), len(values), buffers)


def _counts(values: list[dict[str, int]]) -> pa.Array:
    ends = np.cumsum([0, *(len(value) for value in values)])
    keys = [key for value in values for key in value]
    items = [count for value in values for count in value.values()]
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()),
        pa.array(keys, pa.string()).dictionary_encode(),
        pa.array(items, pa.int64()),
    )


def _json(value: Any) -> str:
    return json.dumps(disk.to_plain(value), sort_keys=True, separators=(",", ":"))


def to_records(table: pa.Table) -> Iterator[CommitRecord]:
    """The inverse of `to_table`: the record of each row. The table needs all columns."""
    back = {name: _from_column(table.schema.field(name)) for name in table.column_names}
    defaults = {name: default for name, (_, default) in _fields().items()}
    for start in range(0, table.num_rows, CHUNK):
        for row in table.slice(start, CHUNK).to_pylist():
            values = {}
            for name, value in row.items():
                values[name] = defaults[name] if value is None else back[name](value)
            yield CommitRecord(**values)


def _from_column(field: pa.Field) -> Callable[[Any], Any]:
    """What makes a field of a record of a value that is not NULL."""
    if field.name == "shard":
        return shard_name
    if field.type == pa.binary(SHA256_BYTES):
        return bytes.hex
    if field.type == COUNTS:
        return dict
    kind = _fields()[field.name][0]
    return (lambda value: value) if kind in (str, int, float, bool) else json.loads


def conform(table: pa.Table, columns: Iterable[str]) -> pa.Table:
    """`columns` of a table from a file; those that the file lacks are NULL: their default."""
    names = list(columns)
    arrays = []
    for name in names:
        kind = schema().field(name).type
        if name not in table.column_names:
            if _fields()[name][1] is dataclasses.MISSING:
                raise ValueError(f"it has no column {name!r}")
            arrays.append(pa.chunked_array([pa.nulls(table.num_rows, kind)]))
        elif table[name].type == kind:
            arrays.append(table[name])
        elif kind == COUNTS and pa.types.is_map(table[name].type):
            arrays.append(_with_dictionary(table[name]))
        else:
            arrays.append(table[name].cast(kind))
    return pa.Table.from_arrays(arrays, schema=pa.schema([schema().field(name) for name in names]))


def _with_dictionary(counts: pa.ChunkedArray) -> pa.ChunkedArray:
    chunks = []
    for chunk in counts.chunks:
        keys = chunk.keys.dictionary_encode() if chunk.keys.type != REPEATED else chunk.keys
        chunks.append(pa.MapArray.from_arrays(chunk.offsets, keys, chunk.items))
    return pa.chunked_array(chunks, COUNTS)
