"""Files whose rows are those of shards: score columns and the masks of views.

A flat shard has a file of its own. From shard FLAT_SHARDS on, a thousand shards share a bundle: one
row group a shard, in shard order, and in the footer what a file of its own has there, by shard.

Files that are aligned with the rows of shards (score columns, masks of views), and what is said
of every shard beside them.

Reads and writes `scores/NAME@ID/` and `views/NAME/`.

Invariants:

* A bundle gives the rows that were written, or an error: no bad byte gives other rows
  (`test_bundles.py`).
* Both forms of a document say the same of every shard (`test_shard_tables.py`).

To extend: another kind of row-aligned file is a constructor of `AlignedFiles` and two paths in
`pool_layout.py`.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from manifests import disk
from manifests.layout import FLAT_SHARDS, PoolLayout, shard_folder, shard_name
from manifests.records import ScoreSetDocument, ShardTable, ViewDocument, read_document

OPEN_BUNDLES = 16  # footers that stay in memory, about 2 MB each
# Bytes of a shard that are compared with their checksum whichever columns are read. Of more bytes
# only those of the columns are read, and only Parquet's own checksums of pages are compared.
CHECKED_BYTES = 4 * 2**20


# (shard, its rows, what was written about them) -> the same after a change
Change = Callable[[int, pa.Table, dict[str, Any]], tuple[pa.Table, dict[str, Any]]]


class _CheckedFile(disk.CountedFile):
    """A new file; `checksum` is of the bytes since the last `restart`."""

    checksum = 0

    def write(self, data: Any) -> int:
        self.checksum = zlib.crc32(data, self.checksum)
        return super().write(data)

    def restart(self) -> int:
        """The position at which the checksum begins anew."""
        self.checksum = 0
        return self.position


class _OneRange(io.RawIOBase):
    """Some bytes of a file at the position that they have in it."""

    def __init__(self, start: int, data: bytes, size: int) -> None:
        self._start, self._data, self._size, self._position = start, data, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        first = self._position - self._start
        last = len(self._data) if size < 0 else first + size
        if first < 0:
            raise ValueError("bytes outside of its row group")
        part = self._data[first:last]
        self._position += len(part)
        return part


class BundleWriter:
    """Writes one bundle into a local file, which the caller publishes: `with BundleWriter(…)`.

    Where the block ends with an exception, the file is not closed and cannot be read.
    """

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = _CheckedFile(file)
        options = storage_options(schema)
        self._writer = pq.ParquetWriter(self._file, schema, write_page_checksum=True, **options)
        self._schema = schema
        self._ranges: dict[str, tuple[int, int, int]] = {}
        self._shards: dict[str, dict[str, Any]] = {}

    def add(self, shard: int | str, table: pa.Table, metadata: Mapping[str, Any]) -> None:
        """Append the rows of the next shard; `metadata` is what its own file would have."""
        name = shard_name(shard)
        assert not self._shards or int(name) > int(next(reversed(self._shards))), "out of order"
        start = self._file.restart()
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        length = self._file.position - start
        self._ranges[name] = start, length, self._file.checksum
        self._shards[name] = {**metadata, "rows": table.num_rows}

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            text = _footer_text(self._shards, self._ranges, self._schema)
            self._writer.add_key_value_metadata({"clipmill": text})
        self._writer.close()
        self._file.close()


def _footer_text(
    shards: Mapping[str, Mapping[str, Any]],
    ranges: Mapping[str, tuple[int, int, int]],
    schema: pa.Schema,
) -> str:
    """What the footer of a bundle says of its shards."""
    content = {"shards": shards, "ranges": ranges, "schema": str(schema.remove_metadata())}
    plain = {**content, "checksum": disk.content_hash(content)}
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


class Bundle:
    """An open bundle: its footer. ValueError for a damaged one, FileNotFoundError without one."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._footer = disk.read_with(path, pq.read_metadata)
            plain = json.loads((self._footer.metadata or {}).get(b"clipmill", b"{}"))
            self.shards: dict[str, dict[str, Any]] = plain["shards"]
            self._ranges: dict[str, tuple[int, int, int]] = plain["ranges"]
            self.schema = self._footer.schema.to_arrow_schema().remove_metadata()
            checksum = plain.pop("checksum")
            is_whole = checksum == disk.plain_hash(plain) and plain["schema"] == str(self.schema)
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise self.damaged(str(error)) from None
        if not is_whole or self._footer.num_row_groups != len(self.shards):
            raise self.damaged("its footer does not fit its content")
        self._groups = {name: group for group, name in enumerate(self.shards)}

    def damaged(self, problem: str) -> ValueError:
        """The error for a bundle that cannot be used."""
        text = " ".join(problem.split())[:160]
        return ValueError(
            f"{self.path} is damaged: {text}; remove it, then run clipmill score or "
            "clipmill filter again, whichever made it"
        )

    def __contains__(self, shard: object) -> bool:
        return shard in self.shards

    @property
    def columns(self) -> list[str]:
        """Names of its columns."""
        return list(self.schema.names)

    def metadata(self, shard: int | str) -> dict[str, Any]:
        """What the footer says of a shard. ValueError where the bundle does not have it."""
        name = shard_name(shard)
        if name not in self.shards:
            raise ValueError(f"{self.path} does not have shard {name}")
        return self.shards[name]

    def stored_bytes(self, shard: int | str) -> bytes:
        """The row group of one shard. ValueError where it does not have its checksum."""
        start, length, checksum = self._ranges[shard_name(shard)]
        data = disk.read_bytes(self.path, start, length)
        if zlib.crc32(data) != checksum or len(data) != length:
            raise self.damaged(f"the rows of shard {shard_name(shard)} have changed")
        return data

    def read(self, shard: int | str, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows of one shard. ValueError for damaged bytes and for a column that is not there."""
        metadata = self.metadata(shard)
        names = None if columns is None else list(columns)
        for name in names or []:
            _require_column(name, self.columns, self.path)

        def read(source: Any) -> pa.Table:
            file = pq.ParquetFile(source, metadata=self._footer, page_checksum_verification=True)
            group = self._groups[shard_name(shard)]
            return file.read_row_group(group, columns=names, use_threads=False)

        if not metadata["rows"]:  # Arrow writes no usable offsets for no rows
            empty = self.schema.empty_table()
            return empty if names is None else empty.select(names)
        start, length, _ = self._ranges[shard_name(shard)]
        try:
            if length <= CHECKED_BYTES or names is None:
                table = read(_OneRange(start, self.stored_bytes(shard), start + length))
            else:
                table = disk.read_with(self.path, read)
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError) or "is damaged" in str(error):
                raise
            raise self.damaged(str(error)) from None
        if table.num_rows != metadata["rows"]:
            raise self.damaged(f"shard {shard_name(shard)} has {table.num_rows} rows")
        return table.replace_schema_metadata(None)


def write_changed(bundle: Bundle, file: Path, shards: Collection[int], change: Change) -> None:
    """Write a bundle in which some shards have other rows into a local file, which the caller
    publishes.

    Only those are decoded. The bytes of all others are copied; ValueError where they do not have
    their checksum.
    """
    ranges: dict[str, tuple[int, int, int]] = {}
    metadata: dict[str, dict[str, Any]] = {}
    footer = disk.Footer.read(bundle.path)
    with _CheckedFile(file) as target:
        writer = disk.RowGroupWriter(
            target, bundle.schema, compression="zstd", write_page_checksum=True
        )
        fits = writer.fits(footer)
        for group, name in enumerate(bundle.shards):
            target.restart()
            metadata[name] = bundle.metadata(name)
            if int(name) in shards:
                table, changed = change(int(name), bundle.read(name), dict(metadata[name]))
                metadata[name] = {**changed, "rows": table.num_rows}
                start, length = writer.write(table)
            elif fits and metadata[name]["rows"]:
                start, length = writer.copy(footer, group, bundle.stored_bytes(name))
            else:
                start, length = writer.write(bundle.read(name))
            ranges[name] = start, length, target.checksum
        writer.finish({"clipmill": _footer_text(metadata, ranges, bundle.schema)})


def _require_column(name: str, known: Sequence[str], path: str) -> None:
    if name not in known:
        suggestion = disk.did_you_mean(name, known)
        raise ValueError(f"{path} has no column {name!r}{suggestion} (of {', '.join(known)})")


class AlignedFiles:
    """The row-aligned files of one score set or one view, for readers in several threads."""

    def __init__(
        self, single: Callable[[str], str], bundle: Callable[[str], str], view: str | None = None
    ) -> None:
        self._single, self._bundle, self._view = single, bundle, view
        self._open: OrderedDict[str, Bundle] = OrderedDict()
        self._opening: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    @classmethod
    def of_scores(cls, pool: str, name: str) -> AlignedFiles:
        """The columns of a score set NAME@ID."""
        layout = PoolLayout(pool)
        return cls(
            lambda shard: layout.score_columns(name, shard),
            lambda shard: layout.score_bundle(name, shard),
        )

    @classmethod
    def of_view(cls, pool: str, view: str) -> AlignedFiles:
        """The masks of a view."""
        layout = PoolLayout(pool)
        return cls(
            lambda shard: layout.view_mask(view, shard),
            lambda shard: layout.view_bundle(view, shard),
            view,
        )

    def path(self, shard: int | str) -> str:
        """The file that a complete set has the rows of a shard in."""
        name = shard_name(shard)
        return self._bundle(name) if shard_folder(name) else self._single(name)

    def bundle(self, shard: int | str) -> Bundle:
        """The bundle of a shard, opened once."""
        path = self._bundle(shard_name(shard))
        with self._lock:
            if path in self._open:
                self._open.move_to_end(path)
                return self._open[path]
            opening = self._opening.setdefault(path, threading.Lock())
        with opening:  # threads that want one bundle at once: the first one opens it
            with self._lock:
                if path in self._open:
                    return self._open[path]
            bundle = Bundle(path)
            with self._lock:
                self._open[path] = bundle
                self._opening.pop(path, None)
                while len(self._open) > OPEN_BUNDLES:
                    self._open.popitem(last=False)
        return bundle

    def has(self, shard: int | str) -> bool:
        """True where the rows of a shard are there."""
        if not shard_folder(shard):
            return disk.exists(self.path(shard))
        return disk.exists(self.path(shard)) and shard_name(shard) in self.bundle(shard)

    def metadata(self, shard: int | str) -> dict[str, Any]:
        """What was written about the rows of a shard. FileNotFoundError without a file."""
        if shard_folder(shard):
            return self.bundle(shard).metadata(shard)
        return disk.read_metadata(self._single(shard_name(shard)))

    def read(
        self, shard: int | str, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, dict[str, Any]]:
        """(columns of a shard, what was written about them). FileNotFoundError without a file.

        ValueError for damaged files, and for a mask of another shard or view.
        """
        if shard_folder(shard):
            bundle = self.bundle(shard)
            metadata = bundle.metadata(shard)
            self._check_owner(shard, metadata)
            return bundle.read(shard, columns), metadata
        names = None if columns is None else list(columns)

        def read(source: Any) -> tuple[pa.Table, dict[str, Any]]:
            file = pq.ParquetFile(source, page_checksum_verification=True)
            return file.read(names, use_threads=False), disk.metadata_of(file.metadata)

        table, metadata = disk.read_with(self._single(shard_name(shard)), read)
        for name in names or []:
            _require_column(name, table.column_names, self.path(shard))
        self._check_owner(shard, metadata)
        return table.replace_schema_metadata(None), metadata

    def _check_owner(self, shard: int | str, metadata: Mapping[str, Any]) -> None:
        if self._view is not None and (problem := mask_owner(metadata, shard, self._view)):
            raise ValueError(f"{self.path(shard)} is damaged: {problem}")


def mask_owner(metadata: Mapping[str, Any], shard: int | str, view: str) -> str:
    """What is wrong where a mask says that it is of another shard or view; "" where it is not."""
    owner = (metadata.get("shard"), metadata.get("view"))
    if owner == (shard_name(shard), view):
        return ""
    return f"it has the mask of shard {owner[0]} in view {owner[1]}"


def parquet_bytes(table: pa.Table, metadata: Mapping[str, Any]) -> bytes:
    """The file of a flat shard, as `disk.write_parquet` writes it."""
    table = table.replace_schema_metadata(disk.with_metadata(table.schema, metadata).metadata)
    sink = io.BytesIO()
    options = storage_options(table.schema)
    pq.write_table(table, sink, row_group_size=10_000, write_page_checksum=True, **options)
    return sink.getvalue()


def storage_options(schema: pa.Schema) -> dict[str, Any]:
    """How Parquet stores columns. Embeddings (fixed-size lists) are stored as they are: zstd makes
    them 6 % smaller, takes three times as long to write and six times as long to read. They have
    no statistics: those of single values help nobody and take 40 % of the time to write.
    """
    compression, with_dictionary = {}, []
    for column in schema:
        is_list = pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type)
        path = f"{column.name}.list.element" if is_list else column.name
        if pa.types.is_fixed_size_list(column.type):
            compression[path] = "none"
        else:
            compression[path] = "zstd"
            with_dictionary.append(path)
    if len(with_dictionary) == len(schema):
        return {"compression": "zstd"}
    others = with_dictionary or False
    return {"compression": compression, "use_dictionary": others, "write_statistics": others}


# --------------------------------------------------------------------------------------------------
# The views of a pool, and the document of one that was made of the shards that are there now.


def view_names(pool: str) -> list[str]:
    """The complete views of a pool. A folder whose name ends in .json is none."""
    folder = PoolLayout(pool).views
    names = []
    for file in disk.list_names(folder, ".json"):
        if disk.is_url(folder) or not disk.local_path(disk.join(folder, file)).is_dir():
            names.append(file.removesuffix(".json"))
    return names


def current_view(pool: str, view: str, fingerprint: str, remedy: str) -> ViewDocument:
    """The document of a view.

    ValueError where there is none; and where the pool's fingerprint is another one than the view's,
    with `remedy`: what to do then.
    """
    names = view_names(pool)
    if view not in names:
        suggestion = disk.did_you_mean(view, names)
        raise ValueError(
            f"{pool} has no view {view!r}{suggestion}; it has {', '.join(names) or 'none'}"
        )
    document = read_document(PoolLayout(pool).view_json(view), ViewDocument)
    if document.fingerprint != fingerprint:
        raise ValueError(
            f"view {view!r} of {pool} is stale: the pool's shards have changed; {remedy}"
        )
    return document


# --------------------------------------------------------------------------------------------------
# What a view and a score set say of every shard: in their JSON document for a pool of at most
# FLAT_SHARDS shards, in a Parquet file beside it for a larger one.


Ints = NDArray[np.int64]


def has_table(shards: int) -> bool:
    """Whether a pool of so many shards has the file instead of keys in the document."""
    return shards > FLAT_SHARDS


def write_view_shards(pool: str, view: str, shards: Ints, rows: Ints, kept: Ints) -> ShardTable:
    """Write views/NAME/shards.parquet: rows and kept rows by shard."""
    table = pa.table({"shard": shards, "rows": rows, "kept": kept})
    return _write(PoolLayout(pool).view_shards(view), table)


def write_score_shards(
    pool: str, name: str, shards: Ints, uids: Sequence[str], rows: Ints, scored: Ints
) -> ShardTable:
    """Write scores/NAME@ID/shards.parquet: checksum of the uids, rows and scored rows by shard."""
    hashes = pa.array([bytes.fromhex(each) for each in uids], pa.binary(32))
    table = pa.table({"shard": shards, "uids": hashes, "rows": rows, "scored": scored})
    return _write(PoolLayout(pool).score_shards(name), table)


def view_shards(pool: str, document: ViewDocument) -> tuple[Ints, Ints]:
    """((shards,) their numbers, ascending, (shards,) rows that the view keeps).

    ValueError for a damaged file.
    """
    if document.shards is not None:
        return _by_number(document.shards)
    path = PoolLayout(pool).view_shards(document.name)
    table = _read(path, document.table, ["shard", "kept"])
    return _numbers(table, "shard"), _numbers(table, "kept")


def score_shards(pool: str, document: ScoreSetDocument) -> tuple[Ints, pa.Array]:
    """((shards,) their numbers, ascending, (shards,) the checksum of their uids as 32 bytes).

    ValueError for a damaged file.
    """
    if document.shards is not None:
        in_order = sorted(document.shards, key=int)
        hashes = [bytes.fromhex(document.shards[name]) for name in in_order]
        numbers = np.array([int(name) for name in in_order], np.int64)
        return numbers, pa.array(hashes, pa.binary(32))
    path = PoolLayout(pool).score_shards(f"{document.name}@{document.id}")
    table = _read(path, document.table, ["shard", "uids"])
    return _numbers(table, "shard"), table["uids"].combine_chunks()


def scored_shards(pool: str, document: ScoreSetDocument) -> Ints:
    """(shards,) the numbers of the shards of a score set. ValueError for a damaged file."""
    if document.shards is not None:
        return np.array(sorted(int(name) for name in document.shards), np.int64)
    return score_shards(pool, document)[0]


def count_shards(document: ViewDocument | ScoreSetDocument) -> int:
    """How many shards a view or a score set was made of."""
    if document.shards is not None:
        return len(document.shards)
    assert document.table is not None
    return document.table.shards


def score_shards_dict(pool: str, document: ScoreSetDocument) -> dict[str, str]:
    """Checksum of the uids by the name of a shard."""
    shards, uids = score_shards(pool, document)
    hexes = [value.hex() for value in uids.to_pylist()]
    return {shard_name(s): value for s, value in zip(shards.tolist(), hexes, strict=True)}


def _by_number(counts: dict[str, int]) -> tuple[Ints, Ints]:
    in_order = sorted(counts, key=int)
    numbers = np.array([int(name) for name in in_order], np.int64)
    return numbers, np.array([counts[name] for name in in_order], np.int64)


def _write(path: str, table: pa.Table) -> ShardTable:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    content = sink.getvalue()
    disk.write_bytes(path, content)
    return ShardTable(shards=table.num_rows, sha256=hashlib.sha256(content).hexdigest())


def _read(path: str, expected: ShardTable | None, columns: Sequence[str]) -> pa.Table:
    if expected is None:
        raise ValueError(f"the document beside {path} names no shards")
    try:
        content = disk.read_bytes(path)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; make it again") from None
    if hashlib.sha256(content).hexdigest() != expected.sha256:
        raise ValueError(f"{path} is damaged: its sha256 is not that of its document")
    return pq.read_table(pa.BufferReader(content), columns=list(columns))


def _numbers(table: pa.Table, name: str) -> Ints:
    return np.asarray(table[name].to_numpy(), np.int64)
