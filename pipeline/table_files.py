"""Files of tables that other programs wrote: their rows, and values as the types of a column."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, count, groupby, islice, pairwise, repeat
from typing import IO, Any, AnyStr, NamedTuple, TextIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clipmill.manifests import disk
from clipmill.manifests.arrays import Integers
from clipmill.manifests.columns import refuse_doubled
from clipmill.manifests.text import valid_text

# --------------------------------------------------------------------------------------------------
# Lines of a text file in bounded memory: a line without end costs itself.


LONGEST_LINE = 1 << 26  # characters or bytes, as many as the longest field of a .csv has


def bounded_lines(stream: IO[AnyStr]) -> Iterator[AnyStr | None]:
    """The lines of a file with their ends; None for one of more than LONGEST_LINE characters."""
    while line := stream.readline(LONGEST_LINE):
        if len(line) < LONGEST_LINE or _ends(line):
            yield line
            continue
        while (rest := stream.readline(LONGEST_LINE)) and not _ends(rest):
            pass
        yield None


def _ends(line: str | bytes) -> bool:
    return line[-1:] in ("\n", "\r", b"\n")


# --------------------------------------------------------------------------------------------------
# Rows of parquet, csv, tsv, json, jsonl and txt files, in bounded memory; a bad row costs itself.
#
# Memory is bounded by a batch of rows, whatever the size of the file and of its lines; only a .json
# file is held whole.


# In any case of letters; all but .parquet also with one of PACKED behind.
PARQUET = ".parquet"
ENDINGS = (PARQUET, ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt")
PACKED = (".gz", ".zst")
HEADERS = (".tsv", ".csv", ".txt")  # tables of lines, whose first one may be a row
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
MOST_NAMES = 20  # of columns that a message lists
ROWS = 10_000  # of a batch
BATCH_BYTES = 8 * 2**20  # of a batch as the footer of a Parquet file has them
# What a column of a row group may unpack to is in its footer. Text and images shrink to a tenth at
# most; what shrinks to less than a PACKED_MOST-th may be one value, and is held several times.
PACKED_MOST = 100
SUSPICIOUS, LARGEST_UNPACKED = 2**20, 2**25  # bytes
FOOTER = 2**16  # bytes at the end of a file, in which most footers lie
MOST_ROWS = 2**31  # of a row group
MOST_UNPACKED = 2**36  # bytes of all rows, were each the one value: a minute's work
PROBE = 1000  # rows within which a column must have come
LARGEST_JSON = 1 << 29  # characters of a .json file
BETWEEN = re.compile(r"[ \t\r\n,]*")  # values of a .json file
NOT_TEXT = "\ud800"  # stands for a value that is not valid UTF-8: no column can hold it
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # the first bytes of a text, also of one in UTF-32
QUOTED = re.compile(r'"(?:[^"]|"")*"', re.DOTALL)  # as a .csv has a value in quotation marks
# Words that are no caption by themselves: a list that has them is one caption in its words
LONE_WORDS = re.compile(r"[.,;:!?()'\"-]|the|of|and|with|is", re.IGNORECASE)
# A list of texts, or none, as JSON, Python and NumPy write it into one text
STRING = r"u?(?:'(?:[^'\\]|ESCAPE)*+'|\"(?:[^\"\\]|ESCAPE)*+\")".replace(
    "ESCAPE", r"\\(?:[abfnrtv'\"\\]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[01][0-9a-fA-F]{7})"
)
LISTED = re.compile(rf"\[\s*+(?:{STRING}(?:[\s,]++{STRING})*+)?+\s*+\]\s*")
BYTES_TEXT = re.compile(r"b(?:'.*'|\".*\")\s*", re.DOTALL)  # as Python writes bytes
URL_CODED = re.compile(r"[^\s%]*+(?:%[0-9A-Fa-f]{2}[^\s%]*+)*+")
PRINTED = re.compile(rb"(\xef\xbb\xbf)?\s*(\[|\{\s*\n)")  # JSON that is no object in each line
NO_COLUMN = "\0"
Values = Sequence[Any]
csv.field_size_limit(1 << 26)


def utf_16(start: bytes) -> str:
    """The encoding of a text whose first four bytes show UTF-16, with a mark or without, or UTF-32;
    "" of any other: a text in UTF-8 does not begin with NUL."""
    if start[:2] in UTF_16:
        return "UTF-32" if start[2:4] == b"\0\0" else "UTF-16"
    return {(True, False): "UTF-16BE", (False, True): "UTF-16LE", (True, True): "UTF-32BE"}.get(
        (start[:1] == b"\0", start[1:2] == b"\0"), ""
    )


def table_ending(path: str) -> str:
    """The one of ENDINGS that a name has, without that of its compression; "" of no table."""
    name = path.lower()
    for packed in PACKED:
        if name.endswith(packed):
            name = name.removesuffix(packed)
            return "" if name.endswith(PARQUET) else table_ending(name)
    return next((ending for ending in ENDINGS if name.endswith(ending)), "")


def is_table(path: str) -> bool:
    """True where a name ends as a table's does."""
    return bool(table_ending(path))


def values(
    path: str, columns: Sequence[str], header: Sequence[str] = (), delimiter: str = ","
) -> Generator[Values | None]:
    """Some columns of a table, row by row in their order; None for a row that cannot be read.

    A column may be named twice. `header` names the columns of one of HEADERS whose first line is a
    row, `delimiter` separates those of a .csv or .txt. One column of a .txt without a header is a
    list of URLs. A text file of 0 bytes has no rows. ValueError where a column is missing; the
    message names the nearest one. DamagedTable where the file cannot be unpacked. A value that is
    not valid text holds a lone surrogate (such as NOT_TEXT).
    """
    kind = table_ending(path)
    if header and kind not in HEADERS:
        raise ValueError(
            f"{path}: columns names those of a table without a header, which only "
            f"{', '.join(HEADERS)} can be; leave it out"
        )
    if delimiter != "," and kind not in (".csv", ".txt"):
        raise ValueError(f"{path}: delimiter is {delimiter!r}, which only a .csv has; leave it out")
    if kind == PARQUET:
        yield from _parquet_rows(path, columns)
        return
    with _unpacked(path) as stream:
        if not (start := stream.peek(2)):
            return
        if kind in (".jsonl", ".ndjson") and not PRINTED.match(start):
            yield from _pick_columns(path, _json_lines(bounded_lines(stream)), columns)
            return
        text = _decoded(stream)
        if kind == ".txt" and len(columns) == 1 and not header:
            for line in bounded_lines(text):
                if line is None:
                    yield None
                elif url := line.strip():
                    yield (url,)
        elif kind == ".tsv":
            yield from _tsv_rows(path, text, columns, header)
        elif kind in HEADERS:
            yield from _csv_rows(path, text, columns, header, delimiter)
        else:
            yield from _pick_columns(path, _json_rows(path, text, columns), columns)


def column_names(path: str, delimiter: str = ",") -> list[str]:
    """The columns of a table, of a JSON table those of its first PROBE rows, sorted; [] where it
    has no row. Errors as of `values`."""
    try:
        for _ in values(path, [NO_COLUMN] * 2, delimiter=delimiter):
            pass
    except MissingColumn as missing:
        return list(missing.present)
    return []


def text_lines(path: str) -> Iterator[str]:
    """The lines of a text table without their ends; "" for one that is too long."""
    with _unpacked(path) as stream:
        text = _decoded(stream)
        for line in bounded_lines(text):
            yield (line or "").rstrip("\r\n")


def _decoded(stream: Any) -> TextIO:
    """A byte that is not UTF-8 becomes a lone surrogate, by which its value is known as damaged."""
    return io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")


@contextmanager
def _unpacked(path: str) -> Iterator[Any]:
    """The bytes of a table. DamagedTable where they cannot be unpacked, in the body too."""
    is_zstd = path.lower().endswith(".zst")
    try:
        with disk.open_stream(path, compression=None if is_zstd else "infer") as stream:
            if is_zstd:
                stream = pa.CompressedInputStream(stream, "zstd")
            stream = stream if hasattr(stream, "peek") else io.BufferedReader(stream)
            if not any(start := stream.peek(4)[:4]) and len(start) == 4:
                raise disk.DamagedTable(f"{path} begins with zeros and no text; get the file again")
            if encoding := utf_16(start):
                raise ValueError(
                    f"{path} is {encoding}; write it as UTF-8: iconv -f {encoding} -t UTF-8 FILE > "
                    "NEW_FILE"
                )
            yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _cannot_be_unpacked(path, error) from None
    except OSError as error:
        if not is_zstd or error.errno is not None:
            raise
        raise _cannot_be_unpacked(path, error) from None


def _cannot_be_unpacked(path: str, error: Exception) -> disk.DamagedTable:
    text = "it is cut off" if isinstance(error, EOFError) or "Trunc" in str(error) else str(error)
    return disk.DamagedTable(f"{path} cannot be unpacked: {text}; get the file again")


# --- parquet ---------------------------------------------------------------------------------


def _parquet_rows(path: str, columns: Sequence[str]) -> Iterator[Values | None]:
    """The rows of a row group that unpacks to too much cannot be read."""
    with (
        disk.naming_table(path),
        disk.open_file(path, cache_type="none") as file,
        pq.ParquetFile(file, page_checksum_verification=True) as table,
    ):
        require_columns(path, columns, table.schema_arrow.names)
        names = list(dict.fromkeys(columns))
        groups = enumerate(row_groups(file))
        for size, same in groupby(groups, lambda each: batch_rows(each[1], names)):
            if not size:
                for _, group in same:
                    yield from repeat(None, group.rows)
                continue
            numbers = [number for number, _ in same]
            for batch in table.iter_batches(size, row_groups=numbers, columns=names):
                lists = [python_values(batch.column(name)) for name in columns]
                yield from zip(*lists, strict=True) if lists else repeat((), batch.num_rows)


class Chunk(NamedTuple):
    """The values of one column in a row group."""

    path: str  # of the column, with dots
    values: int
    nulls: int | None  # None: nobody has written it down
    packed: int  # bytes
    unpacked: int


class RowGroup(NamedTuple):
    """What the footer of a Parquet file says about one of its row groups."""

    rows: int
    chunks: list[Chunk]


def row_groups(source: Any) -> list[RowGroup]:
    """The row groups of a path or an open file. OSError where its footer is damaged.

    Read here, because pyarrow (26.0) ends the process where it is asked for a chunk that does not
    fit the schema, as one wrong bit can leave it.
    """
    with ExitStack() as stack:
        is_path = isinstance(source, str | os.PathLike)
        file = stack.enter_context(open(source, "rb")) if is_path else source
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - FOOTER))
        data = file.read()
        size = int.from_bytes(data[-8:-4], "little")
        if size + 8 > len(data):
            file.seek(max(0, end - 8 - size))
            data = file.read()
    groups = []
    try:
        for group in Thrift(data[-8 - size : -8]).struct().get(4, []):
            chunks = [_chunk(each[3]) for each in group[1] if 3 in each]
            if not 0 <= group[3] <= min([MOST_ROWS, *(chunk.values for chunk in chunks)]):
                raise ValueError(f"a row group of {group[3]:,} rows")
            groups.append(RowGroup(group[3], chunks))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise OSError(f"its footer cannot be read: {error}") from None
    return groups


def _chunk(column: Mapping[int, Any]) -> Chunk:
    path = b".".join(column[3]).decode(errors="replace")
    return Chunk(path, column[5], column.get(12, {}).get(3), column[7], column[6])


class Thrift:
    """Reads the compact protocol of Thrift as far as Parquet has it: numbers, bytes, lists and
    structs, a struct as {number of the field: value}. ValueError or IndexError for other bytes.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._take(1)[0]:
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = self._value(head & 15, of_field=True)
        return fields

    def _take(self, size: int) -> bytes:
        taken = self._data[self._position : self._position + size]
        if len(taken) < size:
            raise IndexError("it ends too early")
        self._position += size
        return taken

    def _number(self) -> int:
        number = shift = 0
        while True:
            byte = self._take(1)[0]
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    def _integer(self) -> int:
        number = self._number()
        return number >> 1 ^ -(number & 1)

    def _value(self, kind: int, *, of_field: bool = False) -> Any:
        if kind in (1, 2):  # the kind of a field is its value
            return kind == 1 if of_field else self._take(1) == b"\1"
        if kind in (4, 5, 6):
            return self._integer()
        if kind in (3, 7):
            return self._take(1 if kind == 3 else 8)
        if kind == 8:
            return self._take(self._number())
        if kind in (9, 10):
            head = self._take(1)[0]
            count = head >> 4 if head >> 4 < 15 else self._number()
            return [self._value(head & 15) for _ in range(count)]
        if kind != 12:
            raise ValueError(f"there is no type {kind}")
        return self.struct()


def batch_rows(group: RowGroup, columns: Collection[str], most: int = ROWS) -> int:
    """How many rows of a row group are read at a time, so that these columns take about
    BATCH_BYTES; 0 where one of them unpacks to more than may be held (LARGEST_UNPACKED)."""
    chunks = [c for c in group.chunks if any(f"{c.path}.".startswith(f"{n}.") for n in columns)]
    unpacked = sum(chunk.unpacked for chunk in chunks)
    rows = BATCH_BYTES * group.rows // max(1, unpacked)
    for chunk in chunks:
        if chunk.unpacked > max(SUSPICIOUS, PACKED_MOST * chunk.packed):
            rows = min(rows, LARGEST_UNPACKED // chunk.unpacked)
            if not rows or chunk.unpacked * group.rows > MOST_UNPACKED:
                return 0
    # A power of two, so that row groups of about the same size are read together.
    return most if rows >= most else 1 << max(0, rows.bit_length() - 1)


class MissingColumn(ValueError):
    """A table lacks a column. `present`: those that it has."""

    def __init__(self, message: str, present: Sequence[str]) -> None:
        super().__init__(message)
        self.present = present


def require_columns(path: str, columns: Sequence[str], present: Sequence[str]) -> None:
    """MissingColumn for the first of `columns` that is not `present`. ValueError for one that is
    there twice."""
    refuse_doubled(path, columns, present)
    for name in columns:
        if name in present:
            continue
        if f'"{name}"' in present:
            hint = "; a .tsv is read without quotation marks: name the file .csv, with commas"
        elif not (hint := _separator_hint(path, name, present)):
            same = [other for other in present if other.lower() == name.lower()]
            close = next(iter(same), None) or disk.closest(name, present)
            hint = f"; did you mean {close!r}?" if close else ""
            if not close and table_ending(path) in HEADERS:
                hint = "; a table without a header needs columns: [NAME, …]"
        if table_ending(path) == ".txt":
            hint = (
                "; a .txt without such a header is read as a list of URLs, one per line: it has no "
                "other columns, and for it write caption_column: null and no extra_columns"
            )
        if any(valid_text(other) != other for other in present):
            hint = "; its header is not UTF-8: write the table as UTF-8"
        more = f" and {len(present) - MOST_NAMES:,} more" if len(present) > MOST_NAMES else ""
        names = ", ".join(map(repr, present[:MOST_NAMES])) + more or "none"
        raise MissingColumn(f"{path} has no column {name!r}{hint} (it has {names})", present)


def _separator_hint(path: str, name: str, present: Sequence[str]) -> str:
    """What to do where the first line of a text table is no header, or has other separators."""
    kind = table_ending(path)
    if kind not in HEADERS or not present:
        return ""
    first = present[0].strip()
    if first.lower().startswith("sep="):
        mark = first[4:5] or ","
        option = "" if mark == "," else f" and write delimiter: {json.dumps(mark)}"
        return f"; its first line, {first!r}, is for spreadsheets: remove it{option}"
    if first.startswith("#") and name not in first.lstrip("#").split():
        return "; its first line is a comment: remove it"
    for mark, what in SEPARATORS.items():
        is_here = mark == "\t" or name in re.split(rf'[{mark}" ]', first)
        if len(present) == 1 and mark in first and is_here:
            option = f"write delimiter: {json.dumps(mark)}"
            if kind == ".tsv":
                option = "name the file .csv" + ("" if mark == "," else f" and {option}")
            return f"; its columns are separated by {what}: {option}"
    return ""


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of an Arrow column. NOT_TEXT for each that Python cannot hold: text that is not
    UTF-8, a date outside the years 1 to 9999."""
    python: list[object] = []
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        for scalar in column:
            try:
                python.append(scalar.as_py())
            except (ValueError, OverflowError):
                python.append(NOT_TEXT)
    return python


# --- csv and tsv -----------------------------------------------------------------------------


def _tsv_rows(
    path: str, text: TextIO, columns: Sequence[str], header: Sequence[str]
) -> Iterator[Values | None]:
    """A .tsv has no quoting: a quotation mark is a character as any other, and a line is a row."""
    lines = bounded_lines(text)
    header = header or (next(lines, None) or "").rstrip("\r\n").split("\t")
    require_columns(path, columns, header)
    rows = ([] if line is None else line.rstrip("\r\n").split("\t") for line in lines)
    return _fitting(path, (row for row in rows if row != [""]), header, columns)


def _fitting(
    path: str, rows: Iterable[list[str]], header: Sequence[str], columns: Sequence[str]
) -> Iterator[Values | None]:
    """Some columns of the rows that have a value for each name; None for another one. A shorter
    one without an address behind a whole one is the rest of its last value, a text that an unquoted
    line break has cut: where that is asked for, both are None. A damaged row has no values.

    ValueError where several rows, or the first PROBE, have one other width and none fits.
    """
    positions = [header.index(name) for name in columns]
    number, width, widths = 0, len(header), set[int]()
    asks_last = width - 1 in positions
    for number, (row, behind) in enumerate(pairwise(chain(rows, [[]])), 1):
        widths.add(len(row))
        if number == PROBE:
            _require_width(path, header, widths)
        is_cut = asks_last and 0 < len(behind) < width == len(row)
        if len(row) != width or (is_cut and not _names([*behind, row[-1]])):
            yield None
        else:
            yield [row[place] for place in positions]
    if number > 1:  # one row is a damaged row
        _require_width(path, header, widths)


def _require_width(path: str, header: Sequence[str], widths: Collection[int]) -> None:
    if len(widths) == 1 and 0 < (width := max(widths)) != len(header):
        raise ValueError(
            f"{path}: each row has {width} values, and there are {len(header)} names: "
            f"{', '.join(map(repr, header[:MOST_NAMES]))}; write a name for each value into the "
            "first line (R writes none above the names of rows), or a value for each name"
        )


class _Lines:
    """Lines of a file. Those of the row that is read can be given back. csv.Error for one without
    end."""

    def __init__(self, text: TextIO) -> None:
        self._lines = bounded_lines(text)
        self._given_back: deque[str | None] = deque()
        self.row: list[str | None] = []

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._given_back.popleft() if self._given_back else next(self._lines)
        self.row.append(line)
        if line is None:
            raise csv.Error("a line is too long")
        return line

    def give_back(self, start: int) -> None:
        """Read the lines of the row from this one on again."""
        self._given_back.extendleft(reversed(self.row[start:]))


# An address as a field of a line: a URL, the name of an image, a hash. Each row has its own.
ADDRESS = re.compile(
    r"\S+://\S+|\S(?:.*\S)?\.(?:jpe?g|png|webp|gif|avif|bmp|tiff?)|[0-9a-f]{32,}", re.IGNORECASE
)


def _is_row(line: str | None, width: int, delimiter: str) -> bool:
    """Whether a line of a .csv has as many fields as a row, and an address among them."""
    fields = (line or "").rstrip("\r\n").split(delimiter)
    return 1 < width <= len(fields) and _names(fields)


def _names(fields: Sequence[str]) -> bool:
    """Whether there is an address among the values of a row."""
    return any(ADDRESS.fullmatch(field.strip('"')) for field in fields)


def _csv_rows(
    path: str, text: TextIO, columns: Sequence[str], header: Sequence[str], delimiter: str
) -> Iterator[Values | None]:
    """Strict: a row with text behind a closing quotation mark, or with a mark that never closes, is
    damaged. So is one of several lines of which two or more have an address: a mark that was not
    closed in its row has swallowed others up to the next mark. Such a row ends with its first line
    that has an address, and the lines behind it are read again."""
    lines = _Lines(text)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = header or next(rows, [])
    except csv.Error:
        header = [line.strip() for line in lines.row[:1] if line]
    require_columns(path, columns, header)
    return _fitting(path, _strict_rows(lines, rows, len(header), delimiter), header, columns)


def _strict_rows(
    lines: _Lines, rows: Iterator[list[str]], width: int, delimiter: str
) -> Iterator[list[str]]:
    """What `rows` reads of `lines`; a damaged row has no values."""
    while True:
        lines.row.clear()
        row: list[str] | None = None
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error:  # of its quotation marks, or a field of more than 64 MiB
            rows = csv.reader(lines, delimiter=delimiter, strict=True)
        if len(lines.row) > 1:
            own = [n for n, line in enumerate(lines.row) if _is_row(line, width, delimiter)]
            if row is None or len(own) > 1:
                row = None
                lines.give_back(own[0] + 1 if own else 1)
        if row is None:
            yield []
        elif row:  # an empty line is no row
            yield row


# --- json ------------------------------------------------------------------------------------


# NaN and Infinity, which are no JSON and which Python writes, are NULL.
DECODER = json.JSONDecoder(parse_constant=lambda name: None)


def _json_lines(lines: Iterable[bytes | None]) -> Iterator[Any]:
    """The JSON value of each line, of one that was not ended all of them; None where it is not
    JSON or has no end."""
    for line in lines:
        if line is None:
            yield None
        elif line.strip():
            line = line.removeprefix(b"\xef\xbb\xbf")
            try:
                found = [msgspec.json.decode(line)]
            except (ValueError, RecursionError):  # NaN and half a surrogate pair cost their values
                found = []
                with suppress(ValueError, RecursionError):
                    text = line.decode("utf-8", "surrogateescape").strip()
                    found = list(_json_values("", text))
            yield from found or [None]


def _pick_columns(
    path: str, objects: Iterable[object], columns: Sequence[str]
) -> Iterator[Values | None]:
    """A column is missing where none of the first PROBE rows has it: one row may do without."""
    seen: set[str] = set()
    for number, row in enumerate(objects, 1):
        if isinstance(row, dict):
            seen.update(row)
            yield [row.get(name) for name in columns]
        else:
            yield None
        if number == PROBE:
            require_columns(path, columns, sorted(seen))
    if seen:
        require_columns(path, columns, sorted(seen))


def _json_rows(path: str, text: TextIO, columns: Sequence[str]) -> Iterator[Any]:
    """The rows of a JSON file: the members of an array, or objects one after the other; of one
    object alone those of `_rows_of_object`. ValueError where the file is no JSON, or a value of it
    cannot be decoded.
    """
    content = text.read(LARGEST_JSON + 1).strip()
    if len(content) > LARGEST_JSON:
        raise ValueError(
            f"{path} has more than {LARGEST_JSON:,} characters: write it as jsonl, one row a line"
        )
    is_array = content.startswith("[")
    if is_array and not content.endswith("]"):
        raise ValueError(f"{path} ends in the middle of its array")
    decoded = _json_values(path, content, is_array)
    head = list(islice(decoded, 2))
    if len(head) == 1 and not is_array and isinstance(head[0], dict) and head[0]:
        yield from _rows_of_object(path, head[0], columns)
    else:
        yield from chain(head, decoded)


def _rows_of_object(path: str, table: dict[str, object], columns: Sequence[str]) -> Iterable[Any]:
    """The rows of an object that is alone in its file. It is a row where it has one of `columns`
    with a value that is no list and no object. Else it is one of these:

    COCO's form, with the lists `images` and `annotations`: each image is a row, whose `caption` is
    the list of its annotations' captions; names with their objects or captions: each is a row, with
    the name as `file`; columns, as pandas writes them; a list of objects, or several with the same
    keys, as for splits.
    """
    if any(isinstance(table.get(name, []), (str, int, float)) for name in columns):
        return [table]
    each = list(table.values())
    if all(isinstance(table.get(name), list) for name in ("images", "annotations")):
        return _coco_rows(table)
    inner = {key for value in each if isinstance(value, dict) for key in value}
    is_by_name = all(map(ADDRESS.fullmatch, islice(table, PROBE)))
    if all(isinstance(value, dict) for value in each):
        is_by_name |= len(table) > len(inner) and not all(map(str.isdecimal, inner))
    is_by_name |= len(table) > MOST_NAMES and all(isinstance(value, str) for value in each)
    if is_by_name:
        rows = [value if isinstance(value, dict) else {"caption": value} for value in each]
        return ({"file": name, **row} for name, row in zip(table, rows, strict=True))
    lists = [value for value in each if isinstance(value, list) and value]
    lists = [value for value in lists if all(isinstance(row, dict) for row in value)]
    if len({frozenset(value[0]) for value in lists}) == 1 and (
        len(lists) == len(each) or {type(value) for value in each} != {list}
    ):
        return chain(*lists)
    if all(isinstance(value, (list, dict)) for value in each):
        return _rows_by_columns(path, table)
    return [table]


def _rows_by_columns(path: str, table: dict[str, Any]) -> Iterator[Any]:
    """The values of all columns that have one key, such as "0", are a row; those of a list have
    their places as keys."""
    keyed: dict[str, dict[str, Any]] = {}
    for name, column in table.items():
        is_list = isinstance(column, list)
        keyed[name] = dict(zip(map(str, count()), column, strict=False)) if is_list else column
    first = next(iter(keyed))
    for name, column in keyed.items():
        if column.keys() != keyed[first].keys():
            what = "differ in length" if len(column) != len(keyed[first]) else "have other keys"
            raise ValueError(
                f"{path} is one object whose columns {what}: {first!r} and {name!r}; its rows "
                "cannot be told"
            )
    for key in keyed[first]:
        yield {name: column[key] for name, column in keyed.items()}


def _coco_rows(document: dict[str, Any]) -> Iterator[Any]:
    """The images with their captions, then a row without an image for each annotation of none."""
    captions: dict[str, list[Any]] = {}
    for note in document["annotations"]:
        note = note if isinstance(note, dict) else {}
        captions.setdefault(str(note.get("image_id")), []).append(note.get("caption"))
    for image in document["images"]:
        if isinstance(image, dict):
            yield {**image, "caption": captions.pop(str(image.get("id", "")), [])}
        else:
            yield None
    for left in captions.values():
        yield {"caption": left}


def _json_values(path: str, content: str, is_array: bool = False) -> Iterator[Any]:
    """The members of an array, or values one after the other, one at a time."""
    position, end = int(is_array), len(content) - is_array
    while (position := BETWEEN.match(content, position).end()) < end:  # type: ignore[union-attr]
        try:
            value, position = DECODER.raw_decode(content, position)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{path} is no JSON from its character {position:,} on: {error}"
            ) from None
        yield value


# --------------------------------------------------------------------------------------------------
# Images in the rows of Parquet files, as Hugging Face's data sets have them.
#
# The address of such an image is FILE#GROUP/ROW: its row in a row group. A row group is read in
# batches of about BATCH_BYTES, so that memory is bounded by these and by the pages of the file.


ROW_ADDRESS = re.compile(r"(.+)#(\d+)/(\d+)", re.DOTALL)
BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
# Bytes of one request to a store. Without it Arrow holds the whole column of a row group.
READ_AHEAD = 4 * 2**20


def row_addresses(path: str, column: str) -> Iterator[str]:
    """The addresses of all rows, in their order. ValueError where `column` holds no images."""
    _image_leaf(path, column, disk.read_schema(path))
    for number, group in enumerate(disk.read_with(path, row_groups)):
        for row in range(group.rows):
            yield f"{path}#{number}/{row}"


def class_names(path: str, column: str | None) -> list[str]:
    """The names that `datasets` wrote for the numbers of a column of labels, or of lists of labels;
    [] for another one."""
    text = (disk.read_with(path, pq.read_metadata).metadata or {}).get(b"huggingface")
    try:
        feature = json.loads(text)["info"]["features"][column] if text else {}
        while isinstance(feature, list) or "feature" in feature:  # Sequence, List, or [ClassLabel]
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        names = feature["names"]
    except (ValueError, KeyError, TypeError, IndexError):
        return []
    return names if isinstance(names, list) else []


def row_of_address(address: str) -> tuple[str, int, int]:
    """(file, row group, row in it) of an address."""
    match = ROW_ADDRESS.fullmatch(address)
    assert match is not None, address
    return match[1], int(match[2]), int(match[3])


def check_image_column(path: str, column: str) -> None:
    """ValueError where `column` holds no images, or no row of a file has the bytes of one."""
    leaf = _image_leaf(path, column, disk.read_schema(path))
    groups = disk.read_with(path, row_groups)
    chunks = [chunk for group in groups for chunk in group.chunks if chunk.path == leaf]
    if any(group.rows for group in groups) and all(chunk.nulls == chunk.values for chunk in chunks):
        raise ValueError(
            f"{path}: no row has the bytes of an image in {leaf!r}. Where `datasets` wrote the "
            "paths of files instead, store the bytes: ds.with_format('arrow').map("
            "datasets.table.embed_table_storage, batched=True).to_parquet(FILE)"
        )


def _image_leaf(path: str, column: str, schema: pa.Schema) -> str:
    """The name of the column of bytes: `image`, or `image.bytes` of a struct."""
    require_columns(path, [column], schema.names)
    kind, leaf = schema.field(column).type, column
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind, leaf = kind.field("bytes").type, f"{column}.bytes"
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not any(is_bytes(kind) for is_bytes in BYTES):
        raise ValueError(
            f"{path}: the column {column!r} is of type {kind}; image_column holds the bytes of "
            "images, or structs with `bytes`. For a column of URLs write kind: table, for one of "
            "paths kind: files"
        )
    return leaf


def image_rows(
    path: str, column: str, rows: Mapping[int, Collection[int]]
) -> Iterator[tuple[int, dict[int, bytes | None] | tuple[str, str]]]:
    """(row group, bytes by row) of some rows of some row groups, batch by batch. None in place of
    bytes: the row has none; (reason, detail) in place of a batch: what is left of the row group
    cannot be read.

    A row that the file does not have is left out. DamagedTable where it is no Parquet file.
    """
    wanted = {group: np.sort(np.fromiter(rows[group], np.int64)) for group in sorted(rows)}
    with (
        disk.naming_table(path),
        disk.open_file(path, cache_type="none") as file,
        pq.ParquetFile(
            file, buffer_size=READ_AHEAD, pre_buffer=False, page_checksum_verification=True
        ) as table,
    ):
        leaf = _image_leaf(path, column, table.schema_arrow)
        groups = row_groups(file)
        for group, own in wanted.items():
            if group >= table.num_row_groups:
                continue
            size = batch_rows(groups[group], [column])
            if not size:
                yield group, ("too_many_bytes", "its row group unpacks to more than may be held")
                continue
            try:
                with disk.naming_table(path):
                    for images in _images(table, group, column, leaf, own, size):
                        yield group, images
            except disk.DamagedTable:
                yield group, ("missing_file", "the file is damaged here")


def _images(
    table: pq.ParquetFile,
    group: int,
    column: str,
    leaf: str,
    rows: Integers,
    size: int,
) -> Iterator[dict[int, bytes | None]]:
    first = 0
    for batch in table.iter_batches(size, row_groups=[group], columns=[leaf]):
        end = first + batch.num_rows
        images = batch.column(column)
        if leaf != column:
            images = pc.struct_field(images, "bytes")
        own = rows[(rows >= first) & (rows < end)].tolist()
        yield {row: images[row - first].as_py() for row in own}
        first = end
        if first > rows[-1]:
            return


# --------------------------------------------------------------------------------------------------
# Values of any table as the types of EXTRA_TYPES: what is not of a type becomes None, and nothing
# raises.


YES, NO = ("true", "t", "yes", "y", "1", "1.0"), ("false", "f", "no", "n", "0", "0.0")
INT64 = 1 << 63


def is_null(value: object) -> bool:
    """True of None, and of NaN and Infinity, which programs write where nothing is known."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def as_text(value: object) -> str | None:
    """Anything as text: nested values as JSON, bytes as UTF-8. None where it is not valid text
    (bytes that are not UTF-8, half of a surrogate pair), and for NaN and Infinity.
    """
    if isinstance(value, str):  # first: nearly all values are
        return value if valid_text(value) == value else None
    if is_null(value):
        return None
    if isinstance(value, (bytes, bytearray)):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Mapping, list, tuple)):
        return as_json(value)
    return str(value)


def as_json(value: object) -> str | None:
    """JSON text. Text that is JSON already stays as it is, other text becomes a JSON string."""
    if is_null(value):
        return None
    if isinstance(value, str):
        if valid_text(value) != value:
            return None
        with suppress(msgspec.DecodeError, RecursionError):
            msgspec.json.decode(value)
            return value
        return None if not value.strip() else json.dumps(value, ensure_ascii=False)
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def as_int(value: Any) -> int | None:
    """A whole number of 64 bits. "3.0" is one, 3.7 is not."""
    with suppress(TypeError, ValueError, OverflowError):
        if isinstance(value, int) or str(value).strip().lstrip("+-").isdecimal():
            number = int(value)
        elif float(value).is_integer():
            number = int(float(value))
        else:
            return None
        return number if -INT64 <= number < INT64 else None
    return None


def as_float(value: Any) -> float | None:
    """A number. NaN and Infinity become None."""
    with suppress(TypeError, ValueError, OverflowError):
        number = float(value)
        return number if math.isfinite(number) else None
    return None


def as_bool(value: object) -> bool | None:
    """True or False: also 1, 0, 1.0, 0.0, yes, no, y, n, t, f, in any case."""
    if isinstance(value, float) and value in (0.0, 1.0):
        return bool(value)
    text = (as_text(value) or "").strip().lower()
    if text in YES:
        return True
    return False if text in NO else None


def unlisted(value: Any) -> Any:
    """The texts of a list that is written as one text, as in a .csv; any other value as it is."""
    if not isinstance(value, str) or value[:1] != "[" or not LISTED.fullmatch(value):
        return value
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(value)
    bodies = (each.lstrip("u")[1:-1] for each in re.findall(STRING, value))
    return [each.encode("latin-1", "backslashreplace").decode("unicode_escape") for each in bodies]


def refuse_notation(path: str, column: str | None, captions: Iterable[Any]) -> None:
    """ValueError where the texts of a column are no captions as they stand, all of them: bytes as
    Python writes them, or URL-encoded."""
    texts = [each for each in captions if isinstance(each, str) and each.strip()]
    what = ""
    if texts and all(map(BYTES_TEXT.fullmatch, texts)):
        what, way = "bytes as Python writes them", "ast.literal_eval(text).decode()"
    blanks = sum("+" in text or "%20" in text for text in texts)
    is_coded = any("%" in text for text in texts) and all(map(URL_CODED.fullmatch, texts))
    if is_coded and 2 * blanks >= len(texts):
        what, way = "URL-encoded", "urllib.parse.unquote_plus(text)"
    if what:
        raise ValueError(
            f"{path}: the values of {column!r} are {what}, as in {texts[0][:100]!r}: write the "
            f"texts themselves ({way}), or name another column of captions"
        )


# Values as the types of EXTRA_TYPES; None where they are of another.
CASTS: dict[str, Callable[[Any], Any]] = {
    "string": as_text,
    "int": as_int,
    "float": as_float,
    "bool": as_bool,
    "json": as_json,
}
