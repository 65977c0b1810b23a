#!/usr/bin/env python3
"""A web of small images on loopback that costs little: many hosts, one process, bodies in memory.

    python benchmarks/scaling/web.py --hosts 200 --port 0

prints its port and serves until it is ended. The path decides the answer: /ok/N.jpg is one of 256
JPEGs, /drawn/N.jpg a picture of its own, /copy/N.jpg the bytes of an earlier one, /gone/N.jpg a
404, /text/N.jpg a page of HTML, /cut/N.jpg half a JPEG, /late/N.jpg a JPEG or after GET /_refuse a
500, until GET /_serve. GET /_requests answers with the number of requests for images so far.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 64  # pixels
IMAGES = 256
KINDS = ("ok", "gone", "text", "cut")
COLOURS = {
    "red": (200, 40, 40),
    "green": (50, 160, 60),
    "blue": (50, 70, 200),
    "yellow": (220, 200, 60),
    "black": (30, 30, 30),
    "white": (230, 230, 230),
    "violet": (140, 60, 170),
    "orange": (230, 130, 40),
}


def hosts(count: int) -> list[str]:
    """Addresses of this machine alone."""
    return [f"127.1.{number // 250}.{number % 250 + 1}" for number in range(count)]


def path_of(number: int) -> str:
    """The path of an image: of 100, three are gone, one is a page and one is cut."""
    kind = {7: "gone", 31: "gone", 59: "gone", 71: "text", 93: "cut"}.get(number % 100, "ok")
    return f"/{kind}/{number}.jpg"


def expected(count: int) -> dict[str, int]:
    """How many of the first `count` images end how: stored, or a reason."""
    kinds = [path_of(number).split("/")[1] for number in range(count)]
    return {
        "stored": kinds.count("ok"),
        "http_4xx": kinds.count("gone"),
        "not_an_image": kinds.count("text"),
        "decode_error": kinds.count("cut"),
    }


def colours(number: int) -> tuple[str, str, np.random.Generator]:
    """(what a drawn picture shows, what its caption says, what draws the rest). Three captions in
    ten name other colours.
    """
    rng = np.random.Generator(np.random.PCG64(number))
    left, right, *others = [list(COLOURS)[n] for n in rng.integers(0, len(COLOURS), 4)]
    shown = f"{left} left of {right}"
    return shown, shown if number % 10 > 2 else " left of ".join(others), rng


def drawn(number: int) -> bytes:
    """A JPEG of 1.3 kB: two colours side by side under noise."""
    shown, _, rng = colours(number)
    left, _, _, right = shown.split()
    cells = np.empty((8, 8, 3))
    cells[:, :4], cells[:, 4:] = COLOURS[left], COLOURS[right]
    cells += rng.normal(0, 40, cells.shape)
    sink = io.BytesIO()
    image = Image.fromarray(cells.clip(0, 255).astype(np.uint8))
    image.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(sink, "JPEG", quality=85)
    return sink.getvalue()


def original_of(number: int) -> int:
    """The number of the picture that /copy/NUMBER.jpg repeats."""
    return number - 2


def jpegs() -> list[bytes]:
    """Images of smooth colours, about 1.3 kB each."""
    rng = np.random.default_rng(0)
    images = []
    for _ in range(IMAGES):
        pixels = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
        sink = io.BytesIO()
        pixels.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(sink, "JPEG", quality=85)
        images.append(sink.getvalue())
    return images


def response(status: str, body: bytes, kind: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Answers:
    """What is answered, made once, and how many images were asked for."""

    def __init__(self) -> None:
        self.whole = [response("200 OK", body, "image/jpeg") for body in jpegs()]
        self.cut = [response("200 OK", body[: len(body) // 2], "image/jpeg") for body in jpegs()]
        self.text = response("200 OK", b"<html><body>please log in</body></html>", "text/html")
        self.gone = response("404 Not Found", b"gone", "text/plain")
        self.broken = response("500 Internal Server Error", b"later", "text/plain")
        self.requests, self.is_refusing = 0, False

    def __call__(self, path: bytes) -> bytes:
        _, kind, name = (path + b"//").split(b"/")[:3]
        if kind in (b"_refuse", b"_serve"):
            self.is_refusing = kind == b"_refuse"
            return response("200 OK", b"", "text/plain")
        if kind == b"_requests":
            return response("200 OK", str(self.requests).encode(), "text/plain")
        if kind not in (b"ok", b"drawn", b"copy", b"cut", b"text", b"gone", b"late"):
            return self.gone  # robots.txt and other files of a site
        self.requests += 1
        if kind == b"text":
            return self.text
        if kind == b"gone":
            return self.gone
        if kind == b"late" and self.is_refusing:
            return self.broken
        number = int(name.partition(b".")[0])
        if kind in (b"drawn", b"copy"):
            picture = drawn(number if kind == b"drawn" else original_of(number))
            return response("200 OK", picture, "image/jpeg")
        number %= IMAGES
        return self.cut[number] if kind == b"cut" else self.whole[number]


class Connection(asyncio.Protocol):
    """Requests without bodies, one after the other."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.received = answers, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        *heads, self.received = self.received.split(b"\r\n\r\n")
        for head in heads:
            self.transport.write(self.answers(head.split(b" ", 2)[1]))


async def serve(count: int, port: int) -> None:
    """All hosts on one port."""
    loop, answers = asyncio.get_running_loop(), Answers()
    servers = []
    for host in hosts(count):
        servers.append(await loop.create_server(lambda: Connection(answers), host, port))
        port = servers[0].sockets[0].getsockname()[1]
    print(port, flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


@contextlib.contextmanager
def serving(count: int, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The web in a process of its own, and its port. It ends with this process, also if that is
    killed.
    """
    command = [sys.executable, str(Path(__file__).resolve()), "--until-eof"]
    command += ["--hosts", str(count), "--port", str(port)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def end_with_input() -> None:
    """End this process once its standard input is closed, as by the death of its parent."""
    sys.stdin.read()
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument(
        "--until-eof", action="store_true", help="end when the standard input is closed"
    )
    args = parser.parse_args()
    if args.until_eof:
        threading.Thread(target=end_with_input, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(args.hosts, args.port))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
