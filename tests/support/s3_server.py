"""An S3 server program on loopback, and a proxy before it that makes chosen requests fail."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

BUCKET = "pools"
# Arguments: a folder, which gets the objects, and the address to listen on. The first line that it
# prints is its URL. Like a real store, and unlike localbucket alone, it keeps nothing of an upload
# whose sender has ended.
PROGRAM = """
import pathlib, sys
from http.server import ThreadingHTTPServer
import localbucket

class WholeReads:
    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def read(self, size):
        data = self.file.read(size)
        if len(data) < size:
            raise ConnectionResetError("the sender has ended")
        return data

class Handler(localbucket.S3Handler):
    data_root = pathlib.Path(sys.argv[1]).resolve()

    def setup(self):
        super().setup()
        self.rfile = WholeReads(self.rfile)

server = ThreadingHTTPServer((sys.argv[2], 0), Handler)
print("http://%s:%d" % server.server_address[:2], flush=True)
server.serve_forever()
"""
KILLS = ("kill_before", "kill_after")
FAULTS = ("503", "412", "lost_request", "lost_answer", "short_answer", "timeout")
SILENT_S = 4.0  # of a request that gets no answer


def s3_variables(url: str) -> dict[str, str]:
    """The environment in which s3:// means this server; processes inherit it."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",  # what is tried is our own retry
    }


# Of the client, as fsspec.config.conf["s3"]: shorter than SILENT_S.
SHORT_TIMEOUTS = {"config_kwargs": {"read_timeout": 2.0, "connect_timeout": 2.0}}


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """The address of a server with a bucket `pools`, empty but for what the folder has of it."""
    with open(folder / "s3_server.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), "127.0.0.1"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, (folder / "s3_server.log").read_text()
            address = urlsplit(url)
            connection = http.client.HTTPConnection(address.netloc, timeout=900)
            connection.request("PUT", f"/{BUCKET}")
            assert connection.getresponse().status in (200, 409)  # 409: it is there
            connection.close()
            yield url
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


class FaultyProxy:
    """Passes requests on; the n-th one from now fails in one of FAULTS, once.

    503: refused before it reaches the server. 412: the same, as if a condition did not hold; only
    conditional requests are counted. kill_before, kill_after: the process whose id stands in
    `pid_file` is killed before the request is passed on, or when the server has done it.
    lost_request: the connection ends before the request is passed on. lost_answer: it ends after
    the server has done it. short_answer: half of the body comes. timeout: the server has done it,
    but nothing comes for SILENT_S. `requests`: what was asked since
    `fail_at`, as `METHOD path`.
    """

    def __init__(self, server: str) -> None:
        self.server = urlsplit(server).netloc
        self.requests: list[str] = []
        self.failed: str | None = None  # the request that was made to fail
        self.pid_file: Path | None = None
        self._n, self._fault = 0, ""
        self._down_until = 0.0
        self._lock = threading.Lock()
        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._httpd.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._httpd.server_address[1]}"
        self._thread = threading.Thread(target=self._httpd.serve_forever, daemon=True)
        self._thread.start()

    def fail_at(self, n: int, fault: str) -> None:
        """Make the n-th request from now fail; 0 for none."""
        assert fault in (*FAULTS, *KILLS), fault
        with self._lock:
            self._n, self._fault = n, fault
            self.requests, self.failed = [], None

    def go_down(self, seconds: float) -> None:
        """End every connection without an answer for so long."""
        self._down_until = time.monotonic() + seconds

    def close(self) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()
        self._thread.join()

    def fault_of(self, request: str, conditional: bool) -> str:
        """What happens to this request: one of FAULTS, or nothing."""
        with self._lock:
            if time.monotonic() < self._down_until:
                return "lost_request"
            if self._fault == "412" and not conditional:
                return ""
            self.requests.append(request)
            if len(self.requests) != self._n:
                return ""
            self.failed = request
            return self._fault

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_any(self) -> None:
                body = read_body(self)
                if body is None:  # its sender was killed; a store keeps nothing of it
                    self.close_connection = True
                    return
                conditional = "If-None-Match" in self.headers or "If-Match" in self.headers
                fault = proxy.fault_of(f"{self.command} {self.path}", conditional)
                if fault == "503":
                    answer(self, 503, {}, error_body("SlowDown"))
                elif fault == "412":
                    answer(self, 412, {}, error_body("PreconditionFailed"))
                elif fault == "lost_request":
                    self.close_connection = True
                elif fault == "kill_before":
                    proxy.kill()
                    self.close_connection = True
                else:
                    status, headers, data = proxy.pass_on(self, body)
                    if fault == "kill_after":
                        proxy.kill()
                    if fault in ("lost_answer", "timeout", "kill_after"):
                        time.sleep(SILENT_S if fault == "timeout" else 0)
                        self.close_connection = True
                        return
                    answer(self, status, headers, data, short=fault == "short_answer")

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_any

        return Handler

    def kill(self) -> None:
        """End the process that asks."""
        assert self.pid_file is not None
        os.kill(int(self.pid_file.read_text()), signal.SIGKILL)

    def pass_on(
        self, handler: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        """The server's answer to a request."""
        connection = http.client.HTTPConnection(self.server, timeout=900)
        headers = {
            name: value
            for name, value in handler.headers.items()
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "expect")
        }
        headers["Content-Length"] = str(len(body))
        connection.request(handler.command, handler.path, body, headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, dict(response.getheaders()), data


def read_body(handler: BaseHTTPRequestHandler) -> bytes | None:
    """The body of a request, of a stated length or in chunks; None where less than it has come."""
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        stated = int(handler.headers.get("Content-Length", 0))
        data = handler.rfile.read(stated)
        return data if len(data) == stated else None
    data = b""
    while line := handler.rfile.readline():
        size = int(line.split(b";")[0], 16)
        chunk = handler.rfile.read(size)
        if len(chunk) != size or handler.rfile.readline() != b"\r\n":
            return None
        data += chunk
        if not size:
            return data
    return None


def answer(
    handler: BaseHTTPRequestHandler,
    status: int,
    headers: Mapping[str, str],
    data: bytes,
    short: bool = False,
) -> None:
    """Send an answer, or half of its body and then the end of the connection."""
    handler.send_response_only(status)
    length = headers.get("Content-Length") if handler.command == "HEAD" else str(len(data))
    for name, value in headers.items():
        if name.lower() not in ("content-length", "connection", "transfer-encoding", "date"):
            handler.send_header(name, value)
    handler.send_header("Content-Length", length or "0")
    handler.end_headers()
    if handler.command == "HEAD":
        return
    handler.wfile.write(data[: len(data) // 2] if short else data)
    if short:
        handler.close_connection = True


def error_body(code: str) -> bytes:
    """S3's XML of an error."""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code>'
        f"<Message>{code}</Message></Error>"
    ).encode()
