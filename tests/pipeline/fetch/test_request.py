"""One request: no initiative of the client's own, bounds on what it reads, one reason a failure."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp.client_reqrep import ConnectionKey

from clipmill.manifests.schema import Fetch
from clipmill.pipeline.fetch import request
from clipmill.pipeline.fetch.request import (
    Answer,
    FileAnswer,
    OptoutPolicy,
    Requests,
    backoff_s,
    retry_after_s,
)
from tests.support.loopback_server import serving

AGENT = "clipmilltest/1.0 (+http://clipmill.example/bot)"


def with_requests(settings: Fetch, use: Callable[[Requests], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        requests = Requests(settings, OptoutPolicy(AGENT, settings.optout))
        try:
            return await use(requests)
        finally:
            await requests.close()

    return uvloop.run(run())


def image(web: Any, path: str) -> tuple[Answer, dict[str, Any]]:
    signals: dict[str, Any] = {}

    async def use(requests: Requests) -> Answer:
        return await requests.image(f"http://a.web.test{path}", signals, last=True)

    return with_requests(web.fetch(), use), signals


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_a_proxy_of_the_environment_is_not_used(
    web: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would resolve names and connect itself, past every check of addresses."""
    asked = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.1 200 X\r\nContent-Length: 5\r\nConnection: close\r\n\r\nproxy")
        await writer.drain()
        writer.close()

    async def use(requests: Requests) -> Answer:
        server = await asyncio.start_server(proxy, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        monkeypatch.setenv(name, address)
        monkeypatch.setenv("NO_PROXY", "")
        async with server:
            return await requests.image("http://a.web.test/picture/1", {}, last=True)

    answer = with_requests(web.fetch(allow_ports=(80, web.port)), use)
    assert answer.body == web.picture, answer
    assert asked == []


def test_an_answer_has_the_body_and_its_headers_as_valid_text(web: Any) -> None:
    answer, signals = image(web, "/picture/1?X-Robots-Tag=caf%C3%A9&Content-Type=image/caf%C3%A9")
    # The server sends Latin-1: the bytes are not UTF-8.
    assert (answer.body, answer.content_type) == (web.picture, "image/café")
    assert list(signals) == ["x-robots-tag"]
    assert answer.status == 200


def test_a_file_of_a_site_is_read_up_to_one_byte_more_than_its_limit(web: Any) -> None:
    async def use(requests: Requests) -> list[FileAnswer]:
        urls = ["/bytes/5000", "/redirect?to=/x", "/status/404", "/garbage"]
        return [await requests.file(f"http://a.web.test{url}", 1000) for url in urls]

    large, moved, missing, broken = with_requests(web.fetch(), use)
    assert (large.status, len(large.body)) == (200, 1001)
    assert (moved.status, moved.location) == (302, "/x")
    assert (missing.status, missing.body, missing.reason) == (404, b"", None)
    assert (broken.status, broken.reason) == (None, "http_other")


def test_a_body_that_arrives_at_once_is_read_whole_on_a_connection_that_stays_open() -> None:
    """aiohttp pauses its parser above `read_bufsize`, and goes on with a part of no bytes, also
    where only the end of the message is left to be seen (aio-libs/aiohttp#13348).
    """
    sizes = [request.CHUNK // 2 + 1, request.CHUNK + 1, 3 * request.CHUNK] * 3

    class Server(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            size = int(self.path.strip("/"))
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
            self.wfile.write(head + b"a" * size)

        def log_message(self, *_: Any) -> None: ...

    with serving(Server) as port:

        async def use(requests: Requests) -> list[Answer]:
            urls = [f"http://127.0.0.1:{port}/{size}" for size in sizes]
            return [await requests.image(url, {}, last=False) for url in urls]

        settings = Fetch(user_agent=AGENT, allow_private=True, allow_ports=(port,))
        assert [len(answer.body) for answer in with_requests(settings, use)] == sizes


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ECONNRESET, "reset"), (errno.ECONNREFUSED, "connect"), (errno.EHOSTUNREACH, "connect")],
)
def test_a_connection_that_is_broken_while_it_is_made_is_a_reset(number: int, reason: str) -> None:
    key = ConnectionKey("host.example", 443, True, True, None, None, None)
    error = aiohttp.ClientConnectorError(key, OSError(number, "Connect call failed"))
    assert request._failure(error, request._Exchange(100)).reason == reason


def test_pauses_double_and_differ_by_uid_but_not_by_run() -> None:
    pauses = [backoff_s("a", n, None) for n in (1, 2, 3)]
    assert pauses == [backoff_s("a", n, None) for n in (1, 2, 3)]
    for n, pause in enumerate(pauses):
        assert 0.5 <= pause / (request.BACKOFF_S * 2**n) <= 1.5
    assert backoff_s("b", 1, None) != pauses[0]
    assert backoff_s("a", 1, 7.0) == 7.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("5", 5.0),
        ("9" * 400, 1e9),
        ("soon", None),
        ("-3", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Fri, 99 Dec 9999 23:59:59 GMT", None),
        ("\udce9", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value) == seconds
