"""A file server on loopback: with ranges or without, and cutting connections as often as it is told
to.
"""

from __future__ import annotations

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FileServer:
    """Serves `files` (path -> bytes). `cuts[path]` answers end after half of what they promise."""

    def __init__(self, files: dict[str, bytes], *, ranges: bool, chunked: bool = False) -> None:
        self.files, self.cuts, self.hits = files, Counter[str](), Counter[str]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                self.do_GET(body=False)

            def do_GET(self, *, body: bool = True) -> None:
                data = outer.files.get(self.path)
                if data is None:
                    self.send_error(404)
                    return
                asked = self.headers.get("Range", "").removeprefix("bytes=") if ranges else ""
                whole = len(data)
                if asked:
                    first, _, last = asked.partition("-")
                    begin, end = int(first), min(int(last or whole - 1), whole - 1)
                    data = data[begin : end + 1]
                self.send_response(206 if asked else 200)
                if asked:
                    self.send_header("Content-Range", f"bytes {begin}-{end}/{whole}")
                if ranges:
                    self.send_header("Accept-Ranges", "bytes")
                if chunked and body:
                    self.send_header("Transfer-Encoding", "chunked")
                else:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if not body:
                    return
                outer.hits[self.path] += 1
                cut = len(data) > 1 and outer.cuts[self.path] > 0
                if cut:
                    outer.cuts[self.path] -= 1
                    data = data[: len(data) // 2]
                if chunked:
                    self.wfile.write(
                        b"%x\r\n%b\r\n" % (len(data), data) + (b"" if cut else b"0\r\n\r\n")
                    )
                else:
                    self.wfile.write(data)
                if cut:
                    self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self.base = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> FileServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(300)
