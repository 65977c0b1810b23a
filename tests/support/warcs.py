"""WARC files for tests: stored responses of one page each."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from clipmill.manifests.columns import PAIRS
from clipmill.pipeline.archives.warc import rows_of_warc

PAGE = "http://p.test/a/page.html"
HTML = b"<html lang=en><img src=/%d.jpg alt='caption %d'></html>"


def block(
    html: bytes,
    *headers: str,
    status: str = "200 OK",
    kind: str | None = "text/html; charset=utf-8",
) -> bytes:
    """A stored HTTP response."""
    lines = [f"HTTP/1.1 {status}", *([f"Content-Type: {kind}"] if kind else []), *headers, "", ""]
    return "\r\n".join(lines).encode() + html


def record(body: bytes, url: str = PAGE, kind: str = "response", extra: int = 0) -> bytes:
    """A WARC record, not compressed; `extra` makes its length wrong."""
    content_type = (
        "application/http; msgtype=response" if kind == "response" else "application/warc-fields"
    )
    lines = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        f"WARC-Target-URI: {url}",
        f"Content-Type: {content_type}",
    ]
    head = "\r\n".join([*lines, f"Content-Length: {len(body) + extra}", "", ""])
    return head.encode() + body + b"\r\n\r\n"


def pages(count: int) -> list[bytes]:
    return [record(block(HTML % (i, i)), f"http://p.test/{i}") for i in range(count)]


def zipped(parts: list[bytes]) -> bytes:
    return b"".join(gzip.compress(part, mtime=0) for part in parts)


def read(path: Path, data: bytes) -> tuple[list[dict[str, Any]], Counter[str]]:
    """The rows of a file as dicts, and the counts, which must add up."""
    path.write_bytes(data)
    counts: Counter[str] = Counter()
    rows = [dict(zip(PAIRS.names, row, strict=True)) for row in rows_of_warc(str(path), counts)]
    assert len(rows) == counts["pairs"]
    reasons = counts.total() - counts["links"] - counts["pairs"] - counts["damaged_records"]
    assert counts["links"] == counts["pairs"] + reasons
    return rows, counts


def one(
    tmp_path: Path, html: bytes | str, *headers: str, **more: Any
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """A WARC of one page."""
    html = html.encode() if isinstance(html, str) else html
    return read(tmp_path / "x.warc.gz", zipped([record(block(html, *headers, **more))]))


def captions(rows: list[dict[str, Any]]) -> list[str]:
    return [row["caption"] for row in rows]


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return packed
