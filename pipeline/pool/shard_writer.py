"""A shard: a tar with reproducible bytes, its sidecar, and the record that publishes both."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import secrets
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from clipmill.manifests import disk
from clipmill.manifests.columns import (
    DECODE_REASONS,
    REASONS,
    SIDECAR,
    VOLATILE_COLUMNS,
    frequencies,
    joined_text,
    with_extra,
)
from clipmill.manifests.commits import Commits, read_commits
from clipmill.manifests.layout import (
    COMMIT_SUFFIX,
    SHARD_VERSION,
    CommitRecord,
    PoolLayout,
    revised_name,
    shard_name,
)
from clipmill.manifests.schema import ROWS_PER_SHARD_LIMIT, Recipe
from clipmill.manifests.text import valid_text
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.tars import BLOCK

# --------------------------------------------------------------------------------------------------
# A column of a table as the JSON array that `json.dumps` writes, made by Arrow and not row by
# row.
#
# The hash of a sidecar is taken over this text, for every shard that is written or verified.


# Text that json.dumps only puts quotes around: printable ASCII without a quote and a backslash.
PLAIN_TEXT = r"^[ !#-\[\]-~]*$"


def json_array(column: pa.ChunkedArray) -> bytes:
    """What `json.dumps(column.to_pylist(), separators=(",", ":"))` gives, as bytes.

    Integers, truth values and text are written by Arrow; a text with a character that JSON escapes,
    and a column of any other type, by json.dumps.
    """
    kind = column.type
    if len(column) and column.null_count == len(column):
        return b"[" + b"null," * (len(column) - 1) + b"null]"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = _quoted(column)
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        texts = pc.cast(column, pa.large_string())
    else:
        return json.dumps(column.to_pylist(), separators=(",", ":")).encode()
    values = pc.fill_null(texts, "null")
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return b"".join([b"[", joined_text(values, ","), b"]"])


def _quoted(column: pa.ChunkedArray) -> pa.Array:
    """(rows,) each text as JSON writes it; NULL stays NULL."""
    texts = pc.cast(column, pa.large_string()).combine_chunks()
    quote, nothing = pa.scalar('"', pa.large_string()), pa.scalar("", pa.large_string())
    quoted = pc.binary_join_element_wise(quote, texts, quote, nothing)
    is_escaped = pc.invert(pc.fill_null(pc.match_substring_regex(texts, PLAIN_TEXT), True))
    escaped = [json.dumps(text) for text in texts.filter(is_escaped).to_pylist()]
    return pc.replace_with_mask(quoted, is_escaped, pa.array(escaped, pa.large_string()))


# --------------------------------------------------------------------------------------------------
# A shard becomes visible: tar, sidecar, then the commit record; nothing committed is overwritten.
#
# Readers of a tar do not notice that it was cut or altered. The other two files therefore store
# its size and sha256, and the offset and length of every member.
#
# A file is created only where none has its name. Where an unfinished publication left another
# content under the name, the shard gets the next revision, whose name the record has. A commit
# record is replaced by `replace_shard` only, after the files of the next revision are complete.


MAX_LEFTOVERS = 10  # revisions of unfinished publications that are passed over


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardJob:
    """What all tickets of a stage that leaves shards have in common: it fetches, reads or adopts
    the images of a recipe."""

    out: PoolWriter
    recipe: Recipe
    # Of a source of kind image_table: the content of each of its files, by its absolute path
    contents: Mapping[str, Mapping[str, object]] | None = None
    decoders: int | None = None  # child processes of a worker; None: one per core
    replace: bool = False  # make committed shards again


@dataclass(frozen=True, slots=True, kw_only=True)
class TarFile:
    """The tar of a shard: its name inside the pool, or the path or URL of an adopted one."""

    name: str
    bytes: int
    sha256: str
    stamp: dict[str, object] | None = None  # of an adopted one, see CommitRecord.tar_stamp


def publish_shard(
    out: PoolWriter,
    shard: int,
    rows: Sequence[Mapping[str, object]],
    tar: TarFile,
    *,
    staged_tar: Path | None = None,
    task: str,
    group: str,
    duration_s: float,
    schema: pa.Schema = SIDECAR,
    engine: str | None = None,
    engine_version: str | None = None,
    manners: Mapping[str, object] | None = None,
    strays: int = 0,
) -> CommitRecord:
    """Publish tar, sidecar of rows in key order, and commit record. Returns the record.

    `staged_tar` is the local file to publish in the pool; None where the tar stays where it is. A
    shard that is committed already stays as it is, and its record is returned. LeaseLost where
    another command has taken the lease over, FileExistsError where another process commits the
    shard at the same moment.
    """
    table = pa.Table.from_pylist(list(rows), schema=schema)
    with publication_lock(out.layout, shard) as exclusive:
        if (existing := read_commit_record(out.layout, shard)) is not None:
            return existing
        out.check()
        files = _publish_files(out.layout, shard, table, tar, staged_tar, 0, exclusive)
        record = CommitRecord(
            **files,
            shard=shard_name(shard),
            version=SHARD_VERSION,
            task=task,
            group=group,
            duration_s=round(duration_s, 3),
            engine=engine,
            engine_version=engine_version,
            manners=None if manners is None else dict(manners),
            strays=strays,
            fence=out.fence,
        )
        out.check()  # the puts may have taken minutes
        disk.create_json(out.layout.commit_record(shard), record, sealed=True)
    return record


def replace_shard(
    out: PoolWriter,
    shard: int,
    rows: pa.Table,
    tar: TarFile | None = None,
    *,
    staged_tar: Path | None = None,
) -> CommitRecord:
    """Give a committed shard other contents: files of the next revision, then their record.

    `rows`: the new sidecar, in key order. `tar` and `staged_tar`: the new tar; without them the tar
    stays, and only the sidecar is new. Task, group and engine stay. The index is not touched: the
    caller has it forget the shard before, and adds the record, see IndexWriter. The old files are
    removed after the record names the new ones: a reader that has the old record then misses a
    file and reads the record again. ValueError where the shard is not committed; LeaseLost and
    FileExistsError as in `publish_shard`.
    """
    layout = out.layout
    path = layout.commit_record(shard)
    assert (tar is None) == (staged_tar is None)
    with publication_lock(out.layout, shard) as exclusive:
        old = read_commit_record(out.layout, shard)
        if old is None:
            raise ValueError(f"shard {shard_name(shard)} of {out.pool} is not committed")
        before = disk.read_bytes(path)
        out.check()
        same_tar = TarFile(
            name=old.tar, bytes=old.tar_bytes, sha256=old.tar_sha256, stamp=old.tar_stamp
        )
        first = old.revision + 1
        files = _publish_files(layout, shard, rows, tar or same_tar, staged_tar, first, exclusive)
        if staged_tar is None:
            files["adopted"] = old.adopted
        record = replace(old, **files, version=SHARD_VERSION, fence=out.fence)
        out.check()
        disk.replace_json(path, record, before, sealed=True)
        disk.remove(layout.sidecar(shard, old.revision))
        if staged_tar is not None and not old.adopted:
            disk.remove(layout.tar(old))
    return record


def _counts(table: pa.Table) -> dict[str, Any]:
    """The fields of a commit record that count the rows of its sidecar."""
    statuses, reasons = frequencies(table["status"]), frequencies(table["reason"])
    stored = statuses.get("success", 0)
    assert len(table) == stored + sum(reasons.values())
    return {
        "count": len(table),
        "successes": stored,
        "reasons": reasons,
        "failed_to_download": statuses.get("failed_to_download", 0),
        "failed_to_resize": statuses.get("failed_to_resize", 0),
        "retries": len(table) - table["retry_of"].null_count,
    }


def _publish_files(
    layout: PoolLayout,
    shard: int,
    table: pa.Table,
    tar: TarFile,
    staged_tar: Path | None,
    first: int,
    exclusive: bool,
) -> dict[str, Any]:
    """Publish tar and sidecar under one revision; returns the fields of the record about them and
    the rows.

    first: the lowest revision. `exclusive`: no other process publishes the shard, so that what lies
    under its name is a leftover and is removed.
    """
    counts = _counts(table)
    metadata = {name: counts[name] for name in ("count", "successes", "reasons")}
    metadata |= {"shard": shard_name(shard), "version": SHARD_VERSION}
    if staged_tar is not None and (size := staged_tar.stat().st_size) != tar.bytes:
        raise OSError(f"{staged_tar} has {size} bytes of {tar.bytes}")
    with staged_file(layout.sidecar(shard)) as staged:
        disk.write_parquet(staged, table, metadata)
        for revision in range(first, first + MAX_LEFTOVERS):
            files = {layout.sidecar(shard, revision): staged}
            if staged_tar is not None:
                files = {layout.shard_tar(shard, revision): staged_tar, **files}
            try:
                for path, source in files.items():
                    _create_file(source, path, exclusive)
                break
            except FileExistsError:
                if revision + 1 == first + MAX_LEFTOVERS:
                    raise
        return {
            **counts,
            "tar": tar.name if staged_tar is None else f"{revised_name(shard, revision)}.tar",
            "adopted": staged_tar is None,
            "tar_bytes": tar.bytes,
            "tar_sha256": tar.sha256,
            "tar_stamp": tar.stamp,
            "sidecar_bytes": staged.stat().st_size,
            "sidecar_file_sha256": disk.file_sha256(staged),
            "sidecar_sha256": sidecar_hash(table),
            "revision": revision,
        }


def _create_file(source: Path, path: str, exclusive: bool) -> None:
    """Publish one file. A leftover of that name is removed where nobody else can need it."""
    try:
        disk.create_file(source, path)
    except FileExistsError:
        if not exclusive:
            raise
        disk.remove(path)
        disk.create_file(source, path)


@contextlib.contextmanager
def staged_file(path: str, *, alone: bool = False) -> Iterator[Path]:
    """A local file to fill before it is published.

    It lies beside `path`, where `remove_uncommitted` finds it, or in a temporary folder where
    `path` is a URL. alone: no other process writes this file, and what killed ones have left of it
    is removed.
    """
    if disk.is_url(path):
        with disk.scratch_folder("clipmill-shard-") as folder:
            yield Path(folder) / "staged"
        return
    target = disk.local_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if alone:
        for left in target.parent.glob(f".{glob.escape(target.name)}.partial.*"):
            left.unlink(missing_ok=True)
    # A token: machines that share a folder may have the same process ids.
    token = secrets.token_hex(4)
    staged = target.with_name(f".{target.name}.partial.staged-{token}")
    try:
        yield staged
    finally:
        staged.unlink(missing_ok=True)


def sidecar_hash(table: pa.Table) -> str:
    """sha256 of a sidecar's values without VOLATILE_COLUMNS, the same for any Parquet writer.

    It is taken of a line of JSON a column: its name, its type and the array of its values.
    """
    content = hashlib.sha256()
    for field in table.schema:
        if field.name not in VOLATILE_COLUMNS:
            name = json.dumps([field.name, str(field.type)], separators=(",", ":"))
            content.update(name[:-1].encode() + b"," + json_array(table[field.name]) + b"]\n")
    return content.hexdigest()


# --------------------------------------------------------------------------------------------------
# The row of one attempt: all columns of the sidecar, with valid values.
#
# Rows carry text from strangers (headers, redirects, JSON of other programs). One value that no
# file can hold must not cost the shard: text becomes valid UTF-8, and an integer outside its
# column's range costs its own row.


TAR_COLUMNS = (
    "image_offset", "image_length", "text_offset", "text_length", "json_offset", "json_length",
)  # fmt: skip
# img2dataset's columns are in every {key}.json, the others where they are not NULL.
ALWAYS_IN_JSON = SIDECAR.names[:11]
NOT_IN_JSON = frozenset((*VOLATILE_COLUMNS, *TAR_COLUMNS, "image_name"))
# Of the members of a tar; json.dumps would make a new encoder for each.
TO_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False).encode


def row_key(shard: int, row: int) -> str:
    """Key of a row, which is also the base name of its members."""
    return f"{shard:05d}{row:04d}"


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns of a sidecar, as its rows are checked by them.

    Made once for all rows: Arrow makes the names of a schema anew whenever they are asked for.
    """

    names: tuple[str, ...]
    ranges: dict[str, tuple[int, int]]  # lowest and highest value of each integer column

    @classmethod
    def of(cls, schema: pa.Schema) -> RowColumns:
        ranges = {}
        for field in schema:
            if pa.types.is_signed_integer(field.type):
                bound = 1 << field.type.bit_width - 1
                ranges[field.name] = (-bound, bound - 1)
        return cls(tuple(schema.names), ranges)


def outcome_row(record: Mapping[str, Any], columns: RowColumns, *, stored: bool) -> dict[str, Any]:
    """All columns of a sidecar row, with the status and class that follow from its reason.

    A stored row with an integer that its column cannot hold becomes a failed one: `reason` is
    decode_error.
    """
    reason = record.get("reason")
    assert (reason is None) == stored, f"stored is {stored} and reason is {reason!r}"
    values = {**dict.fromkeys(columns.names), **record}
    assert len(values) == len(columns.names), sorted(record.keys() - set(columns.names))
    for name, value in record.items():
        if isinstance(value, str):
            values[name] = valid_text(value)
    if too_large := _integers_out_of_range(values, columns):
        values |= dict.fromkeys(too_large)
        message = f"{', '.join(too_large)}: more than the column can hold"
        values["error_message"] = "; ".join(filter(None, (values["error_message"], message)))
        values["reason"] = reason = reason or "decode_error"
        values |= dict.fromkeys((*TAR_COLUMNS, "image_name"))
    values["status"] = _status(reason)
    values["class"] = None if reason is None else REASONS[reason]
    return values


def _integers_out_of_range(values: Mapping[str, Any], columns: RowColumns) -> list[str]:
    names = []
    for name, (lowest, highest) in columns.ranges.items():
        value = values[name]
        if value is not None and not lowest <= value <= highest:
            names.append(name)
    return names


def member_json(values: Mapping[str, object], extra: Mapping[str, object]) -> bytes:
    """{key}.json: the values that the response decided; no times and no offsets in the tar."""
    known = {}
    for name, value in values.items():
        if name not in NOT_IN_JSON and (value is not None or name in ALWAYS_IN_JSON):
            known[name] = value
    return valid_text(TO_JSON({**known, **extra})).encode()


def _status(reason: str | None) -> str:
    """img2dataset's word for a reason."""
    if reason is None:
        return "success"
    return "failed_to_resize" if reason in DECODE_REASONS else "failed_to_download"


# --------------------------------------------------------------------------------------------------
# Rows to a tar with reproducible bytes, and to the rows of its sidecar.


RECORD = 20 * BLOCK  # a tar's length is a multiple of it


class ShardWriter:
    """Collects the rows of one shard in any order and commits them; images wait in a local file.

    Use it as a context manager: what was not committed when it ends leaves no files.
    """

    def __init__(
        self,
        out: PoolWriter,
        shard: int,
        task: str,
        group: str,
        extra_columns: Mapping[str, str] | None = None,
    ) -> None:
        """`extra_columns`: those of the recipe, as Recipe.sidecar_extra has them."""
        self.out, self.shard, self.task, self.group = out, shard, task, group
        self.schema = with_extra(SIDECAR, extra_columns or {})
        self._columns = RowColumns.of(self.schema)
        self._rows: dict[int, dict[str, Any]] = {}
        self._extra: dict[int, dict[str, object]] = {}
        self._spool: IO[bytes] = tempfile.TemporaryFile(prefix="clipmill-spool-")  # noqa: SIM115
        self._spooled: dict[int, tuple[int, int, int]] = {}  # start, length, checksum
        self._started = time.monotonic()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._spool.close()

    def add(
        self,
        row: int,
        record: Mapping[str, Any],
        image: bytes | None,
        extra: Mapping[str, Any] | None = None,
        extension: str = "jpg",
    ) -> None:
        """Add the outcome of a row: `record` has columns of the sidecar, `image` what is stored.

        `image` is None where the record has a reason. key, status, class, image_name and the
        offsets in the tar are filled in here. `extra` goes into {key}.json only; `extension` is
        that of the image's member name.
        """
        assert 0 <= row < ROWS_PER_SHARD_LIMIT, row
        assert row not in self._rows, f"row {row} of shard {self.shard} has two outcomes"
        values = outcome_row(record, self._columns, stored=image is not None)
        values["key"] = row_key(self.shard, row)
        if image is not None and values["reason"] is None:
            values["image_name"] = f"{values['key']}.{extension}"
            self._spooled[row] = (self._spool.tell(), len(image), _checksum(image))
            with disk.naming(Path(tempfile.gettempdir()) / "clipmill-spool"):
                self._spool.write(image)
            self._extra[row] = {k: v for k, v in (extra or {}).items() if v is not None}
        self._rows[row] = values

    def commit(
        self,
        count: int,
        *,
        engine: str | None = None,
        engine_version: str | None = None,
        manners: dict[str, Any] | None = None,
        replace: bool = False,
    ) -> CommitRecord:
        """Publish tar, sidecar and commit record. `count` is how many rows were asked for.

        A shard that is committed already is not written again: its record is returned. With
        `replace` it gets these rows instead, see `replace_shard`. `engine` and
        `engine_version` name another program that fetched the images. `manners`: how they were
        asked for, see `clipmill.manifests.identity.manners_of`.
        """
        assert sorted(self._rows) == list(range(count)), (
            f"shard {self.shard}: {len(self._rows)} of {count} outcomes"
        )
        with staged_file(self.out.layout.shard_tar(self.shard)) as staged:
            sha256, size = self._write_tar(staged)
            tar = TarFile(name=f"{revised_name(self.shard)}.tar", bytes=size, sha256=sha256)
            rows = [self._rows[row] for row in range(count)]
            if replace:
                table = pa.Table.from_pylist(rows, schema=self.schema)
                return replace_shard(self.out, self.shard, table, tar, staged_tar=staged)
            return publish_shard(
                self.out,
                self.shard,
                rows,
                tar,
                staged_tar=staged,
                task=self.task,
                group=self.group,
                duration_s=time.monotonic() - self._started,
                schema=self.schema,
                engine=engine,
                engine_version=engine_version,
                manners=manners,
            )

    def _write_tar(self, staged: Path) -> tuple[str, int]:
        """Write the members in key order; set the offsets in the rows. (sha256, size in bytes)."""
        content, offset = hashlib.sha256(), 0
        with disk.naming(staged), open(staged, "wb") as f:
            for row in sorted(self._spooled):
                values = self._rows[row]
                members = {
                    "image": (values["image_name"].rpartition(".")[2], self._image(row)),
                    "text": ("txt", (values["caption"] or "").encode()),
                    "json": ("json", member_json(values, self._extra[row])),
                }
                for part, (extension, data) in members.items():
                    block = member_block(f"{values['key']}.{extension}", data)
                    values[f"{part}_offset"], values[f"{part}_length"] = offset + BLOCK, len(data)
                    content.update(block)
                    f.write(block)
                    offset += len(block)
            end = end_mark(offset)
            content.update(end)
            f.write(end)
        return content.hexdigest(), offset + len(end)

    def _image(self, row: int) -> bytes:
        """An image that was added. OSError where the local disk has lost bytes of it."""
        start, length, checksum = self._spooled[row]
        self._spool.seek(start)
        image = self._spool.read(length)
        if len(image) != length or _checksum(image) != checksum:
            folder = tempfile.gettempdir()
            raise OSError(errno.EIO, "an image reads back differently", f"{folder}/clipmill-spool")
        return image


def _checksum(image: bytes) -> int:
    """Of an image that waits on the local disk: a tenth of the time of a CRC-32."""
    return int(xxhash.xxh3_64_intdigest(image))


def _plain_info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


NAME_BYTES = 100  # of a header; a longer name is divided between two of its fields
SIZE_DIGITS = 11  # octal ones, of 8 GiB less a byte
# A header without name and size. The checksum counts its own field as eight blanks.
BLANK_HEADER = _plain_info("", 0).tobuf(tarfile.USTAR_FORMAT)
BEFORE_SIZE, BEHIND_SIZE = BLANK_HEADER[NAME_BYTES:124], BLANK_HEADER[124 + SIZE_DIGITS : 148]
BEHIND_CHECKSUM = BLANK_HEADER[155:]
BLANK_SUM = int(BLANK_HEADER[148:154], 8) - SIZE_DIGITS * ord("0")


def member_header(name: str, size: int) -> bytes:
    """The header of a member, as `tarfile` writes it: no time, no user."""
    digits = b"%o" % size
    if not name.isascii() or len(name) > NAME_BYTES or len(digits) > SIZE_DIGITS:
        return _plain_info(name, size).tobuf(tarfile.USTAR_FORMAT)
    encoded, digits = name.encode(), digits.rjust(SIZE_DIGITS, b"0")
    checksum = b"%06o\0" % (BLANK_SUM + sum(encoded) + sum(digits))
    padded = encoded.ljust(NAME_BYTES, b"\0")
    return b"".join((padded, BEFORE_SIZE, digits, BEHIND_SIZE, checksum, BEHIND_CHECKSUM))


def member_block(name: str, data: bytes) -> bytes:
    """A member as it stands in the tar: header, bytes, padding."""
    return b"".join((member_header(name, len(data)), data, bytes(-len(data) % BLOCK)))


def end_mark(length: int) -> bytes:
    """The zeros behind the last member of a tar that has `length` bytes before them."""
    return bytes(2 * BLOCK + -(length + 2 * BLOCK) % RECORD)


# --------------------------------------------------------------------------------------------------
# Which shards are committed, and what a build that was stopped left of others: tars and sidecars
# without a commit record.


SHARD_FILE = re.compile(r"^(\d{5,})(\.r\d+)?\.(tar|parquet)$")


def read_commit_record(layout: PoolLayout, shard: int | str) -> CommitRecord | None:
    """The commit record of a shard; None where the shard is not committed."""
    try:
        return CommitRecord.read(layout.commit_record(shard))
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def publication_lock(layout: PoolLayout, shard: int | str) -> Iterator[bool]:
    """At most one process or thread of this machine publishes a shard of a local pool at a time.

    The lock ends with its process. A remote pool, and a file system without locks, has none: the
    body gets False.
    """
    folder = layout.shards
    if disk.is_url(folder):
        yield False
        return
    path = disk.local_path(folder) / f".{shard_name(shard)}.partial.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        locked = True
        while True:
            handle = stack.enter_context(open(path, "wb"))
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError:
                locked = False
                break
            # The holder before removes its file: a lock on a removed file excludes nobody.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle.fileno()), os.stat(path)):
                    break
        try:
            yield locked
        finally:
            path.unlink(missing_ok=True)


def remove_uncommitted(layout: PoolLayout) -> list[str]:
    """Remove tars and sidecars that no commit record names, and partial files; returns their names.

    What is committed is read from the index, where there is one. Call it under the lease of the
    pool. ValueError for a tar or a table of a shard's name that another program wrote; then nothing
    is removed.
    """
    folder = layout.shards
    commits = read_commits(layout.root, ["tar"])
    leftovers = _leftovers(folder, disk.list_names(folder), _committed_files(commits))
    for path in leftovers:
        disk.remove(path)
    return [path.removeprefix(f"{folder}/") for path in leftovers]


def _committed_files(commits: Commits) -> set[str]:
    """The names of the tars and sidecars of all shards."""
    rows = commits.table
    files = set(rows["tar"].to_pylist())
    shards, revisions = rows["shard"].to_pylist(), rows["revision"].to_pylist()
    for shard, revision in zip(shards, revisions, strict=True):
        files.add(f"{revised_name(shard, revision)}.parquet")
    return files


def _leftovers(folder: str, names: Sequence[str], committed: set[str]) -> list[str]:
    """Paths of the files of shards that are not committed, and of partial files."""
    leftovers = []
    records = set(names)
    for name in sorted(records - committed):
        match = SHARD_FILE.match(name)
        if match is None:
            continue
        record = f"{match[1]}{COMMIT_SUFFIX}"
        if record in records and _is_named(disk.join(folder, record), name):
            continue  # by a record that the index does not have
        path = disk.join(folder, name)
        if match[3] == "tar":
            is_ours = _written_here(disk.read_bytes(path, 0, BLOCK), match[1])
        else:
            is_ours = _is_sidecar(path)
        if not is_ours:
            raise ValueError(
                f"{path} was not written by clipmill; move it out of the pool's folder"
            )
        leftovers.append(path)
    if not disk.is_url(folder):
        partial = [path.name for path in disk.local_path(folder).glob(".*.partial.*")]
        leftovers += [disk.join(folder, name) for name in sorted(partial)]
    return leftovers


def _is_named(record: str, file: str) -> bool:
    """Whether the commit record at a path names a file."""
    of_shard = CommitRecord.read(record)
    return file in (of_shard.tar, of_shard.sidecar)


def _is_sidecar(path: str) -> bool:
    """Whether a Parquet file begins with the columns of our sidecars: other programs leave files
    of these names too. One that cannot be read is what a damage left of ours."""
    try:
        return bool(disk.read_schema(path).names[: len(SIDECAR)] == SIDECAR.names)
    except (OSError, ValueError):
        return True


def _written_here(header: bytes, shard: str) -> bool:
    """Whether a tar begins as ours do: empty, or with a member of that shard without a time."""
    is_empty = not header.strip(b"\0")
    has_key = header.startswith(shard.encode())
    has_no_time = header[136:147] == b"0" * 11
    return is_empty or (has_key and has_no_time)
