"""The pages of the small web, as Common Crawl writes them down: a WAT file with three metadata
records a page.

Pictures are linked in every way that pages use (absolute, `//host/…`, from the root, relative to
the page or to its base), between links that are no pairs: pixels, spacers, data: URLs, posters,
broken addresses.
"""

from __future__ import annotations

import json
import posixpath
import random
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urljoin, urlsplit

from clipmill.examples.miniweb.links import CDN, HOSTS, TRUSTED, Link

DATE = "2026-02-01T00:00:00Z"
LANGUAGE_NAMES = {
    "en": ("eng", "ENGLISH"),
    "de": ("deu", "GERMAN"),
    "fr": ("fra", "FRENCH"),
    "es": ("spa", "SPANISH"),
    "pl": ("pol", "POLISH"),
}
JUNK: tuple[dict[str, str], ...] = (
    {"path": "A@/href", "url": "/about.html", "text": "About us"},
    {
        "path": "A@/href",
        "url": "https://example.org/",
        "title": "a friend's site",
        "rel": "nofollow",
    },
    {"path": "IMG@/src", "url": "/pixel.gif"},
    {"path": "IMG@/src", "url": "/spacer.gif", "alt": ""},
    {"path": "IMG@/src", "url": "data:image/png;base64,", "alt": "an inline icon"},
    {"path": "IMG@/src", "url": "http://[broken/icon.png", "alt": "an icon"},
    {"path": "IMG@/src", "url": "file:///C:/pictures/1.jpg", "alt": "my picture"},
    {"path": "IMG@/longdesc", "url": "/longdesc.html"},
    {"path": "VIDEO@/poster", "url": "/poster.jpg"},
    {"path": "STYLE/#text", "href": "/ground.png"},
)
# A page's no: as a meta tag, as a header, as one of two headers
OPTOUTS: tuple[tuple[str, Any], ...] = (
    ("meta", "noai, noimageai"),
    ("header", "noai"),
    ("header", ["max-image-preview:large", "noimageai, noai"]),
)


L = TypeVar("L", bound=Link)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[L]):
    """A page and the pairs on it, in document order."""

    number: int
    url: str
    base: str | None
    language: str
    robots: tuple[str, Any] | None  # ("meta", content) or ("header", value or values)
    items: tuple[L, ...]


def pages_of(items: Sequence[L], seed: int, hosts: Sequence[str] = HOSTS) -> list[Page[L]]:
    """The pages that show the items, each item on one. A page has one host and one language,
    and items that opt out have pages of their own. The pages of images on the CDN are on `hosts`.
    """
    rng = random.Random(f"pages/{seed}")
    groups: dict[tuple[str, str, bool], list[L]] = {}
    for item in rng.sample(items, len(items)):
        host = rng.choice(hosts) if item.host == CDN else item.host
        groups.setdefault((host, item.language, item.kind == "optout_page"), []).append(item)
    chunks = []
    for (host, language, out), group in groups.items():
        while group:
            size = rng.randint(1, 9 if language == "en" and not out else 3)
            chunks.append((host, language, out, tuple(group[:size])))
            del group[:size]
    rng.shuffle(chunks)
    pages = []
    for number, (host, language, out, some) in enumerate(chunks, 1):
        robots: tuple[str, Any] | None = None
        if out:
            robots = OPTOUTS[number % len(OPTOUTS)]
        elif number % 10 == 0:
            robots = ("meta", "index, follow, max-image-preview:large")
        base = (
            (f"http://{host}/static/site/", "/static/", "../")[number % 3]
            if number % 11 == 0
            else None
        )
        url = f"http://{host}/pages/{number % 97}/{number}.html"
        pages.append(
            Page(number=number, url=url, base=base, language=language, robots=robots, items=some)
        )
    return pages


def wat(pages: Sequence[Page[L]], seed: int) -> bytes:
    """A whole WAT file: a warcinfo record, then request, response and metadata of each page, a gzip
    member each.
    """
    rng = random.Random(f"links/{seed}")
    info = "Software-Info: clipmill miniweb\r\nFormat: WARC File Format 1.0\r\n"
    parts = [_record("warcinfo", "miniweb.warc.wat.gz", info.encode(), rng)]
    for page in pages:
        for envelope in _envelopes(page, rng):
            container = {
                "Filename": "miniweb.warc.gz", "Compressed": True,
                "Offset": str(1000 * page.number),
                "Gzip-Metadata": {"Deflate-Length": "900", "Header-Length": "10",
                                  "Footer-Length": "8"},
            }  # fmt: skip
            shell = {"Container": container, "Envelope": envelope}
            body = json.dumps(shell, ensure_ascii=False, separators=(",", ":"))
            parts.append(_record("metadata", page.url, body.encode(), rng))
    return b"".join(parts)


def _record(kind: str, uri: str, body: bytes, rng: random.Random) -> bytes:
    name = "WARC-Filename" if kind == "warcinfo" else "WARC-Target-URI"
    content = "application/warc-fields" if kind == "warcinfo" else "application/json"
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\n{name}: {uri}\r\nWARC-Date: {DATE}\r\n"
        f"WARC-Record-ID: <urn:uuid:{uuid.UUID(int=rng.getrandbits(128), version=4)}>\r\n"
        f"Content-Type: {content}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    # gzip.compress writes another header from Python 3.13 on.
    return zlib.compress(head.encode() + body + b"\r\n\r\n", level=6, wbits=31)


def _envelopes(page: Page[L], rng: random.Random) -> Iterator[dict[str, Any]]:
    def envelope(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        header = {"WARC-Type": kind, "WARC-Target-URI": page.url, "WARC-Date": DATE}
        return {
            "Format": "WARC/1.0",
            "WARC-Header-Length": "357",
            "WARC-Header-Metadata": header,
            "Payload-Metadata": payload,
        }

    yield envelope(
        "request",
        {
            "Actual-Content-Type": "application/http; msgtype=request",
            "HTTP-Request-Metadata": {
                "Headers": {"Accept-Language": "en-US,en;q=0.5", "Host": urlsplit(page.url).netloc}
            },
        },
    )
    yield envelope(
        "response",
        {
            "Actual-Content-Type": "application/http; msgtype=response",
            "HTTP-Response-Metadata": {
                "Response-Message": {"Status": "200", "Version": "HTTP/1.1", "Reason": "OK"},
                "Headers": _headers(page),
                "HTML-Metadata": {"Head": _head(page), "Links": _links(page, rng)},
            },
        },
    )
    iso, name = LANGUAGE_NAMES[page.language]
    language = {
        "code": page.language,
        "code-iso-639-3": iso,
        "text-covered": 0.98,
        "score": 1500.0,
        "name": name,
    }
    fields = [{"Name": "fetchTimeMs", "Value": str(50 + page.number % 400)}]
    if page.number % 20:  # one page in twenty has no detected language
        value = json.dumps({"reliable": True, "text-bytes": 900, "languages": [language]})
        fields += [
            {"Name": "charset-detected", "Value": "UTF-8"},
            {"Name": "languages-cld2", "Value": value},
        ]
    yield envelope(
        "metadata",
        {
            "Actual-Content-Type": "application/metadata-fields",
            "WARC-Metadata-Metadata": {"Metadata-Records": fields},
        },
    )


def _headers(page: Page[L]) -> dict[str, Any]:
    headers: dict[str, Any] = {"Content-Type": "text/html; charset=utf-8", "Server": "miniweb"}
    if page.number % 4 == 0:
        headers["Set-Cookie"] = ["session=1; Path=/", "seen=yes"]  # repeated: a list
    if page.robots and page.robots[0] == "header":
        headers["X-Robots-Tag"] = page.robots[1]
    return headers


def _head(page: Page[L]) -> dict[str, Any]:
    title = f"{urlsplit(page.url).netloc.split('.')[0].capitalize()}, page {page.number}"
    metas = [
        {"name": "HTML@/lang", "content": page.language},
        {"name": "viewport", "content": "width=device-width"},
        {"property": "og:title", "content": title},
    ]
    if page.robots and page.robots[0] == "meta":
        metas.append({"name": "robots", "content": page.robots[1]})
    head: dict[str, Any] = {"Title": title, "Metas": metas}
    if page.base:
        head["Base"] = page.base
    head["Link"] = [
        {"path": "LINK@/href", "url": "/style.css", "rel": "stylesheet", "type": "text/css"}
    ]
    return head


def _links(page: Page[L], rng: random.Random) -> list[dict[str, str]]:
    links: list[dict[str, str]] = []
    for item in page.items:
        links += rng.sample(JUNK, rng.randint(0, 2))
        link = {"path": "IMG@/src", "url": _written(page, item, rng), "alt": item.caption}
        if rng.random() < 0.1:
            link["title"] = "click to enlarge"
        links.append(link)
        if rng.random() < 0.12:  # an A is written when it closes, so after the image inside it
            links.append({"path": "A@/href", "url": item.url, "text": "enlarge"})
    if page.number % 20 == 0 or urlsplit(page.url).netloc == TRUSTED:
        terms = "https://creativecommons.org/licenses/by/4.0/"
        links.append({"path": "A@/href", "url": terms, "text": "CC BY 4.0", "rel": "license"})
    return links


def _written(page: Page[L], item: Link, rng: random.Random) -> str:
    """The URL of an image in one of the forms in which this page can write it."""
    base = urljoin(page.url, page.base or "")
    forms = [item.url, f"//{item.host}{item.path}"]
    if item.host == urlsplit(page.url).netloc:
        forms += [item.path, posixpath.relpath(item.path, posixpath.dirname(urlsplit(base).path))]
    form = rng.choice(forms)
    assert urljoin(base, form) == item.url, (base, form, item.url)
    return form
