"""A WARC file as pairs."""

from __future__ import annotations

import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import msgspec
from fastwarc.stream_io import BrotliReader, ZstdReader
from fastwarc.warc import WarcRecordType

from clipmill.manifests import disk
from clipmill.manifests.text import valid_text
from clipmill.pipeline.archives.codings import (
    CHUNK_SIZE,
    INFLATED,
    PACKED,
    Dechunker,
    Inflater,
    coding_names,
    is_whole,
)
from clipmill.pipeline.archives.page_images import HtmlPage, Image, media_type, page_of, text_of
from clipmill.pipeline.archives.urls import reject
from clipmill.pipeline.archives.wat import (
    END_OF_HEAD,
    Form,
    RecordPair,
    record_at,
    records,
    signals_of,
)

Row = tuple[Any, ...]  # one row of PAIRS

# The responses, resources and metadata records of a WARC file. A resource is a page without the
# server's head, as programs write it that read the page from a folder or a browser.


class Stored(NamedTuple):
    """A record: its type, its URL and its block."""

    kind: str  # response, resource or metadata
    url: str
    block: bytes


def _whole(record: Any, block: bytes) -> Stored:
    return _stored(*map(record.headers.get, OF_RECORD), block=block)


def _scanned(head: bytes, block: bytes) -> list[Stored | None]:
    headers = dict(headers_of(head.splitlines()[1:]))
    if headers.get("warc-type", "").lower() not in ("response", "resource", "metadata"):
        return []
    return [_stored(*(headers.get(name.lower()) for name in OF_RECORD), block=block)]


OF_RECORD = ("WARC-Type", "WARC-Target-URI", "Content-Type")
PAGE_RECORDS: Form[Stored] = Form(
    WarcRecordType.response | WarcRecordType.resource | WarcRecordType.metadata, _whole, _scanned
)


def _stored(*of_record: str | None, block: bytes) -> Stored:
    """A record with these values of OF_RECORD; a resource of the web becomes a response."""
    kind, url, content_type = (value or "" for value in of_record)
    kind, url = kind.lower(), _address(url)
    if kind == "resource" and url.startswith(("http://", "https://")):
        kind = "response"
        block = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n\r\n".encode() + block
    return Stored(kind, url, block)


def _address(value: str | None) -> str:
    """The value of WARC-Target-URI, which some writers of WARC/1.0 put in angle brackets."""
    return valid_text((value or "").strip().removeprefix("<").removesuffix(">"))


def headers_of(lines: Sequence[bytes]) -> list[tuple[str, str]]:
    """Names in lower case and values. A line that begins with white space continues the one before
    it."""
    headers: list[tuple[str, str]] = []
    for line in lines:
        text = line.decode("utf-8", "replace")
        if text[:1] in (" ", "\t") and headers:
            headers[-1] = (headers[-1][0], f"{headers[-1][1]} {text.strip()}")
            continue
        name, colon, value = text.partition(":")
        if colon:
            headers.append((name.strip().lower(), value.strip()))
    return headers


# --------------------------------------------------------------------------------------------------
# A WARC file as pairs: the pages themselves, and so what a WAT leaves out of them.
#
# They have lazy attributes, srcset, <picture>, captions of figures and images of one pixel. Where
# `src` and `alt` of an image are enough, the row equals that of the page's WAT, except for the
# file and the offset in it.


# Bytes once decoded. Common Crawl cuts a page off at 1 MiB, since 2025 at 5 MiB.
LONGEST_PAGE = 1 << 24
READERS: dict[str, Callable[[io.BytesIO], Any]] = {"br": BrotliReader, "zstd": ZstdReader}
BOM = b"\xef\xbb\xbf"
BINARY = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")  # not in a text of the usual charsets
TEXT_BYTES = 1024  # in which they are looked for
HTML = ("text/html", "application/xhtml+xml")


# --- the response ---------------------------------------------------------------------------------


def html_of(block: bytes) -> tuple[list[tuple[str, str]], str] | None:
    """The headers and the text of a stored response; None where it is no HTML page, or an
    answer without one (`is_whole`).

    ValueError where it is no response, where the body is not encoded as its headers say (nor
    plain), or larger than LONGEST_PAGE. Of a body that was cut off the page is what is there, as
    it is of a page without a coding.
    """
    gap = END_OF_HEAD.search(block)
    lines = block[: gap.start() if gap else len(block)].splitlines()
    status = lines[0].split() if lines else []
    if not status or not status[0].startswith(b"HTTP"):
        raise ValueError("a response without a status line")
    headers = headers_of(lines[1:])
    kind, charset = media_type(value for name, value in headers if name == "content-type")
    if (
        not (status[1:] and len(status[1]) == 3 and status[1].isdigit())
        or not is_whole(int(status[1]))
        or kind not in HTML
        or not gap
    ):
        return None
    body = block[gap.end() :]
    for header in ("transfer-encoding", "content-encoding"):
        codings = coding_names(value for name, value in headers if name == header)
        for coding in reversed(codings):
            body = _decoded(coding, body)
    if len(body) > LONGEST_PAGE:
        raise ValueError(f"a page of more than {LONGEST_PAGE} bytes")
    return headers, text_of(body, charset)


def _decoded(coding: str, body: bytes) -> bytes:
    """A body without one of its codings. Archives often leave the header in and store the body
    decoded, so a body that begins as markup is not decoded again.
    """
    if body.removeprefix(BOM).lstrip()[:1] == b"<":
        return body
    try:
        if coding == "chunked":
            return Dechunker().add(body) if CHUNK_SIZE.match(body) else body
        if coding in INFLATED:
            return Inflater(coding).add(body, LONGEST_PAGE + 1)
        if coding in READERS:
            return _read_all(READERS[coding](io.BytesIO(body)))
    except (OSError, ValueError, zlib.error) as error:
        if coding not in INFLATED or BINARY.search(body, 0, TEXT_BYTES):
            raise ValueError(f"a body that is not {coding}: {error}") from error
    if coding in PACKED or BINARY.search(body, 0, TEXT_BYTES):
        raise ValueError(f"a body in the coding {coding!r}")
    return body


def _read_all(reader: Any) -> bytes:
    """What a reader unpacks, up to one byte more than LONGEST_PAGE. OSError where that is
    nothing."""
    decoded = b""
    try:
        while len(decoded) <= LONGEST_PAGE and (
            chunk := reader.read(LONGEST_PAGE + 1 - len(decoded))
        ):
            decoded += chunk
    except OSError:
        if not decoded:
            raise
    return decoded


# --- pairs ----------------------------------------------------------------------------------------


def rows_of_warc(path: str, counts: Counter[str]) -> Iterator[Row]:
    """The images with a caption of a WARC's HTML pages as rows of PAIRS, in document order.

    `counts` gets `links` and `pairs`, every reason for which an image is no pair, and
    `damaged_records`, which are no links: links = pairs + Σ reasons. `warc_offset` is that of the
    response.
    """
    name = path if disk.is_url(path) else disk.local_path(path).name
    waiting: tuple[int, Stored] | None = None  # for the metadata record behind it
    whole_file = records(path, PAGE_RECORDS)
    for offset, stored in chain(whole_file, [(-1, Stored("end of the file", "", b""))]):
        if waiting:
            same = stored and stored.kind == "metadata" and stored.url == waiting[1].url
            metadata = stored.block if stored and same else b""
            yield from rows_of_response(*waiting, metadata, name, counts)
            waiting = None
        if stored is None:
            counts["damaged_records"] += 1
        elif stored.kind == "response":
            waiting = offset, stored


def pairs_of_warc_record(path: str, offset: int) -> dict[int, RecordPair]:
    """{link: pair} of the response at `offset` of a WARC. ValueError as of a WAT."""
    stored = record_at(path, offset, PAGE_RECORDS)
    pairs = {}
    for _, url, caption, *_, link in rows_of_response(offset, stored, b"", "", Counter()):
        pairs[link] = RecordPair(url, caption, stored.url)
    return pairs


def rows_of_response(
    offset: int, stored: Stored, metadata: bytes, warc: str, counts: Counter[str]
) -> Iterator[Row]:
    """The rows of a response, in the WARC of this name; `metadata` is the block behind it."""
    try:
        html = html_of(stored.block)
        page = page_of(html[1], stored.url) if html else None
    except ValueError:
        counts["damaged_records"] += 1
        return
    if html is None or page is None:
        return
    language = _language(metadata, page, html[0])
    signals = signals_of(page.metas, html[0], page.terms)
    robots_json = json.dumps(signals, ensure_ascii=False) if signals else None
    for number, image in enumerate(page.images):
        counts["links"] += 1
        if reason := _reason(image):
            reject(counts, reason, f"{stored.url}: {image.link!r}")
            continue
        counts["pairs"] += 1
        caption = image.caption or ""
        of_image = disk.uid_of(image.url, caption), image.url, caption, image.title, image.anchor
        of_page = stored.url, language, robots_json, page.license
        yield (*of_image, *of_page, warc, offset, number)


def _reason(image: Image) -> str | None:
    """Why an image is no pair; None where it is one."""
    if image.reason == "noscript_copy":
        return image.reason
    if image.caption is None:
        return "no_alt"
    if not image.caption.strip():
        return "empty_alt"
    return image.reason


def _language(metadata: bytes, page: HtmlPage, headers: Sequence[tuple[str, str]]) -> str | None:
    """The detected language where it is reliable, else that of the page's <html>, else that of its
    Content-Language, else the detected one.
    """
    header = next((value for name, value in headers if name == "content-language"), "")
    declared = page.language or header.split(",")[0].strip().lower().partition("-")[0] or None
    for name, value in headers_of(metadata.splitlines()):
        if name == "languages-cld2":
            with suppress(ValueError, TypeError, KeyError, IndexError):
                detected = msgspec.json.decode(value)
                code = str(detected["languages"][0]["code"])
                return code if detected.get("reliable") else declared or code
    return declared
