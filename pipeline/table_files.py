"""Files of tables that other programs wrote: their rows, and values as the types of a column."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice, repeat
from pathlib import Path
from typing import IO, Any, AnyStr, TextIO

import fsspec
import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifests import disk
from manifests.columns import refuse_doubled
from manifests.text import valid_text

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


# All but .parquet also with .gz behind.
PARQUET = ".parquet"
ENDINGS = (PARQUET, ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt")
HEADERS = (".tsv", ".csv")  # tables whose first line may be a row
ROWS = 10_000  # of a batch
PROBE = 1000  # rows within which a column must have come
LARGEST_JSON = 1 << 29  # characters of a .json file
BETWEEN = re.compile(r"[ \t\r\n,]*")  # values of a .json file
NOT_TEXT = "\ud800"  # stands for a value that is not valid UTF-8: no column can hold it
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # the first bytes of a text, also of one in UTF-32
Values = Sequence[Any]
csv.field_size_limit(1 << 26)


def is_table(path: str) -> bool:
    """True where a name ends as a table's does."""
    if path.endswith(".parquet.gz"):
        return False
    return path.endswith(ENDINGS) or path.removesuffix(".gz").endswith(ENDINGS)


def values(
    path: str, columns: Sequence[str], header: Sequence[str] = ()
) -> Generator[Values | None]:
    """Some columns of a table, row by row in their order; None for a row that cannot be read.

    A column may be named twice. `header` names the columns of a .tsv or .csv whose first line is a
    row. ValueError where a column is missing; the message names the nearest one. OSError or
    EOFError where the file cannot be unpacked. A value that is not valid text holds a lone
    surrogate (such as NOT_TEXT).
    """
    try:
        yield from _values(path, columns, header)
    except zlib.error as error:  # it is no OSError
        raise gzip.BadGzipFile(f"{path} cannot be unpacked: {error}") from None


def _values(path: str, columns: Sequence[str], header: Sequence[str]) -> Iterator[Values | None]:
    kind = Path(path.removesuffix(".gz")).suffix
    if header and kind not in HEADERS:
        raise ValueError(
            f"{path}: columns names those of a table without a header, which only "
            f"{' and '.join(HEADERS)} can be; leave it out"
        )
    if kind == ".parquet":
        with (
            disk.naming_table(path),
            disk.open_file(path, cache_type="none") as file,
            pq.ParquetFile(file) as table,
        ):
            require_columns(path, columns, table.schema_arrow.names)
            for batch in table.iter_batches(batch_size=ROWS, columns=list(dict.fromkeys(columns))):
                lists = [python_values(batch.column(name)) for name in columns]
                yield from zip(*lists, strict=True) if lists else repeat((), batch.num_rows)
        return
    if kind == ".txt" and len(columns) > 1:
        raise ValueError(
            f"{path} is read as a list of URLs, one per line: it has no captions and no other "
            "columns. For such a list write caption_column: null and no extra_columns; for a table "
            f"give it another ending ({', '.join(ENDINGS[:-1])})"
        )
    with fsspec.open(path, "rb", compression="infer") as stream:
        if stream.read(2) in UTF_16:
            raise ValueError(
                f"{path} is UTF-16; write it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW_FILE"
            )
        stream.seek(0)
        if kind in (".jsonl", ".ndjson"):
            yield from _pick_columns(path, _json_lines(bounded_lines(stream)), columns)
            return
        # A byte that is not UTF-8 becomes a lone surrogate, by which its value is known as damaged.
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
        if kind == ".txt":
            for line in bounded_lines(text):
                if line is None:
                    yield None
                elif url := line.strip():
                    yield (url,)
        elif kind == ".json":
            yield from _pick_columns(path, _json_rows(path, text), columns)
        elif kind == ".tsv":
            yield from _tsv_rows(path, text, columns, header)
        else:
            yield from _csv_rows(path, text, columns, header)


class MissingColumn(ValueError):
    """A table lacks a column."""


def require_columns(path: str, columns: Sequence[str], present: Sequence[str]) -> None:
    """MissingColumn for the first of `columns` that is not `present`. ValueError for one that is
    there twice."""
    refuse_doubled(path, columns, present)
    for name in columns:
        if name in present:
            continue
        if f'"{name}"' in present:
            hint = "; a .tsv is read without quotation marks: name the file .csv, with commas"
        else:
            same = [other for other in present if other.lower() == name.lower()]
            close = next(iter(same), None) or disk.closest(name, present)
            hint = f"; did you mean {close!r}?" if close else ""
            if not close and path.removesuffix(".gz").endswith(HEADERS):
                hint = "; a table without a header needs columns: [NAME, …]"
        if any(valid_text(other) != other for other in present):
            hint = "; its header is not UTF-8: write the table as UTF-8"
        names = ", ".join(map(repr, present)) or "none"
        raise MissingColumn(f"{path} has no column {name!r}{hint} (it has {names})")


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of an Arrow column. NOT_TEXT for each that Python cannot hold: text that is not
    UTF-8, a date outside the years 1 to 9999."""
    python: list[Any] = []
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


def _csv_rows(
    path: str, text: TextIO, columns: Sequence[str], header: Sequence[str]
) -> Iterator[Values | None]:
    """A quotation mark that never closes would swallow all rows behind it: then only the row in
    which it stands is damaged, and the lines behind it are read again."""
    lines = _Lines(text)
    rows = csv.reader(lines)
    try:
        header = header or next(rows, [])
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
    pandas writes it), and with the lists `images` and `annotations` it is COCO's form: each image
    is a row, whose `caption` is the list of its annotations' captions. ValueError where the file is
    no JSON, or a value of it cannot be decoded.
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
        if all(isinstance(head[0].get(name), list) for name in ("images", "annotations")):
            yield from _coco_rows(head[0])
            return
        columns = [list(v.values()) if isinstance(v, dict) else v for v in head[0].values()]
        if all(isinstance(column, list) for column in columns):
            if len({len(column) for column in columns}) != 1:
                raise ValueError(f"{path} is one object whose columns differ in length")
            for row in zip(*columns, strict=True):
                yield dict(zip(head[0], row, strict=True))
            return
    yield from chain(head, decoded)


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


def _json_values(path: str, content: str, is_array: bool) -> Iterator[Any]:
    """The members of an array, or values one after the other, one at a time."""
    decoder, position, end = json.JSONDecoder(), int(is_array), len(content) - is_array
    while (position := BETWEEN.match(content, position).end()) < end:  # type: ignore[union-attr]
        try:
            value, position = decoder.raw_decode(content, position)
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
BATCH_BYTES = 8 * 2**20
BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
# Bytes of one request to a store. Without it Arrow holds the whole column of a row group.
READ_AHEAD = 4 * 2**20


def row_addresses(path: str, column: str) -> Iterator[str]:
    """The addresses of all rows, in their order. ValueError where `column` holds no images."""
    footer = disk.read_with(path, pq.read_metadata)
    _image_leaf(path, column, footer.schema.to_arrow_schema())
    for group in range(footer.num_row_groups):
        for row in range(footer.row_group(group).num_rows):
            yield f"{path}#{group}/{row}"


def class_names(path: str, column: str | None) -> list[str]:
    """The names that `datasets` wrote for the numbers of a column of labels; [] for another one."""
    text = (disk.read_with(path, pq.read_metadata).metadata or {}).get(b"huggingface")
    try:
        names = json.loads(text)["info"]["features"][column]["names"] if text else []
    except (ValueError, KeyError, TypeError):
        return []
    return names if isinstance(names, list) else []


def row_of_address(address: str) -> tuple[str, int, int]:
    """(file, row group, row in it) of an address."""
    match = ROW_ADDRESS.fullmatch(address)
    assert match is not None, address
    return match[1], int(match[2]), int(match[3])


def check_image_column(path: str, column: str) -> None:
    """ValueError where `column` holds no images, or no row of a file has the bytes of one."""
    footer = disk.read_with(path, pq.read_metadata)
    leaf = _image_leaf(path, column, footer.schema.to_arrow_schema())
    index = [footer.schema.column(i).path for i in range(footer.num_columns)].index(leaf)
    chunks = [footer.row_group(group).column(index) for group in range(footer.num_row_groups)]
    nulls = [c.statistics.null_count if c.is_stats_set else None for c in chunks]
    if footer.num_rows and nulls == [chunk.num_values for chunk in chunks]:
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
) -> Iterator[tuple[int, dict[int, bytes | None] | None]]:
    """(row group, bytes by row) of some rows of some row groups, batch by batch. None in place of
    bytes: the row has none; in place of a batch: what is left of the row group is damaged.

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
        for group, own in wanted.items():
            if group >= table.num_row_groups:
                continue
            try:
                with disk.naming_table(path):
                    for images in _images(table, group, column, leaf, own):
                        yield group, images
            except disk.DamagedTable:
                yield group, None


def _images(
    table: pq.ParquetFile, group: int, column: str, leaf: str, rows: npt.NDArray[np.int64]
) -> Iterator[dict[int, bytes | None]]:
    footer, first = table.metadata.row_group(group), 0
    size = max(1, BATCH_BYTES * footer.num_rows // max(1, footer.total_byte_size))
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


YES, NO = ("true", "t", "yes", "1"), ("false", "f", "no", "0")
INT64 = 1 << 63


def as_text(value: Any) -> str | None:
    """Anything as text: nested values as JSON, bytes as UTF-8. None where it is not valid text:
    bytes that are not UTF-8, half of a surrogate pair.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return value if valid_text(value) == value else None
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


def as_json(value: Any) -> str | None:
    """JSON text. Text that is JSON already stays as it is, other text becomes a JSON string."""
    if value is None:
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
    """A number. NaN becomes None."""
    with suppress(TypeError, ValueError, OverflowError):
        number = float(value)
        return None if math.isnan(number) else number
    return None


def as_bool(value: Any) -> bool | None:
    """True or False: also 1, 0, yes, no, t, f, in any case."""
    if isinstance(value, float) and value in (0.0, 1.0):
        return bool(value)
    text = (as_text(value) or "").strip().lower()
    if text in YES:
        return True
    return False if text in NO else None


CASTS: dict[str, Callable[[Any], Any]] = {
    "string": as_text,
    "int": as_int,
    "float": as_float,
    "bool": as_bool,
    "json": as_json,
}


def cast_value(value: Any, type_name: str) -> Any:
    """A value as a type of EXTRA_TYPES; None where it is not of that type."""
    return CASTS[type_name](value)
