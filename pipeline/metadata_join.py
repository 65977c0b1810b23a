"""Columns that other programs computed, joined to the rows by uid, url, key or sha256.

Columns that other programs computed (DataComp's metadata with CLIP scores and embeddings, lists
of uids) for the rows of a pool, joined by uid, URL or sha256. The filters `table` and
`caption_file` name them in a recipe; `pipeline/scoring` commits them like any score set.

Reads the sidecars of a pool, Parquet files, .csv, .tsv, .jsonl, .npz and .npy. Writes temporary
files on local disk (`TMPDIR`), about as large as the values that are taken.

Invariants:

* Values belong to the row with the same uid, whatever the order of files, rows and shards:
  `tests/pipeline/metadata_join/test_table_join.py`.
* An .npz of other rows than its Parquet file is refused:
  `tests/pipeline/metadata_join/test_table_files.py`.
* The array of a subset has the bytes that NumPy writes:
  `tests/pipeline/metadata_join/test_uid_arrays.py`.

Another form of table: its keys and values in `table_files.py`, its paths in `filters/table.py`.
"""

from __future__ import annotations

import csv
import functools
import itertools
import json
import logging
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from filters.table import TEXT_TABLES, Table, is_array
from manifests import disk
from manifests.columns import hex_bytes, refuse_doubled
from manifests.commits import Commits
from manifests.layout import uids_checksum
from pipeline.progress.view import counted_stage
from pipeline.shuffle import BATCH_ROWS, UID_BYTES, Bytes, database, insert

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
    with database() as connection, open(staged, "wb") as file:
        connection.execute("CREATE TABLE uids (uid BLOB)")
        for records in uids:
            insert(connection, "uids", records)
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
        except (ValueError, EOFError, OSError) as error:
            text = " ".join(str(error).split())[:160]
            raise ValueError(f"{path} is not a NumPy file that can be read: {text}") from None
        if isinstance(array, np.lib.npyio.NpzFile) or not _is_pairs(array):
            form = getattr(array, "dtype", "several arrays")
            raise ValueError(
                f"{path} holds {form}, not uids: it must be one array of pairs of 64-bit integers "
                "(numpy.dtype('u8,u8')), as DataComp's subset files are"
            )
        number = np.dtype("<u8") if array.dtype == PAIR else np.dtype(">u8")
        for start in range(0, len(array), READ_ROWS):
            pairs = np.ascontiguousarray(array[start : start + READ_ROWS])
            numbers = pairs.view(number).reshape(-1, 2)
            yield numbers.astype(">u8").view(np.uint8).reshape(-1, UID_BYTES)


def _is_pairs(array: npt.NDArray[Any]) -> bool:
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
# Which row of a table each row of a pool has: a join by DuckDB, in bounded memory.


NAMED = 10  # keys without a row of the pool that are named
# Rows of the pool by number, and rows of the table by file (the bits above ROW_BITS) and row.
JOINED = """
CREATE TABLE pool (key BLOB, ordinal BIGINT);
CREATE TABLE keys (key BLOB, location BIGINT)
"""
MATCHED = """
CREATE TABLE firsts AS SELECT key, min(location) AS location FROM keys GROUP BY key;
CREATE TABLE matches AS SELECT location, ordinal FROM pool JOIN firsts USING (key);
CREATE TABLE missing AS SELECT key FROM firsts ANTI JOIN pool USING (key)
"""
ROW_BITS = 32
Integers = npt.NDArray[np.int64]


@dataclass(slots=True)
class MatchCounts:
    """What became of the keys of a table."""

    table_rows: int = 0
    keys: int = 0  # different ones
    pool_rows: int = 0
    matched_rows: int = 0  # rows of the pool that have a row of the table
    missing: int = 0  # keys that no row of the pool has
    missing_keys: list[str] = field(default_factory=list)  # the first ones of them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileMatches:
    """The rows of a file that rows of the pool have: (matches,) each."""

    file: int
    rows: Integers  # ascending
    ordinals: Integers


class KeyMatch:
    """`with KeyMatch() as match`: `add` the keys of both sides, then `matches` once."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> KeyMatch:
        self._connection = self._stack.enter_context(database())
        self._connection.execute(JOINED)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, side: str, keys: Bytes, numbers: Integers) -> None:
        """side: pool, with numbers of rows; or keys, with locations. keys: (rows, 16) bytes."""
        insert(self._connection, side, keys, numbers)

    def matches(self, counts: MatchCounts) -> Iterator[FileMatches]:
        """The matches of each file that has some, in the order of the files: the first of repeated
        keys counts. `counts` is filled."""
        self._connection.execute(MATCHED)
        tables = ("keys", "firsts", "pool", "matches", "missing")
        sums = ", ".join(f"(SELECT count(*) FROM {table})" for table in tables)
        (numbers,) = self._connection.execute(f"SELECT {sums}").fetchall()
        counts.table_rows, counts.keys, counts.pool_rows, counts.matched_rows, counts.missing = (
            numbers
        )
        named = f"SELECT key FROM missing ORDER BY key LIMIT {NAMED}"
        counts.missing_keys = [key.hex() for (key,) in self._connection.execute(named).fetchall()]
        ordered = self._connection.sql("SELECT * FROM matches ORDER BY location, ordinal")
        file = -1
        rows: list[Integers] = []
        ordinals: list[Integers] = []
        for batch in ordered.to_arrow_reader(BATCH_ROWS):
            files = batch["location"].to_numpy() >> ROW_BITS
            for number in np.unique(files).tolist():
                if number != file and rows:
                    yield _file_matches(file, rows, ordinals)
                    rows, ordinals = [], []
                file, here = number, files == number
                rows.append(batch["location"].to_numpy()[here] & (1 << ROW_BITS) - 1)
                ordinals.append(batch["ordinal"].to_numpy()[here])
        if rows:
            yield _file_matches(file, rows, ordinals)


def _file_matches(file: int, rows: list[Integers], ordinals: list[Integers]) -> FileMatches:
    return FileMatches(file=file, rows=np.concatenate(rows), ordinals=np.concatenate(ordinals))


# --------------------------------------------------------------------------------------------------
# Rows of .csv, .tsv and .jsonl files piece by piece, in UTF-8. A row that cannot be read is an
# error that names its line: a table that was made for a pool is whole.


ROWS = 65_536  # of a piece
LONGEST_LINE = 1 << 26  # bytes
JSON_LINES = (".jsonl", ".ndjson")
Values = list[Any]


def read_pieces(path: str, columns: Sequence[str]) -> Iterator[tuple[int, list[Values]]]:
    """(number of the first row, values of each column) of some rows at a time.

    A value of a .csv or .tsv is a string, None where it is empty. ValueError with the line for a
    row that is no JSON object, has another number of values than the header, or is not UTF-8.
    """
    with ExitStack() as stack:
        source: Any = stack.enter_context(disk.open_file(path))
        if isinstance(source, Path):
            source = stack.enter_context(open(source, "rb"))
        read = _json_rows if path.endswith(JSON_LINES) else _separated_rows
        piece: list[Values] = [[] for _ in columns]
        first = 0
        for row in read(path, source, columns):
            for values, value in zip(piece, row, strict=True):
                values.append(value)
            if len(piece[0]) == ROWS:
                yield first, piece
                first += ROWS
                piece = [[] for _ in columns]
        if piece[0]:
            yield first, piece


def _lines(path: str, source: IO[bytes]) -> Iterator[tuple[int, str]]:
    """(line number from 1 on, the line with its end)."""
    number = 0
    while line := source.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            raise ValueError(f"{path}: line {number} has more than {LONGEST_LINE:,} bytes")
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            yield number, line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: line {number} is not UTF-8 at its byte {error.start}"
            ) from None


def _json_rows(path: str, source: IO[bytes], columns: Sequence[str]) -> Iterator[Values]:
    seen: set[str] = set()
    count = 0
    for number, line in _lines(path, source):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: line {number} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}: line {number} is no JSON object")
        seen.update(row)
        count += 1
        yield [row.get(name) for name in columns]
    if count:
        _require(path, columns, sorted(seen))


def _separated_rows(path: str, source: IO[bytes], columns: Sequence[str]) -> Iterator[Values]:
    numbered = _lines(path, source)
    line = 0

    def texts() -> Iterator[str]:
        nonlocal line
        for number, text in numbered:
            line = number
            yield text

    delimiter = "\t" if path.endswith(".tsv") else ","
    limit = csv.field_size_limit(LONGEST_LINE)
    try:
        rows = csv.reader(texts(), delimiter=delimiter, strict=True)
        header = next(rows, [])
        _require(path, columns, header)
        positions = [header.index(name) for name in columns]
        for row in rows:
            if not row:  # an empty line
                continue
            if len(row) != len(header):
                raise ValueError(
                    f"{path}: the row that ends in line {line} has {len(row)} values, and the "
                    f"header has {len(header)}"
                )
            yield [row[position] or None for position in positions]
    except csv.Error as error:
        raise ValueError(f"{path}: line {line}: {error}") from None
    finally:
        csv.field_size_limit(limit)


def _require(path: str, columns: Sequence[str], present: Sequence[str]) -> None:
    refuse_doubled(path, columns, present)
    for name in columns:
        if name not in present:
            raise ValueError(
                f"{path} has no column {name!r}{disk.did_you_mean(name, present)}; "
                f"it has {', '.join(present) or 'none'}"
            )


def text_of(value: Any) -> str | None:
    """A value as text: strings as they are, other JSON as JSON."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


# --------------------------------------------------------------------------------------------------
# Tables of other programs: the keys of a file, and the values of some of its rows.
#
# A Parquet file is read row group by row group. An array of the .npz beside it belongs to the row
# of the same number. That is checked: both have as many rows, and where CLIP scores and
# embeddings are both there (DataComp's metadata), the scores of some rows are computed and
# compared.


CHECKED_ROWS = 64  # of a file, whose embeddings are compared with their score
TOLERANCE = 0.02  # of a cosine of fp16 embeddings; that of other rows differs by 0.1 and more
# DataComp's column of scores -> its arrays of the .npz
SCORED_ARRAYS = {
    "clip_b32_similarity_score": ("b32_img", "b32_txt"),
    "clip_l14_similarity_score": ("l14_img", "l14_txt"),
}
Rows = npt.NDArray[np.int64]


class TableFile:
    """One file of a table."""

    def __init__(self, table: Table, path: str) -> None:
        self.table, self.path = table, path

    def read_keys(self) -> Iterator[Bytes]:
        """(rows, 16) of its uids, piece by piece. ValueError for a file that has none."""
        if self.table.of_uid_lists:
            yield from read_uid_array(self.path)
            return
        for column in self._key_columns():
            try:
                yield key_records(column, self.table)
            except (ValueError, pa.ArrowException) as error:
                raise ValueError(
                    f"{self.path}: column {self.table.key!r}: {error}; the key of a table is a "
                    f"{self.table.on} in every row"
                ) from None

    def _key_columns(self) -> Iterator[pa.Array | pa.ChunkedArray]:
        if self.path.endswith(TEXT_TABLES):
            for _, (keys,) in read_pieces(self.path, [self.table.key]):
                yield pa.array(map(text_of, keys), pa.string())
            return
        for number in range(self._footer.num_row_groups):
            yield self._group(number, [self.table.key])[self.table.key]

    def read_values(self, rows: Rows) -> Iterator[tuple[int, pa.Table]]:
        """(position in `rows`, columns of `take`) of ascending rows, piece by piece."""
        if self.table.of_uid_lists:
            (name,) = self.table.take
            yield 0, pa.table({name: pa.array(np.ones(len(rows), np.bool_))})
            return
        if self.path.endswith(TEXT_TABLES):
            yield from self._text_values(rows)
            return
        arrays = self._arrays()
        sources = {}
        for name, source in self.table.source_columns().items():
            if name not in arrays:
                sources[name] = source
        start = first = 0
        for number in range(self._footer.num_row_groups):
            count = self._footer.row_group(number).num_rows
            stop = int(np.searchsorted(rows, first + count))
            if stop > start:
                wanted = rows[start:stop]
                table = self._group(number, list(sources.values())).take(pa.array(wanted - first))
                yield start, self._typed(table, sources, arrays, wanted)
            start, first = stop, first + count

    def _text_values(self, rows: Rows) -> Iterator[tuple[int, pa.Table]]:
        """`read_values` of a .csv, .tsv or .jsonl file."""
        sources = self.table.source_columns()
        for name, form in self.table.take.items():
            if is_array(form):
                raise ValueError(
                    f"{self.path} has no arrays: {name} is {form}, which belongs to a Parquet file"
                )
        names = list(dict.fromkeys(sources.values()))
        start = 0
        for first, values in read_pieces(self.path, names):
            stop = int(np.searchsorted(rows, first + len(values[0])))
            if stop > start:
                wanted = rows[start:stop]
                columns = {}
                for column, value in zip(names, values, strict=True):
                    columns[column] = [value[row] for row in (wanted - first).tolist()]
                yield start, self._typed(_text_table(self.path, columns), sources, {}, wanted)
            start = stop

    @functools.cached_property
    def _footer(self) -> Any:
        return disk.read_with(self.path, pq.read_metadata)

    def _group(self, number: int, columns: list[str]) -> pa.Table:
        def read(source: Any) -> pa.Table:
            file = pq.ParquetFile(source, page_checksum_verification=True)
            known = file.schema_arrow.names
            refuse_doubled(self.path, columns, known)
            for name in columns:
                if name not in known:
                    raise ValueError(
                        f"{self.path} has no column {name!r}{disk.did_you_mean(name, known)}"
                    )
            return file.read_row_group(number, list(dict.fromkeys(columns)), use_threads=False)

        table: pa.Table = disk.read_with(self.path, read)
        return table

    def _typed(
        self,
        table: pa.Table,
        sources: dict[str, str],
        arrays: dict[str, npt.NDArray[np.float16]],
        rows: Rows,
    ) -> pa.Table:
        columns = {}
        for name, kind in self.table.columns().items():
            if name in arrays:
                flat = pa.array(arrays[name][rows].reshape(-1))
                columns[name] = pa.FixedSizeListArray.from_arrays(flat, type=kind)
                continue
            form = self.table.take[name].rpartition(":")[2]
            try:
                columns[name] = _cast(table[sources[name]], form, kind)
                if self.table.blank_is_null:
                    columns[name] = _without_blanks(columns[name])
            except (pa.ArrowException, TypeError, ValueError) as error:
                text = " ".join(str(error).split())[:160]
                raise ValueError(
                    f"{self.path}: column {sources[name]!r} is not of type {form}: {text}"
                ) from None
        return pa.table(columns)

    # --- arrays -----------------------------------------------------------------------------------

    def _arrays(self) -> dict[str, npt.NDArray[np.float16]]:
        """The arrays that `take` names. ValueError where they are of other rows."""
        wanted = {}
        for name, form in self.table.take.items():
            if is_array(form):
                wanted[name] = self.table.source_columns()[name]
        if not wanted:
            return {}
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
            except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
                text = " ".join(str(error).split())[:300]
                raise ValueError(f"{path} cannot be used: {text}") from None
        return arrays

    def _check_scores(self, archive: Any) -> None:
        """ValueError where the embeddings do not have the scores of their rows."""
        known = self._footer.schema.to_arrow_schema().names
        for column, (image, text) in SCORED_ARRAYS.items():
            if column not in known or image not in archive or text not in archive:
                continue
            rows = np.linspace(0, self._footer.num_rows - 1, CHECKED_ROWS).astype(np.int64)
            rows = np.unique(rows)
            scores = disk.read_parquet(self.path, [column])[column].to_numpy()[rows]
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


def _text_table(path: str, columns: dict[str, list[Any]]) -> pa.Table:
    """Values of a text file as Arrow columns. ValueError for values of several types."""
    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pa.array(values)
        except (pa.ArrowException, OverflowError) as error:
            text = " ".join(str(error).split())[:160]
            raise ValueError(
                f"{path}: column {name!r} has values of several types: {text}"
            ) from None
    return pa.table(arrays)


def _checked_array(
    array: npt.NDArray[Any], name: str, rows: int, width: int
) -> npt.NDArray[np.float16]:
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
    """A column as one of EXTRA_TYPES; NaN and infinity become NULL."""
    if form == "json":
        texts = []
        for value in column.to_pylist():
            texts.append(None if value is None else json.dumps(value, ensure_ascii=False))
        return pa.array(texts, kind)
    array = column.cast(kind)
    if pa.types.is_floating(kind):
        array = pc.if_else(pc.is_finite(array), array, pa.scalar(None, kind))
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


# --------------------------------------------------------------------------------------------------
# The columns of a table for the rows of a pool, shard by shard.
#
# Three passes: the uids of pool and table are matched; each file of the table is read once, and
# the values of its matched rows go to partitions of consecutive shards on local disk; each
# partition is sorted and cut into shards. Memory is bounded by a partition and by the arrays of
# one .npz.


READERS = 4  # sidecars that are read at a time
PARTITION_BYTES = 128 * 2**20  # of values that are sorted in memory
MAX_PARTITIONS = 512  # files that are open at once
TEXT_BYTES = 64  # of a string, about
ORDINAL_COLUMN = "__ordinal"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardColumns:
    """The columns of one shard, a row for each of its rows."""

    position: int  # in the commit records
    table: pa.Table
    uids: str  # uids_checksum of the shard
    stored: int


class TableJoin:
    """`with TableJoin(commits, positions, table) as join: for each in join.shards(): …`."""

    def __init__(self, commits: Commits, positions: Integers, table: Table) -> None:
        """positions: of the shards in `commits`."""
        self.counts = MatchCounts()
        self._commits, self._positions, self._table = commits, positions, table
        self._files = [TableFile(table, path) for path in table.files()]
        counts = np.asarray(commits.column("count").to_numpy(), np.int64)[positions]
        self._ends: Integers = np.cumsum(counts)
        self._starts: Integers = self._ends - counts
        self._uids: list[tuple[str, int]] = []  # of each shard: checksum, stored rows
        self._stack = ExitStack()

    def __enter__(self) -> TableJoin:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def shards(self) -> Iterator[ShardColumns]:
        """The columns of each shard, in the order of `positions`.

        ValueError for a file that is damaged or lacks a column, and for a pool without `on`.
        """
        if not len(self._positions):
            return
        folder = self._stack.enter_context(disk.scratch_folder("clipmill-join-"))
        bounds = self._partition_bounds()
        with KeyMatch() as match:
            self._add_keys(match)
            self._spill_values(match, folder, bounds)
        for number, (first, last) in enumerate(itertools.pairwise(bounds)):
            yield from self._of_partition(folder / f"{number}.arrow", first, last)

    # --- keys -------------------------------------------------------------------------------------

    def _add_keys(self, match: KeyMatch) -> None:
        self._add_pool(match)
        with counted_stage("read keys", len(self._files), brief=True) as counter:
            for number, file in enumerate(self._files):
                first = number << ROW_BITS
                for keys in file.read_keys():
                    match.add("keys", keys, np.arange(first, first + len(keys)))
                    first += len(keys)
                counter.ended(str(number), {})

    def _add_pool(self, match: KeyMatch) -> None:
        """The uids of the stored rows with their numbers."""
        on, name = self._table.on, self._table.name

        def read(number: int) -> tuple[Bytes, Integers, str, int]:
            shard = int(self._commits.shards[self._positions[number]])
            path = self._commits.sidecar(shard)

            def read_columns(source: Any) -> pa.Table:
                file = pq.ParquetFile(source, page_checksum_verification=True)
                if on not in file.schema_arrow.names:
                    names = file.schema_arrow.names
                    raise ValueError(
                        f"filter {name}: {self._commits.pool} has no column {on!r}"
                        f"{disk.did_you_mean(on, names)}"
                    )
                return file.read(list(dict.fromkeys(["uid", "status", on])), use_threads=False)

            table = disk.read_with(path, read_columns)
            stored = pc.and_(pc.equal(table["status"], "success"), table[on].is_valid())
            chosen = np.flatnonzero(stored.to_numpy())
            ordinals = self._starts[number] + chosen
            try:
                keys = key_records(table[on].filter(stored), self._table)
            except ValueError as error:
                raise ValueError(f"filter {name}: column {on!r} of {path}: {error}") from None
            stored_rows = int(pc.sum(pc.equal(table["status"], "success")).as_py() or 0)
            return keys, ordinals, uids_checksum(table["uid"]), stored_rows

        numbers = iter(range(len(self._positions)))
        with ThreadPoolExecutor(READERS) as threads:
            while batch := list(itertools.islice(numbers, 4 * READERS)):
                for keys, ordinals, uids, stored_rows in threads.map(read, batch):
                    match.add("pool", keys, ordinals)
                    self._uids.append((uids, stored_rows))

    # --- values -----------------------------------------------------------------------------------

    def _partition_bounds(self) -> list[int]:
        """Numbers of shards at which the partitions begin, and the end."""
        row_bytes = sum(_width(kind) for kind in self._table.columns().values())
        total = int(self._ends[-1]) * row_bytes
        size = max(PARTITION_BYTES, total // MAX_PARTITIONS + 1)
        partition = self._starts * row_bytes // size
        starts = np.flatnonzero(np.diff(partition, prepend=-1))
        return [*starts.tolist(), len(self._positions)]

    def _spill_values(self, match: KeyMatch, folder: Path, bounds: Sequence[int]) -> None:
        """Read each file once and write its values to the partitions of their shards."""
        first_rows = self._starts[list(bounds[:-1])]
        kinds = {ORDINAL_COLUMN: pa.int64(), **self._table.columns()}
        schema = pa.schema(list(kinds.items()))
        with (
            ExitStack() as stack,
            counted_stage("read values", len(self._files), brief=True) as counter,
        ):
            writers: dict[int, Any] = {}
            for file_matches in match.matches(self.counts):
                for start, table in self._files[file_matches.file].read_values(file_matches.rows):
                    ordinals = file_matches.ordinals[start : start + len(table)]
                    table = table.add_column(0, ORDINAL_COLUMN, pa.array(ordinals))
                    partitions = np.searchsorted(first_rows, ordinals, side="right") - 1
                    for number in np.unique(partitions).tolist():
                        if number not in writers:
                            path = str(folder / f"{number}.arrow")
                            sink = stack.enter_context(pa.OSFile(path, "wb"))
                            writer = pa.ipc.new_stream(sink, schema)
                            writers[number] = stack.enter_context(writer)
                        here = partitions == number
                        part = table if here.all() else table.filter(pa.array(here))
                        writers[number].write_table(part.cast(schema))
                counter.ended(str(file_matches.file), {})

    def _of_partition(self, path: Path, first: int, last: int) -> Iterator[ShardColumns]:
        schema = pa.schema([(ORDINAL_COLUMN, pa.int64()), *self._table.columns().items()])
        table = schema.empty_table()
        if path.exists():
            with pa.OSFile(str(path), "rb") as source:
                table = pa.ipc.open_stream(source).read_all()
            path.unlink()
        ordinals = table[ORDINAL_COLUMN].to_numpy()
        order = np.argsort(ordinals, kind="stable")
        ordinals = ordinals[order]
        values = table.drop_columns([ORDINAL_COLUMN]).combine_chunks()
        for number in range(first, last):
            start, end = int(self._starts[number]), int(self._ends[number])
            low, high = np.searchsorted(ordinals, [start, end])
            index = np.full(end - start, -1, np.int64)
            index[ordinals[low:high] - start] = order[low:high]
            uids, stored = self._uids[number]
            yield ShardColumns(
                position=int(self._positions[number]),
                table=values.take(pa.array(index, mask=index < 0)),
                uids=uids,
                stored=stored,
            )


def _width(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * 2
    return TEXT_BYTES if pa.types.is_string(kind) else 8
