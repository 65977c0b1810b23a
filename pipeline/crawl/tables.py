"""Url lists as pairs: parquet, csv, tsv, json, jsonl and txt, row by row, with the columns that a recipe names.

Memory is bounded by a batch of rows, whatever the size of the table; only a JSON file that is one object is held whole.
"""

from __future__ import annotations

import csv
import json
import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import fsspec
import msgspec
import pyarrow.parquet as pq

from manifests import disk
from manifests.casting import CASTS, as_text
from manifests.columns import PAIRS, extra_column
from manifests.schema import Source
from pipeline.crawl.urls import SPACE, resolve

ENDINGS = (
    ".parquet",
    ".csv",
    ".tsv",
    ".json",
    ".jsonl",
    ".ndjson",
    ".txt",
)  # all but parquet also with .gz
ROWS = 10_000  # of a batch
PROBE = 1000  # rows within which a column must have come
CHUNK = 1 << 20  # characters of a JSON file that are read at a time
LARGEST_VALUE = 1 << 28  # characters of one value of a JSON file
Values = Sequence[Any]
csv.field_size_limit(1 << 26)


# --- pairs ---------------------------------------------------------------------------------------------------------


def is_table(path: str) -> bool:
    """True where a name ends as a table's does."""
    return path.endswith(ENDINGS) or (
        path.removesuffix(".gz").endswith(ENDINGS) and not path.endswith(".parquet.gz")
    )


def rows_of_table(path: str, source: Source, counts: Counter[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of a table, or of a captions file, whose names are made absolute paths: nothing is downloaded.

    Each is a row of PAIRS and then the values of `source.extra_columns`; what cannot be cast to their types is None.
    `counts` gets `links`, `pairs` and every reason for which a row is no pair. ValueError where the table lacks a
    column, or cannot be read further.
    """
    name = path if disk.is_url(path) else disk.local_path(path).name
    folder = (
        path.rpartition("/")[0]
        if disk.is_url(path)
        else str(disk.local_path(path).absolute().parent)
    )
    columns, casts = _columns(source)
    captioned = len(columns) > len(casts) + 1
    behind = (None,) * (PAIRS.names.index("wat") - 3)
    for number, row in enumerate(values(path, columns)):
        counts["links"] += 1
        try:
            if row is None:
                raise ValueError("damaged")
            link, caption = as_text(row[0]), as_text(row[1]) if captioned else ""
            if caption is None:
                raise ValueError("no_alt")
            if captioned and not caption.strip():
                raise ValueError("empty_alt")
            url = _place(folder, link) if source.kind == "files" else resolve("", link or "")
        except ValueError as reason:
            counts[str(reason)] += 1
            continue
        counts["pairs"] += 1
        own = (cast(value) for cast, value in zip(casts, row[len(row) - len(casts) :], strict=True))
        yield (disk.uid_of(url, caption), url, caption, *behind, name, None, number, *own)


def check_table(path: str, source: Source) -> None:
    """ValueError where a table lacks a column, as far as its first PROBE rows tell."""
    with (
        closing(values(path, _columns(source)[0])) as rows,
        suppress(OSError, EOFError),
    ):  # the stage names the file
        deque(islice(rows, PROBE + 1), maxlen=0)


def _columns(source: Source) -> tuple[list[str], list[Callable[[Any], Any]]]:
    """The columns to read (address, caption if there is one, the extra ones), and the casts of the extra ones."""
    pair = (
        ("file", "caption")
        if source.kind == "files"
        else (source.url_column, source.caption_column)
    )
    extra = [extra_column(column, kind) for column, kind in source.extra_columns.items()]
    names = [*(name for name in pair if name is not None), *(column for column, _ in extra)]
    return names, [CASTS[kind] for _, kind in extra]


def _place(folder: str, name: str | None) -> str:
    """The absolute path of a file that a captions file names. ValueError with the reason where it names none."""
    if not name or not name.strip(SPACE):
        raise ValueError("bad_url")
    return (
        disk.join(folder, name)
        if disk.is_url(folder)
        else os.path.abspath(os.path.join(folder, name))
    )


# --- tables --------------------------------------------------------------------------------------------------------


def values(path: str, columns: Sequence[str]) -> Generator[Values | None]:
    """Some columns of a table, row by row in their order; None for a row that cannot be read.

    ValueError where a column is missing, which is said with the nearest name there is.
    """
    kind = Path(path.removesuffix(".gz")).suffix
    if kind == ".parquet":
        with fsspec.open(path, "rb") as stream, pq.ParquetFile(stream) as table:
            _present(path, columns, table.schema_arrow.names)
            for batch in table.iter_batches(batch_size=ROWS, columns=list(dict.fromkeys(columns))):
                yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        return
    if kind == ".txt" and len(columns) > 1:
        raise ValueError(
            f"{path} is a list of URLs, one a line: it has no captions and no other columns; say caption_column: null, "
            "and leave extra_columns out"
        )
    mode: dict[str, Any] = {"encoding": "utf-8-sig", "errors": "replace", "newline": ""}
    if kind in (".jsonl", ".ndjson"):
        with fsspec.open(path, "rb", compression="infer") as lines:
            yield from _keyed(path, _by_line(lines), columns)
        return
    with fsspec.open(path, "rt", compression="infer", **mode) as text:
        if kind == ".txt":
            yield from ((url,) for line in text if (url := line.strip(SPACE)))
        elif kind == ".json":
            yield from _keyed(path, _whole(path, text), columns)
        else:
            yield from _separated(path, text, "\t" if kind == ".tsv" else ",", columns)


def _separated(
    path: str, text: TextIO, delimiter: str, columns: Sequence[str]
) -> Iterator[Values | None]:
    rows = csv.reader(text, delimiter=delimiter)
    header = next(rows, [])
    _present(path, columns, header)
    places = [header.index(name) for name in columns]
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error:  # a field of more than 64 MiB
            yield None
            continue
        if row:  # an empty line is no row
            yield [row[place] for place in places] if len(row) == len(header) else None


def _by_line(lines: Iterable[bytes]) -> Iterator[Any]:
    """The JSON value of each line; None where it is none."""
    for line in lines:
        if line.strip():
            value = None
            with suppress(msgspec.DecodeError):
                value = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"))
            yield value


def _keyed(path: str, objects: Iterable[Any], columns: Sequence[str]) -> Iterator[Values | None]:
    """A column is missing where none of the first PROBE rows has it: one row may do without."""
    seen: set[str] = set()
    for number, row in enumerate(objects, 1):
        if isinstance(row, dict):
            seen.update(row)
            yield [row.get(name) for name in columns]
        else:
            yield None
        if number == PROBE:
            _present(path, columns, sorted(seen))
    if seen:
        _present(path, columns, sorted(seen))


def _whole(path: str, text: TextIO) -> Iterator[Any]:
    """The rows of a JSON file: the members of an array, or objects one after the other.

    One object alone is a row, or, where its values are lists or objects, a table by columns (as pandas writes it).
    """
    found = _parsed(path, text)
    first = next(found, None)
    following = next(found, None)
    if isinstance(first, dict) and following is None and first:
        columns = [list(v.values()) if isinstance(v, dict) else v for v in first.values()]
        if all(isinstance(column, list) for column in columns):
            if len({len(column) for column in columns}) != 1:
                raise ValueError(f"{path} is one object whose columns differ in length")
            yield from (dict(zip(first, row, strict=True)) for row in zip(*columns, strict=True))
            return
    for value in (first, following):
        if value is not None:
            yield value[0] if isinstance(value, list) else value
    yield from (value[0] if isinstance(value, list) else value for value in found)


def _parsed(path: str, text: TextIO) -> Iterator[Any]:
    """The values of a JSON file, one at a time; members of an array are wrapped in a list of one."""
    decoder, held, place, read = json.JSONDecoder(), "", 0, 0
    inside, ended = False, False
    while True:
        while place < len(held) and held[place] in " \t\r\n,":
            place += 1
        if place == len(held):
            if ended:
                break
            held, place = text.read(CHUNK), 0
            read, ended = read + len(held), not held
            continue
        if held[place] == "[" and not inside:
            inside, place = True, place + 1
            continue
        if held[place] == "]" and inside:
            inside, place = False, place + 1
            continue
        try:
            value, end = decoder.raw_decode(held, place)
            if end == len(held) and not ended:
                raise ValueError("a number may go on")
        except ValueError as error:
            more = "" if ended else text.read(max(CHUNK, len(held) - place))
            if not more and ended:
                at = read - len(held) + place
                raise ValueError(
                    f"{path} is no JSON from its character {at:,} on: {error}"
                ) from None
            held, place, read, ended = held[place:] + more, 0, read + len(more), not more
            if len(held) > LARGEST_VALUE:
                raise ValueError(
                    f"{path} has a value of more than {LARGEST_VALUE:,} characters: write it as jsonl, one row a line"
                ) from None
            continue
        place = end
        yield [value] if inside else value
    if inside:
        raise ValueError(f"{path} ends in the middle of its array")


def _present(path: str, columns: Sequence[str], there: Sequence[str]) -> None:
    for name in columns:
        if name not in there:
            same = [other for other in there if other.lower() == name.lower()]
            close = f"; did you mean {same[0]!r}?" if same else disk.did_you_mean(name, there)
            raise ValueError(
                f"{path} has no column {name!r}{close} (it has {', '.join(map(repr, there)) or 'none'})"
            )
