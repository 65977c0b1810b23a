"""Ranges of objects by plain HTTP: a connection that stays open for each thread.

s3fs takes about 2 ms of processor time for a request: it signs each anew, and passes it to a loop
of events in another thread. Here an address is signed once for many ranges (a presigned URL, in
which the range is no part of the signature), and the bytes are read into one buffer. Whatever is
not the plain case (another status, a lost connection, a proxy, a store of another kind) is left to
the caller's usual way, with its retries and its errors.
"""

from __future__ import annotations

import http.client
import os
import ssl
import threading
import time
import urllib.request
from collections import OrderedDict
from dataclasses import dataclass
from urllib.parse import urlsplit

from manifests.disk import remote

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
        headers = {"Range": f"bytes={start}-{start + length - 1}"}
        for _ in range(2):
            connection = connections.get(address.server)
            is_reused = connection is not None
            if connection is None:
                connection = connections[address.server] = self._connect(address.server)
            try:
                connection.request("GET", address.target, headers=headers)
                response = connection.getresponse()
                data = _body(response, start, length)
                if data is None:
                    connection.close()  # what is left of the answer is not read
                    del connections[address.server]
                return response.status, data
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                del connections[address.server]
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
            context = ssl.create_default_context(cafile=next(filter(None, given), None))
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
        fs, name = remote.filesystem(url)
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
    import fsspec

    configured = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
    return float(configured.get("read_timeout", TIMEOUT_S))


def _bucket(url: str) -> str:
    return "/".join(url.split("/")[:3])
