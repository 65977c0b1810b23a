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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manifests import disk
from pipeline.miniweb.scenes import DRAW_VERSION, Scene, draw
from pipeline.miniweb.web_plan import CDN, ROBOTS_HOST

ROOT = Path(__file__).resolve().parents[2]
CACHE = 8192  # answers kept, about 2 KB each
DELAY_S = 0.002  # before each answer: so that requests to one host overlap, as they do on a web
LONGEST_HEAD = 16_384
ALLOW, FORBID = b"User-agent: *\nAllow: /\n", b"User-agent: *\nDisallow: /private/\n"
PAGE = b"<!doctype html><title>Log in</title><p>Please log in to see this picture.</p>"


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
        self.cache: dict[tuple[str, str], tuple[bytes, bool]] = {}
        self.flaked: set[tuple[str, str]] = set()
        self.hosts: dict[str, Seen] = {}
        self.open: set[Connection] = set()

    def seen(self, host: str) -> Seen:
        """The counters of a host."""
        return self.hosts.setdefault(host, Seen())

    def answer(self, host: str, path: str) -> tuple[bytes, bool]:
        """Status line, headers and body; and whether the connection breaks off after them."""
        if path == "/_stats":
            return _reply("200 OK", self.stats(), "application/json"), False
        if path == "/robots.txt":
            return _reply("200 OK", FORBID if host == ROBOTS_HOST else ALLOW, "text/plain"), False
        entry = self.images.get(host, {}).get(path)
        if entry is None:
            return _reply("404 Not Found", b"no such page", "text/plain"), False
        if entry["kind"] == "flaky503" and (host, path) not in self.flaked:
            self.flaked.add((host, path))
            return _reply("503 Service Unavailable", b"", "text/plain", "Retry-After: 1\r\n"), False
        answer = self.cache.get((host, path))
        if answer is None:
            answer = _answer(host, path, entry)
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


def _reply(
    status: str, body: bytes, content: str, extra: str = "", length: int | None = None
) -> bytes:
    head = f"HTTP/1.1 {status}\r\nServer: miniweb\r\nContent-Type: {content}\r\n"
    return (
        f"{head}Content-Length: {len(body) if length is None else length}\r\n{extra}\r\n".encode()
        + body
    )


def _answer(host: str, path: str, entry: dict[str, Any]) -> tuple[bytes, bool]:
    """What always comes back for an image of this kind."""
    kind = entry["kind"]
    if kind == "dead_link":
        return _reply("404 Not Found", b"gone", "text/plain"), False
    if kind == "error500":
        return _reply("500 Internal Server Error", b"", "text/plain"), False
    if kind == "redirect":
        target = f"http://{CDN}{path.replace('/go/', '/img/', 1)}"
        return _reply("302 Found", b"", "text/plain", f"Location: {target}\r\n"), False
    if kind == "redirect_loop":
        return _reply("302 Found", b"", "text/plain", f"Location: http://{host}{path}\r\n"), False
    if kind == "html":
        return _reply("200 OK", PAGE, "text/html"), False
    shown = disk.from_plain(Scene, entry["scene"])
    body = draw(shown, variant=entry["variant"], painted=entry["painted"])
    if kind == "truncated":
        return _reply("200 OK", body[: len(body) // 2], "image/jpeg", length=len(body)), True
    extra = ""
    if kind == "optout_header":
        directives = ("noai, noimageai", "max-image-preview:large, noai")[shown.key[2] % 2]
        extra = f"X-Robots-Tag: {directives}\r\n"
    return _reply("200 OK", body, "image/jpeg", extra), False


class Connection(asyncio.Protocol):
    """One connection: requests one after the other, each answered DELAY_S after it came."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.waiting = b""
        self.busy = False
        self.hosts: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.open.discard(self)

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
        if method in ("GET", "HEAD"):
            answer, breaks = self.server.answer(host, path)
            answer = answer if method == "GET" else answer[: answer.index(b"\r\n\r\n") + 4]
        else:
            answer, breaks = _reply("405 Method Not Allowed", b"", "text/plain"), True
        counted = self.server.seen(host) if path != "/_stats" else Seen()
        counted.requests += 1
        counted.now += 1
        counted.peak = max(counted.peak, counted.now)
        if host not in self.hosts:
            self.hosts.add(host)
            counted.connections += 1
        asyncio.get_running_loop().call_later(DELAY_S, self._send, answer, stop or breaks, counted)

    def _send(self, answer: bytes, stop: bool, counted: Seen) -> None:
        counted.now -= 1
        self.busy = False
        if self.transport.is_closing():
            return
        self.transport.write(answer)
        if stop:
            self.transport.close()
        else:
            self._next()


# --- running it -----------------------------------------------------------------------------------


def load(out: str | Path) -> Server:
    """The server of a web that `write` left in `out`. ValueError where there is none, or one of
    another version.
    """
    path = disk.join(out, "site.json")
    if not disk.exists(path):
        raise ValueError(
            f"{out} holds no small web: "
            f"make one with `python pipeline/miniweb/small_web.py write --out {out}`"
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
        str(ROOT / "pipeline/miniweb/small_web.py"),
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
