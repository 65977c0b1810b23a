"""A WAT file as pairs: links, resolved URLs, and what the page says about itself.

Format: what Common Crawl's writer (ia-web-commons) leaves: for each page three `metadata` records
(of the WARC's request, response and metadata records), each one JSON object on one line, usually
one gzip member each. Of a page's 20 KB of JSON a pair needs one tenth: the rest is passed over
undecoded until it is asked for, and columns are built a batch at a time. Figures in comments are of
a page of benchmarks/fetching/crawl.py, of which FastWARC's bare reading takes 52 us.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any
from urllib.parse import urljoin

import msgspec
import numpy as np
import pyarrow as pa
from xxhash import xxh3_128_digest  # as disk.uid_of has it, which imports at every call

from manifests import disk
from manifests.columns import PAIRS
from manifests.schema import Pair
from pipeline.archives.row_counts import reject_images
from pipeline.archives.urls import SPACE, resolve, resolver
from pipeline.archives.wat_records import (
    EMPTY,
    UNREAD,
    Anchor,
    Image,
    Link,
    Reader,
    decode,
    mended,
    records,
    text_of,
)

__all__ = [
    "Row",
    "batches_of_wat",
    "pairs_of_wat",
    "rows_of_wat",
]
Row = tuple[Any, ...]  # one row of PAIRS
ROWS = 10_000  # of a batch, at least
# Records that are inflated before their JSON is read. One by one is 20 us slower, by the caches.
AT_ONCE = 15
IMAGE, IMAGE_ESCAPED = b"IMG@/src", b"IMG@\\/src"  # some writers escape every slash
LANGUAGES = b"languages-cld2"
IMAGE_URL = re.compile(r"(?i)\.(?:jpe?g|png|webp|gif|avif|bmp|tiff?)[\x00-\x20]*(?:[?#]|\Z)")
SUFFIX = 5  # characters at the end of an image's name in which its dot is
COMMONS = "creativecommons.org/"
LICENSES = (COMMONS + "licenses/", COMMONS + "publicdomain/")
# Names of most meta tags, which have no signals for robots.
QUIET_TAGS = frozenset(
    (
        "viewport", "description", "keywords", "generator", "author", "HTML@/lang", "theme-color",
        "msvalidate.01", "google-site-verification", "format-detection",
        "msapplication-TileColor", "msapplication-TileImage", "twitter:card", "twitter:title",
        "twitter:description", "twitter:image", "twitter:site",
    )
)  # fmt: skip
ONE_CRAWLERS_TAGS = ("img2dataset", "anthropic-ai")  # beside *bot and *-extended
SIGNALS = frozenset(("x-robots-tag", "tdm-reservation", "tdm-policy", "content-usage"))

_memmem: Any = None
try:
    _memmem = ctypes.PyDLL(None).memmem
    _memmem.restype = ctypes.c_void_p
    _memmem.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
except (AttributeError, OSError, TypeError):  # a C library without it
    pass


def _holds(data: bytes, part: bytes) -> bool:
    """`part in data`, by the C library: 4 us instead of 9 for a page."""
    return (
        part in data if _memmem is None else _memmem(data, len(data), part, len(part)) is not None
    )


class Language(msgspec.Struct, gc=False):
    code: Any


class Detected(msgspec.Struct, gc=False):
    languages: list[Language]
    reliable: Any = False


class Meta(msgspec.Struct, gc=False):
    name: Any = None
    content: Any = None


_detected, _metas = msgspec.json.Decoder(Detected), msgspec.json.Decoder(list[Meta] | None)
_headers, _links = msgspec.json.Decoder(dict[str, Any] | None), msgspec.json.Decoder(list[Link])
_value = msgspec.json.Decoder()
_json = json.JSONEncoder(ensure_ascii=False)  # json.dumps makes one a call


# --- pages ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Page:
    """What a page says, and its pairs: (digest, url, caption, title, anchor, number of the
    image)."""

    url: str
    offset: int
    metas: list[Meta]
    robots: str | None
    license: str | None
    language: str | None
    pairs: list[tuple[bytes, str, str, str | None, str | None, int]]


def _records_in_groups(path: str) -> Iterator[tuple[int, bytes | None]]:
    source = records(path)
    while group := list(islice(source, AT_ONCE)):
        yield from group


def _pages(path: str, counts: Counter[str]) -> Iterator[Page]:
    """Every page that has pairs. Its language is in the record after it, so that the page waits."""
    page: Page | None = None
    reader = Reader()
    for offset, body in _records_in_groups(path):
        try:
            if body is None:
                raise ValueError("no JSON")
            if page:
                page.language = _language(body, page)
                yield page
                page = None
            if _has_images(body):
                page = _readable_page(reader, body, offset, counts)
                page = page if page.pairs else None
        except (ValueError, RecursionError):
            counts["damaged_records"] += 1
    if page:
        page.language = _html_language(page)
        yield page


def _has_images(body: bytes) -> bool:
    start = body.find(b"IMG@")  # one search where there are none: 2 us instead of 4
    if start < 0:
        return False
    return body.startswith(IMAGE, start) or IMAGE in body or IMAGE_ESCAPED in body


def page_of_record(body: bytes, offset: int, counts: Counter[str]) -> Page:
    """The page of one record, without its language. ValueError where it has no JSON."""
    return _readable_page(Reader(), body, offset, counts)


def _readable_page(reader: Reader, body: bytes, offset: int, counts: Counter[str]) -> Page:
    try:
        return _page(reader, body, offset, counts)
    except UNREAD:
        return _page(reader, mended(body), offset, counts)


def _page(reader: Reader, body: bytes, offset: int, counts: Counter[str]) -> Page:
    """The page of `body`. `counts` does not change before all of it is read."""
    envelope = reader(body).envelope
    http, url = envelope.payload.http, envelope.page
    head, links = http.html.head, http.html.links
    base = _base(url, head.base) if head.base else url
    links.append(None)  # behind the last
    images = [position for position, link in enumerate(links) if type(link) is Image]
    pairs, reasons = _pairs(base, links, images)
    metas = _metas.decode(head.metas) or []
    robots, license = _robots(metas, http.headers), None
    names_license = reader.named or b"license" in bytes(head.links).lower()
    if names_license or _holds(body, b"creativecommons.org"):
        license = _license(body, base)  # of one page in fifteen
    counts["links"] += len(images)
    counts["pairs"] += len(pairs)
    if reasons:
        reject_images(counts, reasons, url, lambda number: links[images[number]].url)
    return Page(url, offset, metas, robots, license, None, pairs)


def _pairs(
    base: str, links: Sequence[Any], images: Sequence[int]
) -> tuple[list[Any], dict[int, str]]:
    """The pairs among `images`, which are positions in `links`, and {number: reason} of the images
    that are none.
    """
    pairs: list[Any] = []
    reasons: dict[int, str] = {}
    resolve_link = resolver(base)
    for number, position in enumerate(images):
        image = links[position]
        caption = image.alt
        if type(caption) is not str:
            reasons[number] = "no_alt"
            continue
        if not caption or caption.isspace():
            reasons[number] = "empty_alt"
            continue
        link = image.url if type(image.url) is str else ""
        try:
            url = resolve_link(link)
        except ValueError as reason:
            reasons[number] = str(reason)
            continue
        behind = links[position + 1]
        anchor = None
        if type(behind) is Anchor and behind.text is not EMPTY:
            anchor = _anchor(link, behind)
        title = text_of(image.title).strip() or None if image.title else None
        digest = xxh3_128_digest(f"{url}\0{caption}".encode())
        pairs.append((digest, url, caption, title, anchor, number))
    return pairs, reasons


def _base(page: str, base: Any) -> str:
    try:
        return urljoin(page, text_of(base).strip(SPACE))
    except ValueError:
        return page


def _anchor(url: str, behind: Anchor) -> str | None:
    """The text of the link around an image. An A is written when it closes, so `<a><img>text</a>`
    and `<img><a>text</a>` look the same: only a link to the image itself, or to another, is taken
    to be around it.
    """
    target = behind.url
    if type(target) is not str:
        return None
    if target != url:
        ends_plainly = "?" not in target and "#" not in target and target[-1:] > " "
        if ends_plainly and "." not in target[-SUFFIX:]:
            return None  # before a search of 0.5 us
        if not IMAGE_URL.search(target):
            return None
    return text_of(_value.decode(behind.text)).strip() or None


def _robots(metas: Sequence[Meta], headers: msgspec.Raw) -> str | None:
    """The signals of page and headers for robots, raw, as JSON; None where there are none."""
    tags = []
    for meta in metas:
        if meta.name and not (type(meta.name) is str and meta.name in QUIET_TAGS):
            tags.append((text_of(meta.name).strip().lower(), text_of(meta.content)))
    lines = []
    for name, value in (_headers.decode(headers) or {}).items():
        if (low := name.lower()) in SIGNALS:
            values = value if isinstance(value, list) else [value]
            lines += [(low, text) for text in values if isinstance(text, str)]
    if not (tags or lines):
        return None
    signals = signals_of(tags, lines)
    return _json.encode(signals) if signals else None


def signals_of(
    metas: Iterable[tuple[str, str]], headers: Iterable[tuple[str, str]]
) -> dict[str, list[str]]:
    """The signals for robots in a page's tags and headers (names in lower case), raw; {} where
    there are none.
    """
    signals: dict[str, list[str]] = {"meta": [], "x-robots-tag": []}
    for name, content in metas:
        if name == "robots":
            signals["meta"].append(content)
        elif name.endswith(("bot", "-extended")) or name in ONE_CRAWLERS_TAGS:
            signals["meta"].append(f"{name}: {content}")
        elif name in SIGNALS:
            signals.setdefault(name, []).append(content)
    for name, value in headers:
        if name in SIGNALS:
            signals.setdefault(name, []).append(value)
    return signals if any(signals.values()) else {}


def _license(body: bytes, base: str) -> str | None:
    """The first link with rel=license, else the first to Creative Commons."""
    html = decode(body).envelope.payload.http.html
    links = [*_links.decode(html.head.links), *html.links]
    named = [link for link in links if link.rel and "license" in text_of(link.rel).lower().split()]
    commons = [link for link in links if COMMONS in text_of(link.url)]
    commons = [link for link in commons if any(part in link.url for part in LICENSES)]
    for link in chain(named, commons):
        with suppress(ValueError):
            return resolve(base, text_of(link.url))
    return None


def _html_language(page: Page) -> str | None:
    """The language that the page declares at its <html>."""
    for meta in page.metas:
        if meta.name == "HTML@/lang":
            return text_of(meta.content).strip().lower().replace("_", "-").partition("-")[0] or None
    return None


def _language(body: bytes, page: Page) -> str | None:
    """The detected language where it is reliable, else that of the page's <html>, else the detected
    one.
    """
    envelope = decode(body).envelope if LANGUAGES in body else None
    if envelope and envelope.page == page.url:
        for field in envelope.payload.metadata.records:
            if field.name == "languages-cld2":
                with suppress(ValueError, IndexError):
                    detected = _detected.decode(text_of(field.value))
                    code = str(detected.languages[0].code)
                    return code if detected.reliable else _html_language(page) or code
    return _html_language(page)


# --- pairs ----------------------------------------------------------------------------------------


def pairs_of_wat(path: str, counts: Counter[str] | None = None) -> Iterator[Pair]:
    """The image links with alternative text of a WAT (a local path or an fsspec URL) in document
    order.

    `counts` gets `links` and `pairs`, every reason for which a link is no pair, and
    `damaged_records`, which are no links: links = pairs + Σ reasons. A WAT keeps a page's last
    <base> where browsers take the first.
    """
    for row in rows_of_wat(path, Counter() if counts is None else counts):
        yield Pair(**dict(zip(PAIRS.names, row, strict=True)))


def rows_of_wat(path: str, counts: Counter[str]) -> Iterator[Row]:
    """`pairs_of_wat` as rows of PAIRS."""
    for batch in batches_of_wat(path, counts):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def batches_of_wat(path: str, counts: Counter[str]) -> Iterator[pa.RecordBatch]:
    """`pairs_of_wat` as Arrow batches of PAIRS."""
    name = path if disk.is_url(path) else disk.local_path(path).name
    pages: list[Page] = []
    rows = 0
    for page in _pages(path, counts):
        pages.append(page)
        rows += len(page.pairs)
        if rows >= ROWS:
            yield _batch(pages, name)
            pages, rows = [], 0
    if pages:
        yield _batch(pages, name)


def _batch(pages: Sequence[Page], wat: str) -> pa.RecordBatch:
    """The pairs of some pages. What holds for a whole page is repeated by Arrow."""
    rows = chain.from_iterable(page.pairs for page in pages)
    digests, urls, captions, titles, anchors, numbers = zip(*rows, strict=True)
    pages_columns = {
        "page_url": [page.url for page in pages],
        "page_lang": [page.language for page in pages],
        "robots": [page.robots for page in pages],
        "license": [page.license for page in pages],
        "wat": [wat] * len(pages),
        "warc_offset": [page.offset for page in pages],
    }
    page_of_row = pa.array(np.repeat(np.arange(len(pages)), [len(page.pairs) for page in pages]))
    columns = {
        "uid": _uids(digests),
        "url": pa.array(urls, pa.string()),
        "caption": pa.array(captions, pa.string()),
        "title": pa.array(titles, pa.string()),
        "anchor": pa.array(anchors, pa.string()),
        "link": pa.array(numbers, PAIRS.field("link").type),
    }
    for name, values in pages_columns.items():
        columns[name] = pa.array(values, PAIRS.field(name).type).take(page_of_row)
    return pa.RecordBatch.from_arrays([columns[name] for name in PAIRS.names], schema=PAIRS)


def _uids(digests: Sequence[bytes]) -> pa.Array:
    """Digests of 16 bytes in hexadecimal, all at once."""
    starts = np.arange(0, 32 * len(digests) + 1, 32, dtype=np.int32)
    text = b"".join(digests).hex().encode()
    return pa.StringArray.from_buffers(len(digests), pa.py_buffer(starts), pa.py_buffer(text))
