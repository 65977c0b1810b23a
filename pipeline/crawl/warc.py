"""A WARC file as pairs: the pages themselves, and so what a WAT leaves out of them.

Lazy attributes, srcset, <picture>, the caption of a figure, pictures of one pixel. Where an image says everything in
`src` and `alt`, the row is the one that the page's WAT gives, but for its place in the file.
FastWARC reads what is well formed. From the first record on that is not, a tolerant scan takes over, which believes a
record's length only where the record ends there, and looks for the next gzip member behind a broken one.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import fsspec
import msgspec
from fastwarc.stream_io import BrotliReader, ChunkedReader, GzipReader, ZstdReader
from fastwarc.warc import ArchiveIterator, WarcRecordType

from manifests import disk
from pipeline.crawl.losses import reject
from pipeline.crawl.page_images import Image, Page, charset_in, page_of, text_of
from pipeline.crawl.wat import Row, signals_of

KINDS = WarcRecordType.response | WarcRecordType.metadata
GZIP = b"\x1f\x8b\x08"
BEGINNINGS = (
    GZIP,
    b"WAR",
    b"\r\nW",
    b"\x28\xb5\x2f",
    b"\x04\x22\x4d",
)  # of a record's place: also zstd and lz4
CHUNK = 1 << 14
WINDOW = 1 << 20  # compressed bytes in front of a break in which the next member is looked for
LONGEST_RECORD = 1 << 26  # a larger length is taken for damage: reading it would swallow the file
LONGEST_PAGE = (
    1 << 24
)  # bytes once decoded; Common Crawl cuts a page off at 1 MiB, since 2025 at 5 MiB
START = re.compile(rb"(?m)^WARC/\d\.\d\r?$")
END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
LENGTH = re.compile(rb"(?im)^Content-Length:[ \t]*(\d{1,18})[ \t]*\r?$")
READERS: dict[str, Callable[[io.BytesIO], Any]] = {
    "chunked": ChunkedReader,
    "gzip": GzipReader,
    "x-gzip": GzipReader,
    "deflate": partial(GzipReader, zlib=True),
    "br": BrotliReader,
    "zstd": ZstdReader,
}
HTML = ("text/html", "application/xhtml+xml")


class Stored(NamedTuple):
    """A record: where it lies, what it is, of which address, and its block."""

    offset: int
    kind: str  # response or metadata
    url: str
    block: bytes


# --- records -------------------------------------------------------------------------------------------------------


class _Tape:
    """A stream that can be wound back to `keep`: what was read since is held in memory.

    OSError of the stream itself is remembered in `broken`, as a reader of damaged data raises OSError too; a stream
    that ends before its size has a broken connection.
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self._held, self._start, self._place = stream, bytearray(), 0, 0
        self._size: int | None = getattr(stream, "size", None)
        self.broken: OSError | None = None

    def read(self, size: int = CHUNK) -> bytes:
        at = self._place - self._start
        if at >= len(self._held):
            try:
                data = self._stream.read(size if size > 0 else CHUNK)
                if not data and self._size is not None and self._place < self._size:
                    raise ConnectionError(f"the file ended at byte {self._place} of {self._size}")
            except OSError as error:
                self.broken = error
                raise
            self._held += data
        data = bytes(self._held[at : at + size] if size > 0 else self._held[at:])
        self._place += len(data)
        return data

    def peek(self, place: int, size: int) -> bytes:
        """Bytes of a place that is held."""
        return bytes(self._held[place - self._start : place - self._start + size])

    def tell(self) -> int:
        return self._place

    def seek(self, place: int, whence: int = 0) -> int:
        """Back to a place that is held."""
        assert whence == 0
        assert self._start <= place <= self._start + len(self._held)
        self._place = place
        return place

    def close(self) -> None:
        """Nothing: who opened the stream closes it."""

    def rewind(self) -> int:
        """Back to the first place that is held."""
        self._place = self._start
        if not self._held:
            self.read(CHUNK)
            self._place = self._start
        return self._start

    def keep(self, place: int) -> None:
        """Let go of what lies before `place`."""
        del self._held[: max(0, place - self._start)]
        self._start = max(self._start, place)

    def find(self, what: bytes, place: int) -> int:
        """Where `what` comes next, from `place` on, and go there; -1 where it does not come any more."""
        self.seek(place)
        held = b""
        while data := self.read(CHUNK):
            held += data
            if (at := held.find(what)) >= 0:
                at += self._place - len(held)
                self.seek(at)
                return at
            held = held[1 - len(what) :]
            self.keep(self._place - len(held))
        return -1


def records(path: str) -> Iterator[Stored | None]:
    """The responses and metadata records of a WARC in order; None for one that is damaged.

    The offset is that of the record's gzip member; of a record that shares one with records before it, plus its place
    in the decompressed bytes. Memory is bounded by LONGEST_RECORD.
    """
    held: Stored | None = None
    known = 0
    with fsspec.open(path, "rb") as stream:
        tape = _Tape(stream)
        try:
            for record in ArchiveIterator(tape, record_types=KINDS, parse_http=False):
                offset, size = record.stream_pos, record.content_length
                if (
                    size > LONGEST_RECORD
                    or (held and offset <= held.offset)
                    or tape.peek(offset, 3) not in BEGINNINGS
                ):
                    break
                block = record.reader.read()
                if len(block) != size:
                    break
                if held:
                    yield held
                    tape.keep(held.offset)
                    known = 1
                kind = "response" if record.record_type == WarcRecordType.response else "metadata"
                held = Stored(offset, kind, _address(record.headers.get("WARC-Target-URI")), block)
            else:
                if not tape.read(1):
                    yield from [held] if held else []
                    return
        except OSError:
            if tape.broken:
                raise
        for stored in scan(tape):
            if known:
                known = 0  # the last one that was given already
            else:
                yield stored


def scan(tape: _Tape) -> Iterator[Stored | None]:
    """What `records` yields, from what a tape holds: a record ends where its length says so and nothing else follows,
    or else where the next begins."""
    held, member, place = b"", tape.rewind(), 0
    for at, chunk in _inflated(tape) if tape.peek(member, 3) == GZIP else _plain(tape):
        if at != member:
            yield from _split(held, member, place, final=True)[0]
            held, member, place = b"", at, 0
        if chunk is None:
            yield None
            held = b""
            continue
        found, end = _split(held + chunk, member, place, final=False)
        yield from found
        held, place = (held + chunk)[end:], place + end
    yield from _split(held, member, place, final=True)[0]


def _plain(tape: _Tape) -> Iterator[tuple[int, bytes | None]]:
    start = tape.tell()
    while chunk := tape.read(CHUNK):
        tape.keep(tape.tell())
        yield start, chunk


def _inflated(tape: _Tape) -> Iterator[tuple[int, bytes | None]]:
    """(offset of a gzip member, decompressed bytes) chunk by chunk; None where a member breaks off.

    What follows is looked for by its magic bytes; a place that only looks like a member is passed over silently.
    """
    at = expected = tape.tell()
    while (at := tape.find(GZIP, expected)) >= 0:
        member, told, whole = zlib.decompressobj(31), at == expected, False
        with suppress(zlib.error):
            while not member.eof and (data := tape.read(CHUNK)):
                chunk = member.decompress(data)
                tape.keep(max(at, tape.tell() - WINDOW))
                told = True
                yield at, chunk
            whole = member.eof
        expected = tape.tell() - len(member.unused_data) if whole else max(at + 1, tape.rewind())
        if told and not whole:
            yield at, None


def _split(data: bytes, member: int, place: int, *, final: bool) -> tuple[list[Stored | None], int]:
    """The whole records of a member's bytes, and where what is left over begins. `final`: no more bytes come."""
    found: list[Stored | None] = []
    end = 0
    while start := START.search(data, end):
        begin = start.start()
        head = END_OF_HEAD.search(data, start.end())
        if not head:
            found += [None] if final else []
            return found, begin
        said = LENGTH.search(data, begin, head.end())
        body, stop = head.end(), head.end() + int(said[1] if said else LONGEST_RECORD + 1)
        if stop - body <= LONGEST_RECORD and stop + 4 > len(data) and not final:
            return found, begin
        if not (
            data[stop : stop + 4] == b"\r\n\r\n"
            or (final and stop <= len(data) and not data[stop:].strip())
        ):
            following = START.search(data, body)
            if not following and not final and len(data) - body <= LONGEST_RECORD:
                return found, begin
            stop = following.start() if following else len(data)
        if stop - body > LONGEST_RECORD:
            found.append(None)
        else:
            found += _stored(member + place + begin, data[begin:body], data[body:stop])
        end = stop
    return found, len(data) if final else max(
        end, len(data) - 16
    )  # 16: a record's first line may be cut in two


def _stored(offset: int, head: bytes, block: bytes) -> list[Stored | None]:
    headers = dict(_headers(head.splitlines()[1:]))
    kind = headers.get("warc-type", "").lower()
    if kind not in ("response", "metadata"):
        return []
    return [Stored(offset, kind, _address(headers.get("warc-target-uri", "")), block)]


def _address(said: str | None) -> str:
    return (
        (said or "").strip().removeprefix("<").removesuffix(">")
    )  # as some writers of WARC/1.0 have it


# --- the response --------------------------------------------------------------------------------------------------


def _headers(lines: Sequence[bytes]) -> list[tuple[str, str]]:
    """Names in lower case and values; a line that begins with white space belongs to the one before it."""
    found: list[tuple[str, str]] = []
    for line in lines:
        text = line.decode("utf-8", "replace")
        if text[:1] in (" ", "\t") and found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {text.strip()}")
            continue
        name, colon, value = text.partition(":")
        if colon:
            found.append((name.strip().lower(), value.strip()))
    return found


def html_of(block: bytes) -> tuple[list[tuple[str, str]], str] | None:
    """The headers and the text of a stored response; None where it is no HTML page that was answered with 200.

    ValueError where it is no response, where the body is not encoded as its headers say (nor plain), or larger than
    LONGEST_PAGE.
    """
    gap = END_OF_HEAD.search(block)
    lines = block[: gap.start() if gap else len(block)].splitlines()
    status = lines[0].split() if lines else []
    if not status or not status[0].startswith(b"HTTP"):
        raise ValueError("a response without a status line")
    headers = _headers(lines[1:])
    content_type = next((value for name, value in headers if name == "content-type"), "")
    if (
        status[1:2] != [b"200"]
        or content_type.partition(";")[0].strip().lower() not in HTML
        or not gap
    ):
        return None
    body = block[gap.end() :]
    for header in ("transfer-encoding", "content-encoding"):
        said = ",".join(value for name, value in headers if name == header)
        for coding in reversed(said.lower().split(",")):
            body = _decoded(coding.strip(), body)
    if len(body) > LONGEST_PAGE:
        raise ValueError(f"a page of more than {LONGEST_PAGE} bytes")
    return headers, text_of(body, charset_in(content_type))


def _decoded(coding: str, body: bytes) -> bytes:
    """A body without one of its codings. Archives often leave the header in and store the body decoded: what begins
    as markup is taken as it lies."""
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


# --- pairs ---------------------------------------------------------------------------------------------------------


def rows_of_warc(path: str, counts: Counter[str]) -> Iterator[Row]:
    """The images with a caption of a WARC's HTML pages as rows of PAIRS, in document order.

    `counts` gets `links` and `pairs`, every reason for which an image is no pair, and `damaged_records`, which are no
    links: links = pairs + Σ reasons. `warc_offset` is that of the response.
    """
    name = path if disk.is_url(path) else disk.local_path(path).name
    waiting: Stored | None = None
    for stored in records(path):
        if waiting:
            same = stored is not None and stored.kind == "metadata" and stored.url == waiting.url
            yield from _rows(waiting, stored.block if stored and same else b"", name, counts)
            waiting = None
        if stored is None:
            counts["damaged_records"] += 1
        elif stored.kind == "response":
            waiting = stored
    if waiting:
        yield from _rows(waiting, b"", name, counts)


def _rows(stored: Stored, notes: bytes, warc: str, counts: Counter[str]) -> Iterator[Row]:
    try:
        html = html_of(stored.block)
        page = page_of(html[1], stored.url) if html else None
    except ValueError:
        counts["damaged_records"] += 1
        return
    if html is None or page is None:
        return
    language = _language(notes, page, html[0])
    said = signals_of(page.metas, html[0])
    robots_json = json.dumps(said, ensure_ascii=False) if said else None
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


def _language(notes: bytes, page: Page, headers: Sequence[tuple[str, str]]) -> str | None:
    """The detector's language where it is sure, else the page's own word, else its header's, else the detector's
    guess."""
    header = next((value for name, value in headers if name == "content-language"), "")
    said = page.language or header.split(",")[0].strip().lower().partition("-")[0] or None
    for name, value in _headers(notes.splitlines()):
        if name == "languages-cld2":
            with suppress(ValueError, TypeError, KeyError, IndexError):
                found = msgspec.json.decode(value)
                code = str(found["languages"][0]["code"])
                return code if found.get("reliable") else said or code
    return said
