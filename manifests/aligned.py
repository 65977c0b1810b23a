"""Files whose rows are those of shards: score columns and the masks of views.

A thousand shards share a bundle, from the first one on: one row group a shard, in the order of the
shards, and in the footer what is said of the rows of each shard.

Reads and writes `scores/NAME@ID/bundle-NNNNN.parquet`, `views/NAME/bundle-NNNNN.parquet` and
`views/NAME/shards-HASH.parquet`.

Invariants:

* A bundle gives the rows that were written, or an error: no bad byte gives other rows
  (`test_bundles.py`).

To extend: another kind of row-aligned file is a constructor of `AlignedFiles` and a path in
`layout.py`.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clipmill.manifests import disk
from clipmill.manifests.arrays import Integers
from clipmill.manifests.commits import Commits, read_commits
from clipmill.manifests.layout import PoolLayout, bundle_name, shard_name
from clipmill.manifests.records import ShardTable, ViewDocument, read_document
from clipmill.manifests.text import one_line

OPEN_BUNDLES = 16  # footers that stay in memory, about 2 MB each
# Bytes of a shard that are compared with their checksum whichever columns are read. Of more bytes
# only those of the columns are read, and only Parquet's own checksums of pages are compared.
CHECKED_BYTES = 4 * 2**20


# (shard, its rows, what was written about them) -> the same after a change
Change = Callable[[int, pa.Table, dict[str, Any]], tuple[pa.Table, dict[str, Any]]]


class _CheckedFile(disk.CountedFile):
    """A new file; `checksum` is of the bytes since the last `restart`. It is open in `flush` alone:
    a thousand views in the making are no thousand open files.
    """

    checksum = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file.close()
        self._waiting = bytearray()

    def write(self, data: Any) -> int:
        self.checksum = zlib.crc32(data, self.checksum)
        self._waiting += data
        self.position += len(data)
        return len(data)

    def flush(self) -> None:
        """Append what was written since the last time."""
        if self._waiting:
            with disk.naming(self.path), self.path.open("ab") as file:
                file.write(self._waiting)
            self._waiting.clear()

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
        self._shards: dict[str, dict[str, object]] = {}

    def add(self, shard: int | str, table: pa.Table, metadata: Mapping[str, object]) -> None:
        """Append the rows of the next shard; `metadata`: what is said of them."""
        name = shard_name(shard)
        assert not self._shards or int(name) > int(next(reversed(self._shards))), "out of order"
        start = self._file.restart()
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        length = self._file.position - start
        self._file.flush()
        self._ranges[name] = start, length, self._file.checksum
        self._shards[name] = {**metadata, "rows": table.num_rows}

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(whole=kind is None)

    def close(self, *, whole: bool = True) -> None:
        """End the file. One that is not `whole` cannot be read."""
        if whole:
            content = {"shards": self._shards, "ranges": self._ranges}
            content["schema"] = str(_as_stored(self._schema))
            plain = {**content, "checksum": disk.content_hash(content)}
            text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
            self._writer.add_key_value_metadata({"clipmill": text})
        self._writer.close()
        self._file.close()


def _as_stored(schema: pa.Schema) -> pa.Schema:
    """A schema as it comes back from Parquet, which has its own name for the values of lists, and
    no dictionaries."""
    sink = io.BytesIO()
    pq.write_table(schema.empty_table(), sink, **storage_options(schema))
    return pq.read_metadata(sink).schema.to_arrow_schema().remove_metadata()


class BundlesWriter:
    """Writes the bundles of a score set or a view into a local folder, from which the caller
    publishes them: `with BundlesWriter(…)`, or `close`.
    """

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder, self._schema = folder, schema
        self._writer: BundleWriter | None = None
        self._name = ""

    def add(self, shard: int | str, table: pa.Table, metadata: Mapping[str, object]) -> None:
        """Append the rows of the next shard; `metadata`: what is said of them."""
        if self._writer is None or self._name != bundle_name(shard):
            self.close()
            self._name = bundle_name(shard)
            self._writer = BundleWriter(self._folder / self._name, self._schema)
        self._writer.add(shard, table, metadata)

    def close(self, *, whole: bool = True) -> None:
        """End the last bundle. One that is not `whole` cannot be read."""
        if self._writer is not None:
            self._writer.close(whole=whole)
            self._writer = None

    def __enter__(self) -> BundlesWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(whole=kind is None)


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
            self.checksum: str = plain.pop("checksum")  # of what the footer says
            is_whole = self.checksum == disk.plain_hash(plain)
            is_whole = is_whole and plain["schema"] == str(self.schema)
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise self.damaged(str(error)) from None
        if not is_whole or self._footer.num_row_groups != len(self.shards):
            raise self.damaged("its footer does not fit its content")
        self._groups = {name: group for group, name in enumerate(self.shards)}

    def damaged(self, problem: str) -> ValueError:
        """The error for a bundle that cannot be used."""
        return ValueError(
            f"{self.path} is damaged: {one_line(problem)}; run clipmill audit repair, then "
            "clipmill score or clipmill filter again, whichever made it"
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

    def _stored_bytes(self, shard: int | str) -> bytes:
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
                table = read(_OneRange(start, self._stored_bytes(shard), start + length))
            else:
                table = disk.read_with(self.path, read)
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError) or "is damaged" in str(error):
                raise
            raise self.damaged(str(error)) from None
        if table.num_rows != metadata["rows"]:
            raise self.damaged(f"shard {shard_name(shard)} has {table.num_rows} rows")
        return table.replace_schema_metadata(None)


def write_changed(bundle: Bundle, file: Path, shards: Mapping[int, object], change: Change) -> None:
    """Write a bundle in which some shards have other rows into a local file, which the caller
    publishes. ValueError where a shard is damaged.
    """
    with BundleWriter(file, bundle.schema) as writer:
        for name in bundle.shards:
            table, metadata = bundle.read(name), dict(bundle.metadata(name))
            if int(name) in shards:
                table, metadata = change(int(name), table, metadata)
            writer.add(name, table, metadata)


def _require_column(name: str, known: Sequence[str], path: str) -> None:
    if name not in known:
        suggestion = disk.did_you_mean(name, known)
        raise ValueError(f"{path} has no column {name!r}{suggestion} (of {', '.join(known)})")


class AlignedFiles:
    """The row-aligned files of one score set or one view, for readers in several threads."""

    def __init__(self, path: Callable[[int | str], str], view: str | None = None) -> None:
        """path: of the bundle that has the rows of a shard."""
        self.path, self._view = path, view
        self._open: OrderedDict[str, Bundle] = OrderedDict()
        self._opening: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    @classmethod
    def of_scores(cls, layout: PoolLayout, name: str) -> AlignedFiles:
        """The columns of a score set NAME@ID."""
        return cls(functools.partial(layout.score_bundle, name))

    @classmethod
    def of_view(cls, layout: PoolLayout, view: str) -> AlignedFiles:
        """The masks of a view."""
        return cls(functools.partial(layout.view_bundle, view), view)

    def bundle(self, shard: int | str) -> Bundle:
        """The bundle of a shard, opened once."""
        path = self.path(shard)
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
        """True where the rows of a shard are there. ValueError for a damaged bundle."""
        try:
            return shard_name(shard) in self.bundle(shard)
        except FileNotFoundError:
            return False

    def metadata(self, shard: int | str) -> dict[str, Any]:
        """What was written about the rows of a shard. FileNotFoundError without a bundle."""
        return self.bundle(shard).metadata(shard)

    def read_of(
        self, shard: int | str, sidecar: str, rows: int, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Columns of a score set that were made from the sidecar that a shard has now; `sidecar`,
        `rows`: what its commit record has as sidecar_sha256 and count.

        ValueError where they are missing or of another sidecar. It has the hash of each picture: a
        picture that was fetched again has the uid, and not the columns, of the one before.
        """
        if self.has(shard):
            table, metadata = self.read(shard, columns)
            if metadata.get("sidecar") == sidecar and table.num_rows == rows:
                return table
        raise self.of_other_rows(shard)

    def of_other_rows(self, shard: int | str) -> ValueError:
        """The error for columns that are missing, or of other rows than those of the shard."""
        path = self.path(shard)
        return ValueError(
            f"{path} does not have the columns of shard {shard_name(shard)} as it is committed now;"
            f" run clipmill score again; if that does nothing, remove {path.rpartition('/')[0]} "
            "first"
        )

    def read(
        self, shard: int | str, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, dict[str, Any]]:
        """(columns of a shard, what was written about them). FileNotFoundError without a bundle.

        ValueError for damaged files, and for a mask of another shard or view.
        """
        bundle = self.bundle(shard)
        try:
            table = bundle.read(shard, columns)
        except ValueError:
            with self._lock:
                self._open.pop(self.path(shard), None)
            opened, bundle = bundle, self.bundle(shard)
            if bundle.checksum == opened.checksum:
                raise
            table = bundle.read(shard, columns)  # it was published again since it was opened
        metadata = bundle.metadata(shard)
        owner = (metadata.get("shard"), metadata.get("view"))
        if self._view is not None and owner != (shard_name(shard), self._view):
            problem = f"it has the mask of shard {owner[0]} in view {owner[1]}"
            raise ValueError(f"{self.path(shard)} is damaged: {problem}")
        return table, metadata


def parquet_bytes(table: pa.Table, metadata: Mapping[str, object]) -> bytes:
    """The file of one shard, which waits to be put into a bundle."""
    table = table.replace_schema_metadata(disk.with_metadata(table.schema, metadata).metadata)
    return disk.parquet_bytes(table, row_group_size=10_000, **storage_options(table.schema))


def storage_options(schema: pa.Schema) -> dict[str, object]:
    """How Parquet stores columns. Floats differ from row to row: their bytes are stored by place
    (BYTE_STREAM_SPLIT), which makes doubles 37 % smaller than in a dictionary, and two to three
    times as fast to read and write. Embeddings (fixed-size lists) are stored as they are: zstd
    makes them 6 % smaller, takes three times as long to write and six times as long to read. There
    are no statistics: every row of a shard is read, and they take a third of the time to write.

    A dictionary of Arrow is stored as the values that it stands for, as which it comes back. Like
    truth values it has a few bits a row, of which zstd makes hardly fewer.
    """
    compression, with_dictionary, by_place = {}, [], {}
    for column in schema:
        is_list = pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type)
        path = f"{column.name}.list.element" if is_list else column.name
        is_small = pa.types.is_dictionary(column.type) or pa.types.is_boolean(column.type)
        is_plain = is_small or pa.types.is_fixed_size_list(column.type)
        compression[path] = "none" if is_plain else "zstd"
        if pa.types.is_float32(column.type) or pa.types.is_float64(column.type):
            by_place[path] = "BYTE_STREAM_SPLIT"
        elif not pa.types.is_fixed_size_list(column.type):
            with_dictionary.append(path)
    return {
        "compression": compression,
        "use_dictionary": with_dictionary or False,
        "column_encoding": by_place or None,
        "write_statistics": False,
        "store_schema": not any(pa.types.is_dictionary(column.type) for column in schema),
    }


# --------------------------------------------------------------------------------------------------
# The views of a pool, and the document of one that was made of the shards that are there now.


def view_names(layout: PoolLayout) -> list[str]:
    """The complete views of a pool. A folder whose name ends in .json is none."""
    folder = layout.views
    names = []
    for file in disk.list_names(folder, ".json"):
        if disk.is_url(folder) or not disk.local_path(disk.join(folder, file)).is_dir():
            names.append(file.removesuffix(".json"))
    return names


def current_view(layout: PoolLayout, view: str, fingerprint: str, remedy: str) -> ViewDocument:
    """The document of a view.

    ValueError where there is none; and where the pool's fingerprint is another one than the view's,
    with `remedy`: what to do then. The shards of a frozen view must be there as they were.
    """
    try:  # asked for at once: a view is missing seldom, and a far store answers late
        document = read_document(layout.view_json(view), ViewDocument)
    except (FileNotFoundError, NotADirectoryError, disk.NotRegular):
        names = view_names(layout)
        suggestion = disk.did_you_mean(view, names)
        raise ValueError(
            f"{layout} has no view {view!r}{suggestion}; it has {', '.join(names) or 'none'}"
        ) from None
    if document.fingerprint == fingerprint:
        return document
    if document.frozen:
        if not is_current(document, read_commits(layout.root, ["sidecar_sha256"])):
            raise ValueError(
                f"view {view!r} of {layout} is frozen, and its shards have changed since, as by a "
                f"repair: remove views/{view}.json and then the folder views/{view}"
            )
    else:
        raise ValueError(
            f"view {view!r} of {layout} is stale: the pool's shards have changed; {remedy}"
        )
    return document


def is_current(document: ViewDocument, commits: Commits) -> bool:
    """Whether a view is of the shards that are there now: of all; a frozen one, of its own."""
    if document.fingerprint == commits.fingerprint:
        return True
    return bool(document.frozen) and own_shards(document, commits).fingerprint == (
        document.fingerprint
    )


def own_shards(document: ViewDocument, commits: Commits) -> Commits:
    """The commits of the shards that a view is of. ValueError where its list of them is damaged."""
    if document.fingerprint == commits.fingerprint:
        return commits
    return commits.only(view_shards(commits.layout, document)[0])


# --------------------------------------------------------------------------------------------------
# The rows that a view keeps of every shard: a Parquet file that is named by its content, and that
# the view's document names. So a document never meets the file of another state.


TABLE_PREFIX = "shards-"


def write_view_shards(
    layout: PoolLayout, view: str, shards: Integers, kept: Integers
) -> ShardTable:
    """Write views/NAME/shards-HASH.parquet. `remove_view_shards` removes that of before."""
    table = pa.table({"shard": shards, "kept": kept})
    content = disk.parquet_bytes(table)
    sha256 = hashlib.sha256(content).hexdigest()
    file = f"{TABLE_PREFIX}{sha256[:16]}.parquet"
    disk.write_bytes(layout.view_shards(view, file), content)
    return ShardTable(file=file, count=table.num_rows, sha256=sha256)


def remove_view_shards(layout: PoolLayout, view: str, keep: str = "") -> None:
    """Remove the files of `write_view_shards` but for `keep`, which the view's document names."""
    folder = disk.join(layout.views, view)
    for name in disk.list_names(folder):
        if name.startswith(TABLE_PREFIX) and name != keep:
            disk.remove(disk.join(folder, name))


def view_shards(layout: PoolLayout, document: ViewDocument) -> tuple[Integers, Integers]:
    """((shards,) their numbers, ascending, (shards,) rows that the view keeps).

    ValueError for a damaged file.
    """
    path = layout.view_shards(document.name, document.shards.file)
    try:
        content = disk.read_bytes(path)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; make it again") from None
    if hashlib.sha256(content).hexdigest() != document.shards.sha256:
        raise ValueError(f"{path} is damaged: its sha256 is not that of its document")
    table = pq.read_table(pa.BufferReader(content), columns=["shard", "kept"])
    return _numbers(table, "shard"), _numbers(table, "kept")


def _numbers(table: pa.Table, name: str) -> Integers:
    return np.asarray(table[name].to_numpy(), np.int64)
