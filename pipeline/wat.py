"""A WAT file as pairs: records, links, resolved URLs, and what the page says about itself.

Format: what Common Crawl's writer (ia-web-commons) leaves: for each page three `metadata` records (of the WARC's
request, response and metadata records), each one JSON object on one line, usually one gzip member each.
FastWARC reads what is well formed. From the first record on that is not (another line ending, a wrong length, a broken
gzip member, several records in one member) a tolerant scan takes over, which believes neither lengths nor members.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any
from urllib.parse import urljoin, urlsplit

import fsspec
import msgspec
from fastwarc.warc import ArchiveIterator, WarcRecordType

from manifests import disk
from manifests.columns import PAIRS
from manifests.schema import Pair

Row = tuple[Any, ...]  # one row of PAIRS
GZIP = b"\x1f\x8b\x08"
CHUNK = 1 << 14
STEP = 256  # bytes of a broken chunk that are lost with it
LONGEST_RECORD = 1 << 26  # a larger length is taken for damage: reading it would swallow the file
LONGEST_URL = 4096
OVERLAP = 16  # bytes that are searched again with the next chunk: a record's first line has 10
START = re.compile(rb"WARC/\d\.\d\r?\n")  # a literal beginning is searched 5 times faster than a line's
END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
METADATA = re.compile(rb"(?im)^WARC-Type:\s*metadata\s*$")
IMAGE, IMAGE_ESCAPED = b'"IMG@/src"', b'"IMG@\\/src"'  # some writers escape every slash
LANGUAGES = b"languages-cld2"
SPACE = "".join(map(chr, range(0x21)))  # C0 controls and space, which browsers cut off both ends
BREAKS = dict.fromkeys(map(ord, "\t\n\r"))  # and these they drop anywhere
PLAIN = re.compile(r"(https?://[A-Za-z0-9.-]*[A-Za-z0-9](?::[0-9]{1,5})?)(?:/|\Z)")
PICTURE = re.compile(r"(?i)\.(?:jpe?g|png|webp|gif|avif|bmp|tiff?)\Z")
LICENSES = ("creativecommons.org/licenses/", "creativecommons.org/publicdomain/")
SIGNALS = ("x-robots-tag", "tdm-reservation", "tdm-policy", "content-usage")


# --- records -------------------------------------------------------------------------------------------------------


def records(path: str) -> Iterator[tuple[int, bytes | None]]:
    """(offset, JSON) of every metadata record in order; None for one that is damaged.

    The offset is that of the record's gzip member; of a record that shares one with records before it, plus its place
    in the decompressed bytes. FastWARC is believed as long as its offsets rise and its bodies are whole.
    """
    given: int | None = None
    held: tuple[int, bytes] | None = None
    with fsspec.open(path, "rb") as stream:
        try:
            for record in ArchiveIterator(stream, record_types=WarcRecordType.metadata, parse_http=False):
                if record.content_length > LONGEST_RECORD:
                    break
                offset, body = record.stream_pos, record.reader.read()
                if not (body.startswith(b"{") and body.endswith(b"}")) or (held and offset <= held[0]):
                    break
                if held:
                    yield held
                    given = held[0]
                held = (offset, body)
        except OSError:
            pass  # damage: the scan says what it costs. A broken connection breaks the scan too, and that raises
        start, known = (0, 0) if given is None else (given, 1)
        try:
            stream.seek(start)
            rest = stream.read()
        except ValueError:  # a server that serves no ranges
            rest = disk.read_bytes(path)[start:]
    yield from islice(scan(rest, start), known, None)


def scan(data: bytes, base: int = 0) -> Iterator[tuple[int, bytes | None]]:
    """What `records` yields, from bytes that begin at `base` of the file: a record begins where a line says so."""
    held, member, place = b"", -1, 0
    for at, chunk in _inflated(data) if data.startswith(GZIP) else [(0, data)]:
        if at != member:
            yield from _metadata(base + member, place, held)
            held, member, place = b"", at, 0
        if chunk is None:
            yield base + at + place, None
            held = b""
            continue
        searched = max(0, len(held) - OVERLAP)
        held += chunk
        found = (match.start() for match in START.finditer(held, searched))
        starts = [start for start in found if held[start - 1 : start] in (b"", b"\n")]
        if held.startswith(b"WARC/"):
            starts = [0, *(start for start in starts if start)]
        for start, end in pairwise(starts):
            yield from _metadata(base + member, place + start, held[start:end])
        if starts and len(held) - starts[-1] > LONGEST_RECORD:
            yield base + member + place + starts[-1], None
            starts = []
        keep = starts[-1] if starts else max(0, len(held) - OVERLAP)
        held, place = held[keep:], place + keep
    yield from _metadata(base + member, place, held)


def _inflated(data: bytes) -> Iterator[tuple[int, bytes | None]]:
    """(offset of a gzip member, decompressed bytes) chunk by chunk; None where a member breaks off.

    What follows is looked for by its magic bytes; a place that only looks like a member is passed over silently.
    """
    at, expected, view = 0, 0, memoryview(data)
    while at >= 0:
        member, place, told = zlib.decompressobj(31), at, at == expected
        try:
            while not member.eof and place < len(data):
                before = member.copy()
                chunk = member.decompress(view[place : place + CHUNK])
                place += CHUNK
                told = True
                yield at, chunk
            broken = not member.eof
            expected = min(place, len(data)) - len(member.unused_data)
        except zlib.error:
            for small in _until_error(before, view[place : place + CHUNK]):
                told = True
                yield at, small
            broken, expected = True, at + 1
        if broken and told:
            yield at, None
        at = data.find(GZIP, expected)


def _until_error(member: Any, data: memoryview) -> Iterator[bytes]:
    """What can be had of a chunk in which the deflate stream breaks."""
    with suppress(zlib.error):
        for place in range(0, len(data), STEP):
            if chunk := member.decompress(data[place : place + STEP]):
                yield chunk


def _metadata(member: int, place: int, record: bytes) -> Iterator[tuple[int, bytes | None]]:
    """The JSON of a record, if it is a metadata record; None where it has no head or no JSON."""
    if not record.startswith(b"WARC/"):
        return
    head = END_OF_HEAD.search(record)
    if head is None:
        yield member + place, None
    elif METADATA.search(record, 0, head.start() + 1):
        body = record[head.end() :].strip()
        body = body if body.endswith(b"}") else body.partition(b"\n")[0].rstrip()  # rubbish behind it is no part of it
        yield member + place, body if body.startswith(b"{") else None


# --- what a record says --------------------------------------------------------------------------------------------


class Link(msgspec.Struct):
    path: str = ""
    url: Any = None
    alt: Any = None
    title: Any = None
    text: Any = None
    rel: Any = None


class Head(msgspec.Struct):
    base: Any = msgspec.field(name="Base", default=None)
    metas: list[dict[str, Any]] = msgspec.field(name="Metas", default_factory=list)
    links: list[Link] = msgspec.field(name="Link", default_factory=list)


class Html(msgspec.Struct):
    head: Head = msgspec.field(name="Head", default_factory=Head)
    links: list[Link] = msgspec.field(name="Links", default_factory=list)


class Http(msgspec.Struct):
    headers: dict[str, Any] = msgspec.field(name="Headers", default_factory=dict)  # str, or list[str] since 2024-51
    html: Html = msgspec.field(name="HTML-Metadata", default_factory=Html)


class Notes(msgspec.Struct):
    records: list[dict[str, Any]] = msgspec.field(name="Metadata-Records", default_factory=list)


class Payload(msgspec.Struct):
    http: Http = msgspec.field(name="HTTP-Response-Metadata", default_factory=Http)
    notes: Notes = msgspec.field(name="WARC-Metadata-Metadata", default_factory=Notes)


class Envelope(msgspec.Struct):
    warc: dict[str, Any] = msgspec.field(name="WARC-Header-Metadata", default_factory=dict)
    payload: Payload = msgspec.field(name="Payload-Metadata", default_factory=Payload)

    @property
    def page(self) -> str:
        """The address of the page."""
        return _text(self.warc.get("WARC-Target-URI"))


class Record(msgspec.Struct):
    envelope: Envelope = msgspec.field(name="Envelope", default_factory=Envelope)


_decoder = msgspec.json.Decoder(Record)


def decode(body: bytes) -> Record:
    """A record's JSON. ValueError (msgspec's errors are such) where it is none.

    The slow path takes what strict JSON may not hold: bytes that are not UTF-8, and halves of surrogate pairs.
    """
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError:
        text = json.dumps(json.loads(body.decode("utf-8", "replace")), ensure_ascii=False)
        return _decoder.decode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


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
    link = link.strip(SPACE)
    if link[:5].lower() == "data:":
        raise ValueError("data_url")
    head, _, query = link.translate(BREAKS).partition("#")[0].partition("?")
    head, query = head.replace("\\", "/"), query and f"?{query}"
    if PLAIN.match(head):
        url = head + query
    elif head[:1] == "/" != head[1:2] and "/." not in head and (origin := _origin(base)):
        url = origin + head + query
    else:
        url = _joined(base, head + query)
    if len(url) > LONGEST_URL:
        raise ValueError("bad_url")
    return url


@lru_cache(maxsize=16)
def _origin(base: str) -> str:
    """Scheme and host of a page, "" where they are not of the plain kind."""
    found = PLAIN.match(base)
    return found[1] if found else ""


def _joined(base: str, link: str) -> str:
    """`resolve` for all that its two short ways (nine links of ten, a fifth of the time) leave over."""
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


# --- pairs ---------------------------------------------------------------------------------------------------------


def pairs_of_wat(path: str, counts: Counter[str] | None = None) -> Iterator[Pair]:
    """The image links with alternative text of a WAT (a local path or an fsspec URL) in document order.

    `counts` gets `links` and `pairs`, every reason for which a link is no pair, and `damaged_records`, which are no
    links: links = pairs + Σ reasons. A WAT keeps a page's last <base> where browsers take the first.
    """
    for row in rows_of_wat(path, Counter() if counts is None else counts):
        yield Pair(**dict(zip(PAIRS.names, row, strict=True)))


def rows_of_wat(path: str, counts: Counter[str]) -> Iterator[Row]:
    """`pairs_of_wat` as rows of PAIRS: the language of a page is in the record after it, so that its rows wait."""
    name = path if disk.is_url(path) else disk.local(path).name
    waiting: list[Row] = []
    page, html_language = "", None
    for offset, body in records(path):
        try:
            if body is None:
                raise ValueError("no JSON")
            if waiting:
                envelope = decode(body).envelope if LANGUAGES in body else None
                said = envelope.payload.notes.records if envelope and envelope.page == page else []
                yield from _with_language(waiting, _language(said, html_language))
                waiting = []
            if IMAGE in body or IMAGE_ESCAPED in body:
                envelope = decode(body).envelope
                page, html_language = envelope.page, _html_language(envelope.payload.http.html.head)
                licensed = b"license" in body or b"publicdomain" in body
                waiting = list(_rows(envelope, name, offset, licensed, counts))
        except (ValueError, RecursionError):
            counts["damaged_records"] += 1
    yield from _with_language(waiting, html_language)


def _rows(envelope: Envelope, wat: str, offset: int, licensed: bool, counts: Counter[str]) -> Iterator[Row]:
    http, page = envelope.payload.http, envelope.page
    try:
        base = urljoin(page, _text(http.html.head.base).strip(SPACE))
    except ValueError:
        base = page
    license = _license(http.html, base) if licensed else None
    robots = _robots(http)
    number = -1
    links = http.html.links
    for place, link in enumerate(links):
        if link.path != "IMG@/src":
            continue
        number += 1
        counts["links"] += 1
        try:
            caption = _caption(link.alt)
            url = resolve(base, link.url if isinstance(link.url, str) else "")
        except ValueError as reason:
            counts[str(reason)] += 1
            continue
        counts["pairs"] += 1
        title = _text(link.title).strip() or None
        anchor = _anchor(link, links[place + 1]) if place + 1 < len(links) else None
        uid = disk.uid_of(url, caption)
        yield (uid, url, caption, title, anchor, page, None, robots, license, wat, offset, number)


def _caption(alt: Any) -> str:
    """The alternative text as it is: entities are decoded once already, and another round would decode what the page
    shows as `&amp;`. ValueError with the reason where there is none."""
    if not isinstance(alt, str):
        raise ValueError("no_alt")
    if not alt.strip():
        raise ValueError("empty_alt")
    return alt


def _anchor(image: Link, following: Link) -> str | None:
    """The text of the link around an image. An A is written when it closes, so `<a><img>text</a>` and
    `<img><a>text</a>` look the same: only a link to the picture itself, or to another, is taken to be around it."""
    if following.path != "A@/href" or not following.text or not isinstance(following.url, str):
        return None
    if following.url != image.url and not PICTURE.search(
        following.url.partition("#")[0].partition("?")[0].strip(SPACE)
    ):
        return None
    return _text(following.text).strip() or None


def _robots(http: Http) -> str | None:
    """What page and headers say to robots, raw, as JSON; None where they say nothing."""
    found: dict[str, list[str]] = {"meta": [], "x-robots-tag": []}
    for meta in http.html.head.metas:
        name, content = _text(meta.get("name")).strip().lower(), _text(meta.get("content"))
        if name == "robots":
            found["meta"].append(content)
        elif name.endswith("bot"):
            found["meta"].append(f"{name}: {content}")
        elif name in SIGNALS:
            found.setdefault(name, []).append(content)
    for name, value in http.headers.items():
        if name.lower() in SIGNALS:
            found.setdefault(name.lower(), []).extend(_texts(value))
    return json.dumps(found, ensure_ascii=False) if any(found.values()) else None


def _license(html: Html, base: str) -> str | None:
    """The first link that says it is the licence, else the first to Creative Commons."""
    links = [*html.head.links, *html.links]
    named = [link for link in links if "license" in _text(link.rel).lower().split()]
    for link in [*named, *(link for link in links if any(part in _text(link.url) for part in LICENSES))]:
        with suppress(ValueError):
            return resolve(base, _text(link.url))
    return None


def _html_language(head: Head) -> str | None:
    for meta in head.metas:
        if meta.get("name") == "HTML@/lang":
            return _text(meta.get("content")).strip().lower().replace("_", "-").partition("-")[0] or None
    return None


def _language(said: Sequence[Mapping[str, Any]], html_language: str | None) -> str | None:
    """The detector's language where it is sure, else the page's own word, else the detector's guess."""
    for record in said:
        if record.get("Name") == "languages-cld2":
            with suppress(ValueError, TypeError, KeyError, IndexError):
                found = json.loads(_text(record.get("Value")))
                code = str(found["languages"][0]["code"])
                return code if found.get("reliable") else html_language or code
    return html_language


def _with_language(rows: Iterable[Row], language: str | None) -> Iterator[Row]:
    place = PAIRS.names.index("page_lang")
    for row in rows:
        yield (*row[:place], language, *row[place + 1 :])
