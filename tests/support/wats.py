"""WAT files for tests: records as Common Crawl's writer leaves them, and as other programs leave
them.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

from clipmill.manifests.schema import Pair
from clipmill.pipeline.archives.wat import batches_of_wat

PAGE = "http://page.test/deep/er/page.html"


def record(
    body: bytes,
    url: str = "http://page.test/",
    *,
    kind: str = "metadata",
    newline: str = "\r\n",
    **wrong: Any,
) -> bytes:
    """One WARC record, not compressed. `length` and `lead` make it a wrong one."""
    head = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        f"WARC-Target-URI: {url}",
        "Content-Type: application/json",
        f"Content-Length: {wrong.get('length', len(body))}",
        "",
        "",
    ]
    lead: bytes = wrong.get("lead", b"")
    return lead + newline.join(head).encode() + body + 2 * newline.encode()


def wrapped(url: str, **payload: Any) -> bytes:
    envelope = {
        "Format": "WARC/1.0",
        "WARC-Header-Metadata": {"WARC-Target-URI": url},
        "Payload-Metadata": payload,
    }
    shell = {
        "Container": {"Filename": "x.warc.gz", "Compressed": True, "Offset": "1"},
        "Envelope": envelope,
    }
    return json.dumps(shell, ensure_ascii=False, separators=(",", ":")).encode()


def response(
    url: str, links: list[dict[str, Any]], *, headers: dict[str, Any] | None = None, **head: Any
) -> bytes:
    http = {"Headers": headers or {}, "HTML-Metadata": {"Head": head, "Links": links}}
    return wrapped(url, **{"HTTP-Response-Metadata": http})


def language(url: str, code: str, reliable: bool = True) -> bytes:
    value = json.dumps({"reliable": reliable, "languages": [{"code": code, "name": "X"}]})
    return wrapped(
        url,
        **{
            "WARC-Metadata-Metadata": {
                "Metadata-Records": [{"Name": "languages-cld2", "Value": value}]
            }
        },
    )


def image(url: str, alt: str | None = None, **more: Any) -> dict[str, Any]:
    return {"path": "IMG@/src", "url": url, **({} if alt is None else {"alt": alt}), **more}


def page(url: str, links: list[dict[str, Any]], *, lang: str = "en", **more: Any) -> list[bytes]:
    """The three records of a page."""
    request = wrapped(url, **{"HTTP-Request-Metadata": {"Headers": {"Host": "page.test"}}})
    return [
        record(body, url) for body in (request, response(url, links, **more), language(url, lang))
    ]


def zipped(records: list[bytes]) -> bytes:
    """One gzip member per record."""
    return b"".join(gzip.compress(one, mtime=0) for one in records)


INFO = record(b"software: test\r\nformat: WARC File Format 1.0\r\n", kind="warcinfo")


def rows_of_wat(path: str, counts: Counter[str]) -> list[dict[str, Any]]:
    return [row for batch in batches_of_wat(path, counts) for row in batch.to_pylist()]


def pairs_of_wat(path: str, counts: Counter[str]) -> list[Pair]:
    return [Pair(**row) for row in rows_of_wat(path, counts)]


def read(folder: Path, data: bytes, name: str = "x.warc.wat.gz") -> tuple[list[Pair], Counter[str]]:
    """The pairs of a WAT of these bytes, and its counts, which must add up."""
    (folder / name).write_bytes(data)
    counts = Counter[str]()
    pairs = pairs_of_wat(str(folder / name), counts)
    totals = ("links", "pairs", "damaged_records")
    reasons = sum(n for key, n in counts.items() if key not in totals)
    assert counts["links"] == counts["pairs"] + reasons
    assert counts["pairs"] == len(pairs)
    return pairs, counts


def one(folder: Path, *links: dict[str, Any], **more: Any) -> Pair:
    """The first pair of a page with these links."""
    pairs, _ = read(folder, zipped([INFO, *page(PAGE, list(links), **more)]))
    return pairs[0]


def pages(count: int) -> list[bytes]:
    """Records of `count` pages with one pair each, captions "0", "1", …"""
    records: list[bytes] = []
    for i in range(count):
        records += page(f"http://p{i}.test/", [image(f"/{i}.jpg", str(i))])
    return records


def captioned(path: Path, *captions: str, first: int = 0) -> str:
    """A WAT with one page per caption; the picture of caption i is http://p.test/i.jpg."""
    some = [
        r
        for i, text in enumerate(captions, first)
        for r in page(f"http://p.test/{i}/", [image(f"/{i}.jpg", text), image("/spacer.gif", "")])
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zipped([INFO, *some]))
    return str(path)
