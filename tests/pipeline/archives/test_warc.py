"""WARC files as pairs: what a page says, and how its response is stored."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import brotli
import pytest

from tests.support import wats
from tests.support.warcs import HTML, PAGE, block, captions, one, pages, read, record, zipped, zstd


def test_a_page_says_the_same_in_its_wat_and_its_warc(tmp_path: Path) -> None:
    links: list[dict[str, Any]] = [
        wats.image("x.jpg", "a cat & a dog", title="the title"),
        wats.image("//c.test/y.jpg", " 東京 \n"),
        wats.image("/full.jpg", "in a link"),
        {"path": "A@/href", "url": "/full.jpg", "text": "see it large"},
        wats.image("z.jpg"),
        wats.image("z.jpg", ""),
        wats.image("http://[broken/icon.png", "an icon"),
        wats.image("data:image/png;base64,", "inline"),
        wats.image("file:///C:/1.jpg", "my picture"),
        {
            "path": "A@/href",
            "url": "https://creativecommons.org/licenses/by/4.0/",
            "text": "CC BY",
            "rel": "license",
        },
    ]
    terms = {"path": "LINK@/href", "url": "/l.xml", "rel": "license", "type": "application/rsl+xml"}
    html = """<html lang=fr><head><base href="../b/"><meta name=Robots content="noai, noimageai">
        <link rel=license type="application/rsl+xml" href="/l.xml"><link rel=preload href=l.xml>
        <meta name=googlebot content=noindex><meta name=tdm-reservation content=1></head><body>
        <img src=x.jpg alt="a cat &amp; a dog" title="the title">
        <img src="//c.test/y.jpg" alt=" 東京 \n">
        <a href="/full.jpg"><img src="/full.jpg" alt="in a link"> see it large</a>
        <img src=z.jpg><img src=z.jpg alt>
        <img src="http://[broken/icon.png" alt="an icon">
        <img src="data:image/png;base64," alt=inline>
        <img src="file:///C:/1.jpg" alt="my picture">
        <a rel=license href="https://creativecommons.org/licenses/by/4.0/">CC BY</a>"""
    metas = [
        {"name": "Robots", "content": "noai, noimageai"},
        {"name": "googlebot", "content": "noindex"},
        {"name": "tdm-reservation", "content": "1"},
        {"name": "HTML@/lang", "content": "fr"},
    ]
    headers: dict[str, Any] = {
        "Content-Type": "text/html",
        "X-Robots-Tag": ["noindex", "otherbot: noai"],
    }
    rsl = '<https://page.test/l.xml>; rel="license"; type="application/rsl+xml"'
    headers |= {"Link": ["</x.css>; rel=preload", rsl], "Content-Signal": "ai-train=no"}
    head = {"Base": "../b/", "Metas": metas, "Link": [terms]}
    wat_records = wats.page(PAGE, links, lang="de", headers=headers, **head)
    (tmp_path / "x.wat.gz").write_bytes(wats.zipped(wat_records))
    response = block(
        html.encode(),
        "X-Robots-Tag: noindex",
        "X-Robots-Tag: otherbot: noai",
        "Link: </x.css>; rel=preload",
        f"Link: {rsl}",
        "Content-Signal: ai-train=no",
        kind="text/html;charset=utf-8",
    )
    cld2 = b'{"reliable":true,"languages":[{"code":"de"}]}'
    detected = b"charset-detected: UTF-8\r\nlanguages-cld2: " + cld2 + b"\r\n"
    ours, counts = read(
        tmp_path / "x.warc.gz", zipped([record(response), record(detected, kind="metadata")])
    )
    theirs: Counter[str] = Counter()
    wat_rows = wats.rows_of_wat(str(tmp_path / "x.wat.gz"), theirs)
    position = ("wat", "warc_offset")
    assert [{k: v for k, v in row.items() if k not in position} for row in ours] == [
        {k: v for k, v in row.items() if k not in position} for row in wat_rows
    ]
    signals = json.loads(ours[0]["robots"])
    assert signals["content-signal"] == ["ai-train=no"]
    assert signals["license"] == [rsl, rsl.replace("https://page.test", "")]
    assert counts == theirs
    assert len(ours) == 3
    assert (ours[2]["anchor"], ours[0]["page_lang"], ours[0]["title"]) == (
        "see it large",
        "de",
        "the title",
    )


@pytest.mark.parametrize(
    ("html", "headers", "metadata", "language"),
    [
        ("<html lang=en-GB>", [], b"", "en"),
        ("<html lang=en_GB>", ["Content-Language: fr"], b"", "en"),
        ("<html>", ["Content-Language: pt-BR, en"], b"", "pt"),
        ("<html>", [], b"", None),
        (
            "<html lang=''>",
            [],
            b'languages-cld2: {"reliable":false,"languages":[{"code":"it"}]}',
            "it",
        ),
        (
            "<html lang=en>",
            [],
            b'languages-cld2: {"reliable":false,"languages":[{"code":"it"}]}',
            "en",
        ),
        (
            "<html lang=en>",
            [],
            b'languages-cld2: {"reliable":true,"languages":[{"code":"it"}]}',
            "it",
        ),
        ("<html lang=en>", [], b"languages-cld2: {broken", "en"),
    ],
)
def test_the_language_of_a_page(
    html: str, headers: list[str], metadata: bytes, language: str | None, tmp_path: Path
) -> None:
    page = record(block(f"{html}<img src=x.jpg alt=c>".encode(), *headers))
    rows, _ = read(tmp_path / "x.warc.gz", zipped([page, record(metadata, kind="metadata")]))
    assert [row["page_lang"] for row in rows] == [language]


# --- how a response is stored ---------------------------------------------------------------------

BODY = HTML % (1, 1)
CHUNKED = b"10\r\n" + BODY[:16] + b"\r\n%x\r\n" % (len(BODY) - 16) + BODY[16:] + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("body", "header"),
    [
        (gzip.compress(BODY, mtime=0), "Content-Encoding: gzip"),
        (gzip.compress(BODY, mtime=0), "Content-Encoding: X-GZip"),
        (zlib.compress(BODY), "Content-Encoding: deflate"),
        (brotli.compress(BODY), "Content-Encoding: br"),
        (zstd(BODY), "Content-Encoding: zstd"),
        (gzip.compress(gzip.compress(BODY, mtime=0), mtime=0), "Content-Encoding: gzip, gzip"),
        (brotli.compress(gzip.compress(BODY, mtime=0)),
        "Content-Encoding: gzip\r\nContent-Encoding: br"),
        (CHUNKED, "Transfer-Encoding: chunked"),
        (b"%x\r\n%b\r\n0\r\n\r\n" % (len(gzip.compress(BODY, mtime=0)), gzip.compress(BODY,
        mtime=0)), "Transfer-Encoding: chunked\r\n"
         "Content-Encoding: gzip"),
        (BODY, "Content-Encoding: gzip"),
        (BODY, "Transfer-Encoding: chunked"),
        (b"\n " + BODY, "Content-Encoding: something"),
        (BODY, "X-Crawler-Content-Encoding: gzip"),
        (BODY, "Content-Encoding: identity"),
    ],
)  # fmt: skip
def test_bodies_are_decoded_as_their_headers_say_or_taken_as_they_lie(
    body: bytes, header: str, tmp_path: Path
) -> None:
    rows, counts = one(tmp_path, body, header)
    assert captions(rows) == ["caption 1"]
    assert not counts["damaged_records"]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (gzip.compress(bytes(100 << 20)), ["Content-Encoding: gzip"]),
        (brotli.compress(bytes(100 << 20), quality=1), ["Content-Encoding: br"]),
        (b"\x00\x01 rubbish", ["Content-Encoding: gzip"]),
        (b"\x00\x01 rubbish", ["Content-Encoding: magic"]),
        (b"<div>" * 12_000 + b"<img src=x.jpg alt=c>" + b"</div>" * 12_000, []),
        (b"<img src=x.jpg alt=c " + b" ".join(b"a%d=1" % i for i in range(30_000)) + b">", []),
    ],
    ids=[
        "gzip bomb",
        "brotli bomb",
        "no gzip",
        "unknown coding",
        "a bottomless page",
        "attributes without end",
    ],
)
def test_a_bomb_costs_its_record(body: bytes, headers: list[str], tmp_path: Path) -> None:
    rows, counts = read(tmp_path / "x.warc.gz", zipped([record(block(body, *headers)), *pages(2)]))
    assert captions(rows) == ["caption 0", "caption 1"]
    assert counts["damaged_records"] == 1


def test_many_tags_side_by_side_are_no_bomb(tmp_path: Path) -> None:
    html = "<ul>" + "<li><b>x</b><br>" * 20_000 + "<img src=x.jpg alt=c></ul>"
    assert captions(one(tmp_path, html)[0]) == ["c"]


def test_only_pages_that_were_answered_with_200_count(tmp_path: Path) -> None:
    parts = [
        record(block(BODY, status="404 Not Found")),
        record(block(BODY, kind="application/json")),
        record(block(BODY, kind=None)),
        record(block(BODY), kind="revisit"),
        record(block(BODY), kind="request"),
        record(block(BODY, kind="application/xhtml+xml"), "http://p.test/1"),
        record(block(b"", kind="text/html")),
        record(block(BODY, status="200", kind="Text/HTML")),
    ]
    rows, counts = read(tmp_path / "x.warc.gz", zipped(parts))
    assert len(rows) == 2
    assert not counts["damaged_records"]
    rows, counts = read(tmp_path / "x.warc.gz", zipped([record(b"rubbish"), *pages(1)]))
    assert (captions(rows), counts["damaged_records"]) == (["caption 0"], 1)
