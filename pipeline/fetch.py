"""URLs to bytes, or to one reason each: an event loop with a queue per host.

Every row ends in exactly one outcome. What a row may cost is bounded before it is asked for: where it may lead
(guard.py), who forbids it (optout.py), how long all of it may take, how many bytes are taken, how often it is tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urljoin

import aiohttp
import xxhash
from yarl import URL

from manifests.columns import REASONS
from manifests.schema import Fetch, Pair
from pipeline import guard, optout
from pipeline.guard import Refused, Target

CHUNK = 64 * 1024
DRAIN = 16 * 1024  # an error page or redirect up to this long is read, to keep its connection
DRAIN_S = 0.5
KEEP_ALIVE_S = 5.0
BACKOFF_S = 0.5  # before the first repeat, doubled for each further one, times 0.5 to 1.5
AGAIN = frozenset({"http_429", "http_5xx", "reset", "connect", "truncated"})  # a timeout has had its time
SILENT = frozenset({"deadline", "connect"})  # reasons of a host that does not answer
GIVE_UP = 10  # rows in a row that a host may leave unanswered, before the rest of its rows end the same way
ACCEPT = "image/jpeg,image/png,image/webp,image/gif,image/*;q=0.8,*/*;q=0.5"
MOVED = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The end of one row: `body`, or a `reason` of manifests.columns.REASONS with words that repeat from run to run."""

    body: bytes | None
    reason: str | None
    detail: str = ""
    http_status: int | None = None
    final_url: str | None = None  # the last URL that was asked for; None where none was
    content_type: str | None = None
    optout: str | None = None  # every signal seen, raw, as JSON
    fetched_at: float = 0.0  # seconds since 1970, when the row's turn came
    elapsed_s: float = 0.0  # without the wait for its turn
    attempts: int = 0  # requests for the picture, redirects not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What one request came to: a body, a place to go on to, or a reason."""

    reason: str | None = None
    detail: str = ""
    status: int | None = None
    body: bytes | None = None
    location: str | None = None
    content_type: str | None = None
    retry_after_s: float | None = None


@dataclass(slots=True, kw_only=True)
class _Row:
    """A row under way."""

    index: int
    pair: Pair
    target: Target | None = None  # None until it has been checked
    seen: list[str] = field(default_factory=list)  # URLs asked for, redirects
    signals: dict[str, Any] = field(default_factory=dict)
    spent_s: float = 0.0
    attempts: int = 0
    started_at: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Host:
    """A host's queue."""

    rows: deque[_Row] = field(default_factory=deque)
    active: int = 0
    offered: bool = False  # stands in line for a place
    silent: int = 0  # rows in a row that got no answer


async def fetch_all(
    pairs: Sequence[Pair], settings: Fetch, robots: optout.Robots | None = None
) -> AsyncGenerator[tuple[int, Fetched], None]:
    """(index in `pairs`, its end) for every pair, in the order in which they end.

    At most `settings.concurrency` rows are under way or wait to be taken, at most `settings.per_host` of one host. Give
    the same `robots` to calls that follow each other, and a host is asked for its robots.txt once. To leave early use
    contextlib.aclosing. ValueError where settings.user_agent is not set.
    """
    run = _Run(settings, robots)
    try:
        run.start(run.feed(pairs))
        for _ in range(len(pairs)):
            yield await run.next()
    finally:
        await run.close()


def user_agent(settings: Fetch) -> str:
    """What we call ourselves. ValueError where it is not set, or cannot be sent."""
    if not settings.user_agent or not settings.user_agent.strip():
        raise ValueError(
            "fetch.user_agent is not set: give a name and an address to write to, "
            'as in "mycrawler/1.0 (+https://example.org/bot)"'
        )
    if not (settings.user_agent.isascii() and settings.user_agent.isprintable()):
        raise ValueError(f"fetch.user_agent is {settings.user_agent!r}; it must be printable ASCII")
    return settings.user_agent.strip()


@functools.cache
def _tls() -> ssl.SSLContext:
    """One context for all: making one reads 200 KB of certificates, 33 ms of CPU."""
    return ssl.create_default_context()


class _Run:
    """The session and the queues of one call."""

    def __init__(self, settings: Fetch, robots: optout.Robots | None) -> None:
        self.settings = settings
        self.agent = user_agent(settings)
        self.robots = robots or optout.Robots(self.agent)
        self.resolver = guard.Resolver(settings)
        connector = aiohttp.TCPConnector(
            resolver=self.resolver,
            use_dns_cache=False,  # the resolver keeps failures too
            socket_factory=guard.socket_factory(settings),
            ssl=_tls(),
            limit=0,
            keepalive_timeout=KEEP_ALIVE_S,
        )
        self.session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": self.agent, "Accept": ACCEPT, "Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
            auto_decompress=False,
            read_bufsize=CHUNK // 2,
            trust_env=False,
        )
        self.hosts: dict[str, _Host] = {}
        self.ready: deque[_Host] = deque()  # hosts with a waiting row and a free place
        self.running = 0
        self.ended: asyncio.Queue[tuple[int, Fetched] | BaseException] = asyncio.Queue()
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.ended.put_nowait(error)  # a mistake of ours: the caller hears of it

    async def next(self) -> tuple[int, Fetched]:
        item = await self.ended.get()
        if isinstance(item, BaseException):
            raise item
        self.pump()
        return item

    async def close(self) -> None:
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.robots.close()
        finally:
            await self.session.close()
            await self.resolver.close()

    # --- queues ---------------------------------------------------------------------------------------------------

    async def feed(self, pairs: Sequence[Pair]) -> None:
        """Puts every pair into its host's queue; what may not be asked for ends here."""
        for index, pair in enumerate(pairs):
            if index % 200 == 199:
                await asyncio.sleep(0)
            row = _Row(index=index, pair=pair, signals=optout.signals((), pair.robots))
            try:
                row.target = guard.target(pair.url, self.settings)
            except Refused as refused:
                self.end(row, _Answer(reason=refused.reason, detail=refused.detail))
                continue
            if self.settings.optout != "ignore" and (no := optout.refusal(row.signals, self.agent)):
                self.end(row, _Answer(reason=no[0], detail=no[1]))
            else:
                self.enqueue(row)

    def enqueue(self, row: _Row, *, first: bool = False) -> None:
        """`first` for a row that a redirect has moved: it goes to the head of its new host's queue."""
        assert row.target is not None
        host = self.hosts.setdefault(row.target.host, _Host())
        (host.rows.appendleft if first else host.rows.append)(row)
        self.offer(host)
        self.pump()

    def offer(self, host: _Host) -> None:
        """Puts a host in line, once, if it has a row to start and a place for it."""
        if host.rows and not host.offered and host.active < self.settings.per_host:
            host.offered = True
            self.ready.append(host)

    def pump(self) -> None:
        """Starts rows, one host after the other, while there is room."""
        while self.ready and self.running + self.ended.qsize() < self.settings.concurrency:
            host = self.ready.popleft()
            host.offered = False
            host.active += 1
            self.running += 1
            self.start(self.visit(host.rows.popleft(), host))
            self.offer(host)

    async def visit(self, row: _Row, host: _Host) -> None:
        """A row's turn at a host: it ends there, or a redirect sends it to another queue."""
        assert row.target is not None
        row.started_at = row.started_at or time.time()
        begun = time.monotonic()
        try:
            if host.silent >= GIVE_UP:
                answer = _Answer(reason="deadline", detail=f"not asked: {GIVE_UP} rows in a row got no answer here")
            else:
                async with asyncio.timeout(self.settings.deadline_s - row.spent_s):
                    answer = await self.ask(row, row.target, host, begun)
        except TimeoutError:
            answer = _Answer(reason="deadline", detail=f"no whole answer within {self.settings.deadline_s:g} s")
        finally:
            host.active -= 1
            self.running -= 1
        row.spent_s += time.monotonic() - begun
        host.silent = host.silent + 1 if answer.reason in SILENT else 0
        if answer.location is None:
            self.end(row, answer)
        else:
            self.move(row, answer)
        self.offer(host)
        self.pump()

    def move(self, row: _Row, answer: _Answer) -> None:
        """On to where a redirect leads, checked like any URL."""
        assert answer.location is not None
        try:
            target = guard.target(urljoin(row.seen[-1], answer.location), self.settings)
        except Refused as refused:
            self.end(row, replace(answer, reason=refused.reason, detail=f"redirect: {refused.detail}"))
        except ValueError as error:  # of urljoin
            self.end(row, replace(answer, reason="bad_url", detail=f"redirect: {error}"))
        else:
            if target.url in row.seen:
                self.end(row, replace(answer, reason="redirects", detail="a loop"))
            elif len(row.seen) > self.settings.max_redirects:
                self.end(row, replace(answer, reason="redirects", detail=f"more than {self.settings.max_redirects}"))
            else:
                row.target = target
                self.enqueue(row, first=True)

    def end(self, row: _Row, answer: _Answer) -> None:
        """The row's one outcome."""
        signals = json.dumps(row.signals, sort_keys=True, ensure_ascii=False) if row.signals else None
        fetched = Fetched(
            body=answer.body,
            reason=answer.reason,
            detail=answer.detail,
            http_status=answer.status,
            final_url=row.seen[-1] if row.seen else None,
            content_type=answer.content_type,
            optout=signals,
            fetched_at=row.started_at or time.time(),
            elapsed_s=row.spent_s,
            attempts=row.attempts,
        )
        assert (fetched.body is None) == (fetched.reason in REASONS)
        self.ended.put_nowait((row.index, fetched))

    # --- requests -------------------------------------------------------------------------------------------------

    async def ask(self, row: _Row, target: Target, host: _Host, begun: float) -> _Answer:
        """robots.txt, then the picture, repeated while that may help and there is time."""
        if self.settings.robots_txt:
            verdict = await self.robots.verdict(target.origin, target.url, self.robots_txt)
            if verdict.signal is not None:
                row.signals.setdefault("robots.txt", {})[target.origin] = verdict.signal
            if verdict.reason is not None:
                return _Answer(reason=verdict.reason, detail=verdict.detail)
        row.seen.append(target.url)
        row.attempts = max(row.attempts, 1)
        while True:
            answer = await self.get(target.url, row, last=not host.rows)
            if answer.reason not in AGAIN or row.attempts > self.settings.retries:
                return answer
            pause = _pause(row.pair.uid, row.attempts, answer.retry_after_s)
            if row.spent_s + time.monotonic() - begun + pause >= self.settings.deadline_s:
                return answer
            await asyncio.sleep(pause)
            row.attempts += 1

    async def get(self, url: str, row: _Row, *, last: bool) -> _Answer:
        """One request. `last`: nothing more is waiting for this host, so its connection need not be kept."""
        headers = {"Connection": "close"} if last else None
        try:
            async with self.session.get(URL(url, encoded=True), allow_redirects=False, headers=headers) as response:
                return await self.read(response, row)
        except (aiohttp.ClientError, OSError) as error:
            return _failure(error)

    async def read(self, response: aiohttp.ClientResponse, row: _Row) -> _Answer:
        """An answer's head, and its body if the head gives no reason against it."""
        status, location = response.status, response.headers.get("Location")
        answer = _Answer(status=status, content_type=(response.headers.get("Content-Type") or "")[:200] or None)
        if status != 200:
            await _drain(response)
            if status in MOVED and location is not None:
                return replace(answer, location=location)
            after = _retry_after_s(response.headers.get("Retry-After"))
            return replace(answer, reason=_status_reason(status), detail=f"status {status}", retry_after_s=after)
        row.signals.update(optout.signals(response.headers.items(), None))
        if self.settings.optout != "ignore" and (no := optout.refusal(row.signals, self.agent)):
            return replace(answer, reason=no[0], detail=no[1])
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("identity", ""):
            return replace(answer, reason="encoding", detail=f"{encoding[:40]}, which we did not ask for")
        limit = self.settings.max_bytes
        if (response.content_length or 0) > limit:
            return replace(answer, reason="too_many_bytes", detail=f"announced: {response.content_length}")
        try:
            body = await _up_to(response, limit)
        except aiohttp.ClientError:
            return replace(answer, reason="truncated", detail="the body ended early")
        if len(body) > limit:
            return replace(answer, reason="too_many_bytes", detail=f"more than {limit}")
        if not body:
            return replace(answer, reason="empty", detail="no body")
        return replace(answer, body=body)

    async def robots_txt(self, url: str) -> optout.Answer:
        """A robots.txt, over up to five redirects (RFC 9309), each checked. Asked for once, under its own deadline."""
        status = None
        try:
            async with asyncio.timeout(self.settings.deadline_s):
                for _ in range(6):
                    target = guard.target(url, self.settings)
                    async with self.session.get(URL(target.url, encoded=True), allow_redirects=False) as response:
                        status, location = response.status, response.headers.get("Location")
                        if status in MOVED and location is not None:
                            url = urljoin(target.url, location)
                            continue
                        if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("identity", ""):
                            return optout.Answer(
                                status=status, reason="robots_txt", detail="an encoding we cannot read"
                            )
                        body = await _up_to(response, optout.ROBOTS_BYTES) if status == 200 else b""
                        return optout.Answer(status=status, body=body)
        except TimeoutError:
            return optout.Answer(status=status, reason="deadline", detail="no whole answer in time")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if status is None:
                failed = _failure(error)
                return optout.Answer(status=None, reason=failed.reason, detail=failed.detail)
        return optout.Answer(status=status)  # a redirect that leads nowhere: 3xx, which is no permission


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


def _status_reason(status: int) -> str:
    if status == 429:
        return "http_429"
    return "http_4xx" if 400 <= status < 500 else "http_5xx" if 500 <= status < 600 else "http_other"


def _failure(error: Exception) -> _Answer:
    """The reason behind an exception, in words that do not change from run to run."""
    inner = getattr(error, "os_error", error)
    words = getattr(inner, "strerror", None) or type(inner).__name__
    if isinstance(inner, Refused):
        return _Answer(reason=inner.reason, detail=inner.detail)
    if isinstance(error, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError, ssl.SSLError)):
        cause = getattr(error, "certificate_error", inner)
        said = getattr(cause, "verify_message", None) or getattr(cause, "reason", None)
        return _Answer(reason="tls", detail=str(said or words))
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return _Answer(reason="dns", detail=words)
    if isinstance(error, aiohttp.ClientConnectorError):
        return _Answer(reason="connect", detail=words)
    if isinstance(error, (aiohttp.ClientConnectionError, OSError)):
        return _Answer(reason="reset", detail="the connection broke")
    if isinstance(error, aiohttp.InvalidURL):
        return _Answer(reason="bad_url", detail="no URL to a client")
    return _Answer(reason="http_other", detail="no HTTP answer")


def _pause(uid: str, attempts: int, retry_after_s: float | None) -> float:
    """Seconds before the next attempt: doubling, spread by the uid so that rows do not come back all at once."""
    spread: float = 0.5 + xxhash.xxh3_64_intdigest(f"{uid}:{attempts}".encode()) / 2**64
    return max(BACKOFF_S * spread * 2.0 ** (attempts - 1), retry_after_s or 0.0)


def _retry_after_s(value: str | None) -> float | None:
    """Retry-After in seconds, given as a number or as a date; None where it is neither."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError):
        return None
