"""Read and write files: Parquet and JSON, write-then-rename, content hashes.

Paths are fsspec URLs or local paths (`file`, `s3`, `gs`, `memory` behave the same).
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import io
import json
import os
import secrets
import shutil
import tempfile
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from manifests.text import valid_text

# What installs the filesystem of a protocol that fsspec does not bring along.
EXTRAS = {
    "s3": "the extra `s3` of clipmill (pip install 'clipmill[s3]')",
    "s3a": "the extra `s3` of clipmill (pip install 'clipmill[s3]')",
    "gs": "the package gcsfs",
    "gcs": "the package gcsfs",
}

# --- files ------------------------------------------------------------------------------------


def join(root: str | Path, *parts: str) -> str:
    """`root` with `parts` appended, for local paths and URLs alike."""
    return "/".join([str(root).rstrip("/"), *parts])


def is_url(path: str | Path) -> bool:
    """True for s3://…, memory://… and the like; False for local paths and file://…."""
    return "://" in str(path) and not str(path).startswith("file://")


def local_path(path: str | Path) -> Path:
    """A local path without its file:// prefix."""
    return Path(str(path).removeprefix("file://"))


def output_folder(out: str, option: str = "--out") -> str:
    """The absolute folder to write to; `option` is what the message names.

    ValueError where nothing can be written, which is tried in the nearest folder that exists, and
    where the folder would be lost: under `ray job submit` a relative one would lie in Ray's
    temporary copy of the checkout.
    """
    if is_url(out):
        return out
    if not Path(out).is_absolute() and "runtime_resources" in Path.cwd().parts:
        raise ValueError(
            f"{option} is {out!r}: under a submitted working directory a relative folder lies in "
            "Ray's temporary copy and is lost with the job; "
            "give an absolute path or set CLIPMILL_OUT"
        )
    folder = Path(os.path.abspath(local_path(out)))
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise ValueError(f"{option} is {out!r}, but {there} is a file; name a folder")
    try:  # os.access says yes to root for /proc and for read-only mounts
        with tempfile.TemporaryDirectory(prefix=".writable-", dir=there):
            pass
    except OSError as error:
        raise ValueError(
            f"{option} is {out!r}, but nothing can be written to {there} ({error.strerror}); "
            "name another folder"
        ) from None
    return str(folder)


def read_bytes(path: str | Path, start: int = 0, length: int | None = None) -> bytes:
    """Bytes of a file, or `length` of them from `start`. FileNotFoundError where there is none."""
    if not is_url(path):
        with open(local_path(path), "rb") as f:
            f.seek(start)
            return f.read() if length is None else f.read(length)
    fs, name = _filesystem(path)
    data: bytes = fs.cat_file(name, start=start, end=None if length is None else start + length)
    return data


def write_bytes(path: str | Path, data: bytes) -> None:
    """Whole or not at all: a temporary file, fsync and a rename locally, one put elsewhere."""
    if is_url(path):
        fs, name = _filesystem(path)
        fs.pipe_file(name, data)
        return
    target = local_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(target)
    _write_synced(partial, data)
    os.replace(partial, target)
    _sync_folder(target.parent)


def create_bytes(path: str | Path, data: bytes) -> None:
    """Like `write_bytes`, but never over a file that is there: FileExistsError.

    On a remote store, which has no such operation, the check and the put are two steps.
    """
    if is_url(path):
        if exists(path):
            raise FileExistsError(str(path))
        write_bytes(path, data)
        return
    target = local_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(target)
    _write_synced(partial, data)
    try:
        os.link(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    _sync_folder(target.parent)


def _partial(target: Path) -> Path:
    """Where a file is written before it is renamed. Machines that share a folder may have the same
    process ids.
    """
    return target.with_name(f".{target.name}.partial.{os.getpid()}-{secrets.token_hex(4)}")


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def _sync_folder(folder: Path) -> None:
    """A rename lasts over a power failure only when its folder is synced too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish(staged: str | Path, path: str | Path) -> None:
    """Move a finished local file to its place: fsync and rename on one filesystem, one put
    elsewhere.
    """
    if is_url(path):
        fs, name = _filesystem(path)
        fs.put_file(str(staged), name)
        return
    target = local_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(target)
    shutil.move(staged, partial)  # a copy where the two lie on different filesystems
    with open(partial, "rb") as f:
        os.fsync(f.fileno())
    os.replace(partial, target)
    _sync_folder(target.parent)


def exists(path: str | Path) -> bool:
    """True where a file or folder lies at `path`."""
    if not is_url(path):
        return local_path(path).exists()
    fs, name = _filesystem(path)
    return bool(fs.exists(name))


def list_names(folder: str | Path, suffix: str = "") -> list[str]:
    """Sorted names inside a folder that end in `suffix`; [] where there is no folder. Unfinished
    files are left out.
    """
    if not is_url(folder):
        names = os.listdir(local_path(folder)) if local_path(folder).is_dir() else []
    else:
        fs, path = _filesystem(folder)
        paths = fs.ls(path, detail=False) if fs.exists(path) else []
        names = [each.rstrip("/").rsplit("/", 1)[-1] for each in paths]
    return sorted(name for name in names if name.endswith(suffix) and not name.startswith("."))


def remove(path: str | Path) -> None:
    """Delete one file; nothing happens where there is none."""
    if not is_url(path):
        local_path(path).unlink(missing_ok=True)
        return
    fs, name = _filesystem(path)
    if fs.exists(name):
        fs.rm_file(name)


def write_json(path: str | Path, value: Any) -> None:
    """A dataclass or plain value as JSON with sorted keys, written whole. Text becomes valid
    Unicode.
    """
    write_bytes(path, _json_bytes(value))


def create_json(path: str | Path, value: Any) -> None:
    """Like `write_json`, but never over a file that is there: FileExistsError."""
    create_bytes(path, _json_bytes(value))


def _json_bytes(value: Any) -> bytes:
    text = json.dumps(to_plain(value), indent=1, sort_keys=True, ensure_ascii=False)
    return (valid_text(text) + "\n").encode()


def read_json(path: str | Path) -> Any:
    """A JSON file as plain values. ValueError that names the file where it is no JSON."""
    try:
        return json.loads(read_bytes(path))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    except RecursionError:
        raise ValueError(f"{path} is not JSON that can be read: it is nested too deeply") from None


def write_parquet(
    path: str | Path, table: pa.Table, metadata: Mapping[str, Any] | None = None
) -> None:
    """A table, written whole; `metadata` go into the footer as JSON under the key `clipmill`."""
    if metadata is not None:
        table = table.replace_schema_metadata(with_metadata(table.schema, metadata).metadata)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", row_group_size=10_000, write_page_checksum=True)
    write_bytes(path, sink.getvalue())


def with_metadata(schema: pa.Schema, metadata: Mapping[str, Any]) -> pa.Schema:
    """The schema with `metadata` as JSON under the key `clipmill` of its metadata."""
    kept = {k: v for k, v in (schema.metadata or {}).items() if k != b"clipmill"}
    return schema.with_metadata(
        {**kept, b"clipmill": json.dumps(to_plain(dict(metadata)), sort_keys=True).encode()}
    )


def read_parquet(
    path: str | Path,
    columns: list[str] | None = None,
    where: list[tuple[str, str, Any]] | None = None,
) -> pa.Table:
    """A table, or some columns of it, or the rows that `where` (pyarrow's filters) lets through:
    only their row groups are read.
    """
    with _opened(path) as f:
        return pq.read_table(f, columns=columns, filters=where, partitioning=None)


def read_metadata(path: str | Path) -> dict[str, Any]:
    """What `write_parquet` put into the footer; {} where it put nothing."""
    with _opened(path) as f:
        footer = pq.read_metadata(f).metadata or {}
    metadata: dict[str, Any] = json.loads(footer.get(b"clipmill", b"{}"))
    return metadata


def read_schema(path: str | Path) -> pa.Schema:
    """The columns of a table."""
    with _opened(path) as f:
        return pq.read_metadata(f).schema.to_arrow_schema()


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    if not is_url(path):
        yield local_path(path)
        return
    fs, name = _filesystem(path)
    with fs.open(name, "rb") as f:
        yield f


def _filesystem(path: str | Path) -> tuple[Any, str]:
    """The filesystem of a URL and the path inside it. Listings are not cached: other processes
    write too.
    """
    import fsspec

    try:
        fs, name = fsspec.core.url_to_fs(str(path), use_listings_cache=False)
    except ImportError as error:
        protocol = str(path).partition("://")[0]
        install = EXTRAS.get(protocol, "the package that the message names")
        raise ValueError(
            f"{path} cannot be opened: {error}; install {install}, or give a local path"
        ) from None
    return fs, name


# --- hashes -----------------------------------------------------------------------------------


def uid_of(url: str, caption: str) -> str:
    """128-bit xxh3 of url, a NUL and caption, as 32 hex digits."""
    import xxhash

    return str(xxhash.xxh3_128_hexdigest(f"{url}\0{caption}".encode("utf-8", "surrogatepass")))


def content_hash(value: Any, length: int = 12) -> str:
    """sha256 of the canonical JSON of a dataclass or plain value, cut to `length` hex digits."""
    text = json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def file_sha256(path: str | Path) -> str:
    """sha256 of a local file, 64 hex digits; read in pieces, so that files of any size fit."""
    with open(local_path(path), "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


# --- dataclasses <-> plain values -------------------------------------------------------------


def to_plain(value: Any) -> Any:
    """Dataclasses, tuples and paths as dicts, lists and strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [
            to_plain(v) for v in (sorted(value) if isinstance(value, (set, frozenset)) else value)
        ]
    return str(value) if isinstance(value, Path) else value


def from_plain(kind: Any, value: Any) -> Any:
    """The inverse of `to_plain` for JSON that this program wrote; ValueError from the dataclasses'
    own checks.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_from_plain(kind, value)
    if value is None or kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return from_plain(next(a for a in args if a is not type(None)), value)
    if origin is tuple:
        return tuple(from_plain(args[0], v) for v in value)
    if origin is dict:
        return {k: from_plain(args[1], v) for k, v in value.items()}
    return value


def _dataclass_from_plain(kind: type, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"{kind.__name__} is {value!r}; it must be a mapping of keys to values")
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    known = {field.name for field in fields}
    unknown = sorted(set(value) - known)
    if unknown:
        raise ValueError(f"{kind.__name__} has no {unknown[0]!r}{did_you_mean(unknown[0], known)}")
    for field in fields:
        has_default = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
        if field.name not in value and not has_default:
            raise ValueError(f"{kind.__name__} has no value for {field.name!r}")
    return kind(**{name: from_plain(hints[name], each) for name, each in value.items()})


JSON_TYPES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def check_types(kind: Any, value: Any, name: str) -> None:
    """Compare JSON with the annotations of a dataclass, before `from_plain` makes it.

    name: where `value` stands, for the message. ValueError for the first value of another type. A
    missing or unknown key is left to `from_plain`.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is not None or type(None) not in args:
            check_types(next(a for a in args if a is not type(None)), value, name)
    elif dataclasses.is_dataclass(kind):
        _require(isinstance(value, Mapping), value, name, "a mapping of keys to values")
        hints = typing.get_type_hints(kind)
        for key in value.keys() & hints.keys():
            check_types(hints[key], value[key], f"{name}.{key}")
    elif origin is dict:
        _require(isinstance(value, Mapping), value, name, "a mapping of keys to values")
        for key, each in value.items():
            check_types(args[1], each, f"{name}[{key!r}]")
    elif origin is tuple:
        _require(isinstance(value, list), value, name, "a list")
        kinds = args[:1] * len(value) if args[-1] is Ellipsis else args
        _require(len(value) == len(kinds), value, name, f"a list of {len(kinds)} values")
        for i, (each_kind, each) in enumerate(zip(kinds, value, strict=True)):
            check_types(each_kind, each, f"{name}[{i}]")
    elif kind in JSON_TYPES:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        fits = type(value) is kind or (kind is float and is_number)
        _require(fits, value, name, JSON_TYPES[kind])


def _require(fits: bool, value: Any, name: str, wanted: str) -> None:
    if not fits:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:60] + "…"
        raise ValueError(f"{name} is {shown}; it must be {wanted}")


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """`; did you mean 'x'?` for the closest of `known`, or nothing where none is close.

    cutoff: the similarity that is close enough, from 0 to 1.
    """
    close = closest(word, known, cutoff)
    return f"; did you mean {close!r}?" if close is not None else ""


def closest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The one of `known` that is most like `word`; None where none reaches `cutoff`."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return close[0] if close else None
