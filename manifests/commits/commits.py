"""All commit records of a pool as columns in memory, about 300 bytes a shard."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.manifests import disk
from clipmill.manifests.arrays import Integers, Mask
from clipmill.manifests.layout import CommitRecord, PoolLayout, shard_name

# --------------------------------------------------------------------------------------------------
# Commit records as columns: one row a shard, hashes as bytes, and back again.
#
# The columns follow the fields of `CommitRecord`.


KEYS = ("shard", "revision")  # every table has these
REPEATED = pa.dictionary(pa.int32(), pa.string())  # a text that many shards share
REPEATED_FIELDS = ("group", "engine", "engine_version", "manners")
COUNTS = pa.map_(pa.string(), pa.int64())
SHA256_BYTES = 32
SHA256 = re.compile("[0-9a-f]{64}")
CHUNK = 4_096  # rows that are Python objects at a time
READERS = 8  # files that are read at a time
T = TypeVar("T")
R = TypeVar("R")


@functools.cache
def _fields() -> dict[str, Any]:
    """Field -> its type without None."""
    hints = typing.get_type_hints(CommitRecord)
    fields = {}
    for field in dataclasses.fields(CommitRecord):
        kind = hints[field.name]
        if isinstance(kind, types.UnionType):
            kind = next(each for each in typing.get_args(kind) if each is not type(None))
        fields[field.name] = kind
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
    columns = {name: _arrow_type(name, kind) for name, kind in _fields().items()}
    return pa.schema(columns.items())


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
    if _fields()[field.name] not in (str, int, float, bool):
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
        pa.array(keys, pa.string()),
        pa.array(items, pa.int64()),
    )


def _json(value: object) -> str:
    return json.dumps(disk.to_plain(value), sort_keys=True, separators=(",", ":"))


def to_records(table: pa.Table) -> Iterator[CommitRecord]:
    """The inverse of `to_table`: the record of each row. The table needs all columns."""
    back = {name: _from_column(table.schema.field(name)) for name in table.column_names}
    for start in range(0, table.num_rows, CHUNK):
        for row in table.slice(start, CHUNK).to_pylist():
            values = {name: back[name](v) for name, v in row.items() if v is not None}
            yield CommitRecord(**values)


def _from_column(field: pa.Field) -> Callable[[Any], Any]:
    """What makes a field of a record of a value that is not NULL."""
    if field.name == "shard":
        return shard_name
    if field.type == pa.binary(SHA256_BYTES):
        return bytes.hex
    if field.type == COUNTS:
        return dict
    kind = _fields()[field.name]
    return (lambda value: value) if kind in (str, int, float, bool) else json.loads


def conform(table: pa.Table, columns: Iterable[str]) -> pa.Table:
    """`columns` of a table from a file. ValueError where it lacks one."""
    names = list(columns)
    arrays = []
    for name in names:
        kind = schema().field(name).type
        if name not in table.column_names:
            raise ValueError(f"it has no column {name!r}")
        arrays.append(table[name].cast(kind))
    return pa.Table.from_arrays(arrays, schema=pa.schema([schema().field(name) for name in names]))


# --------------------------------------------------------------------------------------------------
# All commit records of a pool as columns in memory, about 300 bytes a shard.
#
# It is read once per command and passed on. A `CommitRecord` is made on demand.


HASHED_ROWS = 65_536  # rows whose hashes are hex digits at a time
FINGERPRINT_DIGITS = 12
SHARD_DIGITS = 5  # of the name of a shard, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTotals:
    """Sums over all commit records of a pool."""

    shards: int
    rows: int
    stored: int
    retries: int
    bytes: int  # of the tars
    duration_s: float
    reasons: dict[str, int]
    versions: tuple[int, ...]  # of the shards, each once


class Commits:
    """The committed shards of a pool, in the order of their numbers. It does not change."""

    __slots__ = ("_fingerprint", "_shards", "_totals", "pool", "table")

    def __init__(
        self,
        pool: str,
        table: pa.Table,
        fingerprint: str | None = None,
        totals: CommitTotals | None = None,
    ) -> None:
        """table: columns of `schema`, sorted by shard, each shard once.

        fingerprint, totals: those of the index, where it is closed.
        """
        self.pool, self.table = pool, table
        self._shards: Integers = np.asarray(table["shard"].to_numpy(), np.int64)
        assert bool((np.diff(self._shards) > 0).all()), "shards are not in order"
        self._fingerprint, self._totals = fingerprint, totals

    @property
    def layout(self) -> PoolLayout:
        """The paths of the pool."""
        return PoolLayout(self.pool)

    @classmethod
    def of_records(cls, pool: str, records: Iterable[CommitRecord]) -> Commits:
        """The same from records, for tests and for pools in the making."""
        return cls(pool, to_table(sorted(records, key=lambda record: int(record.shard))))

    @property
    def shards(self) -> Integers:
        """(shards,) their numbers, ascending."""
        return self._shards

    def __len__(self) -> int:
        return len(self._shards)

    def __contains__(self, shard: object) -> bool:
        return isinstance(shard, (int, str)) and self.position(shard) is not None

    def position(self, shard: int | str) -> int | None:
        """The row of a shard; None where it is not committed."""
        return position_of(self._shards, shard)

    def names(self) -> Iterator[str]:
        """The names of the shards."""
        return (shard_name(int(shard)) for shard in self._shards)

    def only(self, shards: Integers) -> Commits:
        """Those of some shards."""
        return Commits(
            self.pool, self.table.filter(pc.is_in(self.table["shard"], pa.array(shards)))
        )

    def column(self, name: str) -> pa.ChunkedArray:
        """(shards,) one field of all records; KeyError for one that was not read."""
        return self.table[name]

    def sum(self, name: str) -> int:
        """The sum of a column of numbers."""
        return int(pc.sum(self.table[name]).as_py() or 0)

    def record(self, shard: int | str) -> CommitRecord:
        """The commit record of a shard. KeyError where it is not committed."""
        record = self.get(shard)
        if record is None:
            raise KeyError(shard_name(shard))
        return record

    def get(self, shard: int | str) -> CommitRecord | None:
        """The commit record of a shard; None where it is not committed."""
        position = self.position(shard)
        return None if position is None else next(to_records(self.table.slice(position, 1)))

    def records(self, mask: Mask | None = None) -> Iterator[CommitRecord]:
        """Every commit record, or those of a mask, one after another."""
        return to_records(self.table if mask is None else self.table.filter(pa.array(mask)))

    def tar(self, shard: int | str) -> str:
        """The path or URL of a shard's tar. KeyError where the shard is not committed."""
        return self.layout.named_tar(self.value(shard, "tar"))

    def sidecar(self, shard: int | str) -> str:
        """The path of a shard's sidecar. KeyError where the shard is not committed."""
        return self.layout.sidecar(shard, self.value(shard, "revision"))

    def value(self, shard: int | str, name: str) -> Any:
        """One field of the record of a shard. KeyError where the shard is not committed."""
        position = self.position(shard)
        if position is None:
            raise KeyError(shard_name(shard))
        return self.table[name][position].as_py()

    @property
    def fingerprint(self) -> str:
        """Hash over the sidecars of all committed shards: the rows that a view is chosen from."""
        if self._fingerprint is None:
            self._fingerprint = sidecars_hash(self._shards, self.table["sidecar_sha256"])
        return self._fingerprint

    @property
    def totals(self) -> CommitTotals:
        """Sums over all records."""
        if self._totals is None:
            self._totals = self._sum_up()
        return self._totals

    def _sum_up(self) -> CommitTotals:
        return CommitTotals(
            shards=len(self),
            rows=self.sum("count"),
            stored=self.sum("successes"),
            retries=self.sum("retries"),
            bytes=self.sum("tar_bytes"),
            duration_s=round(pc.sum(self.table["duration_s"]).as_py() or 0.0, 2),
            reasons=self.reasons(),
            versions=tuple(sorted(pc.unique(self.table["version"]).to_pylist())),
        )

    def reasons(self) -> dict[str, int]:
        """Rows by the reason why they are not stored, of all shards."""
        return dict(sorted(totals_of_counts(self.table["reasons"]).items()))

    def lost(self) -> Integers:
        """(shards,) rows of each shard that have a reason."""
        return sums_of_counts(self.table["reasons"])

    def first_with(self, reason: str) -> str | None:
        """The name of the first shard with a row that ended with `reason`; None without one."""
        start = 0
        for chunk in self.table["reasons"].chunks:
            keys, items, offsets = _entries(chunk)
            has_reason = pc.and_(pc.equal(keys, reason), pc.greater(items, 0))
            rows = pc.indices_nonzero(has_reason)
            if len(rows):
                row = int(np.searchsorted(offsets, rows[0].as_py(), side="right")) - 1
                return shard_name(int(self._shards[start + row]))
            start += len(chunk)
        return None

    def renamed(self) -> pa.Table:
        """shard, revision and tar of the shards whose files are not named by their number alone."""
        digits = pc.utf8_lpad(pc.cast(self.table["shard"], pa.string()), SHARD_DIGITS, "0")
        usual = pc.equal(self.table["tar"], pc.binary_join_element_wise(digits, "tar", "."))
        replaced = pc.greater(self.table["revision"], 0)
        columns = self.table.select(["shard", "revision", "tar"])
        return columns.filter(pc.or_(pc.invert(usual), replaced))

    def hash_of(self, name: str) -> str:
        """What `disk.content_hash` gives for the list of a column of hashes, in shard order."""
        column = self.table[name]
        parts = (_hex_digits(column.slice(at, HASHED_ROWS)) for at in _starts(len(column)))
        texts = (pc.binary_join_element_wise(',"', part, '"', "") for part in parts)
        return _hash_of_json("[]", texts)[:FINGERPRINT_DIGITS]


def position_of(shards: Integers, shard: int | str) -> int | None:
    """Where a shard stands among ascending numbers; None where it does not."""
    position = int(np.searchsorted(shards, int(shard)))
    return position if position < len(shards) and shards[position] == int(shard) else None


def in_threads(work: Callable[[T], R], items: Iterable[T], count: int = READERS) -> Iterator[R]:
    """The results of some calls in order, such as one a shard; few of them are in memory at a
    time. The first error ends it.
    """
    waiting = iter(items)
    with ThreadPoolExecutor(count) as threads:
        while batch := list(itertools.islice(waiting, 4 * count)):
            yield from threads.map(work, batch)


def totals_of_counts(column: pa.ChunkedArray) -> Counter[str]:
    """The sum of each key of a column of maps of counts."""
    totals = Counter[str]()
    for chunk in column.chunks:
        keys, items, _ = _entries(chunk)
        counts = pa.table({"key": keys, "count": items})
        for row in counts.group_by("key").aggregate([("count", "sum")]).to_pylist():
            totals[row["key"]] += row["count_sum"]
    return totals


def sums_of_counts(column: pa.ChunkedArray) -> Integers:
    """(rows,) the sum of the counts of each row of such a column."""
    parts = [np.zeros(0, np.int64)]
    for chunk in column.chunks:
        _, items, offsets = _entries(chunk)
        sums = np.concatenate([[0], np.cumsum(items.to_numpy(), dtype=np.int64)])
        parts.append(sums[offsets[1:]] - sums[offsets[:-1]])
    return np.concatenate(parts)


def _entries(counts: pa.MapArray) -> tuple[pa.Array, pa.Array, Integers]:
    """(keys, values, (rows + 1,) where the entries of each row begin) of a map of counts, which may
    be a slice of a longer one.
    """
    offsets = np.asarray(counts.offsets, np.int64)
    first, length = int(offsets[0]), int(offsets[-1] - offsets[0])
    return counts.keys.slice(first, length), counts.items.slice(first, length), offsets - first


def sidecars_hash(shards: Integers, sidecars: pa.ChunkedArray) -> str:
    """What `disk.content_hash` gives for {name: sidecar_sha256}: its keys are in text order."""
    names = pc.utf8_lpad(pc.cast(pa.array(shards), pa.string()), SHARD_DIGITS, "0")
    order = pc.sort_indices(names)  # 100000 comes before 99999

    def texts() -> Iterator[pa.StringArray]:
        for start in _starts(len(order)):
            chosen = order.slice(start, HASHED_ROWS)
            digits = _hex_digits(sidecars.take(chosen))
            yield pc.binary_join_element_wise(',"', names.take(chosen), '":"', digits, '"', "")

    return _hash_of_json("{}", texts())[:FINGERPRINT_DIGITS]


def _starts(rows: int) -> range:
    return range(0, rows, HASHED_ROWS)


def _hash_of_json(brackets: str, parts: Iterable[pa.StringArray]) -> str:
    """sha256 of a JSON list or object whose members are in `parts`, each behind a comma."""
    content = hashlib.sha256(brackets[0].encode())
    for number, part in enumerate(parts):
        content.update(memoryview(part.buffers()[2])[0 if number else 1 :])
    content.update(brackets[1].encode())
    return content.hexdigest()


def _hex_digits(hashes: pa.Array | pa.ChunkedArray) -> pa.StringArray:
    """The hex digits of a column of sha256. ValueError where one is missing."""
    if hashes.null_count:
        raise ValueError(f"{hashes.null_count} commit records have no hash")
    chunks = hashes.chunks if isinstance(hashes, pa.ChunkedArray) else [hashes]
    size = hashes.type.byte_width
    parts = []
    for chunk in chunks:
        first = chunk.offset * size
        parts.append(memoryview(chunk.buffers()[1])[first : first + len(chunk) * size].hex())
    digits = "".join(parts).encode()
    offsets = np.arange(0, len(digits) + 1, 2 * size, dtype=np.int32)
    return pa.StringArray.from_buffers(len(hashes), pa.py_buffer(offsets), pa.py_buffer(digits))
