"""What crawl does with each kind of source: which parts it has, and how a part is read.

To add a kind: a module that reads it, one line of READERS, and one of manifests/schema/recipe.py.
"""

from __future__ import annotations

import fnmatch
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, takewhile
from typing import Any

import pyarrow as pa
import xxhash

from clipmill.manifests import disk
from clipmill.manifests.columns import PAIRS, with_extra
from clipmill.manifests.content import file_content, is_unchanged
from clipmill.manifests.schema import SOURCES, TABLE_KEYS, Source
from clipmill.pipeline.archives.warc import pairs_of_warc_record, rows_of_warc
from clipmill.pipeline.archives.wat import (
    RecordPair,
    Tape,
    batches_of_wat,
    chunks,
    pairs_of_wat_record,
)
from clipmill.pipeline.crawl import tables as image_folders
from clipmill.pipeline.crawl.tables import (
    PairTable,
    Row,
    check_image_table,
    file_table,
    image_table,
    url_table,
)
from clipmill.pipeline.table_files import BATCH_BYTES, ENDINGS, PARQUET, is_table, table_ending

ROWS = 10_000  # of a batch
PIECE = 50  # rows after which the bytes of a batch are counted
HEAD = 1 << 16  # bytes in which the first records of an archive begin
MOST_FOLDERS = 3  # that a message names
MOST_PIECES = 64  # of what they unpack to
WAT, WARC = "metadata", "response"  # types of their records
WARC_TYPE = re.compile(rb"(?im)^WARC-Type:[ \t]*(\w+)")
READ_VERSION = 8  # of what is read out of a part; a part of another version is read again
Batches = Iterator[pa.RecordBatch]
Content = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReader:
    """How the sources of one kind are read."""

    # Path or URL of part 0, 1, …; ValueError where there is none
    parts: Callable[[Source], list[str]]
    batches: Callable[[str, Source, Counter[str]], Batches]  # path, source, counts
    check: Callable[[str, Source], None] = lambda path, source: None  # ValueError before any work
    # What identifies a part's content, and whether it still has it.
    content: Callable[[str, Source], Content] = lambda path, source: file_content(path)
    is_unchanged: Callable[[str, Source, Content], bool] = lambda path, source, content: (
        is_unchanged(path, content)
    )
    keys: tuple[str, ...] = ()  # of the source that decide what is read, beside extra_columns
    # path, offset -> {link: pair} of one record of an archive; None where there are no records
    record: Callable[[str, int], dict[int, RecordPair]] | None = None


def reader_of(source: Source) -> SourceReader:
    """The reader of a source. ValueError where its kind is not crawled."""
    if source.kind not in READERS:
        raise ValueError(
            f"a source of kind {source.kind} has its images already: it is adopted, not crawled"
        )
    return READERS[source.kind]


def parts(source: Source) -> list[str]:
    """What becomes part 0, 1, …. ValueError where the source names nothing that can be read."""
    paths = reader_of(source).parts(source)
    for path in paths:
        if source.kind != "image_folder" and not disk.is_url(path):
            disk.check_source_file(disk.local_path(path))
    return paths


def source_id(source: Source, path: str) -> str:
    """What a part was read from: which file, how, and, of a local file, its size in bytes.

    Of a local path only the name counts: a folder may move, and the content is compared beside this
    (`file_content`). Pairs of files name their images by absolute paths: such a source stays.
    """
    moves = SOURCES[source.kind].images == "web" and not disk.is_url(path)
    name = disk.local_path(path).name if moves else path
    size = None
    if not disk.is_url(path) and disk.local_path(path).is_file():
        size = disk.local_path(path).stat().st_size
    keys = [getattr(source, name) for name in reader_of(source).keys]
    return disk.content_hash([READ_VERSION, source.kind, name, size, keys, source.extra_columns])


def source_files(source: Source) -> dict[str, list[str]]:
    """The files of a source by what the column `wat` of their pairs says. ValueError as `parts`."""
    files: dict[str, list[str]] = {}
    for path in parts(source):
        name = path if disk.is_url(path) else disk.local_path(path).name
        files.setdefault(name, []).append(path)
    return files


def reads_records(source: Source) -> bool:
    """True of a source whose pairs name a record of an archive by its offset."""
    return source.kind in READERS and READERS[source.kind].record is not None


def pairs_of_record(source: Source, path: str, offset: int) -> dict[int, RecordPair]:
    """{link: pair} of the record at `offset` of an archive. ValueError where none begins there."""
    record = reader_of(source).record
    assert record is not None, source.kind
    return record(path, offset)


# --- parts -----------------------------------------------------------------------------------


def _is_folder(path: str) -> bool:
    return path.endswith("/") if disk.is_url(path) else disk.local_path(path).is_dir()


def paths_at(path: str) -> list[str]:
    """What a path of a source stands for: the files that its last part is a pattern of, by name, or
    itself. ValueError where a pattern has none, or the package of a URL's protocol is missing."""
    folder, _, last = path.rpartition("/")
    is_pattern = "*" in last or ("?" in last and not path.startswith("http"))
    # A bracket is itself; where no name has it, it stands for one of some characters.
    literal = last.replace("[", "[[]")
    if disk.is_url(path):
        disk.filesystem(path)
    elif is_pattern and disk.exists(path):
        return [path]
    if not is_pattern:
        return [path]
    listed = disk.list_names(folder)
    matches = partial(_matching, listed)
    names = matches(literal) or matches(last) or matches(literal, any_case=True)
    if not names:
        raise ValueError(f"source.paths: there is no file {path}")
    return [disk.join(folder, name) for name in names]


def _matching(names: Sequence[str], pattern: str, *, any_case: bool = False) -> list[str]:
    if any_case:
        return [name for name in names if fnmatch.fnmatchcase(name.lower(), pattern.lower())]
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def _existing(source: Source) -> Iterator[str]:
    for path in chain.from_iterable(map(paths_at, source.paths)):
        if not disk.is_url(path) and not disk.exists(path):
            raise ValueError(f"source.paths names {path}, which does not exist")
        if _is_folder(path):
            disk.check_not_saved(path, disk.list_names(path))
        yield path


def _files(source: Source) -> list[str]:
    """The files of `paths`; a folder stands for the files in it."""
    paths: list[str] = []
    for path in _existing(source):
        inside = disk.list_names(path) if _is_folder(path) else None
        paths += [path] if inside is None else [disk.join(path, name) for name in inside]
    if not paths:
        raise ValueError(f"source.paths {list(source.paths)} has no files")
    return paths


def _tables(source: Source) -> list[str]:
    """The tables of `paths`; a folder stands for the tables in it, and its other files are left
    out."""
    paths: list[str] = []
    for path in _existing(source):
        if _is_folder(path):
            paths += _tables_in(path, source)
        elif is_table(path) and (source.kind != "image_table" or table_ending(path) == PARQUET):
            paths.append(path)
        elif source.kind == "image_table":
            raise ValueError(
                f"{path} is no {PARQUET} file, which a source of kind image_table reads; "
                "a folder of a store is written with / at its end"
            )
        else:
            raise ValueError(
                f"{path} is no table: its name must end in {', '.join(ENDINGS)}, or, but for "
                f".parquet, in one of them + .gz or .zst{_image_hint(path)}"
            )
    return paths


def _tables_in(folder: str, source: Source) -> list[str]:
    """The tables of a folder. A list of URLs (.txt) is one only where no captions are asked for, so
    that a README.txt beside tables does no harm."""
    names = disk.list_names(folder)
    tables = [name for name in names if is_table(name)]
    if source.kind == "image_table":
        tables = [name for name in tables if table_ending(name) == PARQUET]
    elif source.kind == "files" or source.caption_column is not None:
        tables = [name for name in tables if table_ending(name) != ".txt"]
    if not tables:
        images = [name for name in names if image_folders.is_image(name)]
        hint = _image_hint(images[0]) if images else _folders_hint(folder)
        raise ValueError(
            f"source.paths: the folder {folder} has no tables ({', '.join(ENDINGS)}){hint}"
        )
    return [disk.join(folder, name) for name in tables]


def _folders_hint(folder: str) -> str:
    """The folders in a folder, which may have the tables that it has not."""
    inside = [] if disk.is_url(folder) else sorted(next(disk.walk(str(disk.local_path(folder))))[1])
    if not inside:
        return ""
    shown = ", ".join(disk.join(folder, name) for name in inside[:MOST_FOLDERS])
    return f"; it has {len(inside)} folders: name them as paths, as in {shown}"


def _image_hint(name: str) -> str:
    if not image_folders.is_image(name):
        return ""
    return (
        f". {name.rpartition('/')[2]} is an image: for a folder of images write kind: image_folder"
        " with captions: metadata.csv, txt or class_folders"
    )


def _folders(source: Source) -> list[str]:
    """The folders of `paths`: each is a part."""
    for path in _existing(source):
        if not disk.is_url(path) and not disk.local_path(path).is_dir():
            raise ValueError(
                f"source.paths names {path}, "
                "which is no folder: a source of kind image_folder needs folders of images; "
                "for a table with the columns file and caption write kind: files"
            )
    return list(source.paths)


def _sample(source: Source, *, kind: str) -> list[str]:
    """A sample of a crawl's files without replacement, in the order of the index. Of two samples
    with one seed the larger holds the smaller."""
    index = disk.join(source.base, "crawl-data", str(source.crawl), f"{kind}.paths.gz")
    try:
        listed = gzip.decompress(disk.read_bytes(index)).decode().split()
    except FileNotFoundError:
        raise ValueError(
            f"there is no {index}: source.crawl is {source.crawl!r}; see index.commoncrawl.org"
        ) from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise ValueError(f"{index} cannot be read as a list of files: {error}") from error
    if source.sample is None or source.sample > len(listed):
        raise ValueError(
            f"source.sample is {source.sample}, "
            f"but {source.crawl} has {len(listed)} {kind.upper()}s"
        )

    def order(path: str) -> int:
        return xxhash.xxh3_64_intdigest(path.encode(), seed=source.seed)

    chosen = set(sorted(listed, key=order)[: source.sample])
    return [disk.join(source.base, path) for path in listed if path in chosen]


# --- batches ---------------------------------------------------------------------------------


def _batched(rows: Iterator[Row], source: Source) -> Batches:
    """Rows of PAIRS and the extra columns as record batches of at most ROWS rows, and of about
    BATCH_BYTES of text."""
    schema = with_extra(PAIRS, source.extra_columns)
    texts = [PAIRS.names.index("url"), PAIRS.names.index("caption")]
    texts += [n for n in range(len(PAIRS), len(schema)) if schema.types[n] == pa.string()]
    while True:
        batch: list[Row] = []
        size = 0
        while len(batch) < ROWS and size < BATCH_BYTES and (piece := list(islice(rows, PIECE))):
            batch += piece
            for text in texts:
                size += sum([len(row[text] or "") for row in piece])
        if not batch:
            return
        values = zip(*batch, strict=True)
        columns = [pa.array(v, kind) for v, kind in zip(values, schema.types, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _wat(path: str, source: Source, counts: Counter[str]) -> Batches:
    yield from batches_of_wat(path, counts)
    _require_records(path, WAT, counts)


def _warc(path: str, source: Source, counts: Counter[str]) -> Batches:
    yield from _batched(rows_of_warc(path, counts), source)
    _require_records(path, WARC, counts)


# What a file is that has nothing to read, by its first bytes, and what to do.
NO_ARCHIVE = (
    (rb"PK\x03\x04", "is a ZIP, as a WACZ is: unpack it and name the WARCs in its folder archive"),
    (
        rb"[\x50-\x5f]\x2a\x4d\x18",
        "is packed by zstd with a dictionary, which its first frame holds: unpack it (zstd -D)",
    ),
    (
        rb"(?s)\S*crawl-data/\S+\.gz\s",
        "is a list of files: write kind: wat_index (or warc_index) with crawl and sample, or name "
        "files of the list",
    ),
    (rb"filedesc://", "is an ARC: make a WARC of it (warcio recompress)"),
    (
        rb"(?is).*^WARC-Type:[ \t]*conversion\b",
        "has texts without images, as a WET has: name the WAT or the WARC of the same pages",
    ),
)


def _require_records(path: str, kind: str, counts: Counter[str]) -> None:
    """ValueError where nothing was read of a file because it holds no records of this type: an
    archive of another kind, an empty file, a web page with an error in its place.
    """
    if counts["links"] or counts["damaged_records"]:
        return
    first = disk.read_bytes(path, 0, HEAD)
    with disk.open_stream(path) as stream:
        pieces = takewhile(lambda piece: piece[0] < HEAD, chunks(Tape(stream)))
        head = b"".join(p for _, p in islice(pieces, MOST_PIECES) if isinstance(p, bytes))
    kinds = {each.lower().decode() for each in WARC_TYPE.findall(head)} - {"warcinfo"}
    for magic, what in NO_ARCHIVE:
        if re.match(magic, first, re.M) or re.match(magic, head, re.M):
            raise ValueError(f"{path} {what}")
    if (kind == WAT and WARC in kinds) or (kind == WARC and kinds == {WAT}):
        raise ValueError(
            f"{path} has no record of the type {kind}, but {', '.join(sorted(kinds))}: pages are "
            "read of a WARC (kind: warc), what Common Crawl says about them of a WAT (kind: wat)"
        )
    if b"WARC/" not in head:
        raise ValueError(
            f"{path} is no WAT or WARC: no record begins in its first {HEAD:,} bytes; get the file "
            "again, or leave it out of source.paths"
        )


def _is_folder_unchanged(folder: str, source: Source, content: Content) -> bool:
    try:
        return not content or image_folders.folder_content(folder, source) == content
    except FileNotFoundError:  # the captions table is gone
        return False


# --------------------------------------------------------------------------------------------------
# The table of sources.


def _table_reader(table_of: Callable[[Source, str], PairTable], *keys: str) -> SourceReader:
    """The reader of a kind of tables; `table_of` says which of their columns become pairs."""
    return SourceReader(
        parts=_tables,
        batches=lambda path, source, counts: _batched(
            table_of(source, path).rows(path, counts), source
        ),
        check=lambda path, source: table_of(source, path).check(path),
        keys=keys,
    )


# The files of a published crawl never change: nobody asks for them.
PUBLISHED: dict[str, Any] = {"content": lambda path, source: {}}
READERS: dict[str, SourceReader] = {
    "wat": SourceReader(parts=_files, batches=_wat, record=pairs_of_wat_record),
    "wat_index": SourceReader(
        parts=partial(_sample, kind="wat"), batches=_wat, record=pairs_of_wat_record, **PUBLISHED
    ),
    "warc": SourceReader(parts=_files, batches=_warc, record=pairs_of_warc_record),
    "warc_index": SourceReader(
        parts=partial(_sample, kind="warc"), batches=_warc, record=pairs_of_warc_record, **PUBLISHED
    ),
    "table": _table_reader(
        lambda source, path: url_table(source), "url_column", "caption_column", *TABLE_KEYS
    ),
    "files": _table_reader(file_table, "file_column", "caption_column", *TABLE_KEYS),
    "image_table": replace(
        _table_reader(image_table, "caption_column", "caption_list", "max_caption_bytes"),
        check=check_image_table,
    ),
    "image_folder": SourceReader(
        parts=_folders,
        batches=lambda path, source, counts: _batched(
            image_folders.rows_of_folder(path, source, counts), source
        ),
        check=image_folders.check_folder,
        content=image_folders.folder_content,
        is_unchanged=_is_folder_unchanged,
        keys=(
            "captions",
            "file_column",
            "caption_column",
            *TABLE_KEYS,
            "links_outside",
        ),
    ),
}
