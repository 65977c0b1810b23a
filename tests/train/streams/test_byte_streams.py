from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from train.data import tar_streams, view_rows
from train.data.tar_streams import BrokenSource, TarBytes, open_source
from train.data.view_rows import ReadFailed


def whole(name: str) -> bytes:
    """All bytes of a source, checked as those of a tar."""
    with open_source(name) as source:
        data = TarBytes(source)
        parts = []
        while part := data.read(700):
            parts.append(part)
        data.finish()
    return b"".join(parts)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A web server without ranges: /tar is whole, /short ends too early, /busy is never there."""
    content = b"x" * 1024 + bytes(1024)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            status = {"/tar": 200, "/short": 200, "/busy": 503}.get(self.path, 404)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content) if status == 200 else 0))
            self.end_headers()
            if status == 200:
                self.wfile.write(content[: 100 if self.path == "/short" else None])

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_a_file_a_command_a_web_server_and_gzip_give_the_same_bytes(
    tmp_path: Path, server: str
) -> None:
    content = b"x" * 1024 + bytes(1024)
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    packed = tmp_path / "a.tgz"
    packed.write_bytes(gzip.compress(content))
    for name in (str(path), f"pipe:cat {path}", f"{server}/tar", str(packed), f"pipe:cat {packed}"):
        assert whole(name) == content, name


def test_a_source_that_ends_too_early_is_named_with_the_reason(tmp_path: Path, server: str) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"x" * 1024)  # at the border of a member: tarfile alone would not notice
    cut = tmp_path / "cut.tgz"
    cut.write_bytes(gzip.compress(b"x" * 1024 + bytes(1024))[:-12])
    two = tmp_path / "two.tar"
    two.write_bytes(b"x" * 512 + bytes(1024))
    for name, reason in {
        str(path): "without the end mark of a tar",
        f"pipe:cat {path}; exit 3": "ended with status 3",
        f"pipe:echo lost the line >&2; cat {two}; exit 1": "status 1: lost the line",
        f"pipe:cat {two}; kill -9 $$": "by signal 9",
        str(cut): "end-of-stream",
        f"{server}/short": "1,948 bytes too early",
        f"{server}/none": "404",
        str(tmp_path / "none.tar"): "No such file",
    }.items():
        with pytest.raises(BrokenSource, match=reason):
            whole(name)


def test_two_tars_one_after_the_other_are_not_half_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(10240) + b"x" * 512 + bytes(1024))
    with open_source(str(path)) as source:
        data = TarBytes(source)
        data.read(10240)  # to the end mark
        with pytest.raises(BrokenSource, match="named by itself"):
            data.finish()


def test_a_server_that_does_not_answer_is_asked_again(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_rows, "WAITS_S", (0.0, 0.0))
    with pytest.raises(
        ReadFailed,
        match=r"in 3 attempts \(ConnectionError: status 503\); check the connection to the server$",
    ):
        whole(f"{server}/busy")


def test_a_command_that_hangs_is_stopped_with_all_that_it_started() -> None:
    with open_source("pipe:sleep 1000 | cat") as source:
        timer = threading.Timer(0.1, source.stop)
        timer.start()
        began = time.monotonic()
        assert source.read(1) == b""
        assert time.monotonic() - began < 60
        timer.join()
    assert tar_streams.COMMAND == "pipe:"
