"""Tables, caption lists and image folders as pairs."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import re
import zlib
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import IO, Any, AnyStr, TextIO

import fsspec
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from manifests import disk
from manifests.columns import PAIRS, extra_column, refuse_doubled
from manifests.schema import CAPTION_FILES, CLASS_FOLDERS, Source
from manifests.text import valid_text
from pipeline.archives.urls import SPACE, reject, resolve

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
# Memory is bounded by a batch of rows, whatever the size of the file and of its lines; only a
# JSON file that is one object is held whole.


# All but .parquet also with .gz behind.
ENDINGS = (".parquet", ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt")
ROWS = 10_000  # of a batch
PROBE = 1000  # rows within which a column must have come
CHUNK = 1 << 20  # characters of a JSON file that are read at a time
LARGEST_VALUE = 1 << 28  # characters of one value of a JSON file
NOT_TEXT = "\ud800"  # stands for a value that is not valid UTF-8: no column can hold it
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # the first bytes of a text, also of one in UTF-32
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
        with (
            disk.naming_table(path),
            fsspec.open(path, "rb") as file,
            pq.ParquetFile(file) as table,
        ):
            require_columns(path, columns, table.schema_arrow.names)
            for batch in table.iter_batches(batch_size=ROWS, columns=list(dict.fromkeys(columns))):
                lists = [python_values(batch.column(name)) for name in columns]
                yield from zip(*lists, strict=True)
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
                elif url := line.strip(SPACE):
                    yield (url,)
        elif kind == ".json":
            yield from _pick_columns(path, _json_rows(path, text), columns)
        elif kind == ".tsv":
            yield from _tsv_rows(path, text, columns)
        else:
            yield from _csv_rows(path, text, columns)


class MissingColumn(ValueError):
    """A table lacks a column `name`. `close`: the column that may have been meant, or None."""

    def __init__(self, message: str, name: str, close: str | None) -> None:
        super().__init__(message)
        self.name = name
        self.close = close


def require_columns(path: str, columns: Sequence[str], present: Sequence[str]) -> None:
    """MissingColumn for the first of `columns` that is not `present`. ValueError for one that is
    there twice."""
    refuse_doubled(path, columns, present)
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
        if any(valid_text(other) != other for other in present):
            hint = "; its header is not UTF-8: write the table as UTF-8"
        names = ", ".join(map(repr, present)) or "none"
        message = f"{path} has no column {name!r}{hint} (it has {names})"
        raise MissingColumn(message, name, close)


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


def _json_values(path: str, text: TextIO) -> Iterator[Any]:
    """The values of a JSON file, one at a time; members of an array are wrapped in a list of one.

    A value that cannot be decoded (nested too deep, a number of 5,000 digits) is [None].
    """
    decoder, buffer, position, read = json.JSONDecoder(), "", 0, 0
    inside, ended, problem = False, False, ""
    while True:
        while position < len(buffer) and buffer[position] in " \t\r\n,":
            position += 1
        if position == len(buffer) and ended:
            break
        if position < len(buffer):
            if buffer[position] == ("]" if inside else "["):
                inside, position = not inside, position + 1
                continue
            try:
                value, end = decoder.raw_decode(buffer, position)
                value = [value] if inside else value
            except (ValueError, RecursionError) as error:
                value, end, problem = [None], _end_of_value(buffer, position), str(error)
            if end and (ended or end < len(buffer)):  # else it may go on behind the text
                position = end
                yield value
                continue
            if ended:
                at = read - len(buffer) + position
                raise ValueError(f"{path} is no JSON from its character {at:,} on: {problem}")
        more = text.read(max(CHUNK, len(buffer) - position))
        buffer, position = buffer[position:] + more, 0
        read, ended = read + len(more), not more
        if len(buffer) > LARGEST_VALUE:
            raise ValueError(
                f"{path} has a value of more than {LARGEST_VALUE:,} characters: "
                "write it as jsonl, one row a line"
            )
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


# --------------------------------------------------------------------------------------------------
# Rows of tables as pairs: URL lists, and lists of local image files, with a recipe's extra
# columns.


Row = tuple[Any, ...]  # one row of PAIRS and the values of the extra columns
FILE_COLUMNS = ("file", "caption")  # of a captions list
PAGE_COLUMNS = (None,) * (PAIRS.names.index("wat") - 3)  # a table says nothing about the page


class PairTable:
    """Which columns of a table become pairs.

    `url_of` turns the text of the address column into a URL or an absolute path; ValueError whose
    text is the reason why it cannot. `caption_column` None: the captions are empty.
    """

    def __init__(
        self,
        address_column: str,
        caption_column: str | None,
        extra_columns: dict[str, str],
        url_of: Callable[[str], str],
    ) -> None:
        self.has_captions = caption_column is not None
        self.url_of = url_of
        self.fixed_columns: tuple[str, ...] = ()  # named by the kind, not by the recipe
        self.on_address: Callable[[str], object] = str  # is told every address that can be read
        extra = [extra_column(name, kind) for name, kind in extra_columns.items()]
        self.casts = [CASTS[kind] for _, kind in extra]
        pair = [address_column] if caption_column is None else [address_column, caption_column]
        self.columns = [*pair, *(column for column, _ in extra)]

    def rows(self, path: str, counts: Counter[str]) -> Iterator[Row]:
        """The pairs of a table. A value that cannot be cast to its type is None.

        `counts` gets `links`, `pairs` and every reason for which a row is no pair. ValueError where
        the table lacks a column, or cannot be read further.
        """
        name = path if disk.is_url(path) else disk.local_path(path).name
        for number, row in enumerate(self._values(path)):
            counts["links"] += 1
            try:
                url, caption = self._pair(row)
            except ValueError as reason:
                address = "" if row is None else f": {row[0]!r}"
                reject(counts, str(reason), f"{name} row {number + 1}{address}")
                continue
            counts["pairs"] += 1
            uid = disk.uid_of(url, caption)
            yield (uid, url, caption, *PAGE_COLUMNS, name, None, number, *self._extra(row))

    def _pair(self, row: Sequence[Any] | None) -> tuple[str, str]:
        """URL and caption of a row. ValueError whose text is the reason why it has none."""
        if row is None:
            raise ValueError("damaged")
        link, caption = _readable_text(row[0]) or "", ""
        if link.strip(SPACE):
            self.on_address(link)
        if self.has_captions:
            text = _readable_text(row[1])
            if text is None:
                raise ValueError("no_alt")
            if not text.strip():
                raise ValueError("empty_alt")
            caption = text
        return self.url_of(link), caption

    def _extra(self, row: Sequence[Any] | None) -> list[Any]:
        assert row is not None
        own = row[len(row) - len(self.casts) :]
        return [cast(value) for cast, value in zip(self.casts, own, strict=True)]

    def check(self, path: str) -> None:
        """ValueError where a table is no regular file, or lacks a column, as far as its first PROBE
        rows show."""
        if not disk.is_url(path):
            disk.check_regular(disk.local_path(path))
        with closing(self._values(path)) as rows, suppress(OSError, EOFError):
            deque(islice(rows, PROBE + 1), maxlen=0)  # the stage names a file that cannot be read

    def _values(self, path: str) -> Generator[Sequence[Any] | None]:
        """The columns of a table, row by row."""
        try:
            yield from values(path, self.columns)
        except MissingColumn as missing:
            if missing.name not in self.fixed_columns:
                raise
            own = repr(missing.close) if missing.close else "the column that holds it"
            raise ValueError(
                f"{path} has no column {missing.name!r}: a source of kind files reads the columns "
                f"{' and '.join(self.fixed_columns)}; rename {own} to {missing.name!r} in the table"
            ) from None


def _readable_text(value: Any) -> str | None:
    """A value as text; None for NULL. ValueError("damaged") where it is not valid text."""
    text = as_text(value)
    if text is None and value is not None:
        raise ValueError("damaged")
    return text


def url_table(source: Source) -> PairTable:
    """Kind table: the columns that the recipe names."""
    columns = source.url_column, source.caption_column, source.extra_columns
    return PairTable(*columns, lambda link: resolve("", link))


def file_table(source: Source, path: str) -> PairTable:
    """Kind files: the columns `file`, relative to the table's folder, and `caption`."""
    if disk.is_url(path):
        folder = path.rpartition("/")[0]
    else:
        folder = str(disk.local_path(path).absolute().parent)
    table = PairTable(*FILE_COLUMNS, source.extra_columns, lambda name: file_in(folder, name))
    table.fixed_columns = FILE_COLUMNS
    return table


def file_in(folder: str, name: str) -> str:
    """The absolute path of a file that is named relative to `folder`. ValueError("bad_url") where
    the name is blank."""
    if not name.strip(SPACE):
        raise ValueError("bad_url")
    if disk.is_url(folder):
        return disk.join(folder, name)
    return os.path.abspath(os.path.join(folder, name))


# --------------------------------------------------------------------------------------------------
# Folders of images as pairs: captions from a table, text files or folder names.


IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".avif", ".bmp", ".tif", ".tiff")
)
CAPTION_SUFFIX = ".txt"


class ImageFolder:
    """A folder of images. Nothing outside of it is opened: a table that came with the images, or a
    link among them, may name any file of this machine. `links_outside` permits the links.
    """

    def __init__(self, folder: str, source: Source) -> None:
        is_url = disk.is_url(folder)  # as the URLs of its images begin
        self.path = folder.rstrip("/") if is_url else os.path.abspath(disk.local_path(folder))
        self.links_outside = source.links_outside
        self._real = "" if disk.is_url(folder) else os.path.realpath(self.path)

    def file(self, name: str) -> str:
        """The path of a file that is named relative to the folder. ValueError("bad_url") for a name
        that no file has, ValueError("outside_folder") where it leads out of the folder."""
        path = file_in(self.path, name)
        if "\0" in name:
            raise ValueError("bad_url")
        if disk.is_url(path):
            leads_out = name.startswith("/") or "://" in name or ".." in name.split("/")
        else:
            leads_out = not _lies_in(self.path, path) or self.is_link_outside(path)
        if leads_out:
            raise ValueError("outside_folder")
        return path

    def is_link_outside(self, path: str) -> bool:
        """Whether a local path of the folder leads out of it by a symbolic link that may not."""
        return not self.links_outside and not _lies_in(self._real, os.path.realpath(path))

    def names(self) -> list[str]:
        """Every file in the folder and the folders in it, relative to it, sorted; hidden ones are
        left out. Links to folders are followed, each folder once; of those that lead outside the
        link itself is listed."""
        if disk.is_url(self.path):
            fs, root = fsspec.core.url_to_fs(self.path)
            paths = [path.removeprefix(root).lstrip("/") for path in fs.find(root)]
        else:
            paths = self._local_names()
        return sorted(path for path in paths if not any(p.startswith(".") for p in path.split("/")))

    def _local_names(self) -> list[str]:
        paths, visited = [], set[str]()
        for parent, folders, names in os.walk(self.path, followlinks=True):
            real = os.path.realpath(parent)
            if real in visited:
                folders.clear()
                continue
            visited.add(real)
            folders.sort()
            outside = [name for name in folders if self.is_link_outside(os.path.join(parent, name))]
            folders[:] = [name for name in folders if name not in outside]
            inside = os.path.relpath(parent, self.path)
            names += outside
            paths += names if inside == "." else [f"{inside}/{name}" for name in names]
        return paths

    def images(self) -> list[str]:
        """The names that end as an image's do, and links to folders outside."""
        return [name for name in self.names() if is_image(name) or self._is_folder(name)]

    def _is_folder(self, name: str) -> bool:
        return bool(self._real) and os.path.isdir(os.path.join(self.path, name))

    def caption_beside(self, name: str) -> bytes | None:
        """The content of the text file beside an image; None where there is none, ValueError with
        the reason where it may not or cannot be read."""
        try:
            return disk.read_bytes(self.file(str(PurePosixPath(name).with_suffix(CAPTION_SUFFIX))))
        except FileNotFoundError:
            return None
        except disk.NotRegular:
            raise ValueError("damaged") from None


def _lies_in(folder: str, path: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def rows_of_folder(folder: str, source: Source, counts: Counter[str]) -> Iterator[Row]:
    """The images of a folder and of the folders in it as rows of PAIRS.

    `counts` gets `links` (images, and rows of the captions table), `pairs` and every reason for
    which one is no pair: no_caption for an image without one, bad_url for a name that is not UTF-8,
    outside_folder for one that leads out of the folder. A row of the table whose image is not there
    is a pair: fetch gives it the reason missing_file.
    """
    images = ImageFolder(folder, source)
    if source.captions in (CAPTION_FILES, CLASS_FOLDERS):
        yield from _captioned_by_files(images, str(source.captions), counts)
    else:
        yield from _captioned_by_table(images, source, counts)


def is_image(name: str) -> bool:
    """True where a name ends as an image's does, in capitals or not."""
    return PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES


def _captioned_by_files(images: ImageFolder, captions: str, counts: Counter[str]) -> Iterator[Row]:
    for number, name in enumerate(images.images()):
        counts["links"] += 1
        try:
            if valid_text(name) != name:
                raise ValueError("bad_url")
            url = images.file(name)
            if captions == CLASS_FOLDERS:
                caption = PurePosixPath(name).parent.name
            else:
                content = images.caption_beside(name) or b""
                caption = content.decode("utf-8-sig").strip()
            if not caption.strip():
                raise ValueError("no_caption")
        except ValueError as error:
            reason = "damaged" if isinstance(error, UnicodeDecodeError) else str(error)
            reject(counts, reason, repr(name))
            continue
        counts["pairs"] += 1
        uid = disk.uid_of(url, caption)
        folder = PurePosixPath(images.path).name
        yield (uid, url, caption, *PAGE_COLUMNS, folder, None, number)


def _captioned_by_table(images: ImageFolder, source: Source, counts: Counter[str]) -> Iterator[Row]:
    table, named = folder_table(images, source), set[str]()
    table.on_address = lambda name: named.add(file_in(images.path, name))
    yield from table.rows(disk.join(images.path, str(source.captions)), counts)
    for name in images.images():
        if file_in(images.path, name) not in named:
            counts["links"] += 1
            reject(counts, "no_caption", f"{name!r} is not in {source.captions}")


def folder_table(images: ImageFolder, source: Source) -> PairTable:
    """How the captions table of a folder is read."""
    return PairTable(source.file_column, source.caption_column, source.extra_columns, images.file)


def check_folder(folder: str, source: Source) -> None:
    """ValueError where the captions table is not there or lacks a column."""
    if source.captions in (CAPTION_FILES, CLASS_FOLDERS):
        return
    images = ImageFolder(folder, source)
    path = disk.join(images.path, str(source.captions))
    if not disk.exists(path):
        raise ValueError(
            f"there is no {path}; captions names a table inside each folder of paths, or is "
            f"{CAPTION_FILES} (a text file beside each image) or {CLASS_FOLDERS} (the name of the "
            "folder that holds the image)"
        )
    try:
        images.file(str(source.captions))
    except ValueError:
        raise ValueError(
            f"captions is {source.captions!r}, which leads out of {images.path}; name a table "
            "inside the folder, or set links_outside: true for a symbolic link that you trust"
        ) from None
    folder_table(images, source).check(path)


def folder_content(folder: str, source: Source) -> dict[str, Any]:
    """What identifies what is read of a folder: the names of its images, and its captions."""
    images, digest = ImageFolder(folder, source), xxhash.xxh3_128()
    names = images.images()
    for name in names:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    if source.captions == CAPTION_FILES:
        for name in names:
            with suppress(ValueError):
                content = images.caption_beside(name)
                digest.update(b"" if content is None else content + b"\0")
    elif source.captions != CLASS_FOLDERS:
        digest.update(disk.read_bytes(images.file(str(source.captions))) + b"\0")
    return {"files": len(names), "digest": digest.hexdigest()}


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
