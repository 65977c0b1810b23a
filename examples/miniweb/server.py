"""The server of the small web: all hosts on one loopback port, told apart by the Host header; and a
helper to run it.

A protocol, not streams, as the web must not be what a fetch waits for: it shares the machine's
cores with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clipmill import PACKAGE
from clipmill.examples.miniweb.answers import (
    DRIP_S,
    Answer,
    answer_of,
    drawn_body,
    photo_body,
    reply,
)
from clipmill.examples.miniweb.links import ROBOTS_HOST
from clipmill.examples.miniweb.scenes import DRAW_VERSION
from clipmill.manifests import disk

CACHE = 8192  # answers kept, about 2 KB each
DELAY_S = 0.002  # before each answer: so that requests to one host overlap, as they do on a web
LONGEST_HEAD = 16_384
ALLOW, FORBID = b"User-agent: *\nAllow: /\n", b"User-agent: *\nDisallow: /private/\n"


@dataclass(slots=True)
class Seen:
    """What one host has seen."""

    requests: int = 0
    connections: int = 0
    peak: int = 0  # most requests under way at once
    now: int = field(default=0, repr=False)


class Server:
    """The images of a site and what was asked for."""

    def __init__(self, site: dict[str, Any]) -> None:
        self.images: dict[str, dict[str, dict[str, Any]]] = site["pictures"]
        photos: str | None = site.get("photos")
        self.body_of = drawn_body if photos is None else photo_body(Path(photos))
        self.cache: dict[tuple[str, str], Answer] = {}
        self.flaked: set[tuple[str, str]] = set()
        self.hosts: dict[str, Seen] = {}
        self.open: set[Connection] = set()

    def seen(self, host: str) -> Seen:
        """The counters of a host."""
        return self.hosts.setdefault(host, Seen())

    def answer(self, host: str, path: str) -> Answer:
        """What comes back for a path of a host, this time."""
        if path == "/_stats":
            return Answer(reply("200 OK", self.stats(), "application/json"))
        if path == "/robots.txt":
            rules = FORBID if host == ROBOTS_HOST else ALLOW
            return Answer(reply("200 OK", rules, "text/plain"))
        entry = self.images.get(host, {}).get(path)
        if entry is None:
            return Answer(reply("404 Not Found", b"no such page", "text/plain"))
        if entry["kind"] == "flaky503" and (host, path) not in self.flaked:
            self.flaked.add((host, path))
            again = "Retry-After: 1\r\n"
            return Answer(reply("503 Service Unavailable", b"", "text/plain", again))
        answer = self.cache.get((host, path))
        if answer is None:
            answer = answer_of(host, path, entry, self.body_of)
            if len(self.cache) >= CACHE:
                del self.cache[next(iter(self.cache))]  # the oldest
            self.cache[host, path] = answer
        return answer

    def stats(self) -> bytes:
        """The counters as JSON: of all hosts together, and host by host."""
        hosts = {
            name: {"requests": s.requests, "connections": s.connections, "peak": s.peak}
            for name, s in sorted(self.hosts.items())
        }
        total = {key: sum(h[key] for h in hosts.values()) for key in ("requests", "connections")}
        return json.dumps({**total, "hosts": hosts}).encode()


class Connection(asyncio.Protocol):
    """One connection: requests one after the other, each answered DELAY_S after it came."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.waiting = b""
        self.busy = False
        self.counted: Seen | None = None  # the host of the request under way
        self.hosts: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.open.discard(self)
        self._ended()

    def data_received(self, data: bytes) -> None:
        self.waiting += data
        if not self.busy:
            self._next()

    def _next(self) -> None:
        head, mark, rest = self.waiting.partition(b"\r\n\r\n")
        if not mark:
            if len(head) > LONGEST_HEAD:
                self.transport.close()
            return
        self.waiting, self.busy = rest, True
        lines = head.decode("latin-1").split("\r\n")
        method, _, target = lines[0].partition(" ")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        host = headers.get("host", "").partition(":")[0].lower()
        path = target.partition(" ")[0].partition("?")[0]
        stop = headers.get("connection", "").lower() == "close" or method not in ("GET", "HEAD")
        if method == "GET":
            answer = self.server.answer(host, path)
        elif method == "HEAD":
            answer = _head_of(self.server.answer(host, path))
        else:
            data = reply("405 Method Not Allowed", b"", "text/plain")
            answer = Answer(data, closes=True)
        self._count(self.server.seen(host) if path != "/_stats" else Seen(), host)
        delay = DELAY_S + answer.wait_s
        asyncio.get_running_loop().call_later(delay, self._send, answer, stop or answer.closes)

    def _count(self, counted: Seen, host: str) -> None:
        """Count a request, which is under way until it is answered or its connection is lost."""
        self.counted = counted
        counted.requests += 1
        counted.now += 1
        counted.peak = max(counted.peak, counted.now)
        if host not in self.hosts:
            self.hosts.add(host)
            counted.connections += 1

    def _send(self, answer: Answer, stop: bool) -> None:
        if self.transport.is_closing():
            return
        self._ended()
        if answer.resets:
            self.transport.abort()
            return
        self.transport.write(answer.data)
        if answer.drip:
            self._drip(answer.drip)
        elif stop:
            self.transport.close()
        else:
            self.busy = False
            self._next()

    def _drip(self, rest: bytes) -> None:
        if self.transport.is_closing():
            return
        if not rest:
            self.transport.close()
            return
        self.transport.write(rest[:1])
        asyncio.get_running_loop().call_later(DRIP_S, self._drip, rest[1:])

    def _ended(self) -> None:
        """The request under way is none any more."""
        if self.counted is not None:
            self.counted.now -= 1
            self.counted = None


def _head_of(answer: Answer) -> Answer:
    """What a HEAD request gets in place of the answer."""
    head, mark, _ = answer.data.partition(b"\r\n\r\n")
    return replace(answer, data=head + mark, drip=b"")


# --- running it -----------------------------------------------------------------------------------


def load(out: str | Path) -> Server:
    """The server of a web that `write` left in `out`. ValueError where there is none, or one of
    another version.
    """
    path = disk.join(out, "site.json")
    if not disk.exists(path):
        raise ValueError(
            f"{out} holds no small web: "
            f"make one with `python examples/miniweb/small_web.py write --out {out}`"
        )
    site = disk.read_json(path)
    if site["version"] != DRAW_VERSION:
        raise ValueError(
            f"{path} is of version {site['version']}, this program draws version {DRAW_VERSION}: "
            "write it again"
        )
    return Server(site)


async def serve(server: Server, port: int, *, attached: bool = False) -> None:
    """Answer on 127.0.0.1 until SIGTERM or SIGINT; with `attached` also until standard input ends:
    its parent is gone.

    Prints `ready PORT`. ValueError where the port is taken.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    try:
        listener = await loop.create_server(
            lambda: Connection(server), "127.0.0.1", port, backlog=1024
        )
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"port {port} cannot be served: {error}; --port 0 takes a free one"
        ) from error
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if attached:
        loop.add_reader(
            sys.stdin.fileno(), lambda: None if os.read(sys.stdin.fileno(), 4096) else stop.set()
        )
    print(f"ready {listener.sockets[0].getsockname()[1]}", flush=True)
    await stop.wait()
    listener.close()
    for connection in list(server.open):
        connection.transport.abort()


def start(out: str | Path, port: int = 0) -> tuple[subprocess.Popen[str], int]:
    """A child that serves the web in `out`, and its port; it ends with `terminate()`, or when this
    process is gone.

    ValueError where there is no web, or where it could not start.
    """
    load(out)
    command = [
        sys.executable,
        os.path.join(PACKAGE, "examples/miniweb/small_web.py"),
        "serve",
        "--out",
        str(out),
        "--port",
        str(port),
        "--attached",
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    first_line = process.stdout.readline().split()
    if len(first_line) != 2 or first_line[0] != "ready":
        stop(process)
        raise ValueError(
            f"the small web in {out} did not start (exit status {process.returncode}); "
            "its message is above"
        )
    return process, int(first_line[1])


def stop(process: subprocess.Popen[str]) -> None:
    """End the child of `start` and wait for it."""
    process.terminate()
    for stream in (process.stdin, process.stdout):
        assert stream
        stream.close()
    process.wait(10)


@contextmanager
def running(out: str | Path, port: int = 0) -> Iterator[int]:
    """The web in `out`, served while the block runs; yields its port."""
    process, taken = start(out, port)
    try:
        yield taken
    finally:
        stop(process)
