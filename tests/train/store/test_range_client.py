from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from train import store as range_client
from train.store import RangeClient

CONTENT = bytes(range(256)) * 40
URL = "s3://bucket/a.tar"


class Store:
    """An HTTP server with ranges, whose answers can be made wrong. `log`: one entry a request."""

    def __init__(self) -> None:
        self.manner = ""
        self.log: list[str] = []
        self.connections = 0
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def setup(self) -> None:
                store.connections += 1
                super().setup()

            def do_GET(self) -> None:
                store.log.append(self.path)
                first, last = self.headers["Range"].removeprefix("bytes=").split("-")
                body, status = CONTENT[int(first) : int(last) + 1], 206
                if store.manner in ("403", "404", "503"):
                    status, body = int(store.manner), b"no"
                elif store.manner == "no ranges":
                    status, body = 200, CONTENT
                shift = 1 if store.manner == "other range" else 0
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Range", f"bytes {int(first) + shift}-{last}/10240")
                self.end_headers()
                self.wfile.write(body[:5] if store.manner == "short" else body)
                if store.manner in ("short", "closes"):
                    self.close_connection = True

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    one = Store()
    thread = threading.Thread(target=one.server.serve_forever)
    thread.start()
    signed = []

    def sign(url: str) -> range_client._Address:
        signed.append(url)
        return range_client._Address(("http", one.address), f"/a?signed={len(signed)}", 1e18)

    monkeypatch.setattr(range_client, "_sign", sign)
    yield one
    one.server.shutdown()
    one.server.server_close()
    thread.join()


def test_many_ranges_take_one_signature_and_one_connection_for_each_thread(store: Store) -> None:
    client = RangeClient()
    starts = list(range(0, 10_000, 100))
    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(lambda start: client.read(URL, start, 100), starts))
        assert b"".join(parts) == CONTENT[:10_000]
        assert set(store.log) == {"/a?signed=1"} or len(set(store.log)) <= 4  # begun at once
        assert store.connections <= 4
    assert client.read(URL, 10_200, 100) == CONTENT[10_200:]  # the object ends before


@pytest.mark.parametrize("manner", ["404", "503", "no ranges", "short", "other range"])
def test_what_is_not_the_plain_case_is_left_to_the_caller(store: Store, manner: str) -> None:
    client = RangeClient()
    assert client.read(URL, 0, 10) == CONTENT[:10]
    store.manner = manner
    assert client.read(URL, 50, 10) is None
    store.manner = ""
    assert client.read(URL, 70, 10) == CONTENT[70:80]  # on a connection without old bytes


def test_a_signature_that_has_run_out_is_made_anew_and_a_refusal_is_final(store: Store) -> None:
    client = RangeClient()
    assert client.read(URL, 0, 10) == CONTENT[:10]
    store.manner = "403"
    assert client.read(URL, 0, 10) is None
    assert store.log[-2:] == ["/a?signed=1", "/a?signed=2"]
    store.manner, asked = "", len(store.log)
    assert client.read("s3://bucket/b.tar", 0, 10) is None
    assert len(store.log) == asked  # nobody is asked again
    assert client.read("s3://other/b.tar", 0, 10) == CONTENT[:10]


def test_a_connection_that_the_server_closed_is_opened_again(store: Store) -> None:
    client = RangeClient()
    store.manner = "closes"
    for start in range(5):
        assert client.read(URL, start, 10) == CONTENT[start : start + 10]
    assert store.connections == 5


def test_other_stores_and_a_dead_server_are_left_to_the_caller(store: Store) -> None:
    client = RangeClient()
    assert client.read("gs://bucket/a.tar", 0, 10) is None
    assert client.read("/local/a.tar", 0, 10) is None
    assert client.read(URL, 0, 0) is None
    assert not store.log
    store.server.server_close()
    assert client.read(URL, 0, 10) is None


def test_without_credentials_or_a_filesystem_the_usual_way_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(url: str) -> None:
        raise ValueError(f"{url} cannot be opened")

    monkeypatch.setattr(range_client.files, "filesystem", missing)
    client = RangeClient()
    assert client.read(URL, 0, 10) is None
    monkeypatch.setattr(range_client, "_sign", lambda url: pytest.fail("asked again"))
    assert client.read(URL, 0, 10) is None
