"""Columns that other programs computed, joined to the rows by uid, url, key or sha256.

Columns that other programs computed (DataComp's metadata with CLIP scores and embeddings, lists
of uids) for the rows of a pool, joined by uid, URL, key or sha256. The filters `table` and
`caption_file` name them in a recipe; `pipeline/scoring` commits them like any score set.

Reads the sidecars of a pool, Parquet files, .csv, .tsv, .jsonl (also packed), .npz and .npy. Writes
temporary files on local disk (`TMPDIR`), about as large as the values that are taken.

Invariants, in `tests/pipeline/test_metadata_join.py`:

* Values belong to the row with the same uid, whatever the order of files, rows and shards.
* An .npz of other rows than its Parquet file is refused.
* The array of a subset has the bytes that NumPy writes.

Another form of table: its rows in `table_files.py`, its paths in `filters/table.py`.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from clipmill.filters.table import TEXT_TABLES, Table, is_array
from clipmill.manifests import disk
from clipmill.manifests.arrays import NUMPY_ERRORS, Array, Bytes, Integers
from clipmill.manifests.columns import EXTRA_TYPES, hex_bytes, refuse_doubled
from clipmill.manifests.commits import Commits, in_threads
from clipmill.manifests.layout import shard_name, uids_checksum
from clipmill.manifests.pool import Pool
from clipmill.manifests.text import one_line
from clipmill.pipeline.database import BATCH_ROWS, UID_BYTES, blobs, database, insert
from clipmill.pipeline.progress.state import Measure
from clipmill.pipeline.progress.view import counted_stage
from clipmill.pipeline.table_files import (
    CASTS,
    MissingColumn,
    as_json,
    is_null,
    python_values,
    table_ending,
    values,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# --------------------------------------------------------------------------------------------------
# Uids as DataComp keeps a subset: a NumPy array of pairs of 64-bit integers, sorted, in a .npy.
#
# A uid of 32 hex digits is the pair (first 16 digits, last 16 digits). DataComp's own uids and
# ours have the same form, and a pool has its `uid` in that form always.


PAIR = np.dtype("<u8,<u8")
READ_ROWS = 2**20  # rows of a .npy that are in memory at a time


def uid_records(uids: pa.ChunkedArray | pa.Array) -> Bytes:
    """(rows, 16) of a column of uids. ValueError for other values."""
    return hex_bytes(uids, UID_BYTES, "uid")


def write_uid_array(uids: Iterable[Bytes], staged: Path) -> int:
    """Write uids, (rows, 16) at a time, sorted and each once; how many there are."""
    with database() as connection, disk.naming(staged), open(staged, "wb") as file:
        connection.execute("CREATE TABLE uids (uid BLOB)")
        for records in uids:
            insert(connection, "uids", blobs(records))
        connection.execute("CREATE TABLE each AS SELECT DISTINCT uid FROM uids")
        ((count,),) = connection.execute("SELECT count(*) FROM each").fetchall()
        header = {"descr": PAIR.descr, "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(file, header)
        ordered = connection.sql("SELECT uid FROM each ORDER BY uid")
        for batch in ordered.to_arrow_reader(BATCH_ROWS):
            numbers = np.frombuffer(b"".join(batch["uid"].to_pylist()), ">u8")
            file.write(numbers.astype("<u8").tobytes())
        file.flush()
        os.fsync(file.fileno())
        expected = file.tell()
    disk.check_size(staged, expected)
    return int(count)


def read_uid_array(path: str) -> Iterator[Bytes]:
    """(rows, 16) of a .npy of uids in pieces. ValueError where it is none."""
    with disk.open_file(path) as source:
        try:
            if isinstance(source, Path):
                array = np.load(source, mmap_mode="r", allow_pickle=False)
            else:
                array = np.load(source, allow_pickle=False)
        except (*NUMPY_ERRORS, OSError) as error:
            raise ValueError(
                f"{path} is not a NumPy file that can be read: {one_line(error)}"
            ) from None
        if isinstance(array, np.lib.npyio.NpzFile) or not _is_pairs(array):
            form = getattr(array, "dtype", "several arrays")
            raise ValueError(
                f"{path} holds {form}, not uids: it must be one array of pairs of 64-bit integers "
                "(numpy.dtype('u8,u8')), as DataComp's subset files are"
            )
        if isinstance(array, np.memmap) and source.stat().st_size != array.offset + array.nbytes:
            raise ValueError(f"{path} has more bytes than its header says; get the file again")
        number = np.dtype("<u8") if array.dtype == PAIR else np.dtype(">u8")
        for start in range(0, len(array), READ_ROWS):
            pairs = np.ascontiguousarray(array[start : start + READ_ROWS])
            numbers = pairs.view(number).reshape(-1, 2)
            yield numbers.astype(">u8").view(np.uint8).reshape(-1, UID_BYTES)


def _is_pairs(array: Array) -> bool:
    return array.ndim == 1 and array.dtype in (PAIR, np.dtype(">u8,>u8"))


# --------------------------------------------------------------------------------------------------
# Keys of rows as records of 16 bytes: uids as they are, other texts by their 128-bit hash.


def key_records(column: pa.ChunkedArray | pa.Array, table: Table) -> Bytes:
    """(rows, 16) of a column of keys. ValueError for a key that is NULL or of another form.

    Two of 10^10 different texts have the same hash with a probability of 1.5e-19.
    """
    if not table.hashed_keys:
        return uid_records(column.cast(pa.string()))
    texts = column.cast(pa.string()).to_pylist()
    if table.on == "sha256":
        texts = [None if text is None else text.lower() for text in texts]
    digests = []
    for text in texts:
        if not text:
            raise ValueError("a key is missing")
        digests.append(xxhash.xxh3_128_digest(text.encode()))
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, UID_BYTES)


# --------------------------------------------------------------------------------------------------
# Tables of other programs: the keys of a file, and the values of some of its rows.
#
# A Parquet file is read row group by row group, a text file some rows at a time. An array of the
# .npz beside a Parquet file belongs to the row of the same number. That is checked: both have as
# many rows, and where CLIP scores and embeddings are both there (DataComp's metadata), the scores
# of some rows are computed and compared.


CHECKED_ROWS = 64  # of a file, whose embeddings are compared with their score
TOLERANCE = 0.02  # of a cosine of fp16 embeddings; that of other rows differs by 0.1 and more
ROWS = 65_536  # of a text file that are in memory at a time
JSON_LINES = (".jsonl", ".ndjson")
TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
NUMBERS = (
    pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal,
    pa.types.is_null,
)  # fmt: skip
# DataComp's column of scores -> its arrays of the .npz
SCORED_ARRAYS = {
    "clip_b32_similarity_score": ("b32_img", "b32_txt"),
    "clip_l14_similarity_score": ("l14_img", "l14_txt"),
}


class TableFile:
    """One file of a table."""

    def __init__(self, table: Table, path: str) -> None:
        self.table, self.path = table, path
        self._is_text = path.endswith(TEXT_TABLES)

    def read_keys(self) -> Iterator[Bytes]:
        """(rows, 16) of its uids, piece by piece. ValueError for a file that has none."""
        if self.table.of_uid_lists:
            yield from read_uid_array(self.path)
            return
        for _, read in self._pieces([self.table.key]):
            column = read()[self.table.key]
            try:
                yield key_records(column, self.table)
            except (ValueError, pa.ArrowException) as error:
                raise ValueError(
                    f"{self.path}: column {self.table.key!r}: {error}; the key of a table is a "
                    f"{self.table.on} in every row"
                ) from None

    def first_key(self) -> object:
        """The key of its first row; None where it has no row."""
        for _, read in self._pieces([self.table.key]):
            return read()[self.table.key][0].as_py()
        return None

    def read_values(self, rows: Integers) -> Iterator[tuple[int, pa.Table]]:
        """(position in `rows`, columns of `take`) of ascending rows, piece by piece."""
        if self.table.of_uid_lists:
            (name,) = self.table.take
            yield 0, pa.table({name: pa.array(np.ones(len(rows), np.bool_))})
            return
        arrays = self._arrays()
        sources = {}
        for name, source in self.table.source_columns().items():
            if name not in arrays:
                sources[name] = source
        start = first = 0
        for count, read in self._pieces(list(dict.fromkeys(sources.values()))):
            stop = int(np.searchsorted(rows, first + count))
            if stop > start:
                wanted = rows[start:stop]
                table = read().take(pa.array(wanted - first))
                yield start, self._typed(table, sources, arrays, wanted)
            start, first = stop, first + count

    def _pieces(self, columns: list[str]) -> Iterator[tuple[int, Callable[[], pa.Table]]]:
        """(rows, what reads some columns of them) of each row group, or of ROWS rows of a text
        file, whose values are text or JSON. ValueError for a row of it that cannot be read.
        """
        if not self._is_text:
            for number in range(self._footer.num_row_groups):
                rows = self._footer.row_group(number).num_rows
                yield rows, functools.partial(self._group, number, columns)
            return
        numbered = enumerate(self._text_rows(columns), 1)
        while piece := list(itertools.islice(numbered, ROWS)):
            damaged = [number for number, row in piece if row is None]
            if damaged:
                raise ValueError(f"{self.path}: its row {damaged[0]:,} cannot be read")
            yield len(piece), functools.partial(self._text_table, columns, piece)

    def _text_rows(self, columns: list[str]) -> Iterator[Any]:
        try:
            yield from values(self.path, columns)
        except MissingColumn as missing:
            self._require(columns, missing.present)
            raise

    def _require(self, columns: Sequence[str], present: Sequence[str]) -> None:
        """ValueError for a column that the file does not have, or has twice."""
        refuse_doubled(self.path, columns, present)
        hint = ""
        if self._is_text and table_ending(self.path) not in JSON_LINES:
            mark = "tabs" if table_ending(self.path) == ".tsv" else "commas"
            hint = f"; its first line must name its columns, with {mark} between them"
        for name in columns:
            if name not in present:
                guess = disk.did_you_mean(name, present)
                known = ", ".join(map(repr, present[:NAMED])) + " …" * (len(present) > NAMED)
                raise ValueError(
                    f"{self.path} has no column {name!r}{guess}{hint} (it has {known or 'none'})"
                )

    def _text_table(self, columns: list[str], piece: Sequence[tuple[int, Any]]) -> pa.Table:
        """Rows of a text file as a table. ValueError for a column with values of several types."""
        arrays = []
        for position, name in enumerate(columns):
            column = [row[position] for _, row in piece]
            if table_ending(self.path) not in JSON_LINES:
                column = [value or None for value in column]
            try:
                arrays.append(pa.array(column))
            except UnicodeEncodeError:
                raise ValueError(f"{self.path}: column {name!r} is not UTF-8") from None
            except (pa.ArrowException, OverflowError) as error:
                raise ValueError(
                    f"{self.path}: column {name!r} has values of several types: {one_line(error)}"
                ) from None
        return pa.table(arrays, columns)

    @functools.cached_property
    def _footer(self) -> Any:
        return disk.read_with(self.path, pq.read_metadata)

    def _group(self, number: int, columns: list[str]) -> pa.Table:
        def read(source: Any) -> pa.Table:
            file = pq.ParquetFile(source, page_checksum_verification=True)
            self._require(columns, file.schema_arrow.names)
            return file.read_row_group(number, columns, use_threads=False)

        table: pa.Table = disk.read_with(self.path, read)
        return table

    def _typed(
        self,
        table: pa.Table,
        sources: dict[str, str],
        arrays: dict[str, npt.NDArray[np.float16]],
        rows: Integers,
    ) -> pa.Table:
        columns = {}
        for name in self.table.columns():
            if name in arrays:
                columns[name] = blobs(arrays[name][rows].view(np.uint8))
                continue
            form = self.table.take[name].rpartition(":")[2]
            columns[name] = self._cast(table, sources[name], form)
            if self.table.blank_is_null:
                columns[name] = _without_blanks(columns[name])
        return pa.table(columns)

    def _cast(self, table: pa.Table, source: str, form: str) -> pa.Array:
        """A column as one of EXTRA_TYPES. ValueError, with its name, where it is of another."""
        try:
            return _cast(table[source], form, EXTRA_TYPES[form])
        except (pa.ArrowException, ValueError) as error:
            raise ValueError(
                f"{self.path}: column {source!r} is not of type {form}: {one_line(error)}"
            ) from None

    # --- arrays -----------------------------------------------------------------------------------

    def _arrays(self) -> dict[str, npt.NDArray[np.float16]]:
        """The arrays that `take` names. ValueError where they are of other rows."""
        wanted = {}
        for name, form in self.table.take.items():
            if is_array(form):
                wanted[name] = self.table.source_columns()[name]
        if not wanted:
            return {}
        if self._is_text:
            raise ValueError(
                f"{self.path} has no arrays: {', '.join(wanted)} must be of a Parquet file"
            )
        path = self.table.arrays_beside(self.path)
        rows = self._footer.num_rows
        arrays = {}
        with ExitStack() as stack:
            source: Any = stack.enter_context(disk.open_file(path))
            if isinstance(source, Path):
                source = stack.enter_context(open(source, "rb"))
            try:
                with np.load(source, allow_pickle=False) as archive:
                    for name, array_name in wanted.items():
                        if array_name not in archive:
                            names = list(archive)
                            raise ValueError(
                                f"it has no array {array_name!r}"
                                f"{disk.did_you_mean(array_name, names)}"
                            )
                        width = self.table.columns()[name].list_size
                        arrays[name] = _checked_array(archive[array_name], array_name, rows, width)
                    self._check_scores(archive)
            except (*NUMPY_ERRORS, OSError) as error:
                raise ValueError(f"{path} cannot be used: {one_line(error, 300)}") from None
        return arrays

    def _check_scores(self, archive: Any) -> None:
        """ValueError where the embeddings do not have the scores of their rows."""
        known = self._footer.schema.to_arrow_schema().names
        for column, (image, text) in SCORED_ARRAYS.items():
            has_arrays = image in archive and text in archive
            if column not in known or not has_arrays or not self._footer.num_rows:
                continue
            rows = np.linspace(0, self._footer.num_rows - 1, CHECKED_ROWS).astype(np.int64)
            rows = np.unique(rows)
            table = disk.read_parquet(self.path, [column])
            scores = self._cast(table, column, "float").to_numpy(zero_copy_only=False)[rows]
            images = archive[image][rows].astype(np.float32)
            texts = archive[text][rows].astype(np.float32)
            lengths = np.linalg.norm(images, axis=1) * np.linalg.norm(texts, axis=1)
            cosines = (images * texts).sum(axis=1) / np.maximum(lengths, 1e-6)
            wrong = np.flatnonzero(np.abs(cosines - scores) > TOLERANCE)
            if len(wrong):
                row = int(rows[wrong[0]])
                raise ValueError(
                    f"its embeddings are of other rows than those of {self.path}: row {row} has "
                    f"{column} {scores[wrong[0]]:.3f}, and {image} and {text} give "
                    f"{cosines[wrong[0]]:.3f}"
                )


def _checked_array(array: Array, name: str, rows: int, width: int) -> npt.NDArray[np.float16]:
    if array.shape != (rows, width):
        raise ValueError(
            f"its array {name} has the shape {array.shape}; it must be ({rows}, {width}): the rows "
            "of the Parquet file and the width of the type"
        )
    if array.dtype.kind != "f":
        raise ValueError(f"its array {name} is {array.dtype}, not floating point")
    return np.ascontiguousarray(array, np.float16)


def _without_blanks(texts: pa.Array) -> pa.Array:
    """Texts with NULL for those of nothing but space."""
    is_blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
    return pc.if_else(is_blank, pa.scalar(None, texts.type), texts)


def _cast(column: pa.ChunkedArray, form: str, kind: pa.DataType) -> pa.Array:
    """A column as one of EXTRA_TYPES; NaN and infinity become NULL, and blank texts where a number
    is asked for. ValueError for a value, or a column, of another type."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    is_text = any(is_text(column.type) for is_text in TEXTS)
    if form == "json" or (is_text and form != "string"):
        cast = CASTS[form] if is_text else _plain_json
        array = pa.array([_given(value, cast) for value in python_values(column)], kind)
    else:
        if form != "string" and not any(is_number(column.type) for is_number in NUMBERS):
            raise ValueError(f"it is of type {column.type}")
        if form != "string" and (pa.types.is_floating(column.type) or form in ("float", "bool")):
            column = column.cast(pa.float64())
            column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, pa.float64()))
        if form == "bool":  # neither a score nor a label such as -1 says yes or no
            others = column.filter(pc.invert(pc.is_in(column, pa.array([0.0, 1.0, None]))))
            if len(others):
                raise ValueError(f"{others[0]} is neither 0 nor 1")
        array = column.cast(kind)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _plain_json(value: object) -> str | None:
    """Anything as JSON with blanks behind commas and colons."""
    text = as_json(value)
    return None if text is None else json.dumps(json.loads(text), ensure_ascii=False)


def _given(value: object, cast: Callable[[object], Any]) -> Any:
    """A value as another type. ValueError where it is not of that type."""
    result = cast(value)
    if result is None and not _is_missing(value):
        raise ValueError(f"{value!r}; where there is no value write nothing, or NaN")
    return result


def _is_missing(value: object) -> bool:
    """True of NULL and NaN, also as a text, and of a blank one."""
    if not isinstance(value, str):
        return is_null(value)
    with suppress(ValueError):
        return not value.strip() or is_null(float(value))
    return False


# --------------------------------------------------------------------------------------------------
# The columns of a table for the rows of a pool, shard by shard.
#
# A database matches the keys of pool and table; each file of the table is read once more, and the
# values of its matched rows go into the database, which gives them back in the order of the rows
# of the pool.


NAMED = 10  # keys without a row of the pool that are named
ROW_BITS = 32
ORDINAL = "__ordinal"
# Rows of the pool by number, and rows of the table by file (the bits above ROW_BITS) and row. The
# first of repeated keys counts.
KEYS = """
CREATE TABLE pool (key BLOB, __ordinal BIGINT);
CREATE TABLE keys (key BLOB, location BIGINT)
"""
MATCHED = """
CREATE TABLE firsts AS SELECT key, min(location) AS location FROM keys GROUP BY key;
CREATE TABLE matches AS SELECT location, __ordinal FROM pool JOIN firsts USING (key);
CREATE TABLE missing AS SELECT key FROM firsts ANTI JOIN pool USING (key)
"""
MATCHES_OF = """
SELECT location - {first} AS row, __ordinal FROM matches
WHERE location >= {first} AND location < {end} ORDER BY ALL
"""
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class MatchCounts:
    """What became of the keys of a table."""

    table_rows: int = 0
    keys: int = 0  # different ones
    pool_rows: int = 0
    matched_rows: int = 0  # rows of the pool that have a row of the table
    missing: int = 0  # keys that no row of the pool has
    missing_keys: list[str] = field(default_factory=list)  # the first ones of them
    # One of the pool and one of the table, where no text of these is one of those.
    unlike: tuple[object, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardColumns:
    """The columns of one shard, a row for each of its rows."""

    position: int  # in the commit records
    table: pa.Table
    uids: str  # uids_checksum of the shard
    stored: int


class TableJoin:
    """`for each in TableJoin(commits, positions, table).shards()`, then `counts`."""

    def __init__(self, commits: Commits, positions: Integers, table: Table) -> None:
        """positions: of the shards in `commits`."""
        self.counts = MatchCounts()
        self._commits, self._positions, self._table = commits, positions, table
        self._files = [TableFile(table, path) for path in table.files()]
        counts = np.asarray(commits.column("count").to_numpy(), np.int64)[positions]
        self._ends: Integers = np.cumsum(counts)
        self._starts: Integers = self._ends - counts
        self._uids: list[tuple[str, int]] = []  # of each shard: checksum, stored rows

    def shards(self) -> Iterator[ShardColumns]:
        """The columns of each shard, in the order of `positions`.

        ValueError for a file that is damaged or lacks a column, and for a pool without `on`.
        """
        if not len(self._positions):
            return
        with database() as connection:
            connection.execute(KEYS)
            self._add_pool(connection)
            self._add_keys(connection)
            self._match(connection)
            self._add_values(connection)
            yield from self._of_shards(connection)

    # --- keys -------------------------------------------------------------------------------------

    def _add_keys(self, connection: DuckDBPyConnection) -> None:
        with counted_stage("read keys", len(self._files), brief=True) as counter:
            for number, file in enumerate(self._files):
                first = number << ROW_BITS
                for keys in file.read_keys():
                    locations = np.arange(first, first + len(keys))
                    insert(connection, "keys", blobs(keys), locations)
                    first += len(keys)
                counter.ended(str(number), Measure())

    def _add_pool(self, connection: DuckDBPyConnection) -> None:
        """The uids of the stored rows with their numbers."""
        pool, on, name = Pool(self._commits), self._table.on, self._table.name

        def read(number: int) -> tuple[Bytes, Integers, str, int]:
            shard = int(self._commits.shards[self._positions[number]])
            try:
                table = pool.read(shard, ["uid", "status", on])
            except ValueError as error:
                raise ValueError(f"filter {name}: {error}") from None
            stored = pc.and_(pc.equal(table["status"], "success"), table[on].is_valid())
            chosen = np.flatnonzero(stored.to_numpy())
            ordinals = self._starts[number] + chosen
            try:
                keys = key_records(table[on].filter(stored), self._table)
            except ValueError as error:
                where = f"column {on!r} of shard {shard_name(shard)}"
                raise ValueError(f"filter {name}: {where}: {error}") from None
            stored_rows = int(pc.sum(pc.equal(table["status"], "success")).as_py() or 0)
            return keys, ordinals, uids_checksum(table["uid"]), stored_rows

        for keys, ordinals, uids, stored_rows in in_threads(read, range(len(self._positions))):
            insert(connection, "pool", blobs(keys), ordinals)
            self._uids.append((uids, stored_rows))

    def _match(self, connection: DuckDBPyConnection) -> None:
        """Match the keys, and fill `counts`."""
        connection.execute(MATCHED)

        def count(table: str) -> int:
            return int(connection.table(table).shape[0])

        named = f"SELECT key FROM missing ORDER BY key LIMIT {NAMED}"
        self.counts = MatchCounts(
            table_rows=count("keys"),
            keys=count("firsts"),
            pool_rows=count("pool"),
            matched_rows=count("matches"),
            missing=count("missing"),
            missing_keys=[key.hex() for (key,) in connection.execute(named).fetchall()],
        )
        counts, on = self.counts, self._table.on
        if self._table.hashed_keys and counts.keys and counts.pool_rows > counts.matched_rows == 0:
            shard = int(self._commits.shards[self._positions[0]])
            of_pool = Pool(self._commits).read(shard, [on])[on].drop_null()
            firsts = (file.first_key() for file in self._files)
            counts.unlike = of_pool[0].as_py(), next(key for key in firsts if key is not None)

    # --- values -----------------------------------------------------------------------------------

    def _add_values(self, connection: DuckDBPyConnection) -> None:
        """Read each file once and keep the values of its matched rows."""
        kinds = self._table.columns().items()
        stored = [(name, kind if is_plain(kind) else pa.binary()) for name, kind in kinds]
        schema = pa.schema([(ORDINAL, pa.int64()), *stored])
        connection.register("part", schema.empty_table())
        connection.execute("CREATE TABLE taken AS SELECT * FROM part")
        with counted_stage("read values", len(self._files), brief=True) as counter:
            for number, file in enumerate(self._files):
                bounds = {"first": number << ROW_BITS, "end": number + 1 << ROW_BITS}
                matches = connection.sql(MATCHES_OF.format(**bounds)).to_arrow_table()
                ordinals = matches[ORDINAL].to_numpy()
                for start, table in file.read_values(matches["row"].to_numpy()):
                    here = ordinals[start : start + len(table)]
                    insert(connection, "taken", here, *table.columns)
                counter.ended(str(number), Measure())

    def _of_shards(self, connection: DuckDBPyConnection) -> Iterator[ShardColumns]:
        reader = connection.sql(f"SELECT * FROM taken ORDER BY {ORDINAL}")
        batches = reader.to_arrow_reader(BATCH_ROWS)
        rows = batches.schema.empty_table()
        for number, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            while not len(rows) or rows[ORDINAL][-1].as_py() < end:
                if (batch := next(batches, None)) is None:
                    break
                rows = pa.concat_tables([rows, pa.Table.from_batches([batch])])
            count = int(np.searchsorted(rows[ORDINAL].to_numpy(), end))
            index = np.full(end - start, -1, np.int64)
            index[rows[ORDINAL].to_numpy()[:count] - start] = np.arange(count)
            values = self._restored(rows.slice(0, count))
            rows = rows.slice(count)
            uids, stored = self._uids[number]
            yield ShardColumns(
                position=int(self._positions[number]),
                table=values.take(pa.array(index, mask=index < 0)),
                uids=uids,
                stored=stored,
            )

    def _restored(self, rows: pa.Table) -> pa.Table:
        """Rows of the database with the types of the columns."""
        columns: dict[str, Any] = {}
        for name, kind in self._table.columns().items():
            if is_plain(kind):
                columns[name] = rows[name].combine_chunks()
            else:
                flat = np.frombuffer(b"".join(rows[name].to_pylist()), np.float16)
                columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(flat), type=kind)
        return pa.table(columns).cast(pa.schema(list(self._table.columns().items())))


def is_plain(kind: pa.DataType) -> bool:
    """Whether DuckDB has a type; vectors of fp16 are bytes there."""
    return not pa.types.is_fixed_size_list(kind)
