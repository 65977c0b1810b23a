"""Rows of parquet, csv, tsv, json, jsonl and txt files, in bounded memory; a bad row costs itself.

Memory is bounded by a batch of rows, whatever the size of the file and of its lines; only a JSON
file that is one object is held whole.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import fsspec
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from manifests import disk
from pipeline.archives import SPACE
from pipeline.crawl.table_lines import bounded_lines

# All but .parquet also with .gz behind.
ENDINGS = (".parquet", ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt")
ROWS = 10_000  # of a batch
PROBE = 1000  # rows within which a column must have come
CHUNK = 1 << 20  # characters of a JSON file that are read at a time
LARGEST_VALUE = 1 << 28  # characters of one value of a JSON file
NOT_TEXT = "\ud800"  # stands for a value that is not valid UTF-8: no column can hold it
JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]|"', re.DOTALL)
Values = Sequence[Any]
csv.field_size_limit(1 << 26)


def is_table(path: str) -> bool:
    """True where a name ends as a table's does."""
    if path.endswith(".parquet.gz"):
        return False
    return path.endswith(ENDINGS) or path.removesuffix(".gz").endswith(ENDINGS)


def values(path: str, columns: Sequence[str]) -> Generator[Values | None]:
    """Some columns of a table, row by row in their order; None for a row that cannot be read.

    A column may be named twice. ValueError where a column is missing; the message names the nearest
    one. OSError or EOFError where the file cannot be unpacked. A value that is not valid text holds
    a lone surrogate (such as NOT_TEXT).
    """
    try:
        yield from _values(path, columns)
    except zlib.error as error:  # it is no OSError
        raise gzip.BadGzipFile(f"{path} cannot be unpacked: {error}") from None


def _values(path: str, columns: Sequence[str]) -> Iterator[Values | None]:
    kind = Path(path.removesuffix(".gz")).suffix
    if kind == ".parquet":
        yield from _parquet_rows(path, columns)
        return
    if kind == ".txt" and len(columns) > 1:
        raise ValueError(
            f"{path} is read as a list of URLs, one per line: it has no captions and no other "
            "columns. For such a list write caption_column: null and no extra_columns; for a table "
            f"give it another ending ({', '.join(ENDINGS[:-1])})"
        )
    if kind in (".jsonl", ".ndjson"):
        with fsspec.open(path, "rb", compression="infer") as stream:
            yield from _pick_columns(path, _json_lines(bounded_lines(stream)), columns)
        return
    mode: dict[str, Any] = {"encoding": "utf-8-sig", "errors": "replace", "newline": ""}
    with fsspec.open(path, "rt", compression="infer", **mode) as text:
        if kind == ".txt":
            yield from _url_rows(text)
        elif kind == ".json":
            yield from _pick_columns(path, _json_rows(path, text), columns)
        elif kind == ".tsv":
            yield from _tsv_rows(path, text, columns)
        else:
            yield from _csv_rows(path, text, columns)


def _url_rows(text: TextIO) -> Iterator[Values | None]:
    for line in bounded_lines(text):
        if line is None:
            yield None
        elif url := line.strip(SPACE):
            yield (url,)


class MissingColumn(ValueError):
    """A table lacks a column `name`. `close`: the column that may have been meant, or None."""

    def __init__(self, message: str, name: str, close: str | None) -> None:
        super().__init__(message)
        self.name = name
        self.close = close


def require_columns(path: str, columns: Sequence[str], present: Sequence[str]) -> None:
    """MissingColumn for the first of `columns` that is not `present`."""
    for name in columns:
        if name in present:
            continue
        hint, close = "", None
        if f'"{name}"' in present:
            hint = "; a .tsv is read without quotation marks: name the file .csv, with commas"
        else:
            same = [other for other in present if other.lower() == name.lower()]
            close = same[0] if same else disk.closest(name, present)
            hint = f"; did you mean {close!r}?" if close else ""
        names = ", ".join(map(repr, present)) or "none"
        message = f"{path} has no column {name!r}{hint} (it has {names})"
        raise MissingColumn(message, name, close)


# --- parquet ---------------------------------------------------------------------------------


def _parquet_rows(path: str, columns: Sequence[str]) -> Iterator[Values]:
    with (
        disk.naming_table(path),
        fsspec.open(path, "rb") as stream,
        pq.ParquetFile(stream) as table,
    ):
        names = table.schema_arrow.names
        require_columns(path, columns, names)
        for name in columns:
            if names.count(name) > 1:
                raise ValueError(f"{path} has two columns {name!r}; give one of them another name")
        for batch in table.iter_batches(batch_size=ROWS, columns=list(dict.fromkeys(columns))):
            lists = [python_values(batch.column(name)) for name in columns]
            yield from zip(*lists, strict=True)


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of an Arrow column. NOT_TEXT for each that Python cannot hold: text that is not
    UTF-8, a date outside the years 1 to 9999."""
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_python_value(scalar) for scalar in column]


def _python_value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return NOT_TEXT


# --- csv and tsv -----------------------------------------------------------------------------


def _tsv_rows(path: str, text: TextIO, columns: Sequence[str]) -> Iterator[Values | None]:
    """A .tsv has no quoting: a quotation mark is a character as any other, and a line is a row."""
    lines = bounded_lines(text)
    header = (next(lines, None) or "").rstrip("\r\n").split("\t")
    require_columns(path, columns, header)
    positions = [header.index(name) for name in columns]
    for line in lines:
        row = [] if line is None else line.rstrip("\r\n").split("\t")
        if len(row) == len(header):
            yield [row[position] for position in positions]
        elif row != [""]:  # an empty line is no row
            yield None


class _Lines:
    """Lines of a file. Those since `start_row` can be given back. csv.Error for one without end."""

    def __init__(self, text: TextIO) -> None:
        self._lines: Iterator[str | None] = bounded_lines(text)
        self._row: list[str | None] = []

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self._row.append(line)
        if line is None:
            raise csv.Error("a line is too long")
        return line

    def start_row(self) -> None:
        self._row.clear()

    def has_open_quote(self) -> bool:
        """True where the row went to the end of the file because a quotation mark never closed."""
        if len(self._row) < 2 or sum(line.count('"') for line in self._row if line) % 2 == 0:
            return False
        following = next(self._lines, None)
        if following is not None:
            self._lines = chain([following], self._lines)
        return following is None

    def give_back(self) -> None:
        """Read the lines of the row again, except its first."""
        self._lines = chain(self._row[1:], self._lines)
        self._row = []


def _csv_rows(path: str, text: TextIO, columns: Sequence[str]) -> Iterator[Values | None]:
    """A quotation mark that never closes would swallow all rows behind it: then only the row in
    which it stands is damaged, and the lines behind it are read again."""
    lines = _Lines(text)
    rows = csv.reader(lines)
    try:
        header = next(rows, [])
    except csv.Error:
        header = []
    require_columns(path, columns, header)
    positions = [header.index(name) for name in columns]
    while True:
        lines.start_row()
        try:
            row = next(rows)
            swallowed = lines.has_open_quote()
        except StopIteration:
            return
        except csv.Error:  # a field of more than 64 MiB
            swallowed = True
        if swallowed:
            lines.give_back()
            rows = csv.reader(lines)
            yield None
        elif row:  # an empty line is no row
            complete = len(row) == len(header)
            yield [row[position] for position in positions] if complete else None


# --- json ------------------------------------------------------------------------------------


def _json_lines(lines: Iterable[bytes | None]) -> Iterator[Any]:
    """The JSON value of each line; None where it is not JSON or has no end."""
    for line in lines:
        if line is None:
            yield None
        elif line.strip():
            value = None
            with suppress(ValueError, RecursionError):
                value = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"))
            yield value


def _pick_columns(
    path: str, objects: Iterable[Any], columns: Sequence[str]
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


def _json_rows(path: str, text: TextIO) -> Iterator[Any]:
    """The rows of a JSON file: the members of an array, or objects one after the other.

    One object alone is a row. Where its values are lists or objects it is a table by columns (as
    pandas writes it).
    """
    parsed = _json_values(path, text)
    head = [value for _, value in zip(range(2), parsed, strict=False)]
    if len(head) == 1 and isinstance(head[0], dict) and head[0]:
        columns = [_column(value) for value in head[0].values()]
        if all(isinstance(column, list) for column in columns):
            if len({len(column) for column in columns}) != 1:
                raise ValueError(f"{path} is one object whose columns differ in length")
            for row in zip(*columns, strict=True):
                yield dict(zip(head[0], row, strict=True))
            return
    for value in chain(head, parsed):
        yield value[0] if isinstance(value, list) else value


def _column(value: Any) -> Any:
    return list(value.values()) if isinstance(value, dict) else value


class _NumberMayGoOn(ValueError):
    """A value ends where the text that was read ends."""


def _json_values(path: str, text: TextIO) -> Iterator[Any]:
    """The values of a JSON file, one at a time; members of an array are wrapped in a list of one.

    A value that cannot be decoded (nested too deep, a number of 5,000 digits) is [None].
    """
    decoder, buffer, position, read = json.JSONDecoder(), "", 0, 0
    inside, ended = False, False
    while True:
        while position < len(buffer) and buffer[position] in " \t\r\n,":
            position += 1
        if position == len(buffer):
            if ended:
                break
            buffer, position = text.read(CHUNK), 0
            read, ended = read + len(buffer), not buffer
            continue
        if buffer[position] == ("]" if inside else "["):
            inside, position = not inside, position + 1
            continue
        try:
            value, end = decoder.raw_decode(buffer, position)
            if end == len(buffer) and not ended:
                raise _NumberMayGoOn
        except (ValueError, RecursionError) as error:
            number = isinstance(error, _NumberMayGoOn)
            if not number and (end := _end_of_value(buffer, position)):
                position = end
                yield [None]
                continue
            more = "" if ended else text.read(max(CHUNK, len(buffer) - position))
            if not more and ended:
                at = read - len(buffer) + position
                raise ValueError(
                    f"{path} is no JSON from its character {at:,} on: {error}"
                ) from None
            buffer, position = buffer[position:] + more, 0
            read, ended = read + len(more), not more
            if len(buffer) > LARGEST_VALUE:
                raise ValueError(
                    f"{path} has a value of more than {LARGEST_VALUE:,} characters: "
                    "write it as jsonl, one row a line"
                ) from None
            continue
        position = end
        yield [value] if inside else value
    if inside:
        raise ValueError(f"{path} ends in the middle of its array")


def _end_of_value(text: str, start: int) -> int:
    """Where the object or array that starts at `start` ends by its brackets; 0 where it does not
    end in `text`."""
    depth = 0
    for token in JSON_TOKEN.finditer(text, start):
        mark = token[0]
        if mark == '"':  # a string that goes on behind the text
            return 0
        depth += (mark in "[{") - (mark in "]}")
        if depth <= 0:
            return token.end() if token.start() > start else 0
    return 0
