"""One request to one answer: a body, a place to go on to, or a reason.

aiohttp does the talking. What it would do on its own account is taken from it: it follows no redirect, keeps no cookie,
unpacks nothing, asks no second time, and reads no head longer than HEAD_BYTES.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
import time
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import aiohttp
import xxhash
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from manifests.schema import Fetch
from pipeline.fetch import guard, sites
from pipeline.fetch.body import INFLATED, Body, Budget
from pipeline.fetch.guard import Refused
from pipeline.fetch.optouts import OptoutPolicy, signals

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

CHUNK = 64 * 1024
HEAD_BYTES = 64 * 1024  # of status line and headers, interim answers (1xx) counted
FRAMING = 32 * 1024  # beside the body: head, sizes of chunks, trailers
DRAIN = 16 * 1024  # an error page or redirect up to this long is read, to keep its connection
DRAIN_S = 0.5
KEEP_ALIVE_S = 5.0
LOOKUP_AGE_S = 600.0  # a name is looked up again after one to two times this long
BUDGET = 256 * 2**20  # for what all bodies under way hold beyond that
BACKOFF_S = 0.5  # before the first repeat, doubled for each further one, times 0.5 to 1.5
ACCEPT = "image/jpeg,image/png,image/webp,image/gif,image/*;q=0.8,*/*;q=0.5"
MOVED = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one request came to: a body, a place to go on to, or a reason of manifests.columns.REASONS."""

    reason: str | None = None
    detail: str = ""
    status: int | None = None
    body: bytes | None = None
    location: str | None = None
    content_type: str | None = None
    retry_after_s: float | None = None
    stale: bool = (
        False  # the connection was one kept from before and broke: this says nothing about the host
    )


# --- the connection ------------------------------------------------------------------------------------------------


@functools.cache
def tls() -> ssl.SSLContext:
    """One context for all: making one reads 200 KB of certificates, 33 ms of CPU."""
    return ssl.create_default_context()


@dataclass(slots=True)
class _Line:
    """What a request may read and what it learns about its connection."""

    limit: int  # bytes of the answer, as they come: head, framing and body
    last: bool = False  # the connection is of no use afterwards
    connection: _Handler | None = None
    used_before: bool = False

    @property
    def flooded(self) -> bool:
        return self.connection is not None and self.connection.flooded


_line: ContextVar[_Line] = ContextVar("line")


class _Handler(ResponseHandler):
    """Counts what comes and breaks off where it is too much: aiohttp reads interim answers, chunk extensions and
    trailers for ever."""

    used = False
    came = 0  # bytes since the request
    limit = 0
    begun = False  # the answer's own head is read
    flooded = False

    def expect(self, limit: int) -> None:
        """A request follows."""
        self.used, self.begun, self.came, self.limit = True, False, 0, limit

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.came += len(data)
        if self.came > (self.limit if self.begun else HEAD_BYTES) and self.transport is not None:
            self.flooded = True
            self.transport.abort()

    def feed_data(self, data: Any, size: int = 0) -> None:
        self.begun = self.begun or data[0].code >= 200
        super().feed_data(data, size)


class _Connector(aiohttp.TCPConnector):
    """Connects once per request: aiohttp's own second try after a broken connection would be in nobody's books."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory: Any = functools.partial(_Handler, loop=self._loop)

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
        line = _line.get()
        if line.connection is not None:
            raise aiohttp.ClientConnectionError("the connection broke")
        connection = await super().connect(req, traces, timeout)
        handler = connection.protocol
        assert isinstance(handler, _Handler)
        line.connection, line.used_before = handler, handler.used
        handler.expect(line.limit)
        if (
            line.last
        ):  # before the answer: a short one has let go of its connection before anybody reads it
            handler.force_close()
        return connection


class _Names(AbstractResolver):
    """guard.Resolver, begun anew now and then: neither an address nor a failure holds for the whole of a long run."""

    def __init__(self, settings: Fetch) -> None:
        self._settings = settings
        self._new = guard.Resolver(settings)
        self._old: guard.Resolver | None = None
        self._since = time.monotonic()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily | int = 0
    ) -> list[ResolveResult]:
        if time.monotonic() - self._since > LOOKUP_AGE_S:
            old, self._old = self._old, self._new  # lookups under way in _new still end
            self._new, self._since = guard.Resolver(self._settings), time.monotonic()
            if old is not None:
                await old.close()
        return await self._new.resolve(host, port)

    async def close(self) -> None:
        for resolver in (self._new, self._old):
            if resolver is not None:
                await resolver.close()


class Requests:
    """Session, connections and names of a worker, and the bytes that its bodies may hold."""

    def __init__(self, settings: Fetch, agent: str) -> None:
        self._settings = settings
        self._policy = OptoutPolicy(agent, settings.optout)
        self.budget = Budget(max(BUDGET, settings.max_bytes))
        self._names = _Names(settings)
        connector = _Connector(
            resolver=self._names,
            use_dns_cache=False,  # the resolver keeps failures too
            socket_factory=guard.socket_factory(settings),
            ssl=tls(),
            limit=0,
            keepalive_timeout=KEEP_ALIVE_S,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": agent, "Accept": ACCEPT, "Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(
                total=None, connect=None, sock_connect=None, sock_read=None
            ),
            auto_decompress=False,
            read_bufsize=CHUNK // 2,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()
        await self._names.close()

    async def image(self, url: str, row_signals: dict[str, Any], *, last: bool) -> Answer:
        """One request; opt-out headers go into `row_signals`. `last`: nothing more is waiting for this host, so its
        connection need not be kept. The body of the answer holds what `beyond` says of the budget: give it back."""
        headers = {"Connection": "close"} if last else None
        line = _Line(self._settings.max_bytes + FRAMING, last)
        _line.set(line)
        try:
            async with self._session.get(
                URL(url, encoded=True), allow_redirects=False, headers=headers
            ) as response:
                return await self._read(response, row_signals)
        except (aiohttp.ClientError, OSError) as error:
            return _failure(error, line)

    async def _read(self, response: aiohttp.ClientResponse, row_signals: dict[str, Any]) -> Answer:
        """An answer's head, and its body if the head gives no reason against it."""
        status, headers = response.status, response.headers
        kind = (headers.get("Content-Type") or "")[:200] or None
        answer = functools.partial(Answer, status=status, content_type=kind)
        if status != 200:
            await _drain(response)
            location = headers.get("Location")
            if status in MOVED and location is not None:
                return answer(location=location)
            after = retry_after_s(headers.get("Retry-After"))
            return answer(
                reason=_status_reason(status), detail=f"status {status}", retry_after_s=after
            )
        row_signals.update(signals(headers.items(), None))
        if row_signals and (refusal := self._policy.refusal(row_signals)):
            return answer(reason=refusal[0], detail=refusal[1])
        encoding = headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("identity", "", *INFLATED):
            return answer(reason="encoding", detail=f"{encoding[:40]}, which we did not ask for")
        limit, announced = self._settings.max_bytes, response.content_length
        if announced is not None and announced > limit:
            return answer(reason="too_many_bytes", detail=f"announced: {announced}")
        body = Body(limit, announced, encoding if encoding in INFLATED else None, self.budget)
        try:
            reason, detail = await body.read(response.content, self._settings.min_rate)
        except aiohttp.ClientError:
            reason, detail = "truncated", "the body ended early"
            if _line.get().flooded:
                reason, detail = "too_many_bytes", f"more than {self._settings.max_bytes}"
        except BaseException:
            body.give_back()
            raise
        if reason is not None:
            body.give_back()
            return answer(reason=reason, detail=detail)
        return answer(body=body.whole())

    async def site_file(self, url: str, wait: Callable[[str], Awaitable[None]]) -> sites.Answer:
        """A robots.txt or the like, over up to five redirects (RFC 9309), each checked, under a deadline of its own.
        `wait(host)` returns when a request to the host may start."""
        status, left_s = None, self._settings.deadline_s
        try:
            for _ in range(6):
                target = guard.target(url, self._settings)
                await wait(target.host)
                _line.set(_Line(sites.ROBOTS_BYTES + CHUNK + FRAMING))
                begun = time.monotonic()
                async with (
                    asyncio.timeout(left_s),
                    self._session.get(
                        URL(target.url, encoded=True), allow_redirects=False
                    ) as response,
                ):
                    status, location = response.status, response.headers.get("Location")
                    if status in MOVED and location is not None:
                        url = urljoin(target.url, location)
                        left_s -= time.monotonic() - begun
                        continue
                    body = await _up_to(response, sites.ROBOTS_BYTES) if status == 200 else b""
                    encoding = response.headers.get("Content-Encoding", "")
                    return sites.Answer(status=status, body=body, encoding=encoding)
        except TimeoutError:
            return sites.Answer(status=status, reason="deadline", detail="no whole answer in time")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if status is None:
                failed = _failure(error, _line.get())
                return sites.Answer(status=None, reason=failed.reason, detail=failed.detail)
        return sites.Answer(
            status=status
        )  # a redirect that leads nowhere: 3xx, which is no permission


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Reads the short body of an answer that is decided already, so that its connection can be used again."""
    if response.content_length is not None and response.content_length <= DRAIN:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await response.content.read(DRAIN)


async def _up_to(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body, or its first limit + 1 bytes."""
    parts: list[bytes] = []
    left = limit + 1
    while left > 0 and (part := await response.content.read(min(left, CHUNK))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


# --- reasons -------------------------------------------------------------------------------------------------------


def _status_reason(status: int) -> str:
    if status == 429:
        return "http_429"
    return (
        "http_4xx" if 400 <= status < 500 else "http_5xx" if 500 <= status < 600 else "http_other"
    )


def _failure(error: Exception, line: _Line) -> Answer:
    """The reason behind an exception, in words that do not change from run to run."""
    inner = getattr(error, "os_error", error)
    words = getattr(inner, "strerror", None) or type(inner).__name__
    if line.flooded:
        return Answer(reason="http_other", detail=f"a head of more than {HEAD_BYTES} bytes")
    if isinstance(inner, Refused):
        return Answer(reason=inner.reason, detail=inner.detail)
    if isinstance(
        error, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError, ssl.SSLError)
    ):
        cause = getattr(error, "certificate_error", inner)
        said = getattr(cause, "verify_message", None) or getattr(cause, "reason", None)
        return Answer(reason="tls", detail=str(said or words))
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return Answer(reason="dns", detail=words)
    # Whether a connection that is taken and broken at once is noticed while it is made is chance: it is one reason.
    broken = isinstance(inner, (ConnectionResetError, ConnectionAbortedError, BrokenPipeError))
    if isinstance(error, aiohttp.ClientConnectorError) and not broken:
        return Answer(reason="connect", detail=words)
    if isinstance(error, (aiohttp.ClientConnectionError, OSError)):
        return Answer(reason="reset", detail="the connection broke", stale=line.used_before)
    if isinstance(error, aiohttp.InvalidURL):
        return Answer(reason="bad_url", detail="no URL to a client")
    return Answer(reason="http_other", detail="no HTTP answer")


def backoff_s(uid: str, repeats: int, after_s: float | None) -> float:
    """Seconds before the next attempt: doubling, spread by the uid so that rows do not come back all at once."""
    spread: float = 0.5 + xxhash.xxh3_64_intdigest(f"{uid}:{repeats}".encode()) / 2**64
    return max(BACKOFF_S * spread * 2.0 ** (repeats - 1), after_s or 0.0)


def retry_after_s(value: str | None) -> float | None:
    """Retry-After in seconds, given as a number or as a date; None where it is neither."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return min(float(value), 1e9)
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError):
        return None
