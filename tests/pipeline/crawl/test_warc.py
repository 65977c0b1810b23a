"""WARC files: what a page's HTML gives, how records are stored, and what damage costs."""

from __future__ import annotations

import gzip
import random
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import brotli
import pyarrow as pa
import pytest

from manifests import disk
from manifests.columns import PAIRS
from pipeline.crawl import page_images, warc, wat
from pipeline.crawl.warc import records, rows_of_warc
from tests.support import wats
from tests.support.tables import table

CASES = table("page_images")
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
    said = "application/http; msgtype=response" if kind == "response" else "application/warc-fields"
    lines = ["WARC/1.0", f"WARC-Type: {kind}", f"WARC-Target-URI: {url}", f"Content-Type: {said}"]
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


# --- pages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_images_of_a_page(case: dict[str, Any], tmp_path: Path) -> None:
    rows, counts = one(tmp_path, case["html"])
    assert [[row["url"], row["caption"]] for row in rows] == case["pairs"]
    reasons = {
        name: n for name, n in counts.items() if name not in ("links", "pairs", "damaged_records")
    }
    assert reasons == case.get("reasons", {})
    assert not counts["damaged_records"]


def test_the_table_of_images_is_whole() -> None:
    assert len(CASES) == 48
    assert len({case["name"] for case in CASES}) == 48


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
    html = """<html lang=fr><head><base href="../b/"><meta name=Robots content="noai, noimageai">
        <meta name=googlebot content=noindex><meta name=tdm-reservation content=1></head><body>
        <img src=x.jpg alt="a cat &amp; a dog" title="the title"><img src="//c.test/y.jpg" alt=" 東京 \n">
        <a href="/full.jpg"><img src="/full.jpg" alt="in a link"> see it large</a><img src=z.jpg><img src=z.jpg alt>
        <img src="http://[broken/icon.png" alt="an icon"><img src="data:image/png;base64," alt=inline>
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
    said = wats.page(PAGE, links, lang="de", headers=headers, Base="../b/", Metas=metas)
    (tmp_path / "x.wat.gz").write_bytes(wats.zipped(said))
    found = block(
        html.encode(),
        "X-Robots-Tag: noindex",
        "X-Robots-Tag: otherbot: noai",
        kind="text/html;charset=utf-8",
    )
    detected = b'charset-detected: UTF-8\r\nlanguages-cld2: {"reliable":true,"languages":[{"code":"de"}]}\r\n'
    ours, counts = read(
        tmp_path / "x.warc.gz", zipped([record(found), record(detected, kind="metadata")])
    )
    theirs: Counter[str] = Counter()
    wat_rows = [
        dict(zip(PAIRS.names, row, strict=True))
        for row in wat.rows_of_wat(str(tmp_path / "x.wat.gz"), theirs)
    ]
    place = ("wat", "warc_offset")
    assert [{k: v for k, v in row.items() if k not in place} for row in ours] == [
        {k: v for k, v in row.items() if k not in place} for row in wat_rows
    ]
    assert counts == theirs
    assert len(ours) == 3
    assert (ours[2]["anchor"], ours[0]["page_lang"], ours[0]["title"]) == (
        "see it large",
        "de",
        "the title",
    )


@pytest.mark.parametrize(
    ("html", "headers", "notes", "language"),
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
    html: str, headers: list[str], notes: bytes, language: str | None, tmp_path: Path
) -> None:
    page = record(block(f"{html}<img src=x.jpg alt=c>".encode(), *headers))
    rows, _ = read(tmp_path / "x.warc.gz", zipped([page, record(notes, kind="metadata")]))
    assert [row["page_lang"] for row in rows] == [language]


def test_anchor_and_title_stay_beside_a_figure_s_caption(tmp_path: Path) -> None:
    html = "<figure><a href=/p> <img src=x.jpg title=' T '> more </a><figcaption>A cat</figcaption></figure>"
    rows, _ = one(tmp_path, html)
    assert (rows[0]["caption"], rows[0]["title"], rows[0]["anchor"]) == ("A cat", "T", "more")
    assert rows[0]["uid"] == disk.uid_of("http://p.test/a/x.jpg", "A cat")


# --- charsets ------------------------------------------------------------------------------------------------------

RUSSIAN = "Красивый дом у озера летом, фотография города"  # noqa: RUF001
JAPANESE = "美しい湖のそばの家、夏の写真です。東京の夜景"


@pytest.mark.parametrize(
    ("text", "encoding", "header", "meta"),
    [
        ("é€", "utf-8", "utf-8", ""),
        ("é€", "utf-8", None, ""),
        ("é€", "cp1252", "ISO-8859-1", ""),
        ("é€", "cp1252", None, "<meta charset=latin1>"),
        (RUSSIAN, "cp1251", "windows-1251", "<meta charset=utf-8>"),
        (
            RUSSIAN,
            "koi8-r",
            None,
            "<meta http-equiv=Content-Type content='text/html; charset=KOI8-R'>",
        ),
        (RUSSIAN, "cp1251", None, ""),
        (RUSSIAN, "cp1251", "no-such-charset", "<meta charset=windows-1251>"),
        (JAPANESE, "cp932", "Shift_JIS", ""),
        (JAPANESE, "cp932", None, "<!-- <meta charset=utf-8> --><meta charset=x-sjis>"),
        (JAPANESE, "euc_jp", "EUC-JP", ""),
        ("湖边美丽的房子", "gb18030", "gb2312", ""),
        ("é€", "utf-8", None, "<meta charset=utf-16>"),
        ("é€", "utf-8-sig", "windows-1251", "<meta charset=koi8-r>"),
        ("é€", "utf-16", "windows-1251", ""),
    ],
)
def test_the_charset_of_a_page(
    text: str, encoding: str, header: str | None, meta: str, tmp_path: Path
) -> None:
    html = f"<head>{meta}</head><img src=x.jpg alt='{text}'>".encode(encoding)
    kind = f"text/html; charset={header}" if header else "text/html"
    rows, _ = one(tmp_path, html, kind=kind)
    assert captions(rows) == [text]


def test_bytes_that_no_charset_fits_cost_themselves(tmp_path: Path) -> None:
    rows, _ = one(tmp_path, b"<img src=x.jpg alt='a \xff b'>", kind='text/html; charset="UTF-8"')
    assert captions(rows) == ["a � b"]
    assert page_images.charset_in("text/html; a=b; Charset = 'utf-8'") == "utf-8"
    said = "<p>Schöne Straße</p>"
    assert said.encode("cp1252").decode(page_images._guessed(said.encode("cp1252"))) == said


# --- how a response is stored --------------------------------------------------------------------------------------

BODY = HTML % (1, 1)
CHUNKED = b"10\r\n" + BODY[:16] + b"\r\n%x\r\n" % (len(BODY) - 16) + BODY[16:] + b"\r\n0\r\n\r\n"


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return packed


@pytest.mark.parametrize(
    ("body", "header"),
    [
        (gzip.compress(BODY, mtime=0), "Content-Encoding: gzip"),
        (gzip.compress(BODY, mtime=0), "Content-Encoding: X-GZip"),
        (zlib.compress(BODY), "Content-Encoding: deflate"),
        (brotli.compress(BODY), "Content-Encoding: br"),
        (zstd(BODY), "Content-Encoding: zstd"),
        (gzip.compress(gzip.compress(BODY, mtime=0), mtime=0), "Content-Encoding: gzip, gzip"),
        (brotli.compress(gzip.compress(BODY, mtime=0)), "Content-Encoding: gzip\r\nContent-Encoding: br"),
        (CHUNKED, "Transfer-Encoding: chunked"),
        (b"%x\r\n%b\r\n0\r\n\r\n" % (len(gzip.compress(BODY, mtime=0)), gzip.compress(BODY, mtime=0)), "Transfer-Encoding: chunked\r\n"
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


# --- files ---------------------------------------------------------------------------------------------------------


def test_plain_zstd_and_gzip_files_and_their_offsets(tmp_path: Path) -> None:
    parts = [record(b"software: x\r\n", kind="warcinfo"), *pages(3)]
    for name, data in [("x.warc", b"".join(parts)), ("x.warc.gz", zipped(parts))]:
        rows, counts = read(tmp_path / name, data)
        assert captions(rows) == ["caption 0", "caption 1", "caption 2"]
        assert {row["wat"] for row in rows} == {name}
        for row, part in zip(rows, parts[1:], strict=True):
            there = data[row["warc_offset"] :]
            plain = zlib.decompressobj(31).decompress(there) if name.endswith(".gz") else there
            assert plain.startswith(part[:60])
        assert not counts["damaged_records"]
    assert len(read(tmp_path / "x.warc.zst", zstd(parts[1]) + zstd(parts[2]))[0]) == 2


def flipped(data: bytes) -> bytes:
    """A gzip member whose deflate stream breaks."""
    bad = bytearray(data)
    bad[40:44] = b"\xff\xff\xff\xff"
    return bytes(bad)


def members() -> list[bytes]:
    return [gzip.compress(part, mtime=0) for part in pages(4)]


P = pages(4)
LONG, SHORT = (record(block(HTML % (1, 1)), "http://p.test/1", extra=by) for by in (100, -30))
HUGE = record(block(HTML % (1, 1)), "http://p.test/1", extra=1 << 40)


@pytest.mark.parametrize(
    ("data", "kept", "damaged"),
    [
        (gzip.compress(b"".join(P)), "0123", 0),
        (b"\r\n" + b"".join(P), "0123", 0),
        (zipped([P[0], LONG, P[2], P[3]]), "0123", 0),
        (zipped([P[0], SHORT, P[2], P[3]]), "0123", 0),
        (zipped([P[0], HUGE, P[2], P[3]]), "0123", 0),
        (P[0] + LONG + P[2] + P[3], "0123", 0),
        (P[0] + SHORT + P[2] + P[3], "0123", 0),
        (P[0] + HUGE + P[2] + P[3], "0123", 0),
        (b"".join([members()[0], flipped(members()[1]), *members()[2:]]), "023", 1),
        (b"".join([flipped(members()[0]), *members()[1:]]), "123", 1),
        (b"".join([members()[0], members()[1][:-60], *members()[2:]]), "023", 1),
        (b"".join([*members()[:2], b"rubbish" * 9, *members()[2:]]), "0123", 0),
        (b"".join(members())[:-60], "012", 1),
        (b"".join(members()[:3]) + flipped(members()[3]), "012", 1),
        (b"".join(P)[:-8], "0123", 0),
        (b"", "", 0),
    ],
    ids=["one member", "a blank first line", "too long", "too short", "huge", "plain too long", "plain too short",
         "plain huge", "a flip", "a flip in the first", "a cut", "rubbish", "a cut at the end", "a flip in the last",
         "plain and cut", "empty"],
)  # fmt: skip
def test_damage_costs_the_record_that_it_hits(
    data: bytes, kept: str, damaged: int, tmp_path: Path
) -> None:
    rows, counts = read(tmp_path / "x.warc.gz", data)
    assert captions(rows)[: len(kept)] == [f"caption {k}" for k in kept]
    assert counts["damaged_records"] == damaged


def test_one_member_of_more_than_a_chunk(tmp_path: Path) -> None:
    noise = [str(zlib.crc32(bytes([i % 251, i // 251]))) for i in range(20_000)]
    parts = [
        record(block((HTML % (i, i)) + "".join(noise[i::7]).encode()), f"http://p.test/{i}")
        for i in range(7)
    ]
    rows, counts = read(tmp_path / "x.warc.gz", gzip.compress(b"".join(parts)))
    assert captions(rows) == [f"caption {i}" for i in range(7)]
    assert not counts["damaged_records"]


def test_memory_stays_bounded_by_the_record_and_not_by_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    keep = warc._Tape.keep

    def watched(self: warc._Tape, place: int) -> None:
        keep(self, place)
        held.append(len(self._held))

    monkeypatch.setattr(warc._Tape, "keep", watched)
    noise = bytes(zlib.crc32(bytes([i % 251, i // 251])) % 251 for i in range(50_000))
    parts = [record(block((HTML % (i, i)) + noise), f"http://p.test/{i}") for i in range(60)]
    (tmp_path / "x.warc.gz").write_bytes(zipped(parts))
    assert len(list(records(str(tmp_path / "x.warc.gz")))) == 60
    assert max(held) < 400_000 < (tmp_path / "x.warc.gz").stat().st_size


def test_a_long_attribute_is_no_bomb(tmp_path: Path) -> None:
    html = f"<div data-x='{' word' * 20_000}'><img src=x.jpg alt=c></div><p>{' word' * 20_000}"
    assert captions(one(tmp_path, html)[0]) == ["c"]


def test_two_hundred_damaged_files_raise_nothing_and_their_books_add_up(tmp_path: Path) -> None:
    rng = random.Random(0)
    kinds = [zipped(pages(6)), b"".join(pages(6)), gzip.compress(b"".join(pages(6)), mtime=0)]
    kept = 0
    for k in range(200):
        data = bytearray(kinds[k % 3])
        for _ in range(rng.choice([1, 1, 2, 8])):
            place = rng.randrange(len(data))
            if rng.random() < 0.5:
                data[place] ^= 1 << rng.randrange(8)
            elif rng.random() < 0.5:
                del data[place : place + rng.randrange(1, 200)]
            else:
                data[place:place] = rng.randbytes(rng.randrange(1, 100))
        kept += len(read(tmp_path / "x.warc.gz", bytes(data))[0])
    assert kept > 2 * 200
