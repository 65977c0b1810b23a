"""A WARC file as pairs."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import fsspec
import msgspec
from fastwarc.stream_io import BrotliReader, ChunkedReader, GzipReader, ZstdReader
from fastwarc.warc import ArchiveIterator, WarcRecordType

from manifests import disk
from manifests.text import valid_text
from pipeline.archives.page_images import Image, Page, charset_in, page_of, text_of
from pipeline.archives.urls import reject
from pipeline.archives.wat import END_OF_HEAD, GZIP, LONGEST_RECORD, Row, Tape, chunks, signals_of

# --------------------------------------------------------------------------------------------------
# The records of a WARC file, good and damaged.
#
# FastWARC reads what is well formed. From the first record on that is not, a tolerant scan takes
# over: it uses a record's length only where the record ends there, and looks for the next gzip
# member behind a broken one.


KINDS = WarcRecordType.response | WarcRecordType.metadata
# The first bytes of a record: gzip, none, an empty line, zstd and lz4.
BEGINNINGS = (GZIP, b"WAR", b"\r\nW", b"\x28\xb5\x2f", b"\x04\x22\x4d")
START = re.compile(rb"(?m)^WARC/\d\.\d\r?$")
LENGTH = re.compile(rb"(?im)^Content-Length:[ \t]*(\d{1,18})[ \t]*\r?$")
GAP = b"\r\n\r\n"  # between two records
OVERLAP = 16  # bytes that are searched again: a record's first line may be cut in two


class Stored(NamedTuple):
    """A record: its offset in the file, its type, its URL and its block."""

    offset: int
    kind: str  # response or metadata
    url: str
    block: bytes


def records(path: str) -> Iterator[Stored | None]:
    """The responses and metadata records of a WARC in order; None for one that is damaged.

    The offset is that of the record's gzip member; of a record that shares one with records before
    it, plus its position in the decompressed bytes. Memory is bounded by LONGEST_RECORD.
    """
    waiting: Stored | None = None  # until the next record shows that it ended where it should
    given = 0  # records at the start of the tape that were yielded already
    with fsspec.open(path, "rb") as stream:
        tape = Tape(stream)
        try:
            for record in ArchiveIterator(tape, record_types=KINDS, parse_http=False):
                offset, size = record.stream_pos, record.content_length
                if size > LONGEST_RECORD or tape.peek(offset, 3) not in BEGINNINGS:
                    break
                if waiting and offset <= waiting.offset:
                    break
                block = record.reader.read()
                if len(block) != size:
                    break
                if waiting:
                    yield waiting
                    tape.keep(waiting.offset)
                    given = 1
                kind = "response" if record.record_type == WarcRecordType.response else "metadata"
                url = _address(record.headers.get("WARC-Target-URI"))
                waiting = Stored(offset, kind, url, block)
            else:
                if not tape.read(1):
                    yield from [waiting] if waiting else []
                    return
        except OSError:
            if tape.broken:
                raise
        yield from islice(scan(tape), given, None)


def scan(tape: Tape) -> Iterator[Stored | None]:
    """What `records` yields, from what a tape holds: a record ends where its length says so if
    nothing but the next record follows, and else where the next begins."""
    buffer, member, position = b"", -1, 0  # position: of the buffer in the member's bytes
    for offset, chunk in chunks(tape):
        if offset != member:
            yield from _split(buffer, member + position, final=True).records
            buffer, member, position = b"", offset, 0
        if chunk is None:
            yield None
            buffer = b""
            continue
        buffer += chunk
        split = _split(buffer, member + position, final=False)
        yield from split.records
        buffer, position = buffer[split.end :], position + split.end
    yield from _split(buffer, member + position, final=True).records


class Split(NamedTuple):
    """The whole records of a buffer, and where what is left over begins."""

    records: list[Stored | None]
    end: int


def _split(data: bytes, offset: int, *, final: bool) -> Split:
    """The complete records of `data`, which begins at `offset`. `final`: no more bytes follow."""
    records: list[Stored | None] = []
    end = 0
    while start := START.search(data, end):
        begin = start.start()
        head = END_OF_HEAD.search(data, start.end())
        if head is None:
            return Split([*records, None] if final else records, begin)
        body = head.end()
        stop = _end_of_block(data, begin, body, final=final)
        if stop is None:
            return Split(records, begin)
        if stop - body > LONGEST_RECORD:
            records.append(None)
        else:
            records += _stored(offset + begin, data[begin:body], data[body:stop])
        end = stop
    return Split(records, len(data) if final else max(end, len(data) - OVERLAP))


def _end_of_block(data: bytes, begin: int, body: int, *, final: bool) -> int | None:
    """Where the block of the record ends that begins at `begin` with its block at `body`; None
    where that is behind the data and more bytes come.
    """
    match = LENGTH.search(data, begin, body)
    length = int(match[1]) if match else LONGEST_RECORD + 1
    stop = body + length
    if length <= LONGEST_RECORD and stop + len(GAP) > len(data) and not final:
        return None
    if data[stop : stop + len(GAP)] == GAP:
        return stop
    if final and stop <= len(data) and not data[stop:].strip():
        return stop
    following = START.search(data, body)
    if following:
        return following.start()
    if not final and len(data) - body <= LONGEST_RECORD:
        return None
    return len(data)


def _stored(offset: int, head: bytes, block: bytes) -> list[Stored | None]:
    headers = dict(headers_of(head.splitlines()[1:]))
    kind = headers.get("warc-type", "").lower()
    if kind not in ("response", "metadata"):
        return []
    return [Stored(offset, kind, _address(headers.get("warc-target-uri", "")), block)]


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
READERS: dict[str, Callable[[io.BytesIO], Any]] = {
    "chunked": ChunkedReader,
    "gzip": GzipReader,
    "x-gzip": GzipReader,
    "deflate": partial(GzipReader, zlib=True),
    "br": BrotliReader,
    "zstd": ZstdReader,
}
HTML = ("text/html", "application/xhtml+xml")


# --- the response ---------------------------------------------------------------------------------


def html_of(block: bytes) -> tuple[list[tuple[str, str]], str] | None:
    """The headers and the text of a stored response; None where it is no HTML page that was
    answered with 200.

    ValueError where it is no response, where the body is not encoded as its headers say (nor
    plain), or larger than LONGEST_PAGE.
    """
    gap = END_OF_HEAD.search(block)
    lines = block[: gap.start() if gap else len(block)].splitlines()
    status = lines[0].split() if lines else []
    if not status or not status[0].startswith(b"HTTP"):
        raise ValueError("a response without a status line")
    headers = headers_of(lines[1:])
    content_type = next((value for name, value in headers if name == "content-type"), "")
    if (
        status[1:2] != [b"200"]
        or content_type.partition(";")[0].strip().lower() not in HTML
        or not gap
    ):
        return None
    body = block[gap.end() :]
    for header in ("transfer-encoding", "content-encoding"):
        codings = ",".join(value for name, value in headers if name == header)
        for coding in reversed(codings.lower().split(",")):
            body = _decoded(coding.strip(), body)
    if len(body) > LONGEST_PAGE:
        raise ValueError(f"a page of more than {LONGEST_PAGE} bytes")
    return headers, text_of(body, charset_in(content_type))


def _decoded(coding: str, body: bytes) -> bytes:
    """A body without one of its codings. Archives often leave the header in and store the body
    decoded, so a body that begins as markup is not decoded again.
    """
    if coding in ("", "identity") or body.lstrip()[:1] == b"<":
        return body
    if coding not in READERS:
        raise ValueError(f"a body in the coding {coding!r}")
    reader, decoded = READERS[coding](io.BytesIO(body)), b""
    try:
        while len(decoded) <= LONGEST_PAGE and (
            chunk := reader.read(LONGEST_PAGE + 1 - len(decoded))
        ):
            decoded += chunk
    except OSError as error:
        raise ValueError(f"a body that is not {coding}: {error}") from error
    return decoded


# --- pairs ----------------------------------------------------------------------------------------


def rows_of_warc(path: str, counts: Counter[str]) -> Iterator[Row]:
    """The images with a caption of a WARC's HTML pages as rows of PAIRS, in document order.

    `counts` gets `links` and `pairs`, every reason for which an image is no pair, and
    `damaged_records`, which are no links: links = pairs + Σ reasons. `warc_offset` is that of the
    response.
    """
    name = path if disk.is_url(path) else disk.local_path(path).name
    waiting: Stored | None = None
    for stored in records(path):
        if waiting:
            same = stored is not None and stored.kind == "metadata" and stored.url == waiting.url
            yield from rows_of_response(
                waiting, stored.block if stored and same else b"", name, counts
            )
            waiting = None
        if stored is None:
            counts["damaged_records"] += 1
        elif stored.kind == "response":
            waiting = stored
    if waiting:
        yield from rows_of_response(waiting, b"", name, counts)


def rows_of_response(
    stored: Stored, metadata: bytes, warc: str, counts: Counter[str]
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
    signals = signals_of(page.metas, html[0])
    robots_json = json.dumps(signals, ensure_ascii=False) if signals else None
    for number, image in enumerate(page.images):
        counts["links"] += 1
        if reason := _reason(image):
            reject(counts, reason, f"{stored.url}: {image.link!r}")
            continue
        counts["pairs"] += 1
        caption = image.caption or ""
        uid = disk.uid_of(image.url, caption)
        yield (
            *(
                uid,
                image.url,
                caption,
                image.title,
                image.anchor,
                stored.url,
                language,
                robots_json,
                page.license,
            ),
            *(warc, stored.offset, number),
        )


def _reason(image: Image) -> str | None:
    """Why an image is no pair; None where it is one."""
    if image.reason == "noscript_copy":
        return image.reason
    if image.caption is None:
        return "no_alt"
    if not image.caption.strip():
        return "empty_alt"
    return image.reason


def _language(metadata: bytes, page: Page, headers: Sequence[tuple[str, str]]) -> str | None:
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
