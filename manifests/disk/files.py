"""Files at local paths and fsspec URLs: whole writes, retries, hashes, temporary folders."""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import io
import itertools
import json
import logging
import math
import os
import random
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from clipmill.manifests import tls
from clipmill.manifests.disk.plain import to_plain
from clipmill.manifests.installation import install_command

# --------------------------------------------------------------------------------------------------
# Local paths and URLs as text; the folder that a command writes to.


BRACES = re.compile(r"\{([^{}]*)\}")
BRACE_NUMBERS = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
MOST_PATHS = 1_000_000  # that one text with braces stands for


def join(root: str | Path, *parts: str) -> str:
    """`root` with `parts` appended, for local paths and URLs alike."""
    return "/".join([str(root).rstrip("/"), *parts])


def is_url(path: str | Path) -> bool:
    """True for s3://…, memory://… and the like; False for local paths and file://…."""
    return "://" in str(path) and not str(path).startswith("file://")


def local_path(path: str | Path) -> Path:
    """A local path without its file:// prefix."""
    return Path(str(path).removeprefix("file://"))


def expand_home(path: str) -> str:
    """A path that begins with `~/`, as it stands in a file or in quotes, as a shell reads it."""
    return os.path.expanduser(path) if path.startswith("~/") else path


def absolute_path(path: str | Path) -> str:
    """A URL as it is, a local path from the root on."""
    return str(path) if is_url(path) else str(local_path(path).absolute())


def shown_path(path: str | Path) -> str:
    """A path as a person would type it: what lies below the working folder begins there."""
    absolute = absolute_path(path)
    return absolute.removeprefix(f"{os.path.abspath(os.curdir).rstrip('/')}/")


def expand_braces(text: str) -> list[str]:
    """The texts that `{00000..00004}` and `{a,b}` in a text stand for, in order, as in a shell and
    in webdataset. Other braces stay. ValueError for braces that do not pair, or lie in others."""
    choices: list[list[str]] = []
    for number, part in enumerate(BRACES.split(text)):
        if number % 2 == 0:
            if "{" in part or "}" in part:
                raise ValueError(
                    f"the braces of {text!r} do not fit; write web-{{00000..00099}}.tar or "
                    "{a,b}, without braces inside of braces"
                )
            choices.append([part])
        elif match := BRACE_NUMBERS.fullmatch(part):
            choices.append(_numbers_between(match[1], match[2], text))
        else:
            choices.append(part.split(",") if "," in part else [f"{{{part}}}"])
    _check_number_of_paths(math.prod(map(len, choices)), text)
    return ["".join(parts) for parts in itertools.product(*choices)]


def _numbers_between(first: str, last: str, text: str) -> list[str]:
    """Both ends and all between them; padded to one width where an end begins with 0."""
    low, high = int(first), int(last)
    _check_number_of_paths(abs(high - low) + 1, text)
    has_zeros = any(end != "0" and end.startswith("0") for end in (first, last))
    width = max(len(first), len(last)) if has_zeros else 0
    step = 1 if high >= low else -1
    return [str(number).zfill(width) for number in range(low, high + step, step)]


def _check_number_of_paths(count: int, text: str) -> None:
    if count > MOST_PATHS:
        raise ValueError(f"{text!r} stands for {count:,} paths; at most {MOST_PATHS:,} are listed")


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
    # os.access says yes to root for /proc and for read-only mounts. The file has no name where the
    # file system can do that, so that a killed command leaves none.
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ValueError(
            f"{option} is {out!r}, but nothing can be written to {there} ({error.strerror}); "
            "name another folder"
        ) from None
    return str(folder)


# --------------------------------------------------------------------------------------------------
# Hashes of rows, documents and files.


def uid_of(url: str, caption: str) -> str:
    """128-bit xxh3 of url, a NUL and caption, as 32 hex digits."""
    import xxhash

    return str(xxhash.xxh3_128_hexdigest(f"{url}\0{caption}".encode("utf-8", "surrogatepass")))


def content_hash(value: object, length: int = 12) -> str:
    """sha256 of the canonical JSON of a dataclass or plain value, cut to `length` hex digits."""
    return plain_hash(to_plain(value), length)


def plain_hash(value: object, length: int = 12) -> str:
    """`content_hash` of what `json.loads` gave: three times as fast for a large document."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def file_sha256(path: str | Path) -> str:
    """sha256 of a local file, 64 hex digits; read in pieces, so that files of any size fit."""
    with open(local_path(path), "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


# --------------------------------------------------------------------------------------------------
# Local files: written whole, synced with their folder, and never over a file unless asked.


# What os.link raises between two file systems, and on one without hard links.
NO_LINKS = {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device", stat.S_IFDIR: "a folder",
}  # fmt: skip


class NotRegular(OSError, ValueError):
    """A name that leads to a pipe, a socket, a device or a folder: reading it may never end. A
    mistake of a person (ValueError) where a manifest names it."""


def check_regular(path: str | Path) -> None:
    """NotRegular where something else than a regular file lies at a local path."""
    kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind != stat.S_IFREG:
        what = KINDS.get(kind, "no file")
        raise NotRegular(f"{path} is {what}, not a regular file; give a regular file")


# What Git has in the place of a large file that was not fetched, and the most bytes of it.
LFS_POINTER, LFS_POINTER_BYTES = b"version https://git-lfs.github.com/spec/", 1024


def check_source_file(path: str | Path) -> None:
    """NotRegular as `check_regular`; ValueError for a pointer of Git LFS at a local path."""
    check_regular(path)
    if os.stat(path).st_size <= LFS_POINTER_BYTES:
        with open(path, "rb") as f:
            if f.read(len(LFS_POINTER)) == LFS_POINTER:
                raise ValueError(f"{path} is a Git LFS pointer and not the file: run git lfs pull")


def check_not_saved(folder: str | Path, names: Iterable[str]) -> None:
    """ValueError for a folder with Arrow files as Hugging Face's `datasets` writes them, and no
    Parquet file: `names` are those in it."""
    names = set(names)
    arrow = min((name for name in names if name.endswith(".arrow")), default="")
    is_dict = "dataset_dict.json" in names
    if not (is_dict or arrow) or any(name.endswith((".parquet", ".tar")) for name in names):
        return
    if is_dict or "state.json" in names:
        split = "['train']" if is_dict else ""
        data = f"datasets.load_from_disk({str(folder)!r}){split}"
    else:  # of its cache
        data = f"datasets.Dataset.from_file({join(folder, arrow)!r})"
    raise ValueError(
        f"{folder} holds Arrow files of Hugging Face's datasets, which are not read: write a "
        f"Parquet file by {data}.to_parquet('pairs.parquet') and give that one (a source of kind "
        "image_table reads its pictures)"
    )


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """An OSError of the body that names no file names this one: write and fsync know none."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def make_folder(folder: Path) -> None:
    """Make a folder and its parents; the entries of new ones are synced."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_local_folder(each.parent)


def partial_path(target: Path) -> Path:
    """Where a file is written before it gets its name. Machines that share a folder may have the
    same process ids.
    """
    return target.with_name(f".{target.name}.partial.{os.getpid()}-{secrets.token_hex(4)}")


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and sync it. OSError where the file did not take all bytes."""
    with naming(path), open(path, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    check_size(path, len(data))


def check_size(path: Path, expected: int) -> None:
    """OSError where a file that was written does not have all its bytes."""
    size = path.stat().st_size
    if size != expected:
        raise OSError(errno.EIO, f"{size} of {expected} bytes were written", str(path))


class CountedFile(io.RawIOBase):
    """A new file that is written once from its beginning, for writers that do not check it.

    OSError on closing where the disk did not take all bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.position = path, 0
        self._has_failed = False  # its error says more than the size
        self._file = path.open("wb")  # closed by close()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with naming(self.path):
            try:
                written = self._file.write(data)
            except OSError:
                self._has_failed = True
                raise
        self.position += written
        return written

    def tell(self) -> int:
        return self.position

    def close(self) -> None:
        """Close the file and compare its size."""
        if self.closed:
            return
        super().close()
        with naming(self.path):
            self._file.close()
        if not self._has_failed:
            check_size(self.path, self.position)


def sync_local_folder(folder: Path) -> None:
    """A new name lasts over a power failure only when its folder is synced too."""
    with naming(folder):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """Where a file is written before it gets its name; it is removed where it does not."""
    partial = partial_path(target)
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def replace_file(target: Path, data: bytes) -> None:
    """Write a file, in place of one that may be there."""
    make_folder(target.parent)
    with _partial(target) as partial:
        write_synced(partial, data)
        os.replace(partial, target)
    sync_local_folder(target.parent)


def create_from(source: Path, target: Path) -> None:
    """Give a finished and synced file a name that is new; `source` keeps its own too.

    The same content under that name counts as success; FileExistsError with both hashes where it
    is another one. On a file system without hard links the check and the rename are two steps.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        there, new = file_sha256(target), file_sha256(source)
        if there != new:
            raise conflict(target, there, new) from None
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with _partial(target) as partial:
            copy_synced(source, partial)
            if error.errno == errno.EXDEV:
                create_from(partial, target)
            elif not target.exists():
                os.replace(partial, target)
            elif (there := file_sha256(target)) != (new := file_sha256(source)):
                raise conflict(target, there, new) from None
    sync_local_folder(target.parent)


def copy_synced(source: Path, target: Path) -> None:
    """Copy a file and sync the copy. OSError where not all bytes arrived."""
    with naming(target):
        shutil.copyfile(source, target)
    sync_file(target)
    check_size(target, source.stat().st_size)


def sync_file(path: Path) -> None:
    """Wait until the bytes of a finished file are on the disk."""
    with naming(path), open(path, "rb") as f:
        os.fsync(f.fileno())


def conflict(path: str | Path, there: str, new: str) -> FileExistsError:
    """The error for a file that exists with another content."""
    message = f"it exists with another content: sha256 {there}, and {new} was to be written"
    return FileExistsError(errno.EEXIST, message, str(path))


def move_file(source: Path, target: Path) -> None:
    """Move a finished file to its place, in place of one that may be there. OSError where not all
    bytes arrived.
    """
    make_folder(target.parent)
    size = source.stat().st_size
    with _partial(target) as partial:
        with naming(partial):
            shutil.move(source, partial)  # a copy where the two lie on different filesystems
        sync_file(partial)
        check_size(partial, size)
        os.replace(partial, target)
    sync_local_folder(target.parent)


# --------------------------------------------------------------------------------------------------
# Which errors of a remote store pass by themselves, and how an operation is tried again.


RETRY_S = 60.0  # from the first failure; a store that is gone for 30 s costs no build
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
NETWORK_ERRORS = {
    getattr(errno, name)
    for name in (
        "EAGAIN", "EBUSY", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "EIO",
        "ENETDOWN", "ENETUNREACH", "EPIPE", "EREMOTEIO", "ESTALE", "ETIMEDOUT",
    )
    if hasattr(errno, name)
}  # fmt: skip
# Base classes of botocore's and aiohttp's errors without an HTTP status, by name: neither package
# is imported here.
NETWORK_CLASSES = {
    ("botocore.exceptions", "ConnectionError"),
    ("botocore.exceptions", "HTTPClientError"),
    ("botocore.exceptions", "IncompleteReadError"),
    ("botocore.parsers", "ResponseParserError"),
    ("aiohttp.client_exceptions", "ClientError"),
    ("httpx", "TransportError"),
    ("httpx2", "TransportError"),
}
# S3 answers 409 with these where two conditional puts of an object meet; its manual says to retry.
RACES = {"ConditionalRequestConflict", "OperationAborted"}
NUMBERS = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    PermissionError: errno.EACCES,
}
CREDENTIALS = (
    "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN, which expires), or "
    "AWS_PROFILE; FSSPEC_S3_ANON=true reads a public bucket without"
)
NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError"}
T = TypeVar("T")
logger = logging.getLogger(__name__)


def http_status(error: BaseException) -> int | None:
    """The HTTP status that a store's error came with; None where there was no answer."""
    for each in _chain(error):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(status, int):
                return status
        for name in ("status", "code"):  # aiohttp and gcsfs
            status = getattr(each, name, None)
            if isinstance(status, int) and 100 <= status < 600:
                return status
    return None


def is_transient(error: BaseException) -> bool:
    """True for timeouts, lost connections, also of a network file system, and the statuses 408, 429
    and 5xx of a remote store; not of what `retried` gave up."""
    if any(getattr(each, "errno", None) == errno.EHOSTDOWN for each in _chain(error)):
        return False
    status = http_status(error)
    if status is not None and status >= 300:
        code = _error_code(error)
        return status in (408, 429) or status >= 500 or (status == 409 and code in RACES)
    for each in _chain(error):
        if isinstance(each, (FileNotFoundError, FileExistsError, PermissionError)):
            return False
        if isinstance(each, (ConnectionError, TimeoutError)):
            return True
        if isinstance(each, OSError) and each.errno in NETWORK_ERRORS:
            return True
        names = {(kind.__module__, kind.__name__) for kind in type(each).__mro__}
        if names & NETWORK_CLASSES:
            return True
    return False


def pauses(limit_s: float = RETRY_S) -> Iterator[float]:
    """Seconds to wait before the second try, the third and so on: twice as long each, with jitter,
    until `limit_s` have passed.
    """
    ends = time.monotonic() + limit_s
    pause = FIRST_PAUSE_S
    while time.monotonic() + pause <= ends:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(2 * pause, LONGEST_PAUSE_S)


def retried(
    operation: Callable[[], T],
    path: object,
    also: int | None = None,
    limit_s: float | None = None,
) -> T:
    """The result of an operation on a remote store; transient errors are tried again.

    `path` is for the log line, and for an OSError that names no file. `also`: one more HTTP status
    that passes. The last error is raised where `limit_s` (RETRY_S) did not suffice.
    """
    waits: Iterator[float] | None = None
    while True:
        try:
            return operation()
        except Exception as error:
            if not is_transient(error) and (also is None or http_status(error) != also):
                _raise_named(error, path)
            waits = waits or pauses(RETRY_S if limit_s is None else limit_s)
            pause = next(waits, -1.0)
            if pause < 0:
                _raise_named(error, path)
            logger.warning("%s: %s; trying again in %.1f s", path, _short(error), pause)
            time.sleep(pause)


def _raise_named(error: Exception, path: object) -> NoReturn:
    """Raise the error of a store as an OSError with the path, as those of local files; one of our
    own code as it is. EHOSTDOWN: the store did not answer. EACCES: what a library says.
    """
    if getattr(error, "filename", None) is not None:
        raise error
    is_of_library = type(error).__module__ != "builtins" and not isinstance(error, ValueError)
    if not is_of_library and not isinstance(error, OSError):
        raise error
    status = http_status(error)
    if is_transient(error) and (is_of_library or status is not None):
        address = os.environ.get("AWS_ENDPOINT_URL") if str(path).startswith("s3") else None
        named = f" (AWS_ENDPOINT_URL is {address})" if address else ""
        text = f"the store does not answer ({_short(error)})"
        text += f"; check its address{named} and the network"
        raise OSError(errno.EHOSTDOWN, text, str(path)) from error
    for kind, number in NUMBERS.items():
        if isinstance(error, kind) and (number != errno.EACCES or status is None):
            raise kind(number, os.strerror(number), str(path)) from error
    if is_of_library or status is not None:
        refuses = status in (400, 401, 403) or type(error).__name__ in NO_CREDENTIALS
        text = _short(error) + (CREDENTIALS if refuses else "")
        raise PermissionError(errno.EACCES, text, str(path)) from error
    assert isinstance(error, OSError)  # else it is of our own code
    if isinstance(error, (ConnectionError, TimeoutError)) or error.errno is None:
        raise error
    raise OSError(error.errno, _short(error), str(path)) from error


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it was raised from, at most five."""
    each: BaseException | None = error
    for _ in range(5):
        if each is None:
            return
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _error_code(error: BaseException) -> str | None:
    for each in _chain(error):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code"))
    return None


def _short(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {str(error) or 'no answer in time'}".split())
    return text if len(text) <= 200 else text[:200] + "…"


# --------------------------------------------------------------------------------------------------
# Objects of a remote store through fsspec: whole puts, conditional where the store has them.


# What installs the filesystem of a protocol that fsspec does not bring along.
EXTRAS = {
    "gs": "the package gcsfs",
    "gcs": "the package gcsfs",
    "hf": "the package huggingface_hub (pip install huggingface_hub)",
}
# Of a process to a store. botocore has 10, which at 50 ms a request would be 200 reads/s.
CONNECTIONS = 64
PART = 64 * 2**20  # bytes of a part of a multipart upload; s3fs puts less than two parts at once
BLOCK = 8 * 2**20  # bytes that are read at a time to compare
MEETINGS = 3  # times that an object may come and go while it is created
# A store that has not answered this process yet gets less time than RETRY_S: its address may be
# wrong. ANSWER_S is for one answer.
FIRST_S, ANSWER_S = 3.0, 10.0
BUCKETS = {"s3", "s3a", "gs", "gcs"}  # protocols of stores whose addresses begin with a bucket
_answered: set[str] = set()  # protocol://bucket of stores that have
_conditional: dict[str, bool] = {}  # bucket -> whether its store has conditional puts


@functools.cache
def stores() -> Any:
    """The package fsspec, whose web clients verify certificates as all clients here do."""
    import fsspec

    for protocol in ("http", "https"):  # a configuration of the user's own stays
        fsspec.config.conf.setdefault(protocol, {}).setdefault("get_client", tls.web_client)
    return fsspec


def filesystem(path: str | Path) -> tuple[Any, str]:
    """The filesystem of a URL and the path inside it. Listings are not cached: other processes
    write too.

    ValueError where the package of the protocol is not installed. OSError where its store does not
    answer the first question of this process, or refuses its credentials, or has no such bucket:
    here, because behind this libraries wait for minutes, or raise errors of many kinds.
    """
    protocol, _, rest = str(path).partition("://")
    try:
        options = {"use_listings_cache": False, **_connections(str(path))}
        fs, name = stores().core.url_to_fs(str(path), **options)
    except ImportError as error:
        install = EXTRAS.get(protocol, "the package that the message names")
        if protocol in ("s3", "s3a"):
            install = f"the extra `s3` of clipmill ({install_command('s3')})"
        raise ValueError(
            f"{path} cannot be opened: {error}; install {install}, or give a local path"
        ) from None
    except ValueError as error:  # of fsspec: an unknown protocol
        raise ValueError(f"{path} cannot be opened: {error}") from None
    bucket = f"{protocol}://{rest.partition('/')[0]}"
    if protocol in {*BUCKETS, "hf"} and bucket not in _answered:
        _ask_store(fs, bucket if protocol in BUCKETS else str(path), str(path))
        _answered.add(bucket)
    return fs, name


def _ask_store(fs: Any, place: str, path: str) -> None:
    """The first question to a store: is its bucket there?"""

    def attempt() -> None:
        from fsspec import asyn

        if fs.async_impl:
            asyn.sync(fs.loop, fs._info, fs._strip_protocol(place), timeout=ANSWER_S)
        else:
            fs.info(fs._strip_protocol(place))

    try:
        retried(attempt, path, limit_s=FIRST_S)
    except FileNotFoundError:
        if place != path:
            text = f"there is no bucket {place}; make it, or mend the address"
            raise FileNotFoundError(errno.ENOENT, text, path) from None
    except OSError as error:  # another answer: what is asked next says whether it matters
        if error.errno == errno.EHOSTDOWN or not http_status(error):
            raise


def open_stream(path: str | Path, **options: object) -> Any:
    """`fsspec.open` of a file to read, local or remote. OSError with the path where a store has
    none, or refuses it: what fsspec raises names none."""
    if str(path).partition("://")[0] in BUCKETS and info(path) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if is_url(path):
        filesystem(path)
    return stores().open(str(path), "rb", **options)


def _connections(path: str) -> dict[str, Any]:
    """The option of S3 for so many connections, beside those of fsspec's configuration."""
    if not path.startswith(("s3://", "s3a://")):
        return {}
    configured = stores().config.conf.get("s3", {}).get("config_kwargs", {})
    return {"config_kwargs": {"max_pool_connections": CONNECTIONS, **configured}}


def read(path: str | Path, start: int = 0, length: int | None = None) -> bytes:
    """Bytes of an object, as many as there are. FileNotFoundError where there is none;
    PermissionError where its server answers a range with the whole object."""
    from fsspec import AbstractFileSystem

    fs, name = filesystem(path)
    end = None if length is None else start + length
    # fsspec's own cat_file, which hf:// has, would ask for 5 MB more than it is asked for.
    is_own = fs.async_impl or type(fs).cat_file is not AbstractFileSystem.cat_file
    options = {} if is_own else {"cache_type": "none"}

    def attempt() -> bytes:
        try:
            data: bytes = fs.cat_file(name, start=start, end=end, **options)
        except Exception as error:
            if http_status(error) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return b""  # behind the end, where a local file has no bytes either
            raise
        return data

    data = retried(attempt, path)
    if data and length is not None and len(data) != length:
        is_whole = len(data) > length or (start and len(data) == (info(path) or {}).get("size"))
        if is_whole:
            text = "its server sends whole files and no ranges; copy it to a disk or a store"
            raise PermissionError(errno.EACCES, text, str(path))
    return data


def info(path: str | Path) -> dict[str, Any] | None:
    """What the store says of an object or folder; None where there is none."""
    fs, name = filesystem(path)
    try:
        details: dict[str, object] = retried(lambda: fs.info(name), path)
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
    return _sha256(source) if isinstance(source, bytes) else file_sha256(source)


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


def _put_new(fs: object, name: str, path: str | Path, source: bytes | Path) -> None:
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


# --------------------------------------------------------------------------------------------------
# Files at local paths and fsspec URLs (`file`, `s3`, `gs`, `memory` behave the same).


MARKED = 64 * 1024  # bytes from the beginning in which a file has its mark


def read_bytes(path: str | Path, start: int = 0, length: int | None = None) -> bytes:
    """Bytes of a file, or `length` of them from `start`. FileNotFoundError where there is none,
    NotRegular for a pipe, a device or a folder."""
    if is_url(path):
        return read(path, start, length)
    check_regular(local_path(path))
    with naming(path), open(local_path(path), "rb") as f:
        f.seek(start)
        return f.read() if length is None else f.read(length)


def check_replaceable(path: str | Path, mark: bytes, option: str) -> None:
    """ValueError where a path that a person gave has a file without `mark` in its first bytes: no
    command replaces a file that it did not write. `option` is what the message names.
    """
    if exists(path) and (head := read_bytes(path, 0, MARKED)) and mark not in head:
        raise ValueError(
            f"{option} {path}: there is a file of that name that this command did not write; name "
            "another file, or remove that one"
        )


def write_bytes(path: str | Path, data: bytes) -> None:
    """Whole or not at all, in place of a file that may be there: a temporary file, fsync and a
    rename locally, one put elsewhere.
    """
    if is_url(path):
        put(path, data)
        return
    replace_file(local_path(path), data)


def create_bytes(path: str | Path, data: bytes) -> None:
    """Like `write_bytes`, but never over another content: FileExistsError with both hashes.

    The same content counts as success.
    """
    if is_url(path):
        create(path, data)
        return
    target = local_path(path)
    make_folder(target.parent)
    with _partial(target) as partial:
        write_synced(partial, data)
        create_from(partial, target)


def replace_bytes(path: str | Path, data: bytes, expected: bytes) -> None:
    """Put `data` in place of a file whose content is `expected`; FileExistsError where it is not.

    Locally the check and the rename are two steps: call it under a lease.
    """
    if is_url(path):
        replace(path, data, expected)
        return
    there = read_bytes(path)
    if there != expected:
        raise conflict(path, source_sha256(there), source_sha256(data))
    replace_file(local_path(path), data)


def publish(staged: str | Path, path: str | Path) -> None:
    """Move a finished local file to its place, in place of a file that may be there: fsync and
    rename on one filesystem, one put elsewhere.
    """
    if is_url(path):
        put(path, Path(staged))
        check_object(path, Path(staged))
        return
    move_file(Path(staged), local_path(path))


def create_file(staged: str | Path, path: str | Path) -> None:
    """Like `publish`, but never over another content: FileExistsError with both hashes.

    The same content counts as success. The staged file stays: it is linked or copied.
    """
    if is_url(path):
        create(path, Path(staged))
        return
    target = local_path(path)
    make_folder(target.parent)
    sync_file(Path(staged))
    create_from(Path(staged), target)


def exists(path: str | Path) -> bool:
    """True where a file or folder lies at `path`."""
    if is_url(path):
        return info(path) is not None
    return local_path(path).exists()


def is_folder(path: str | Path) -> bool:
    """True where a folder lies at `path`, whatever its name ends in."""
    if is_url(path):
        return (info(path) or {}).get("type") == "directory"
    return local_path(path).is_dir()


def list_names(folder: str | Path, suffix: str = "") -> list[str]:
    """Sorted names inside a folder that end in `suffix`; [] where there is no folder. Unfinished
    files are left out.
    """
    if is_url(folder):
        names = list_folder(folder)
    else:
        names = os.listdir(local_path(folder)) if local_path(folder).is_dir() else []
    return sorted(name for name in names if name.endswith(suffix) and not name.startswith("."))


def walk(folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk` of a local folder through links to folders, each folder once; those that a caller
    takes out of the list of folders are not entered.
    """
    visited = set[str]()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders.sort()
        yield parent, folders, names


def names_below(folder: str) -> list[str]:
    """The files in a folder and in those below it, relative to it and in the order of their names,
    part for part; hidden ones are left out, and [] where there is no folder.
    """
    if is_url(folder):
        fs, root = filesystem(folder)
        found = [path.removeprefix(root) for path in retried(lambda: fs.find(root), folder)]
    else:
        root = str(local_path(folder))
        walked = ((parent.removeprefix(root), names) for parent, _, names in walk(root))
        found = [f"{inside}/{name}" for inside, names in walked for name in names]
    parts = sorted(path.lstrip("/").split("/") for path in found)
    return ["/".join(each) for each in parts if not any(part.startswith(".") for part in each)]


def remove(path: str | Path) -> None:
    """Delete one file; nothing happens where there is none."""
    if is_url(path):
        remove_object(path)
        return
    local_path(path).unlink(missing_ok=True)


def sha256_of(path: str | Path) -> str:
    """sha256 of a file's bytes, 64 hex digits; a process reads a file that stays the same once.

    FileNotFoundError where there is none.
    """
    if is_url(path):
        state: Any = info(path)
        if state is None:
            raise FileNotFoundError(str(path))
        return _sha256_of(str(path), repr(sorted(state.items(), key=repr)))
    return _sha256_of(str(path), state_of(path))


def state_of(path: str | Path) -> tuple[int, ...]:
    """What changes with the content of a local file; () for an object, which is not asked for.

    FileNotFoundError where there is none.
    """
    if is_url(path):
        return ()
    status = local_path(path).stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@functools.lru_cache(maxsize=4096)
def _sha256_of(path: str, state: object) -> str:
    if not is_url(path):
        return file_sha256(path)
    sha256 = object_sha256(path)
    if sha256 is None:
        raise FileNotFoundError(path)
    return sha256


def sync_folder(folder: str | Path) -> None:
    """Have the names in a folder last over a power failure: new, replaced and removed ones. Those
    of a store do.
    """
    if not is_url(folder):
        sync_local_folder(local_path(folder))


@contextmanager
def open_file(path: str | Path, **options: object) -> Iterator[Any]:
    """A file to read at any offset: a local path for pyarrow, or a file object of a store, opened
    with these options of fsspec. NotRegular for a pipe, a device or a folder."""
    if not is_url(path):
        check_regular(local_path(path))
        yield local_path(path)
        return
    fs, name = filesystem(path)
    with retried(lambda: fs.open(name, "rb", **options), path) as f:
        yield f


# --------------------------------------------------------------------------------------------------
# Folders for temporary files that do not stay behind a process that was killed.


NEW_S = 60.0  # a folder this young may be one whose process is about to lock it

_cleaned: set[tuple[Path, str]] = set()


@contextmanager
def scratch_folder(prefix: str, parent: str | Path | None = None) -> Iterator[Path]:
    """A new folder `parent`/`prefix`..., removed at the end.

    parent: without it, the folder for temporary files of this machine. Folders of the same prefix
    there whose processes are gone are removed first, once in a process. A process holds a lock on
    its folder, which the system releases however the process ends.
    """
    home = Path(tempfile.gettempdir() if parent is None else parent)
    if (home, prefix) not in _cleaned:
        _cleaned.add((home, prefix))
        remove_abandoned(home, prefix)
    folder = home / f"{prefix}{secrets.token_hex(8)}"
    folder.mkdir(0o700 if parent is None else 0o777)  # all users write to the first
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks: the folder is never taken for left
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def new_folder(folder: str) -> Iterator[Path]:
    """A folder to fill, which becomes `folder` at the end of the block: whole or, locally, not at
    all. At a URL what describes the others, a .json, comes last.

    ValueError where `folder` is not empty, or where another command was faster.
    """
    if list_names(folder) or (not is_url(folder) and local_path(folder).is_file()):
        raise ValueError(f"{folder} exists and is not empty; choose a new folder")
    if is_url(folder):
        with scratch_folder("clipmill-folder-") as staging:
            yield staging
            for path in sorted(staging.iterdir(), key=lambda path: (path.suffix == ".json", path)):
                publish(path, join(folder, path.name))
        return
    target = local_path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(f".{target.name}.partial.", target.parent) as staging:
        yield staging
        for path in staging.iterdir():
            sync_file(path)
        try:
            os.rename(staging, target)  # over a folder only where it is empty
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise ValueError(f"{folder} was made by another command in the meantime") from None
        sync_folder(target.parent)


def remove_abandoned(home: Path, prefix: str) -> list[Path]:
    """Remove the folders of this prefix that no process has locked; those that were removed."""
    removed = []
    with suppress(OSError), os.scandir(home) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):  # of another user, or removed in the meantime
                    if _remove_if_abandoned(entry):
                        removed.append(home / entry.name)
    return removed


def _remove_if_abandoned(entry: os.DirEntry[str]) -> bool:
    status = entry.stat(follow_symlinks=False)
    if status.st_uid != os.getuid() or time.time() - status.st_mtime < NEW_S:
        return False
    lock = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(lock)
    return not os.path.exists(entry.path)
