"""A small server on 127.0.0.1 for the page of a large pool.

It answers GET only, and only where the Host header names it, so that no other site can reach it
through a browser. No part of a request becomes a path of a file: an image is asked for by two
numbers.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pipeline.pool_page.serving.answers import Answers, Changed
from pipeline.pool_page.thumbnails import NoImage

ADDRESS = "127.0.0.1"
SECONDS = 30.0  # until a connection that sends nothing is closed
IMAGE = re.compile(r"/image/(\d{1,18})/(\d{1,7})", re.ASCII)
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
Parameters = dict[str, str]
logger = logging.getLogger(__name__)


def make_server(answers: Answers, page: str, port: int = 0) -> ThreadingHTTPServer:
    """A server that listens; port 0: a free one. The caller calls serve_forever()."""

    class Handler(_Handler):
        pass

    Handler.answers, Handler.page = answers, page.encode()
    server = ThreadingHTTPServer((ADDRESS, port), Handler)
    server.daemon_threads = True
    Handler.hosts = tuple(f"{name}:{server.server_address[1]}" for name in (ADDRESS, "localhost"))
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "clipmill"
    sys_version = ""
    timeout = SECONDS
    answers: Answers
    page: bytes
    hosts: tuple[str, ...]

    def log_message(self, *_: object) -> None:
        """Nothing for each request."""

    def do_GET(self) -> None:
        """The page, or an answer."""
        problem = self._refusal()
        if problem:
            self._send(403, {"error": problem})
            return
        try:
            parts = urlsplit(self.path)
            parameters = dict(parse_qsl(parts.query, max_num_fields=8))
            self._route(parts.path, parameters)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Changed as error:
            self._send(409, {"error": str(error)})
        except NoImage as error:
            self._send(404, {"error": str(error)})
        except (ValueError, KeyError) as error:
            self._send(400, {"error": str(error)})
        except Exception as error:
            logger.error("%s: %s: %s", urlsplit(self.path).path[:60], type(error).__name__, error)
            self._send(500, {"error": "The server could not answer; its log says why."})

    def refuse(self) -> None:
        """Any other method."""
        self.close_connection = True
        self._send(405, {"error": "only GET is answered"})

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_HEAD = refuse

    def _refusal(self) -> str:
        """Why a request is not answered; "" where it is."""
        if len(self.headers.get_all("Host") or []) != 1 or self.headers["Host"] not in self.hosts:
            return "the Host header is not that of this server"
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "another site asks"
        return ""

    def _route(self, path: str, parameters: Parameters) -> None:
        routes: dict[str, Callable[[Parameters], dict[str, Any]]] = {
            "/count": self._count,
            "/search": lambda given: self.answers.search(given["text"], given.get("view", "")),
            "/similar": lambda given: self.answers.similar(
                _whole(given, "shard"), _whole(given, "row")
            ),
            "/like": lambda given: self.answers.like_text(given["text"]),
        }
        image = IMAGE.fullmatch(path)
        if path == "/":
            self._send_bytes(200, "text/html; charset=utf-8", self.page)
        elif image:
            data = self.answers.image(int(image[1]), int(image[2]))
            self._send_bytes(200, "image/jpeg", data)
        elif path in routes:
            self._send(200, routes[path](parameters))
        else:
            self._send(404, {"error": "there is no such page"})

    def _count(self, given: Parameters) -> dict[str, Any]:
        return self.answers.count(given["column"], given.get("view", ""), given["value"])

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        self._send_bytes(status, "application/json", json.dumps(answer, allow_nan=False).encode())

    def _send_bytes(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _whole(given: Parameters, name: str) -> int:
    """A parameter that is a whole number of at most 18 digits."""
    text = given.get(name, "")
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise ValueError(f"{name} is {text[:20]!r}; it must be a whole number")
    return int(text)
