"""`clipmill look` as a person calls it."""

from __future__ import annotations

import errno
import json
import os
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from clipmill.commands import pool as entry
from tests.support import commands, small_pool


def test_it_writes_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = small_pool.make_pool(tmp_path / "pool", small_pool.rows(10))
    out = tmp_path / "page.html"
    assert commands.look([pool, "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == {"bytes": out.stat().st_size, "file": str(out)}
    assert "8 images in 1 shards" in out.read_text()
    assert commands.look([pool, "--out", str(tmp_path / "second.html")]) == 0
    assert '<a href="page.html">pool: the pool</a>' in (tmp_path / "second.html").read_text()


def test_the_folder_of_the_page_is_made_and_a_page_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = small_pool.make_pool(tmp_path / "pool", small_pool.rows(10))
    out = tmp_path / "new" / "pages" / "page.html"
    assert commands.look([pool, "--out", str(out)]) == 0
    page = out.read_text()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(out))

    monkeypatch.setattr("os.fsync", full)
    assert commands.look([pool, "--out", str(out)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert out.read_text() == page


def test_it_replaces_its_own_pages_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = small_pool.make_pool(tmp_path / "pool", small_pool.rows(10))
    out = tmp_path / "page.html"
    out.write_text("<!doctype html><p>my notes on clipmill")
    assert commands.look([pool, "--out", str(out)]) == 2
    assert "there is a file of that name that this command did not write" in capsys.readouterr().err
    assert out.read_text().endswith("my notes on clipmill")
    out.unlink()
    os.mkfifo(out)
    assert commands.look([pool, "--out", str(out)]) == 2
    assert "is a named pipe" in capsys.readouterr().err
    out.unlink()
    for _ in range(2):
        assert commands.look([pool, "--out", str(out)]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [(["{}"], "is it the folder of a pool"), (["{}/pool", "--view", "x"], "has no view 'x'")],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    small_pool.make_pool(tmp_path / "pool", small_pool.rows(5))
    words = [word.format(tmp_path) for word in words]
    assert commands.look([*words, "--out", str(tmp_path / "page.html")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_a_large_pool_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stops at once; tests of its answers lie in tests/pipeline/look/test_server.py."""
    pool = small_pool.make_pool(tmp_path / "pool", small_pool.rows(10))
    served: list[tuple[str, int]] = []

    def serve_forever(server: ThreadingHTTPServer, *_: object) -> None:
        served.append(server.server_address[:2])  # type: ignore[arg-type]

    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", serve_forever)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(entry, "FILE_ROWS", 9)
    assert commands.look([pool, "--json"]) == 0
    assert commands.look([pool, "--serve"]) == 0
    assert [host for host, _ in served] == ["127.0.0.1"] * 2
    assert f"http://127.0.0.1:{served[0][1]}/" in capsys.readouterr().out
    assert not list(tmp_path.glob("*.html"))
    monkeypatch.setattr(entry, "FILE_ROWS", 10)
    assert commands.look([pool]) == 0
    assert len(served) == 2
    assert (tmp_path / "pool.html").exists()
