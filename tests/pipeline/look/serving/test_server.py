"""The server as an attacker on the same machine, or a page of another site, would ask it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.look.page import page_data, render
from pipeline.look.server import Answers, make_server
from pipeline.look.survey import Survey


@pytest.fixture(scope="module")
def port(survey: Survey) -> Iterator[int]:
    answers = Answers(survey)
    with make_server(answers, render(survey, page_data(survey))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


def ask(
    port: int, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host="Host" in (headers or {}))
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def answer(port: int, path: str) -> Any:
    status, _, body = ask(port, path)
    assert status == 200, body
    return json.loads(body)


def test_the_page_and_its_answers(port: int) -> None:
    status, headers, body = ask(port, "/")
    assert status == 200
    assert b'"server":true' in body
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    count = answer(port, "/count?column=original_width&view=basic&value=250")
    assert count["below"] < count["values"]
    assert answer(port, "/count?column=caption_chars&value=0")["below"] == 0
    assert answer(port, "/search?text=dog&view=")["count"] == 46
    status, headers, body = ask(port, "/image/0/3")
    assert (status, headers["Content-Type"], body[:2]) == (200, "image/jpeg", b"\xff\xd8")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/image/0/4", 404),  # not stored
        ("/image/0/2", 404),  # damaged
        ("/image/00/99999", 404),
        ("/image/../../etc/passwd", 404),
        ("/image/0/3/../../../pool.json", 404),
        ("/%2e%2e/%2e%2e/etc/passwd", 404),
        ("//etc/passwd", 404),
        ("/shards/00000.tar", 404),
        ("/image/-1/0", 404),
        ("/count", 400),
        ("/count?column=caption_chars&view=", 400),
        ("/count?column=caption_chars&value=" + "9" * 400, 400),
        ("/count?column=height&view=&value=nan", 400),
        ("/count?column=../../x&value=1", 400),
        ("/count?" + "a=1&" * 20, 400),
        ("/search?text=", 400),
        ("/search?text=a&view=no_view", 400),
        ("/similar?shard=0&row=0", 400),
        ("/similar?shard=0", 400),
    ],
)
def test_what_it_does_not_answer(port: int, path: str, status: int) -> None:
    got, _, body = ask(port, path)
    assert got == status, body
    assert set(json.loads(body)) == {"error"}
    assert b"Traceback" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_only_get_is_answered(port: int, method: str) -> None:
    assert ask(port, "/", method)[0] == 405


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1"},
        {"Host": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_site_gets_nothing(port: int, headers: dict[str, str]) -> None:
    filled = {name: value.format(port=port) for name, value in headers.items()}
    for path in ("/", "/image/0/3", "/search?text=dog"):
        status, _, body = ask(port, path, headers=filled)
        assert status == 403
        assert b"dog" not in body


def test_both_names_of_the_machine_are_answered(port: int) -> None:
    for host in ("127.0.0.1", "localhost"):
        assert ask(port, "/", headers={"Host": f"{host}:{port}"})[0] == 200
