"""Reading bytes of a store that answers late: retries, ranged requests, and parts of tars on the
local disk.

Reads and writes `FOLDER/ab/NAME.part` of the setting `read_cache`: 20 bytes of head (magic,
CRC-32, length), then the bytes.

Invariants:

* Every row lies in one range, and no range is longer than its bound but for one large row
  (tests/train/test_store.py).
* A part appears as a whole; a damaged one is noticed and fetched again; a full disk turns the
  cache off (tests/train/test_store.py).
* A range is read whole, or read by s3fs (tests/train/test_store.py).
* A store that does not answer is `ReadFailed`, not a person's mistake (tests/train/test_store.py).

To extend: a store that is not read through `clipmill.manifests.disk` needs nothing here; the
callers pass the function that reads.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import logging
import os
import secrets
import ssl
import struct
import threading
import time
import urllib.request
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import urlsplit

import numpy as np

from clipmill.manifests import disk, tls, waits
from clipmill.manifests.arrays import Integers
from clipmill.manifests.disk import files

T = TypeVar("T")
logger = logging.getLogger(__name__)

# --------------------------------------------------------------------------------------------------
# Reads that may fail for a moment: repeated with back-off, then reported as a failure of the run.


WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before each further attempt: 31 s in all
REMEDY = "check the connection to the store and start the same command again, it resumes"


class ReadFailed(RuntimeError):
    """A store did not answer although the read was repeated. The run can be started again."""


def read_with_retries(read: Callable[[], T], name: str, remedy: str = REMEDY) -> T:
    """`read()`, repeated after transient errors; `name` is what is read, for messages.

    ReadFailed when the last attempt fails too. Other errors are raised at once.
    """
    for wait in (*WAITS_S, None):
        try:
            with waits.doing(name):
                return read()
        except Exception as error:
            if not disk.is_transient(error):
                raise
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            if wait is None:
                raise ReadFailed(
                    f"{name} could not be read in {len(WAITS_S) + 1} attempts ({reason}); {remedy}"
                ) from error
            logger.warning("%s: %s; next attempt in %g s", name, reason, wait)
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


# --------------------------------------------------------------------------------------------------
# Bytes of rows of one tar as few ranged reads. Pure NumPy.


# Bytes between two rows that are read and thrown away rather than asked for separately. With 32
# reads at a time and 50 ms a read, a read costs 1.6 ms of a reader's time and 0.2 ms of the
# processor. 256 KiB are 1.3 ms of a line of 200 MB/s, and 0.2 ms of the
# processor.
GAP = 256 * 2**10
# Bytes of one read. A read of 4 MiB takes about as long as the wait for its first byte, so longer
# ones gain at most a half, while 32 of them at a time already need 128 MiB.
PART = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRanges:
    """Ranged reads of one file, by their first byte, and which of them has a row."""

    start: Integers  # (ranges,)
    length: Integers  # (ranges,) bytes
    of_row: Integers  # (rows,) the range that has the bytes of a row


def coalesce(offset: Integers, length: Integers) -> ByteRanges:
    """Few ranges that have all rows: each row lies in one of them as a whole.

    offset, length: (rows,) in any order; a row may come twice. Two rows share a range where at
    most GAP bytes lie between them and the range stays within PART bytes, which only a single row
    of more bytes exceeds.
    """
    order = np.argsort(offset, kind="stable")
    begins, ends = offset[order], (offset + length)[order]
    starts: list[int] = []
    stops: list[int] = []
    of_sorted = np.empty(len(order), np.int64)
    for k, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        is_near = bool(stops) and begin - stops[-1] <= GAP
        if is_near and max(end, stops[-1]) - starts[-1] <= PART:
            stops[-1] = max(end, stops[-1])
        else:
            starts.append(begin)
            stops.append(end)
        of_sorted[k] = len(starts) - 1
    of_row = np.empty_like(of_sorted)
    of_row[order] = of_sorted
    start = np.array(starts, np.int64)
    return ByteRanges(start=start, length=np.array(stops, np.int64) - start, of_row=of_row)


# --------------------------------------------------------------------------------------------------
# Ranges of objects by plain HTTP: a connection that stays open for each thread.
#
# s3fs takes about 2 ms of processor time for a request: it signs each anew, and passes it to a
# loop of events in another thread. Here an address is signed once for many ranges (a presigned
# URL, in which the range is no part of the signature), and the bytes are read into one buffer.
# Whatever is not the plain case (another status, a lost connection, a proxy, a store of another
# kind) is left to the caller's usual way, with its retries and its errors.


PROTOCOLS = ("s3://", "s3a://")
SIGNED_S = 3600  # for which an address is signed
USED_S = 1800.0  # for which it is used
ADDRESSES = 4096  # that are kept
TIMEOUT_S = 60.0  # botocore's
CERTIFICATES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")  # where botocore looks for them


@dataclass(frozen=True, slots=True)
class _Address:
    """Where an object is, signed."""

    server: tuple[str, str]  # scheme, host with port
    target: str
    until: float  # by time.monotonic()


class RangeClient:
    """`read(url, start, length)`, from any number of threads."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._addresses: OrderedDict[str, _Address] = OrderedDict()
        self._refused: set[str] = set()  # buckets that do not take such requests
        self._timeout = _timeout()

    def read(self, url: str, start: int, length: int) -> bytes | None:
        """The bytes of a range, fewer where the object ends before it. None where it must be read
        in another way, in which errors are told."""
        if length < 1 or not url.startswith(PROTOCOLS) or _bucket(url) in self._refused:
            return None
        for is_new in (False, True):
            address = self._address(url, is_new)
            if address is None:
                return None
            try:
                status, data = self._get(address, start, length)
            except ssl.SSLCertVerificationError:  # botocore may know other certificates
                break
            if status != 403:
                return data
        self._refused.add(_bucket(url))
        return None

    def _address(self, url: str, is_new: bool) -> _Address | None:
        with self._lock:
            known = self._addresses.get(url)
            if known is not None and not is_new and time.monotonic() < known.until:
                self._addresses.move_to_end(url)
                return known
        address = _sign(url)
        with self._lock:
            if address is None:
                self._refused.add(_bucket(url))
                return None
            self._addresses[url] = address
            while len(self._addresses) > ADDRESSES:
                self._addresses.popitem(last=False)
        return address

    def _get(self, address: _Address, start: int, length: int) -> tuple[int, bytes | None]:
        """(status, bytes). A connection that the server has closed meanwhile is opened again."""
        connections = self._connections()
        if address.server not in connections:
            connections[address.server] = self._connect(address.server)
        connection = connections[address.server]
        headers = {"Range": f"bytes={start}-{start + length - 1}"}
        for _ in range(2):
            is_reused = connection.sock is not None
            try:
                connection.request("GET", address.target, headers=headers)
                response = connection.getresponse()
                data = _body(response, start, length)
                if data is None:
                    connection.close()  # what is left of the answer is not read
                return response.status, data
            except (OSError, http.client.HTTPException) as error:
                connection.close()  # the next request opens it again
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise
                if not is_reused or isinstance(error, TimeoutError):
                    break
        return 0, None

    def _connections(self) -> dict[tuple[str, str], http.client.HTTPConnection]:
        if not hasattr(self._local, "connections"):
            self._local.connections = _Connections()
        connections: dict[tuple[str, str], http.client.HTTPConnection] = self._local.connections
        return connections

    def _connect(self, server: tuple[str, str]) -> http.client.HTTPConnection:
        scheme, host = server
        if scheme == "https":
            given = (os.environ.get(name) for name in CERTIFICATES)
            context = tls.context(next(filter(None, given), None))
            return http.client.HTTPSConnection(host, timeout=self._timeout, context=context)
        return http.client.HTTPConnection(host, timeout=self._timeout)


class _Connections(dict[tuple[str, str], http.client.HTTPConnection]):
    """Those of a thread; they close with it."""

    def __del__(self) -> None:
        for connection in self.values():
            connection.close()


def _body(response: http.client.HTTPResponse, start: int, length: int) -> bytes | None:
    """The bytes of a partial answer; None where it is another one."""
    size = response.length
    of_range = response.headers.get("Content-Range", "")
    if response.status != 206 or size is None or size > length:
        return None
    if not of_range.startswith(f"bytes {start}-"):
        return None
    data = response.read(size)  # into one buffer
    if len(data) < size:
        raise http.client.IncompleteRead(b"", size - len(data))
    response.read()  # nothing: the connection is free again
    return data


def _sign(url: str) -> _Address | None:
    """The signed address of an object; None where it has none, or a proxy is before it."""
    try:
        fs, name = files.filesystem(url)
        if (getattr(fs, "client_kwargs", None) or {}).get("verify") is not None:
            return None
        signed = urlsplit(fs.sign(name, expiration=SIGNED_S))
    except Exception:  # the usual way says what is wrong
        return None
    host = signed.hostname or ""
    proxies = urllib.request.getproxies()
    if signed.scheme in proxies and not urllib.request.proxy_bypass(host):
        return None
    return _Address(
        (signed.scheme, signed.netloc),
        f"{signed.path}?{signed.query}" if signed.query else signed.path,
        time.monotonic() + USED_S,
    )


def _timeout() -> float:
    """Seconds without a byte, as fsspec's configuration says of S3."""
    configured = disk.stores().config.conf.get("s3", {}).get("config_kwargs", {})
    return float(configured.get("read_timeout", TIMEOUT_S))


def _bucket(url: str) -> str:
    return "/".join(url.split("/")[:3])


# --------------------------------------------------------------------------------------------------
# Parts of remote tars in a folder on this machine, shared by its ranks and by later runs.
#
# A part is a file that appears under its name as a whole (written beside it, then renamed), so
# ranks need no lock: two that want the same part at once both fetch it, and the second rename
# changes nothing. Its name is a hash of what it must hold; its head has the length and the CRC-32
# of its content, which are compared when a process opens it. A file that does not fit is removed
# and fetched again. Where the disk takes no more, the cache is off for the rest of the run, with
# one warning.


HEAD = struct.Struct("<8sIQ")  # magic, CRC-32 and length of the content
MAGIC = b"clipmil1"
ENDING = ".part"
OPEN_PARTS = 256  # files of a process
# A process looks at the sizes of all parts after it has written so much of the limit: ranks of a
# node that do so at once go above the limit by this share each.
SHARE_BETWEEN_SCANS = 1 / 64
KEPT_SHARE = 0.9  # of the limit, after parts were removed
UNFINISHED_S = 3600.0  # a file that is still unfinished after so long was left by a killed process
FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}


class CachedPart:
    """An open part. It closes with its last reference: a part that another process removes can
    still be read."""

    __slots__ = ("_handle", "file", "length")

    def __init__(self, path: Path, verified: int | None = None) -> None:
        """verified: inode of a file whose checksum need not be compared again. ValueError for a
        damaged file, FileNotFoundError where there is none.
        """
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        head = os.pread(self._handle, HEAD.size, 0)
        if len(head) != HEAD.size:
            raise ValueError("its head is not complete")
        magic, checksum, self.length = HEAD.unpack(head)
        status = os.fstat(self._handle)
        self.file, size = status.st_ino, status.st_size - HEAD.size
        if magic != MAGIC or size != self.length:
            raise ValueError(f"it has {size} bytes of content and should have {self.length}")
        if self.file != verified and zlib.crc32(self.read(0, self.length)) != checksum:
            raise ValueError("its checksum is another one")

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    def read(self, start: int, length: int) -> bytes:
        """Bytes of the content, fewer at its end."""
        return os.pread(self._handle, length, HEAD.size + start)


class PartCache:
    """`open(name)` gives a part that is there, `add(name, data)` writes one.

    limit: bytes that all parts together may have. The parts whose last use is longest ago are
    removed first. ValueError where nothing can be written to the folder.
    """

    def __init__(self, folder: str, limit: int) -> None:
        if disk.is_url(folder):
            raise ValueError(f"the cache folder {folder!r} is a URL; name a folder of a local disk")
        self.folder = Path(disk.output_folder(folder, "read_cache"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.limit = limit
        self.is_on = True
        self._lock = threading.Lock()
        self._parts = ShardCache(OPEN_PARTS, self._open)
        self._verified: dict[str, int] = {}  # inode of the file whose checksum was compared
        self._written = 0  # since the last scan
        self.remove_old()  # the limit may have been higher

    def has(self, name: str) -> bool:
        """Whether a part is there; it may be damaged."""
        return self._path(name).exists()

    def open(self, name: str) -> CachedPart | None:
        """A part, or None where it is not there or is damaged."""
        try:
            return self._parts(name)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            path = self._path(name)
            logger.warning("%s is damaged and is fetched again: %s", path, error)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None

    def _open(self, name: str) -> CachedPart:
        part = CachedPart(self._path(name), self._verified.get(name))
        os.utime(self._path(name))  # the time of its last use
        self._verified[name] = part.file
        return part

    def fetch(self, name: str, read: Callable[[], bytes]) -> CachedPart | None:
        """A part that is there, or else is made of what `read()` gives. None where the disk takes
        no more."""
        part = self.open(name)
        if part is None and self.is_on:
            self.add(name, read())
            part = self.open(name)
            if part is None:  # another thread looked before and failed for this one too
                part = self.open(name)
        return part

    def add(self, name: str, data: bytes) -> None:
        """Write a part. A full disk turns the cache off."""
        path = self._path(name)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as f:
                f.write(HEAD.pack(MAGIC, zlib.crc32(data), len(data)))
                f.write(data)
            partial.rename(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            self._turn_off(error)
            return
        with self._lock:
            self._written += len(data)
            is_due = self._written >= self.limit * SHARE_BETWEEN_SCANS
            self._written = 0 if is_due else self._written
        if is_due:
            self.remove_old()

    def remove_old(self) -> None:
        """Remove the parts that were used longest ago, where all together exceed the limit."""
        parts: list[tuple[float, int, str]] = []
        try:
            for folder in self.folder.iterdir():
                with contextlib.suppress(NotADirectoryError, FileNotFoundError):
                    parts += _parts_in(folder)
        except OSError as error:
            self._turn_off(error)
            return
        total = sum(size for _, size, _ in parts)
        if total <= self.limit:
            return
        for _, size, path in sorted(parts):
            with contextlib.suppress(FileNotFoundError):  # another rank removed it
                os.unlink(path)
            total -= size
            if total <= KEPT_SHARE * self.limit:
                return

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / f"{name}{ENDING}"

    def _turn_off(self, error: OSError) -> None:
        with self._lock:
            was_on, self.is_on = self.is_on, False
        if was_on:
            reason = "the disk is full" if error.errno in FULL_DISK else str(error)
            logger.warning(
                "the cache in %s takes no more (%s): images are read from their store",
                self.folder,
                reason,
            )


def _parts_in(folder: Path) -> list[tuple[float, int, str]]:
    """(time of the last use, bytes, path) of the parts in a folder; what killed processes left is
    removed."""
    parts = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat()
                if entry.name.endswith(ENDING):
                    parts.append((status.st_mtime, status.st_size, entry.path))
                elif entry.name.startswith(".") and time.time() - status.st_mtime > UNFINISHED_S:
                    os.unlink(entry.path)
            except FileNotFoundError:
                continue
    return parts


# --------------------------------------------------------------------------------------------------
# A cache of shards for many threads: one shard is loaded once, different shards in parallel.


K = TypeVar("K", bound=Hashable)


class ShardCache(Generic[K, T]):
    """The `capacity` values that were used last. `cache(key)` loads what is not there.

    The lock is held only to look up and to evict, never while a value is loaded. A thread that
    asks for a value that another thread loads waits for that one. A load that fails is forgotten:
    its error goes to every thread that waited, and the next call tries again.
    """

    def __init__(self, capacity: int, load: Callable[[K], T]) -> None:
        assert capacity > 0
        self._capacity, self._load = capacity, load
        self._futures: OrderedDict[K, Future[T]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, key: K) -> T:
        with self._lock:
            future = self._futures.get(key)
            is_loader = future is None
            if future is None:
                future = self._futures[key] = Future()
                self._evict()
            self._futures.move_to_end(key)
        if is_loader:
            self._fill(key, future)
        return future.result()

    def _fill(self, key: K, future: Future[T]) -> None:
        try:
            future.set_result(self._load(key))
        except BaseException as error:
            with self._lock:
                self._futures.pop(key)
            future.set_exception(error)

    def _evict(self) -> None:
        """Remove the values that were used longest ago; those that are being loaded stay."""
        excess = len(self._futures) - self._capacity
        loaded = [key for key, future in self._futures.items() if future.done()]
        for key in loaded[: max(0, excess)]:
            del self._futures[key]
