"""The server of the small web: every fault that was promised, and its counts."""

from __future__ import annotations

import io
import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from PIL import Image

from examples.miniweb import small_web, web_plan
from examples.miniweb.scenes import draw
from tests.support.miniwebs import SETTINGS, get, truth


def urls(web: Path, kind: str) -> list[str]:
    urls = [r["url"] for r in truth(web) if r["kind"] == kind]
    assert urls, f"no {kind} on this web"
    return urls


@pytest.mark.parametrize(
    "kind", ["clean", "noisy", "generic", "near_duplicate", "thumbnail", "language", "optout_page"]
)
def test_a_picture_is_served_as_drawn(web: Path, port: int, kind: str) -> None:
    url = urls(web, kind)[0]
    planned = next(item for item in web_plan.plan(SETTINGS) if item.url == url)
    status, headers, body = get(port, url)
    assert (status, headers["content-type"]) == (200, "image/jpeg")
    assert body == draw(planned.scene, variant=planned.variant, painted=planned.painted)
    assert get(port, url)[2] == body
    sides = Image.open(io.BytesIO(body)).size
    assert (max(sides) <= 24) == (kind == "thumbnail")


def test_a_connection_is_kept_and_its_requests_are_counted(web: Path) -> None:
    clean = urls(web, "clean")
    host = urlsplit(clean[0]).netloc
    paths = [urlsplit(u).path for u in clean if urlsplit(u).netloc == host][:3]
    with (
        small_web.running(web) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as one,
    ):
        # All requests at once on one connection: answered in order, one after the other.
        one.sendall(
            b"".join(f"GET {p}?x=1 HTTP/1.1\r\nHost: {host}:80\r\n\r\n".encode() for p in paths)
        )
        one.sendall(f"GET /_stats HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        received = b""
        while chunk := one.recv(65536):
            received += chunk
    assert received.count(b"HTTP/1.1 200 OK") == len(paths) + 1
    stats = json.loads(received.rpartition(b"\r\n\r\n")[2])
    assert stats["hosts"] == {host: {"requests": len(paths), "connections": 1, "peak": 1}}
    assert stats["requests"] == len(paths)


@pytest.mark.slow
def test_the_peak_counts_requests_that_overlap(web: Path) -> None:
    url = urlsplit(urls(web, "clean")[0])
    with small_web.running(web) as port:
        lines = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(6)]
        for line in lines:
            line.sendall(
                (
                    f"GET {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n\r\n"
                ).encode()
            )
        for line in lines:
            while line.recv(65536):
                pass
            line.close()
        seen = json.loads(get(port, f"http://{url.netloc}/_stats")[2])["hosts"][url.netloc]
    assert (seen["requests"], seen["connections"]) == (6, 6)
    assert 2 <= seen["peak"] <= 6


@pytest.mark.slow
def test_the_server_ends_with_its_parent(web: Path) -> None:
    process, port = small_web.start(web)
    assert get(port, "http://gallery.miniweb.test/robots.txt")[0] == 200
    assert process.stdin
    process.stdin.close()  # what happens when the parent is gone
    assert process.wait(20) == 0
    assert process.stdout
    process.stdout.close()
