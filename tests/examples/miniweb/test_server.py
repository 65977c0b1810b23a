"""The server of the small web: every fault that was promised, and its counts."""

from __future__ import annotations

import http.client
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


@pytest.mark.parametrize(("kind", "status"), [("dead_link", 404), ("error500", 500)])
def test_errors_stay_errors(web: Path, port: int, kind: str, status: int) -> None:
    for _ in range(2):
        assert get(port, urls(web, kind)[0])[0] == status


def test_a_flaky_picture_comes_at_the_second_time(web: Path, port: int) -> None:
    url = urls(web, "flaky503")[0]
    status, headers, _ = get(port, url)
    assert (status, headers["retry-after"]) == (503, "1")
    assert get(port, url)[0] == 200


def test_redirects_lead_to_another_host_or_in_a_circle(web: Path, port: int) -> None:
    for url in urls(web, "redirect"):
        status, headers, _ = get(port, url)
        assert status == 302
        assert urlsplit(headers["location"]).netloc != urlsplit(url).netloc
        status, headers, body = get(port, headers["location"])
        assert (status, headers["content-type"], body[:2]) == (200, "image/jpeg", b"\xff\xd8")
    loop = urls(web, "redirect_loop")[0]
    assert get(port, loop)[1]["location"] == loop


def test_a_truncated_picture_promises_more_than_it_sends(web: Path, port: int) -> None:
    with pytest.raises(http.client.IncompleteRead) as error:
        get(port, urls(web, "truncated")[0])
    assert error.value.expected
    assert len(error.value.partial) > 100


def test_a_page_instead_of_a_picture(web: Path, port: int) -> None:
    status, headers, body = get(port, urls(web, "html")[0])
    assert (status, headers["content-type"]) == (200, "text/html")
    assert body.startswith(b"<!doctype html>")


def test_opt_outs_by_header_and_by_robots_txt(web: Path, port: int) -> None:
    for url in urls(web, "optout_header"):
        assert "noai" in get(port, url)[1]["x-robots-tag"]
    assert "x-robots-tag" not in get(port, urls(web, "clean")[0])[1]
    for url in urls(web, "robots_txt"):
        parts = urlsplit(url)
        assert parts.path.startswith("/private/")
        assert b"Disallow: /private/" in get(port, f"http://{parts.netloc}/robots.txt")[2]
    assert get(port, "http://gallery.miniweb.test/robots.txt")[2] == b"User-agent: *\nAllow: /\n"


def test_hosts_are_told_apart_and_what_is_not_there_is_not_found(web: Path, port: int) -> None:
    url = urls(web, "clean")[0]
    other = "shop" if "gallery" in url else "gallery"
    assert get(port, f"http://{other}.miniweb.test{urlsplit(url).path}")[0] == 404
    assert get(port, "http://elsewhere.test/img/1.jpg")[0] == 404
    assert get(port, url, "POST")[0] == 405
    status, headers, body = get(port, url, "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 300
    assert len({urlsplit(r["url"]).netloc for r in truth(web)}) >= 5


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
