"""A WAT file as pairs: links, resolved URLs, and what the page says about itself.

Format: what Common Crawl's writer (ia-web-commons) leaves: for each page three `metadata` records (of the WARC's
request, response and metadata records), each one JSON object on one line, usually one gzip member each.
Of a page's 20 KB of JSON a pair needs one tenth: the rest is passed over undecoded (`msgspec.Raw`) until it is asked
for, and columns are built a batch at a time.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import msgspec
import numpy as np
import pyarrow as pa
from xxhash import xxh3_128_hexdigest  # as disk.uid_of has it, which imports at every call

from manifests import disk
from manifests.columns import PAIRS
from manifests.schema import Pair
from pipeline.records import records, scan

__all__ = ["Row", "batches_of_wat", "decode", "pairs_of_wat", "records", "resolve", "rows_of_wat", "scan"]
Row = tuple[Any, ...]  # one row of PAIRS
ROWS = 10_000  # of a batch, at least
LONGEST_URL = 4096
IMAGE, IMAGE_ESCAPED = b"IMG@/src", b"IMG@\\/src"  # some writers escape every slash
LANGUAGES = b"languages-cld2"
SPACE = "".join(map(chr, range(0x21)))  # C0 controls and space, which browsers cut off both ends
BREAKS = dict.fromkeys(map(ord, "\t\n\r"))  # and these they drop anywhere
HOST = r"//[A-Za-z0-9.-]*[A-Za-z0-9](?::[0-9]{1,5})?"
PLAIN = re.compile(rf"(https?:)({HOST})(?:/|\Z)")
QUERY = r"(?:\?[^\x00-\x20#]++)?\Z"
SHORT = re.compile(  # links that need no thought: whole, of the page's scheme, from its root, from its folder
    rf"(https?:{HOST}(?:/[^\x00-\x20#?\\]*+{QUERY}|\Z))|({HOST}(?:/[^\x00-\x20#?\\]*+{QUERY}|\Z))"
    rf"|(/(?!/)[^\x00-\x20#?\\]*+{QUERY})|([A-Za-z0-9_%-][^\x00-\x20#?\\:;]*+{QUERY})"
)
ODD = re.compile(r"[\x00-\x20\\;]|//|/\.")
PICTURE = re.compile(r"(?i)\.(?:jpe?g|png|webp|gif|avif|bmp|tiff?)[\x00-\x20]*(?:[?#]|\Z)")
COMMONS = "creativecommons.org/"
LICENSES = (COMMONS + "licenses/", COMMONS + "publicdomain/")
SIGNALS = ("x-robots-tag", "tdm-reservation", "tdm-policy", "content-usage")
SPEAKING = (b"bot", b"tdm-", b"content-usage", b"\\u")  # one of them is in whatever _robots looks for
UNREAD = (msgspec.DecodeError, UnicodeDecodeError)
NONE, NOTHING, EMPTY = msgspec.Raw(b"[]"), msgspec.Raw(b"{}"), msgspec.Raw(b"null")

_memmem: Any = None
try:
    _memmem = ctypes.PyDLL(None).memmem
    _memmem.restype = ctypes.c_void_p
    _memmem.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
except (AttributeError, OSError, TypeError):  # a C library without it
    pass


def _holds(data: bytes, part: bytes) -> bool:
    """`part in data`, by the C library: 2 us instead of 8 for a page."""
    return part in data if _memmem is None else _memmem(data, len(data), part, len(part)) is not None


# --- what a record says --------------------------------------------------------------------------------------------


class Link(msgspec.Struct, gc=False):  # a hundred a page, and none in a cycle
    path: str = ""
    url: Any = None
    alt: Any = None
    title: Any = None
    text: msgspec.Raw = EMPTY
    rel: Any = None


class Head(msgspec.Struct):
    base: Any = msgspec.field(name="Base", default=None)
    metas: msgspec.Raw = msgspec.field(name="Metas", default=NONE)
    links: msgspec.Raw = msgspec.field(name="Link", default=NONE)


class Html(msgspec.Struct):
    head: Head = msgspec.field(name="Head", default_factory=Head)
    links: list[Link] = msgspec.field(name="Links", default_factory=list)


class Http(msgspec.Struct):
    headers: msgspec.Raw = msgspec.field(name="Headers", default=NOTHING)  # of str, or list[str] since 2024-51
    html: Html = msgspec.field(name="HTML-Metadata", default_factory=Html)


class Note(msgspec.Struct):
    name: Any = msgspec.field(name="Name", default=None)
    value: Any = msgspec.field(name="Value", default=None)


class Notes(msgspec.Struct):
    records: list[Note] = msgspec.field(name="Metadata-Records", default_factory=list)


class Payload(msgspec.Struct):
    http: Http = msgspec.field(name="HTTP-Response-Metadata", default_factory=Http)
    notes: Notes = msgspec.field(name="WARC-Metadata-Metadata", default_factory=Notes)


class Warc(msgspec.Struct):
    target: Any = msgspec.field(name="WARC-Target-URI", default=None)


class Envelope(msgspec.Struct):
    payload: Payload = msgspec.field(name="Payload-Metadata", default_factory=Payload)
    warc: Warc = msgspec.field(name="WARC-Header-Metadata", default_factory=Warc)

    @property
    def page(self) -> str:
        """The address of the page."""
        return _text(self.warc.target)


class Record(msgspec.Struct):
    envelope: Envelope = msgspec.field(name="Envelope", default_factory=Envelope)


class Language(msgspec.Struct):
    code: Any


class Detected(msgspec.Struct):
    languages: list[Language]
    reliable: Any = False


_decoder, _detected = msgspec.json.Decoder(Record), msgspec.json.Decoder(Detected)
_metas, _headers = msgspec.json.Decoder(list[dict[str, Any]]), msgspec.json.Decoder(dict[str, Any])
_links, _value = msgspec.json.Decoder(list[Link]), msgspec.json.Decoder()


def decode(body: bytes) -> Record:
    """A record's JSON. ValueError (msgspec's errors are such) where it is none."""
    try:
        return _decoder.decode(body)
    except UNREAD:
        return _decoder.decode(_mended(body))


def _mended(body: bytes) -> bytes:
    """A record without what strict JSON may not hold: bytes that are not UTF-8, and halves of surrogate pairs."""
    text = json.dumps(json.loads(body.decode("utf-8", "replace")), ensure_ascii=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _text(value: Any) -> str:
    """A header or attribute as one text; of a repeated one the first."""
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) else ""


def _texts(value: Any) -> list[str]:
    return [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, str)]


def resolve(base: str, link: str) -> str:
    """An absolute http(s) URL without its fragment, as a browser would ask for it.

    ValueError whose text is the reason: data_url, scheme or bad_url.
    """
    if (short := SHORT.match(link)) and len(link) + len(base) <= LONGEST_URL:
        if short.lastindex == 1:
            return link
        scheme, origin, folder = _places(base)
        if short.lastindex == 2 and scheme:
            return scheme + link
        if "/." not in link:
            if short.lastindex == 3 and scheme:
                return origin + link
            if short.lastindex == 4 and folder and "//" not in link:
                return folder + link
    return _resolved(base, link)


@lru_cache(maxsize=16)
def _places(base: str) -> tuple[str, str, str]:
    """Scheme, origin and folder of a page, "" where they are not of the plain kind."""
    found = PLAIN.match(base)
    if found is None:
        return "", "", ""
    origin = found[1] + found[2]
    folder = base[len(origin) :].partition("#")[0].partition("?")[0].rpartition("/")[0] + "/"
    return found[1], origin, "" if ODD.search(folder) else origin + folder


def _resolved(base: str, link: str) -> str:
    """`resolve` for all that its short ways (nineteen links of twenty) leave over."""
    link = link.strip(SPACE)
    if link[:5].lower() == "data:":
        raise ValueError("data_url")
    head, _, query = link.translate(BREAKS).partition("#")[0].partition("?")
    head, query = head.replace("\\", "/"), query and f"?{query}"
    scheme, origin, _ = _places(base)
    if PLAIN.match(head):
        url = head + query
    elif head[:2] == "//" and PLAIN.match(scheme + head):
        url = scheme + head + query
    elif head[:1] == "/" != head[1:2] and "/." not in head and origin:
        url = origin + head + query
    else:
        url = _joined(base, head + query)
    if len(url) > LONGEST_URL:
        raise ValueError("bad_url")
    return url


def _joined(base: str, link: str) -> str:
    try:
        url = urljoin(base, link) if link else ""
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise ValueError("bad_url") from None
    if parts.scheme not in ("http", "https", ""):
        raise ValueError("scheme")
    if not parts.scheme or not host:
        raise ValueError("bad_url")
    return url


# --- pages ---------------------------------------------------------------------------------------------------------


class Page(NamedTuple):
    """The pairs of a page, (uid, url, caption, title, anchor, number of the link), and what holds for all of them."""

    url: str
    metas: msgspec.Raw
    robots: str | None
    license: str | None
    offset: int
    pairs: list[tuple[str, str, str, str | None, str | None, int]]


def _pages(path: str, counts: Counter[str]) -> Iterator[tuple[Page, str | None]]:
    """Every page that has pairs, and its language, which is in the record after it, so that the page waits."""
    page: Page | None = None
    for offset, body in records(path):
        try:
            if body is None:
                raise ValueError("no JSON")
            if page:
                yield page, _language(body, page)
                page = None
            if IMAGE in body or IMAGE_ESCAPED in body:
                try:
                    found = _page(_decoder.decode(body), body, offset, counts)
                except UNREAD:
                    found = _page(_decoder.decode(_mended(body)), body, offset, counts)
                page = found if found.pairs else None
        except (ValueError, RecursionError):
            counts["damaged_records"] += 1
    if page:
        yield page, _html_language(page)


def _page(record: Record, body: bytes, offset: int, counts: Counter[str]) -> Page:
    """What `body` says; `counts` is left alone until all of it is read."""
    http, page = record.envelope.payload.http, record.envelope.page
    head, links = http.html.head, http.html.links
    base = _base(page, head.base) if head.base else page
    pairs: list[tuple[str, str, str, str | None, str | None, int]] = []
    images = [place for place, link in enumerate(links) if link.path == "IMG@/src"]
    reasons: list[str] = []
    for number, place in enumerate(images):
        image = links[place]
        caption = image.alt
        if not isinstance(caption, str):
            reasons.append("no_alt")
            continue
        if not caption.strip():
            reasons.append("empty_alt")
            continue
        try:
            url = resolve(base, image.url if isinstance(image.url, str) else "")
        except ValueError as error:
            reasons.append(str(error))
            continue
        title = _text(image.title).strip() if image.title else ""
        anchor = _anchor(image.url, links[place + 1]) if place + 1 < len(links) else None
        pairs.append((xxh3_128_hexdigest(f"{url}\0{caption}".encode()), url, caption, title or None, anchor, number))
    robots = _robots(head.metas, http.headers)
    license = _license(head, links, body, base)
    counts["links"] += len(images)
    counts["pairs"] += len(pairs)
    for reason in reasons:
        counts[reason] += 1
    return Page(page, head.metas, robots, license, offset, pairs)


def _base(page: str, said: Any) -> str:
    try:
        return urljoin(page, _text(said).strip(SPACE))
    except ValueError:
        return page


def _anchor(url: str, following: Link) -> str | None:
    """The text of the link around an image. An A is written when it closes, so `<a><img>text</a>` and
    `<img><a>text</a>` look the same: only a link to the picture itself, or to another, is taken to be around it."""
    if following.text is EMPTY or following.path != "A@/href" or not isinstance(following.url, str):
        return None
    if following.url != url and not PICTURE.search(following.url):
        return None
    return _text(_value.decode(following.text)).strip() or None


def _robots(metas: msgspec.Raw, headers: msgspec.Raw) -> str | None:
    """What page and headers say to robots, raw, as JSON; None where they say nothing."""
    said = (bytes(metas) + bytes(headers)).lower()
    if not any(part in said for part in SPEAKING):
        return None
    found: dict[str, list[str]] = {"meta": [], "x-robots-tag": []}
    for meta in _metas.decode(metas):
        name, content = _text(meta.get("name")).strip().lower(), _text(meta.get("content"))
        if name == "robots":
            found["meta"].append(content)
        elif name.endswith("bot"):
            found["meta"].append(f"{name}: {content}")
        elif name in SIGNALS:
            found.setdefault(name, []).append(content)
    for name, value in _headers.decode(headers).items():
        if name.lower() in SIGNALS:
            found.setdefault(name.lower(), []).extend(_texts(value))
    return json.dumps(found, ensure_ascii=False) if any(found.values()) else None


def _license(head: Head, links: Sequence[Link], body: bytes, base: str) -> str | None:
    """The first link that says it is the licence, else the first to Creative Commons."""
    if not _holds(body, b"icense") and not _holds(body, b"publicdomain"):
        return None
    every = [*_links.decode(head.links), *links]
    named = [link for link in every if link.rel and "license" in _text(link.rel).lower().split()]
    commons = (link for link in every if COMMONS in _text(link.url) and any(part in link.url for part in LICENSES))
    for link in chain(named, commons):
        with suppress(ValueError):
            return resolve(base, _text(link.url))
    return None


def _html_language(page: Page) -> str | None:
    """What the page says at its <html>."""
    try:
        metas = _metas.decode(page.metas)
    except UNREAD:
        metas = _metas.decode(_mended(bytes(page.metas)))
    for meta in metas:
        if meta.get("name") == "HTML@/lang":
            return _text(meta.get("content")).strip().lower().replace("_", "-").partition("-")[0] or None
    return None


def _language(body: bytes, page: Page) -> str | None:
    """The detector's language where it is sure, else the page's own word, else the detector's guess."""
    envelope = decode(body).envelope if LANGUAGES in body else None
    if envelope and envelope.page == page.url:
        for note in envelope.payload.notes.records:
            if note.name == "languages-cld2":
                with suppress(ValueError, IndexError):
                    found = _detected.decode(_text(note.value))
                    code = str(found.languages[0].code)
                    return code if found.reliable else _html_language(page) or code
    return _html_language(page)


# --- pairs ---------------------------------------------------------------------------------------------------------


def pairs_of_wat(path: str, counts: Counter[str] | None = None) -> Iterator[Pair]:
    """The image links with alternative text of a WAT (a local path or an fsspec URL) in document order.

    `counts` gets `links` and `pairs`, every reason for which a link is no pair, and `damaged_records`, which are no
    links: links = pairs + Σ reasons. A WAT keeps a page's last <base> where browsers take the first.
    """
    for row in rows_of_wat(path, Counter() if counts is None else counts):
        yield Pair(**dict(zip(PAIRS.names, row, strict=True)))


def rows_of_wat(path: str, counts: Counter[str]) -> Iterator[Row]:
    """`pairs_of_wat` as rows of PAIRS."""
    name = path if disk.is_url(path) else disk.local(path).name
    for page, language in _pages(path, counts):
        for *pair, number in page.pairs:
            yield (*pair, page.url, language, page.robots, page.license, name, page.offset, number)


def batches_of_wat(path: str, counts: Counter[str]) -> Iterator[pa.RecordBatch]:
    """`pairs_of_wat` as Arrow batches of PAIRS: what holds for a whole page is repeated by Arrow."""
    name = path if disk.is_url(path) else disk.local(path).name
    held: list[tuple[Page, str | None]] = []
    rows = 0
    for said in _pages(path, counts):
        held.append(said)
        rows += len(said[0].pairs)
        if rows >= ROWS:
            yield _batch(held, name)
            held, rows = [], 0
    if held:
        yield _batch(held, name)


def _batch(held: Sequence[tuple[Page, str | None]], name: str) -> pa.RecordBatch:
    pages = [page for page, _ in held]
    columns = zip(*chain.from_iterable(page.pairs for page in pages), strict=True)
    of_pair = dict(zip(("uid", "url", "caption", "title", "anchor", "link"), columns, strict=True))
    of_page = {
        "page_url": [page.url for page in pages],
        "page_lang": [language for _, language in held],
        "robots": [page.robots for page in pages],
        "license": [page.license for page in pages],
        "wat": [name] * len(pages),
        "warc_offset": [page.offset for page in pages],
    }
    which = pa.array(np.repeat(np.arange(len(pages)), [len(page.pairs) for page in pages]))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(of_pair[f.name], f.type) if f.name in of_pair else pa.array(of_page[f.name], f.type).take(which)
            for f in PAIRS
        ],
        schema=PAIRS,
    )
