"""WAT files for tests: records as Common Crawl's writer leaves them, and as other programs leave them."""

from __future__ import annotations

import gzip
import json
from typing import Any


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
