"""Rows of .csv, .tsv and .jsonl files piece by piece, in UTF-8. A row that cannot be read is an
error that names its line: a table that was made for a pool is whole.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import msgspec

from manifests import disk

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
