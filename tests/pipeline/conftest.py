"""A web on loopback that does everything wrong on request: one asyncio server in a thread, a route
per fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
import simplejpeg

from clipmill.manifests.schema import Fetch, Pair

Writer = asyncio.StreamWriter
AGENT = "clipmilltest/1.0 (+http://clipmill.example/bot)"


def jpeg(width: int = 64, height: int = 48, seed: int = 0) -> bytes:
    """A picture of soft noise."""
    pixels = np.random.default_rng(seed).integers(
        0, 255, (-(-height // 8), -(-width // 8), 3), dtype=np.uint8
    )
    pixels = np.ascontiguousarray(pixels.repeat(8, axis=0).repeat(8, axis=1)[:height, :width])
    data: bytes = simplejpeg.encode_jpeg(pixels, quality=90)
    return data


class Ask(NamedTuple):
    """A request of a route: where its answer goes, and the parts of its URL."""

    writer: Writer
    host: str
    path: str
    rest: list[str]  # of the path, behind the route
    query: dict[str, str]


class PictureServer:
    """Routes (the first part of the path) and what they do are in `answer`. Counts are kept per
    host and path.
    """

    def __init__(self) -> None:
        self.picture = jpeg()
        # Host -> answer, or a path that is served instead
        self.robots: dict[str, tuple[int, bytes] | str] = {}
        self.hits: Counter[str] = Counter()  # "host/path"
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.connections = 0
        self.now: Counter[str] = Counter()  # requests under way, per host
        self.peak: Counter[str] = Counter()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def fetch(self, **changes: Any) -> Fetch:
        """Settings that lead *.web.test here."""
        usual: dict[str, Any] = {
            "user_agent": AGENT,
            "allow_private": True,
            "connect_to": {"*.web.test": f"127.0.0.1:{self.port}"},
            "deadline_s": 10.0,
            "site_files": (),
        }
        return Fetch(**{**usual, **changes})

    @staticmethod
    def pairs(*urls: str) -> list[Pair]:
        return [
            Pair(uid=f"{i:032x}", url=url, caption=f"caption {i}") for i, url in enumerate(urls)
        ]

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(900)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(300)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._end.wait()
        server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
            ):
                while await self._request(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first = await reader.readexactly(1)
        if first == b"\x16":  # a TLS handshake
            writer.write(b"HTTP/1.1 400 X\r\n\r\n")
            return False
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        path = head[0].split(" ")[1]
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head[1:] if line)}
        host = headers["host"].split(":")[0]
        self.hits[host + path] += 1
        self.requests.append((host, path, headers))
        self.now[host] += 1
        self.peak[host] = max(self.peak[host], self.now[host])
        try:
            await self.answer(host, path, writer)
        finally:
            self.now[host] -= 1
        return headers.get("connection", "").lower() != "close" and not writer.is_closing()

    def send(
        self, writer: Writer, status: int, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        lines = {"Content-Length": str(len(body)), "Content-Type": "image/jpeg", **(headers or {})}
        text = f"HTTP/1.1 {status} X\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items() if v)
        writer.write(text.encode("latin-1") + b"\r\n" + body)

    async def answer(self, host: str, path: str, writer: Writer) -> None:
        split = urlsplit(path)
        if split.path == "/robots.txt":
            robots = self.robots.get(host, (404, b""))
            if not isinstance(robots, str):
                self.send(writer, robots[0], robots[1], {"Content-Type": "text/plain"})
                return
            split = urlsplit(robots)
        query = dict(parse_qsl(split.query))
        route, *rest = split.path.strip("/").split("/")
        await getattr(self, f"on_{route}")(Ask(writer, host, path, rest, query))
        await writer.drain()

    async def on_picture(self, ask: Ask) -> None:
        self.send(ask.writer, 200, self.picture, ask.query)

    async def on_status(self, ask: Ask) -> None:
        self.send(ask.writer, int(ask.rest[0]), b"sorry", ask.query)

    async def on_flaky(self, ask: Ask) -> None:
        """/flaky/TIMES/STATUS: that status so many times, then the picture."""
        if self.hits[ask.host + ask.path] <= int(ask.rest[0]):
            self.send(ask.writer, int(ask.rest[1]), b"later", ask.query)
        else:
            self.send(ask.writer, 200, self.picture)

    async def on_redirect(self, ask: Ask) -> None:
        self.send(ask.writer, 302, b"", {"Location": ask.query["to"]})

    async def on_hops(self, ask: Ask) -> None:
        left = int(ask.rest[0])
        if left:
            self.send(ask.writer, 301, b"moved", {"Location": f"/hops/{left - 1}"})
        else:
            self.send(ask.writer, 200, self.picture)

    async def on_bytes(self, ask: Ask) -> None:
        self.send(ask.writer, 200, bytes(int(ask.rest[0])), ask.query)

    async def on_announced(self, ask: Ask) -> None:
        self.send(ask.writer, 200, b"", {"Content-Length": ask.rest[0]})
        await asyncio.sleep(3600)

    async def on_endless(self, ask: Ask) -> None:
        self.send(ask.writer, 200, b"", {"Content-Length": "", "Connection": "close"})
        while True:
            ask.writer.write(bytes(65536))
            await ask.writer.drain()

    async def on_drip(self, ask: Ask) -> None:
        self.send(ask.writer, 200, b"", {"Content-Length": "100000"})
        while True:
            ask.writer.write(b"x")
            await ask.writer.drain()
            await asyncio.sleep(0.05)

    async def on_hang(self, ask: Ask) -> None:
        await asyncio.sleep(3600)

    async def on_slow(self, ask: Ask) -> None:
        await asyncio.sleep(float(ask.rest[0]))
        self.send(ask.writer, 200, self.picture)

    async def on_truncated(self, ask: Ask) -> None:
        self.send(ask.writer, 200, self.picture[:-100], {"Content-Length": str(len(self.picture))})
        await ask.writer.drain()
        ask.writer.close()

    async def on_reset(self, ask: Ask) -> None:
        raw = ask.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        ask.writer.transport.abort()

    async def on_garbage(self, ask: Ask) -> None:
        ask.writer.write(b"\x00\x01 this is no HTTP\r\n\r\n")
        await ask.writer.drain()
        ask.writer.close()


@pytest.fixture
def web() -> Iterator[PictureServer]:
    """A running PictureServer."""
    server = PictureServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def no_pause_before_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not wait before a failed ticket is tried again."""
    monkeypatch.setattr("clipmill.pipeline.executor.tickets.RETRY_PAUSE_S", 0.0)
