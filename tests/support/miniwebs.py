"""A small web for tests: its settings, its truth, its WAT as a crawler reads it, and requests."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pyarrow.parquet as pq
from fastwarc.warc import ArchiveIterator, WarcRecordType

from clipmill.examples.miniweb.settings import Miniweb

SETTINGS = Miniweb(pairs=240, trusted_pairs=24, faults=0.25, seed=5)


def truth(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "truth.parquet").to_pylist()
    return rows


def envelopes(wat: Path) -> list[dict[str, Any]]:
    with open(wat, "rb") as stream:
        return [
            json.loads(r.reader.read())["Envelope"]
            for r in ArchiveIterator(stream, WarcRecordType.metadata)
        ]


def image_links(wat: Path) -> list[tuple[str, str, str]]:
    """(url, alt, page) of every image link with a text and an http address, as a crawler reads
    them.
    """
    links = []
    for envelope in envelopes(wat):
        html = envelope["Payload-Metadata"].get("HTTP-Response-Metadata", {}).get("HTML-Metadata")
        if html is None:
            continue
        page = envelope["WARC-Header-Metadata"]["WARC-Target-URI"]
        base = urljoin(page, html["Head"].get("Base", ""))
        for link in html["Links"]:
            if link["path"] == "IMG@/src" and link.get("alt") and "[" not in link["url"]:
                url = urljoin(base, link["url"])
                if urlsplit(url).scheme == "http":
                    links.append((url, link["alt"], page))
    return links


def get(port: int, url: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    try:
        connection.request(method, parts.path, headers={"Host": parts.netloc})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()
