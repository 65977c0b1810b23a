"""Objects of a remote store through fsspec: whole puts, conditional where the store has them."""

from __future__ import annotations

import errno
import functools
import hashlib
import io
import logging
import secrets
from pathlib import Path
from typing import Any

from manifests.disk.local import conflict
from manifests.disk.retry import http_status, retried

# What installs the filesystem of a protocol that fsspec does not bring along.
EXTRAS = {
    "s3": "the extra `s3` of clipmill (pip install -e '.[s3]')",
    "s3a": "the extra `s3` of clipmill (pip install -e '.[s3]')",
    "gs": "the package gcsfs",
    "gcs": "the package gcsfs",
}
# Of a process to a store. botocore has 10, which at 50 ms a request would be 200 reads/s.
CONNECTIONS = 64
PART = 64 * 2**20  # bytes of a part of a multipart upload; s3fs puts less than two parts at once
BLOCK = 8 * 2**20  # bytes that are read at a time to compare
MEETINGS = 3  # times that an object may come and go while it is created
_conditional: dict[str, bool] = {}  # bucket -> whether its store has conditional puts
logger = logging.getLogger(__name__)


def filesystem(path: str | Path) -> tuple[Any, str]:
    """The filesystem of a URL and the path inside it. Listings are not cached: other processes
    write too. ValueError where the package of the protocol is not installed.
    """
    import fsspec

    try:
        options = {"use_listings_cache": False, **_connections(str(path))}
        fs, name = fsspec.core.url_to_fs(str(path), **options)
    except ImportError as error:
        protocol = str(path).partition("://")[0]
        install = EXTRAS.get(protocol, "the package that the message names")
        raise ValueError(
            f"{path} cannot be opened: {error}; install {install}, or give a local path"
        ) from None
    return fs, name


def _connections(path: str) -> dict[str, Any]:
    """The option of S3 for so many connections, beside those of fsspec's configuration."""
    import fsspec

    if not path.startswith(("s3://", "s3a://")):
        return {}
    configured = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
    return {"config_kwargs": {"max_pool_connections": CONNECTIONS, **configured}}


def read(path: str | Path, start: int = 0, length: int | None = None) -> bytes:
    """Bytes of an object. FileNotFoundError where there is none."""
    fs, name = filesystem(path)
    end = None if length is None else start + length

    def attempt() -> bytes:
        data: bytes = fs.cat_file(name, start=start, end=end)
        return data

    return retried(attempt, path)


def info(path: str | Path) -> dict[str, Any] | None:
    """What the store says of an object or folder; None where there is none."""
    fs, name = filesystem(path)
    try:
        details: dict[str, Any] = retried(lambda: fs.info(name), path)
    except FileNotFoundError:
        return None
    return details


def list_folder(folder: str | Path) -> list[str]:
    """Names inside a folder; [] where there is none."""
    fs, name = filesystem(folder)
    try:
        paths = retried(lambda: fs.ls(name, detail=False), folder)
    except FileNotFoundError:
        return []
    names = [path.rstrip("/").rsplit("/", 1)[-1] for path in paths if path.rstrip("/") != name]
    return [each for each in names if each]


def remove_object(path: str | Path) -> None:
    """Delete an object; nothing happens where there is none."""
    fs, name = filesystem(path)
    try:
        retried(lambda: fs.rm_file(name), path)
    except FileNotFoundError:
        return


def put(path: str | Path, source: bytes | Path) -> None:
    """Put an object, in place of one that may be there."""
    fs, name = filesystem(path)
    retried(lambda: _put(fs, name, source), path)


def create(path: str | Path, source: bytes | Path) -> None:
    """Put an object where there is none, and check its size and hash.

    After a timeout the object may be there: the same content counts as success. FileExistsError
    with both hashes where the content is another one. On a store without conditional puts the check
    and the put are two steps.
    """
    fs, name = filesystem(path)
    for _ in range(MEETINGS):
        try:
            retried(lambda: _put_new(fs, name, path, source), path)
        except Exception as error:
            if not _is_refused(error):
                raise
            there = object_sha256(path)
            if there is None:  # refused, and nothing is there
                continue
            new = source_sha256(source)
            if there != new:
                raise conflict(path, there, new) from None
            return
        check_object(path, source)
        return
    raise OSError(errno.EIO, "the store refuses the object, though none is there", str(path))


def replace(path: str | Path, data: bytes, expected: bytes) -> None:
    """Put an object in place of one whose content is `expected`.

    FileExistsError where the content is another one. Where the store has no conditional puts, the
    check and the put are two steps.
    """
    fs, name = filesystem(path)
    for _ in range(MEETINGS):
        before = info(path)
        there = None if before is None else read(path)
        if there == data:  # the answer to the put was lost, or it was done before
            check_object(path, data)
            return
        if there != expected:
            raise conflict(path, _sha256(there), _sha256(data))
        options = {}
        if "s3" in _protocols(fs) and before is not None and before.get("ETag"):
            options["IfMatch"] = before["ETag"]
        try:
            retried(functools.partial(_put, fs, name, data, **options), path)
        except Exception as error:
            if not _is_refused(error):
                raise
            continue
        check_object(path, data)
        return
    raise OSError(errno.EIO, "the store refuses to replace the object", str(path))


def check_object(path: str | Path, source: bytes | Path) -> None:
    """OSError where the object is not what was put: by size and ETag, else by its bytes."""
    details = info(path)
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    if details is None:
        raise OSError(errno.EIO, "it was put and is not there", str(path))
    if details.get("size") == size:
        tag = str(details.get("ETag", "")).strip('"')
        if tag == _etag(source, size):
            return
        if object_sha256(path) == source_sha256(source):  # an encrypted object has another ETag
            return
    message = f"the store has {details.get('size')} bytes of {size}, or other ones"
    raise OSError(errno.EIO, message, str(path))


def object_sha256(path: str | Path) -> str | None:
    """sha256 of an object's bytes; None where there is none."""
    fs, name = filesystem(path)

    def attempt() -> str:
        content = hashlib.sha256()
        with fs.open(name, "rb", block_size=BLOCK, cache_type="none") as f:
            while block := f.read(BLOCK):
                content.update(block)
        return content.hexdigest()

    try:
        return retried(attempt, path)
    except FileNotFoundError:
        return None


def source_sha256(source: bytes | Path) -> str:
    """sha256 of what is to be put."""
    if isinstance(source, bytes):
        return _sha256(source)
    with open(source, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def has_conditional_put(fs: Any, path: str | Path) -> bool:
    """Whether the store refuses to create an object that is there. Tried once per bucket."""
    bucket = "/".join(str(path).split("/")[:3])
    if bucket not in _conditional:
        folder = str(path).rpartition("/")[0]
        probe = filesystem(f"{folder}/.probe-{secrets.token_hex(8)}")[1]
        retried(lambda: fs.pipe_file(probe, b"1"), folder)
        try:
            retried(lambda: fs.pipe_file(probe, b"2", mode="create"), folder)
            _conditional[bucket] = False
            logger.warning(
                "%s has no conditional puts: only the lease protects what is committed", bucket
            )
        except Exception as error:
            if not _is_refused(error):
                raise
            _conditional[bucket] = True
        retried(lambda: fs.rm_file(probe), folder)
    return _conditional[bucket]


def _put(fs: Any, name: str, source: bytes | Path, **options: Any) -> None:
    if "s3" in _protocols(fs):
        options["chunksize"] = PART
    if isinstance(source, bytes):
        fs.pipe_file(name, source, **options)
    else:
        fs.put_file(str(source), name, **options)


def _put_new(fs: Any, name: str, path: str | Path, source: bytes | Path) -> None:
    if has_conditional_put(fs, path):
        _put(fs, name, source, mode="create")
        return
    if info(path) is not None:
        raise FileExistsError(str(path))
    _put(fs, name, source)


def _is_refused(error: BaseException) -> bool:
    """Whether a conditional put found another object than it asked for."""
    return isinstance(error, FileExistsError) or http_status(error) == 412


def _protocols(fs: Any) -> tuple[str, ...]:
    protocol = fs.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _sha256(data: bytes | None) -> str:
    return "of nothing" if data is None else hashlib.sha256(data).hexdigest()


def _etag(source: bytes | Path, size: int) -> str:
    """S3's ETag of an object that is not encrypted: MD5, or MD5 of the parts' MD5."""
    part = PART if size >= 2 * PART else size
    digests = []
    with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as f:
        while data := f.read(part):
            digests.append(hashlib.md5(data).digest())
    if size >= 2 * PART:
        return f"{hashlib.md5(b''.join(digests)).hexdigest()}-{len(digests)}"
    return (digests[0] if digests else hashlib.md5(b"").digest()).hex()
