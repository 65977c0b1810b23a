"""One request: redirects, body, opt-out headers, and its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import ssl
import time
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from itertools import takewhile
from typing import Any

import aiohttp
import xxhash
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from clipmill.filters.optout import LIKE_US, product, refusal
from clipmill.manifests import tls
from clipmill.manifests.schema import Fetch
from clipmill.manifests.text import valid_text
from clipmill.pipeline.archives.codings import (
    INFLATED,
    PACKED,
    Dechunker,
    Inflater,
    coding_names,
    is_whole,
)
from clipmill.pipeline.fetch import guard, own_time
from clipmill.pipeline.fetch.guard import UNKNOWN, AddressSource, Refused, Resolver
from clipmill.pipeline.fetch.outage import Outage

# --------------------------------------------------------------------------------------------------
# The body of one response as it arrives: bytes counted on the wire and unpacked, memory, rate.


RATE_AFTER_S = 5.0  # from then on a body must have arrived at fetch.min_rate on average
FREE_BYTES = 256 * 1024  # of each body are outside the budget; the median image has 100 KB


def budget_bytes(size: int) -> int:
    """What a body of that size acquires from the budget."""
    return max(size - FREE_BYTES, 0)


class Budget:
    """Bytes that may be held in memory at once.

    Requests for more wait in order. Each acquires all that it needs in one call, so nobody waits
    for more while holding some.
    """

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def acquire(self, amount: int) -> None:
        """Wait until `amount` bytes are free, and take them."""
        assert amount <= self.size
        if not self._waiting and amount <= self.free:
            self.free -= amount
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((amount, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(amount)
            raise

    def release(self, amount: int) -> None:
        """Return bytes to the budget.

        A negative amount takes bytes without waiting: for a body that grew beyond its share.
        """
        self.free += amount
        while self._waiting:
            needed, granted = self._waiting[0]
            if not granted.done():
                if needed > self.free:
                    return
                self.free -= needed
                granted.set_result(None)
            self._waiting.popleft()


class Body:
    """A body that is being read: at most `limit` bytes on the wire, and as many unpacked."""

    def __init__(
        self, limit: int, announced: int | None, encoding: str | None, budget: Budget
    ) -> None:
        """`encoding`: the Content-Encoding. gzip and deflate are undone although the request
        excludes them: some servers pack every response. What is no coding changes nothing.
        """
        self._limit = limit
        codings = reversed(coding_names([encoding or ""]))
        self._inflaters = [Inflater(name) for name in codings if name in INFLATED]
        self._expected = limit if announced is None or self._inflaters else announced
        self._budget = budget
        self._acquired = 0  # of the budget
        self._wire_bytes = self._size = 0
        self._parts: list[bytes] = []

    async def read(self, content: aiohttp.StreamReader, min_rate: int) -> tuple[str | None, str]:
        """Read all of it. (None, "") or a reason with a detail.

        aiohttp.ClientError where the body breaks off.
        """
        if content.is_eof():  # a small body has arrived with its head
            part = content.read_nowait()
            return (self._add(part) if part else None) or self._result()
        loop = asyncio.get_running_loop()
        started = own_time.now()
        try:
            async with own_time.limit(RATE_AFTER_S if min_rate else None) as limit:
                while part := await content.readany():
                    if end := self._add(part):
                        return end
                    if self._size > FREE_BYTES and not self._acquired:
                        started += await self._acquire(limit)
                    if min_rate:  # the time at which the average falls below it, without more bytes
                        ends = started + max(RATE_AFTER_S, self._wire_bytes / min_rate)
                        limit.reschedule(loop.time() + ends - own_time.now())
        except TimeoutError:
            if not limit.expired():
                raise
            return "too_slow", f"less than {min_rate} bytes/s"
        return self._result()

    async def _acquire(self, limit: asyncio.Timeout) -> float:
        """Memory for the whole expected body.

        Returns the seconds of the wait, which do not count against the server.
        """
        started = own_time.now()
        limit.reschedule(None)
        await self._budget.acquire(budget_bytes(self._expected))
        self._acquired = budget_bytes(self._expected)
        return own_time.now() - started

    def _add(self, part: bytes) -> tuple[str, str] | None:
        self._wire_bytes += len(part)
        for inflater in self._inflaters:  # one byte above the limit shows that there is more
            try:
                part = inflater.add(part, self._limit + 1 - self._size)
            except zlib.error:
                return "encoding", f"the body is not {inflater.coding}, as its header says"
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._limit or self._wire_bytes > self._limit:
            return "too_many_bytes", f"more than {self._limit}"
        return None

    def _result(self) -> tuple[str | None, str]:
        for inflater in self._inflaters:
            if not inflater.is_whole:
                return "truncated", f"the {inflater.coding} ended early"
        return (None, "") if self._size else ("empty", "no body")

    def take(self) -> bytes:
        """The body. It keeps `budget_bytes` of its size: release them when it is dropped."""
        self._budget.release(self._acquired - budget_bytes(self._size))
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def discard(self) -> None:
        """Return all of the budget."""
        self._budget.release(self._acquired)
        self._acquired = 0


# --------------------------------------------------------------------------------------------------
# The opt-out signals of a row, kept raw, and the one place that says whether they refuse the row.
#
# The signals are one JSON object, the sidecar column `optout`. filters/optout.py holds the
# grammars and applies another policy to the same column later.


HEADERS = ("x-robots-tag", "tdm-reservation", "tdm-policy", "content-usage", "content-signal")
LONGEST_VALUE = 2000  # characters of one header that are kept
MOST_LICENSES = 10  # links with rel=license that are kept
LINK = re.compile(r'<[^<>]*>((?:[^,"]|"[^"]*")*)')  # of a Link header; its parameters
PARAMETER = re.compile(r';\s*([^\s;=,"]+)\s*=\s*("[^"]*"|[^;,]*)')


def signals(headers: Iterable[tuple[str, str]], page_robots: str | None) -> dict[str, object]:
    """Every signal of the headers of a response and of the page, raw; {} where there is none.

    `page_robots` is the JSON that crawl keeps: {"meta": […], "x-robots-tag": […]}.
    """
    raw: dict[str, Any] = {}
    for name, value in headers:
        if name.lower() in HEADERS:
            raw.setdefault(name.lower(), []).append(value[:LONGEST_VALUE])
        elif name.lower() == "link":
            links = [link[0].strip() for link in LINK.finditer(value) if _names_license(link[1])]
            kept = [*raw.get("license", ()), *(link[:LONGEST_VALUE] for link in links)]
            raw |= {"license": kept[:MOST_LICENSES]} if kept else {}
    if page_robots:
        raw["page"] = json.loads(page_robots)
    return raw


def _names_license(parameters: str) -> bool:
    """Whether the first `rel` of a link is, among others, license."""
    values = (text for name, text in PARAMETER.findall(parameters) if name.lower() == "rel")
    return "license" in next(values, "").strip("\"' ").lower().split()


class OptoutPolicy:
    """The policy of a recipe (`fetch.optout`), applied to the name that the crawler uses."""

    def __init__(self, user_agent: str, policy: str | Iterable[str]) -> None:
        self.user_agent = user_agent
        self.policy = policy
        self.names = (product(user_agent), *LIKE_US)  # by which sites address us

    def refusal(self, raw: Mapping[str, object]) -> tuple[str, str] | None:
        """(reason, the words that refuse) for the signals of a row, or None where it may stay."""
        return refusal(raw, self.user_agent, self.policy)


# --------------------------------------------------------------------------------------------------
# One request and its outcome: a body, a redirect, or a reason.
#
# aiohttp speaks HTTP. Its own initiatives are disabled: it follows no redirect, keeps no cookie,
# unpacks nothing, repeats no request, uses no proxy, and reads no head longer than HEAD_BYTES.


CHUNK = 64 * 1024
HEAD_BYTES = 64 * 1024  # of status line and headers, those of interim responses (1xx) included
FRAMING = 32 * 1024  # beside the body: head, sizes of chunks, trailers
DRAIN = 16 * 1024  # an error page or redirect up to this size is read, to keep its connection
DRAIN_S = 0.5
KEEP_ALIVE_S = 5.0
BUDGET = 256 * 2**20  # bytes for large bodies that are in memory at once
BACKOFF_S = 0.5  # before the first repeat, doubled for each further one, times 0.5 to 1.5
ACCEPT = "image/jpeg,image/png,image/webp,image/gif,image/*;q=0.8,*/*;q=0.5"
# Retry-After in seconds: some servers send fractions, a unit, or the header twice
SECONDS = re.compile(r"(?i)([0-9]+(?:\.[0-9]*)?)\s*(?:s|secs?|seconds?)?\s*(?:,.*)?")
REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The outcome of one request: a body, a redirect, or a reason of manifests.columns.REASONS."""

    reason: str | None = None
    detail: str = ""
    status: int | None = None
    body: bytes | None = None
    location: str | None = None  # of a redirect, as it came
    content_type: str | None = None
    retry_after_s: float | None = None
    # The connection was a kept one and broke: this says nothing about the host.
    stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAnswer:
    """The outcome of a request for a file of a site; `reason` where there was no response."""

    status: int | None
    body: bytes = b""  # as it came on the wire
    encoding: str = ""  # its Content-Encoding
    location: str | None = None  # of a redirect, as it came
    reason: str | None = None
    detail: str = ""
    retry_after: str | None = None  # the header, as it came


# --- the connection --------------------------------------------------------------------------


@dataclass(slots=True)
class _Exchange:
    """What a request may read, and what it learns about its connection."""

    limit: int  # bytes of the response on the wire: head, framing and body
    last: bool = False  # the connection will not be used again
    connection: _Handler | None = None
    used_before: bool = False

    @property
    def flooded(self) -> bool:
        return self.connection is not None and self.connection.flooded


_exchange: ContextVar[_Exchange] = ContextVar("exchange")


# A head that llhttp reads as it stands, and the lines that say how its body ends.
CLEAN_HEAD = re.compile(
    rb"HTTP/1\.[01] [0-9]{3}[^\r\n]*\r\n(?:[!#$%&'*+.^_`|~0-9A-Za-z-]++:[^\r\n\0]*+\r\n)*+\r\n"
)
END_OF_HEAD = re.compile(rb"\n\r?\n")
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:[ \t]*(.*)", re.DOTALL)
FRAMING_LINE = re.compile(rb"(?i)\n(?:content-length|transfer-encoding):[ \t]*([^\r\n]*+)")
MOST_DIGITS = 19  # of a length
BODILESS = (b"204", b"304")
STATUS_LINE = re.compile(rb"HTTP/[0-9](?:\.[0-9])?[ \t]+([0-9]{3})")


def clean_head(head: bytes) -> bytes:
    """A head as llhttp reads it, with what browsers and curl make of it: lines without a name or a
    colon are left out, a Content-Length that is there several times is one, and it does not count
    beside `chunked`. `Transfer-Encoding: identity` says nothing. A NUL stays: llhttp refuses it, as
    curl does.
    """
    first, *lines = re.sub(rb"\r?\n[ \t]+", b" ", head).split(b"\n")
    status = STATUS_LINE.match(first)
    version = first[:8] if first.startswith((b"HTTP/1.0", b"HTTP/1.1")) else b"HTTP/1.1"
    kept = [version + b" " + status[1] if status else first.rstrip()]
    lengths, codings = dict[bytes, None](), list[bytes]()
    for line in lines:
        header = HEADER.fullmatch(line.replace(b"\r", b" ").strip())
        if header is None:
            continue
        name = header[1].lower()
        if name == b"content-length":
            lengths.update((value.strip(), None) for value in header[2].split(b","))
        elif name == b"transfer-encoding":
            values = (value.strip().lower() for value in header[2].split(b","))
            codings += [value for value in values if value not in (b"", b"identity")]
        else:
            kept.append(header[1] + b": " + header[2])
    if codings:
        kept.append(b"Transfer-Encoding: " + b", ".join(dict.fromkeys(codings)))
    else:
        kept += [b"Content-Length: " + value for value in lengths]
    return b"\r\n".join([*kept, b"", b""])


class _Handler(ResponseHandler):
    """Counts the bytes of a response and breaks off where there are too many.

    aiohttp alone reads interim responses, chunk extensions and trailers without end. It also
    refuses heads and bodies that browsers and curl read; they are written anew before it has them.
    """

    used = False
    received = 0  # bytes since the request
    limit = 0
    head_complete = False  # of the final response
    flooded = False
    _head = b""  # of a response, as far as it has arrived
    _left: int | None = None  # bytes of the body that are still to come, where that was announced
    _chunks: Dechunker | None = None

    def expect(self, limit: int) -> None:
        """A request follows."""
        self.used, self.head_complete, self.received, self.limit = True, False, 0, limit
        self._head, self._left, self._chunks = b"", None, None

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if not data or self._parser is None:  # empty: a paused parser goes on; None: kept for later
            super().data_received(data)
        elif rest := data if self.head_complete else self._pass_heads(data):
            self._pass_body(rest)
        limit = self.limit if self.head_complete else HEAD_BYTES
        if self.received > limit and self.transport is not None:
            self.flooded = True
            self.transport.abort()

    def feed_data(self, data: Any, size: int = 0) -> None:
        self.head_complete = self.head_complete or data[0].code >= 200
        super().feed_data(data, size)

    def _pass_heads(self, data: bytes) -> bytes:
        """Pass on the heads of interim and final responses; what follows them is returned."""
        searched = max(0, len(self._head) - 2)
        data = self._head + data
        self._head = b""
        while data and not self.head_complete:
            end = END_OF_HEAD.search(data, searched)
            searched = 0
            if end is None and b"HTTP/".startswith(data[:5]):
                self._head = data
                break
            if end is None or not data.startswith(b"HTTP/"):
                super().data_received(data)  # no HTTP: the parser says so
                break
            head, data = data[: end.end()], data[end.end() :]
            framing = FRAMING_LINE.findall(head)
            if (
                len(framing) > 1
                or b"," in b"".join(framing)
                or b"identity" in head
                or not CLEAN_HEAD.match(head)
            ):
                head = clean_head(head)
                framing = FRAMING_LINE.findall(head)
            last = framing[-1].lower() if framing else b""
            self._chunks = Dechunker() if last.endswith(b"chunked") else None
            self._left = int(last) if last.isdigit() and len(last) < MOST_DIGITS else None
            if head[9:12] in BODILESS:
                self._left, self._chunks = 0, None
            super().data_received(head)
        return data if self.head_complete else b""

    def _pass_body(self, data: bytes) -> None:
        """Pass on a part of a body; what follows its end ends the connection."""
        rest = b""
        if self._left is not None:
            data, rest = data[: self._left], data[self._left :]
            self._left -= len(data)
        elif self._chunks is not None:
            ended = self._chunks.ended
            try:
                data = self._chunks.add(data)
                data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            except ValueError:
                data = b"no size\r\n"  # the parser says so
            if self._chunks.ended:
                data, rest = data + (b"" if ended else b"0\r\n\r\n"), self._chunks.behind
        if data:
            super().data_received(data)
        if rest and self.transport is not None:
            self.transport.close()


class _Connector(aiohttp.TCPConnector):
    """Connects once per request: aiohttp's own second try would not be counted as an attempt."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory: Any = functools.partial(_Handler, loop=self._loop)

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
        exchange = _exchange.get()
        if exchange.connection is not None:
            raise aiohttp.ClientConnectionError("the connection broke")
        connection = await super().connect(req, traces, timeout)
        handler = connection.protocol
        assert isinstance(handler, _Handler)
        exchange.connection, exchange.used_before = handler, handler.used
        handler.expect(exchange.limit)
        if exchange.last:  # now: a short response releases its connection before anybody reads it
            handler.force_close()
        return connection


class Requests:
    """Session, connections and names of a worker, and the memory for its bodies."""

    def __init__(
        self, settings: Fetch, policy: OptoutPolicy, source: AddressSource | None = None
    ) -> None:
        self._settings = settings
        self._policy = policy
        self.budget = Budget(max(BUDGET, settings.max_bytes))
        self._resolver = Resolver(settings, source)
        self.outage = Outage(self._resolver.connects)
        connector = _Connector(
            resolver=self._resolver,
            use_dns_cache=False,  # the resolver keeps addresses, and failures too
            socket_factory=guard.socket_factory(settings),
            ssl=tls.context(),
            limit=0,
            keepalive_timeout=KEEP_ALIVE_S,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={
                "User-Agent": policy.user_agent,
                "Accept": ACCEPT,
                "Accept-Encoding": "identity",
            },
            timeout=aiohttp.ClientTimeout(
                total=None, connect=None, sock_connect=None, sock_read=None
            ),
            auto_decompress=False,
            read_bufsize=CHUNK // 2,
            trust_env=False,  # a proxy would connect to addresses that guard.py never sees
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()
        await self._resolver.close()

    async def wait_for_lookup(self, host: str) -> None:
        """Return as soon as DNS is asked for a host, so that no time is lost to other names."""
        await self._resolver.wait_for_start(host)

    def forgive(self) -> None:
        """Names that DNS did not answer for are asked for again."""
        self._resolver.forgive()

    async def _response(
        self, url: str, headers: Mapping[str, str] | None = None
    ) -> aiohttp.ClientResponse:
        """The response to one request. Whether it comes is noted for the network as a whole."""
        target = URL(url, encoded=True)
        try:
            response = await self._session.get(target, allow_redirects=False, headers=headers)
        except BaseException as error:
            if _is_of_network(error, _exchange.get()):
                self.outage.failed(str(target.raw_host))
            raise
        self.outage.answered(str(target.raw_host), target.port or 0)
        return response

    async def image(self, url: str, row_signals: dict[str, Any], *, last: bool) -> Answer:
        """One request for an image. Opt-out headers are added to `row_signals`.

        `last`: nothing else waits for this host, so the connection need not be kept. The body of
        the answer keeps `budget_bytes` of the budget: release them.
        """
        headers = {"Connection": "close"} if last else None
        exchange = _Exchange(self._settings.max_bytes + FRAMING, last)
        _exchange.set(exchange)
        try:
            async with await self._response(url, headers) as response:
                return await self._read(response, row_signals)
        except (aiohttp.ClientError, OSError) as error:
            return _failure(error, exchange)

    async def _read(self, response: aiohttp.ClientResponse, row_signals: dict[str, Any]) -> Answer:
        """The head of a response, and its body if nothing in the head excludes it."""
        status, headers = response.status, response.headers
        content_type = valid_text(headers.get("Content-Type", ""))[:200] or None
        answer = functools.partial(Answer, status=status, content_type=content_type)
        if not is_whole(status):
            await _drain(response)
            location = headers.get("Location")
            if status in REDIRECTS and location is not None:
                return answer(location=location)
            after_s = retry_after_s(headers.get("Retry-After"))
            by_class = {4: "http_4xx", 5: "http_5xx"}.get(status // 100, "http_other")
            failure = "http_429" if status == 429 else by_class
            return answer(reason=failure, detail=f"status {status}", retry_after_s=after_s)
        row_signals.update(signals(headers.items(), None))
        if row_signals and (refusal := self._policy.refusal(row_signals)):
            return answer(reason=refusal[0], detail=refusal[1])
        encoding = ",".join(headers.getall("Content-Encoding", ()))
        if packed := [name for name in coding_names([encoding]) if name in PACKED]:
            return answer(reason="encoding", detail=f"{packed[0]}, which we did not ask for")
        limit, announced = self._settings.max_bytes, response.content_length
        if announced is not None and announced > limit:
            return answer(reason="too_many_bytes", detail=f"announced: {announced}")
        body = Body(limit, announced, encoding, self.budget)
        try:
            reason, detail = await body.read(response.content, self._settings.min_rate)
        except aiohttp.ClientError:
            reason, detail = "truncated", "the body ended early"
            if _exchange.get().flooded:
                reason, detail = "too_many_bytes", f"more than {self._settings.max_bytes}"
        except BaseException:
            body.discard()
            raise
        if reason is not None:
            body.discard()
            return answer(reason=reason, detail=detail)
        return answer(body=body.take())

    async def file(self, url: str, limit: int) -> FileAnswer:
        """One request for a file of a site, up to limit + 1 bytes of it."""
        exchange = _Exchange(limit + CHUNK + FRAMING)
        _exchange.set(exchange)
        try:
            async with await self._response(url) as response:
                status, headers = response.status, response.headers
                location = headers.get("Location") if status in REDIRECTS else None
                # A robots.txt that came in part, or late, is obeyed as far as it is there.
                body = await _up_to(response, limit) if status // 100 == 2 else b""
                retry_after = headers.get("Retry-After")
                return FileAnswer(
                    status=status,
                    body=body,
                    encoding=valid_text(",".join(headers.getall("Content-Encoding", ()))),
                    location=location,
                    retry_after=None if retry_after is None else valid_text(retry_after)[:100],
                )
        except aiohttp.ClientPayloadError:
            return FileAnswer(status=None, reason="truncated", detail="the body ended early")
        except (aiohttp.ClientError, OSError) as error:
            failure = _failure(error, exchange)
            return FileAnswer(status=None, reason=failure.reason, detail=failure.detail)


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read the short body of a response that is decided, so that its connection can be kept."""
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


# --- reasons ---------------------------------------------------------------------------------


def _is_of_network(error: BaseException, exchange: _Exchange) -> bool:
    """Whether an error may tell of the network on the way, and not of a host or of its name."""
    if not isinstance(error, Exception):  # the row's time is up
        return True
    reason = _failure(error, exchange).reason
    if reason == "dns":
        return getattr(getattr(error, "os_error", error), "errno", None) not in UNKNOWN
    return reason in ("connect", "reset")


def _failure(error: Exception, exchange: _Exchange) -> Answer:
    """The reason behind an exception, in words that do not change from run to run."""
    cause = getattr(error, "os_error", error)
    words = getattr(cause, "strerror", None) or type(cause).__name__
    if exchange.flooded:
        return Answer(reason="http_other", detail=f"a head of more than {HEAD_BYTES} bytes")
    if isinstance(cause, Refused):
        return Answer(reason=cause.reason, detail=cause.detail)
    if isinstance(
        error, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError, ssl.SSLError)
    ):
        tls_error = getattr(error, "certificate_error", cause)
        message = getattr(tls_error, "verify_message", None) or getattr(tls_error, "reason", None)
        return Answer(reason="tls", detail=str(message or words))
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return Answer(reason="dns", detail=words)
    # A server that accepts and closes at once may fail in connect or in read: both are `reset`.
    broken = isinstance(cause, (ConnectionResetError, ConnectionAbortedError, BrokenPipeError))
    if isinstance(error, aiohttp.ClientConnectorError) and not broken:
        return Answer(reason="connect", detail=words)
    if isinstance(error, (aiohttp.ClientConnectionError, OSError)):
        return Answer(reason="reset", detail="the connection broke", stale=exchange.used_before)
    if isinstance(error, aiohttp.InvalidURL):
        return Answer(reason="bad_url", detail="no URL to a client")
    lines = iter(str(getattr(error, "message", "")).strip().splitlines())
    problem = " ".join(" ".join(takewhile(str.strip, lines)).split()).rstrip(":")
    return Answer(reason="http_other", detail=f"no HTTP answer{problem and f': {problem}'}"[:200])


def backoff_s(uid: str, repeats: int, after_s: float | None) -> float:
    """Seconds before the next attempt: they double, and the uid spreads the rows over time."""
    spread: float = 0.5 + xxhash.xxh3_64_intdigest(f"{uid}:{repeats}".encode()) / 2**64
    return max(BACKOFF_S * spread * 2.0 ** (repeats - 1), after_s or 0.0)


def retry_after_s(value: str | None) -> float | None:
    """Retry-After in seconds, from a number or a date; None where it is neither."""
    if value is None:
        return None
    if number := SECONDS.fullmatch(value.strip()):
        return min(float(number[1]), 1e9)
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError):
        return None
