"""A WAT file as pairs: gzip members, records, pages, links."""

from __future__ import annotations

import ctypes
import io
import json
import re
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from html import unescape
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar, Union
from urllib.parse import urljoin

import msgspec
import numpy as np
import pyarrow as pa
from fastwarc.warc import ArchiveIterator, WarcRecordType
from xxhash import xxh3_128_digest  # as disk.uid_of has it, which imports at every call

from clipmill.manifests import disk
from clipmill.manifests.columns import PAIRS
from clipmill.pipeline.archives.urls import SPACE, reject_images, resolve, resolver

# --------------------------------------------------------------------------------------------------
# Reading archives that may be damaged: a stream that can be wound back, and gzip members whole or
# broken.


GZIP = b"\x1f\x8b\x08"
FRAME_MAGIC = 4  # bytes
FRAMES = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
GZIP_HEAD = 10  # bytes of a member in front of its data, as writers of archives leave them
CHUNK = 1 << 14  # bytes that are read at a time
STEP = 256  # bytes of a broken chunk that are lost with it
DOUBTFUL = 1 << 20  # bytes of a member in front of a break that may be wrong too
WINDOW = 1 << 20  # compressed bytes in front of a break in which the next member is looked for
LONGEST_RECORD = 1 << 26  # a larger length is taken for damage: reading it would swallow the file
END_OF_HEAD = re.compile(rb"\r?\n\r?\n")


class Break(Enum):
    """Why a gzip member has no end."""

    CUT = 1  # the file ends: what came before is right
    DAMAGED = 2  # nobody knows since where: the checksum is at the member's end


Chunks = Iterator[tuple[int, bytes | Break]]


class Tape:
    """A stream that can be wound back to `keep`: the bytes read since then stay in memory.

    OSError of the stream itself is remembered in `broken`, as a reader of damaged data raises
    OSError too. A stream that ends before its size has a broken connection: ConnectionError.
    """

    def __init__(self, stream: Any, start: int = 0) -> None:
        """`start`: the position of the stream in its file."""
        self._stream, self._buffer = stream, bytearray()
        self._start = self._position = start  # of the buffer, and of what is read next
        self._size: int | None = getattr(stream, "size", None)
        self.broken: OSError | None = None

    def read(self, size: int = CHUNK) -> bytes:
        offset = self._position - self._start
        if offset < len(self._buffer):
            data = bytes(self._buffer[offset : offset + size if size > 0 else None])
        else:
            try:
                data = self._stream.read(size if size > 0 else CHUNK)
                if not data and self._size is not None and self._position < self._size:
                    raise ConnectionError(
                        f"the file ended at byte {self._position} of {self._size}"
                    )
            except OSError as error:
                self.broken = error
                raise
            self._buffer += data
        self._position += len(data)
        return data

    def peek(self, position: int, size: int) -> bytes:
        """Bytes at a position that is still in memory."""
        offset = position - self._start
        return bytes(self._buffer[offset : offset + size])

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        """Return to a position that is still in memory."""
        assert whence == 0
        assert self._start <= position <= self._start + len(self._buffer)
        self._position = position
        return position

    def close(self) -> None:
        """Nothing: who opened the stream closes it."""

    def rewind(self) -> int:
        """Return to the first position that is still in memory."""
        self._position = self._start
        if not self._buffer:
            self.read(CHUNK)
            self._position = self._start
        return self._start

    def keep(self, position: int) -> None:
        """Forget the bytes before `position`."""
        del self._buffer[: max(0, position - self._start)]
        self._start = max(self._start, position)

    def find(self, pattern: bytes, position: int) -> int:
        """Go to the next `pattern` from `position` on; -1 where there is none."""
        self.seek(position)
        overlap = b""
        while data := self.read(CHUNK):
            overlap += data
            if (offset := overlap.find(pattern)) >= 0:
                offset += self._position - len(overlap)
                self.seek(offset)
                return offset
            overlap = overlap[1 - len(pattern) :]
            self.keep(self._position - len(overlap))
        return -1


def chunks(tape: Tape) -> Chunks:
    """(offset of a gzip member or frame, decompressed bytes) from the first byte that the tape
    holds; of a file that is not compressed (offset of its first byte, bytes). A Break where a
    member breaks off.
    """
    start = tape.rewind()
    if tape.peek(start, len(GZIP)) == GZIP:
        return _inflated(tape)
    codec = FRAMES.get(tape.peek(start, FRAME_MAGIC))
    return _frames(tape, codec) if codec else _plain(tape)


def _plain(tape: Tape) -> Chunks:
    start = tape.tell()
    while chunk := tape.read(CHUNK):
        tape.keep(tape.tell())
        yield start, chunk


def _inflated(tape: Tape) -> Chunks:
    """Members where they are expected, and behind a broken one where their magic bytes are. Bytes
    that only look like a member are passed over silently."""
    start = expected = tape.tell()
    whole = True
    while True:
        if whole and _lost_its_magic(tape, expected):
            yield expected, Break.DAMAGED
        if (start := tape.find(GZIP, expected)) < 0:
            return
        member, is_member, whole = zlib.decompressobj(31), start == expected, False
        broken = Break.CUT
        try:
            while not member.eof and (data := tape.read(CHUNK)):
                before = member.copy()
                chunk = member.decompress(data)
                tape.keep(max(start, tape.tell() - WINDOW))
                is_member = True
                yield start, chunk
            whole = member.eof
            if whole:
                expected = tape.tell() - len(member.unused_data)
            else:  # damage can make it run over the members behind it, to the end of the file
                expected = max(start + 1, tape.rewind())
        except zlib.error:
            broken = Break.DAMAGED
            for chunk in _until_error(before, data):
                is_member = True
                yield start, chunk
            expected = max(start + 1, tape.rewind())
        if is_member and not whole:
            yield start, broken


def _lost_its_magic(tape: Tape, position: int) -> bool:
    """Whether a member begins here whose magic bytes are damaged, or cut off at the file's end."""
    tape.seek(position)
    head = tape.read(CHUNK)
    if head[: len(GZIP)] in (b"", GZIP):
        return False
    with suppress(zlib.error):
        text = zlib.decompressobj(-15).decompress(head[GZIP_HEAD:], len(b"WARC/"))
        if text == b"WARC/":
            return True
    return GZIP.startswith(head)


def _frames(tape: Tape, codec: str) -> Chunks:
    """As `_inflated`, of zstd or LZ4. A frame ends where the magic bytes of the next one are."""
    start = tape.tell()
    magic = tape.peek(start, FRAME_MAGIC)
    while start >= 0:
        frame = _Frame(tape, start, magic)
        broken: Break | None = None
        try:
            with pa.CompressedInputStream(pa.PythonFile(frame, mode="r"), codec) as unpacked:
                while chunk := unpacked.read(CHUNK):
                    yield start, chunk
        except OSError:  # that of the stream itself goes on
            if tape.broken:
                raise
            frame.read_on()
            broken = Break.CUT if frame.following < 0 else Break.DAMAGED
        if broken:
            yield start, broken
        start = frame.following


class _Frame(io.RawIOBase):
    """A file for the decoder: the bytes of a frame. `following`: where the next one begins; -1
    where none does.
    """

    def __init__(self, tape: Tape, start: int, magic: bytes) -> None:
        self._tape, self._magic = tape, magic
        self._is_first, self._is_read, self.following = True, False, -1
        tape.seek(start)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes, some of them; b"" at the end."""
        tape = self._tape
        tape.keep(tape.tell())
        data = b""
        while not self._is_read and (more := tape.read(CHUNK)):
            data += more
            if (end := data.find(self._magic, int(self._is_first))) >= 0:
                self._is_read = True
                data, self.following = data[:end], tape.tell() - len(data) + end
                tape.seek(self.following)
            elif len(data) >= CHUNK:  # the next magic bytes may have begun
                tape.seek(tape.tell() - FRAME_MAGIC + 1)
                data = data[: 1 - FRAME_MAGIC]
                break
        self._is_first = False
        return data

    def read_on(self) -> None:
        """To the end of a frame that its decoder has given up."""
        while self.read():
            pass


def _until_error(member: Any, data: bytes) -> Iterator[bytes]:
    """What can be had of a chunk in which the deflate stream breaks."""
    with suppress(zlib.error):
        for start in range(0, len(data), STEP):
            if chunk := member.decompress(data[start : start + STEP]):
                yield chunk


# --------------------------------------------------------------------------------------------------
# The records of a WAT or WARC file, good and damaged.
#
# FastWARC reads what is well formed. From the first record on that is not (another line ending, a
# wrong length, a broken gzip member, several records in one member) a tolerant scan takes over: it
# uses a record's length only where the record ends there, and looks for the next gzip member behind
# a broken one.


COMPRESSED = (GZIP, *(magic[: len(GZIP)] for magic in FRAMES))
START = re.compile(rb"(?m)^WARC/\d\.\d\r?$")
LENGTH = re.compile(rb"(?im)^Content-Length:[ \t]*(\d{1,18})[ \t]*\r?$")
GAP = b"\r\n\r\n"  # between two records
OVERLAP = 16  # bytes that are searched again: a record's first line may be cut in two
R = TypeVar("R")


class Form(NamedTuple, Generic[R]):
    """Which records of an archive are read, and what is kept of one."""

    types: WarcRecordType
    whole: Callable[[Any, bytes], R | None]  # FastWARC's record, its block; None: it is damaged
    # Head and block of any record; [] where it is of another type
    scanned: Callable[[bytes, bytes], list[R | None]]


def records(path: str, form: Form[R]) -> Iterator[tuple[int, R | None]]:
    """(offset, record) of the records of a form in order; None for one that is damaged.

    The offset is that of the record's gzip member; of a record that shares one with records before
    it, plus its position in the decompressed bytes. Memory is bounded by LONGEST_RECORD. FastWARC
    skips damage in a file that is not compressed silently, so such a file is scanned.
    """
    waiting: tuple[int, R] | None = None  # until the next record shows that it ended as it should
    given = 0  # records at the start of the tape that were yielded already
    with disk.open_stream(path) as stream:
        tape = Tape(stream)
        beginning = tape.peek(tape.rewind(), len(GZIP))
        try:
            if beginning in COMPRESSED:
                for record in ArchiveIterator(tape, record_types=form.types, parse_http=False):
                    offset, size = record.stream_pos, record.content_length
                    if size > LONGEST_RECORD or tape.peek(offset, len(GZIP)) not in COMPRESSED:
                        break
                    # With its length given, `read` takes 1 us a page less.
                    block = record.reader.read(size)
                    kept = form.whole(record, block) if len(block) == size else None
                    if kept is None or (waiting and offset <= waiting[0]):
                        break
                    if waiting:
                        yield waiting
                        tape.keep(waiting[0])
                        given = 1
                    waiting = offset, kept
        except OSError:  # damage: the scan counts it
            if tape.broken:
                raise
        rest = scan(tape, form)
        yield from islice(rest, given, None)


def scan(tape: Tape, form: Form[R]) -> Iterator[tuple[int, R | None]]:
    """What `records` yields, from what a tape holds: a record ends where its length says so if
    nothing but the next record follows, and else where the next begins. The last records of a
    damaged member are damaged, by DOUBTFUL.
    """
    buffer, member, position = b"", -1, 0  # position: of the buffer in the member's bytes
    last: deque[tuple[int, R | None]] = deque()  # records of the member that may be wrong
    for offset, chunk in chunks(tape):
        if offset != member:
            yield from last
            last.clear()
            yield from _split(buffer, member + position, form, final=True)[0]
            buffer, member, position = b"", offset, 0
        if isinstance(chunk, Break):
            if chunk is Break.DAMAGED:
                last = deque((start, None) for start, _ in last)
            yield from last
            if chunk is Break.CUT or not last or START.search(buffer):
                yield member + position, None
            buffer = b""
            last.clear()
            continue
        buffer += chunk
        complete, end = _split(buffer, member + position, form, final=False)
        last.extend(complete)
        buffer, position = buffer[end:], position + end
        while last and last[0][0] < member + position - DOUBTFUL:
            yield last.popleft()
    yield from last
    yield from _split(buffer, member + position, form, final=True)[0]


def _split(
    data: bytes, offset: int, form: Form[R], *, final: bool
) -> tuple[list[tuple[int, R | None]], int]:
    """The complete records of `data`, which begins at `offset`, and where what is left over begins.
    `final`: no more bytes follow."""
    complete: list[tuple[int, R | None]] = []
    end = 0
    while start := START.search(data, end):
        begin = start.start()
        head = END_OF_HEAD.search(data, start.end())
        if head is None:
            return [*complete, (offset + begin, None)] if final else complete, begin
        body = head.end()
        stop = _end_of_block(data, begin, body, final=final)
        if stop is None:
            return complete, begin
        kept: list[R | None] = [None]
        if stop - body <= LONGEST_RECORD:
            kept = form.scanned(data[begin:body], data[body:stop])
        complete += [(offset + begin, each) for each in kept]
        end = stop
    return complete, len(data) if final else max(end, len(data) - OVERLAP)


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


def record_at(path: str, offset: int, form: Form[R]) -> R:
    """The record at an offset, as `records` gives it. ValueError where no whole one begins there.

    A record that shares a gzip member with records before it has no place of its own in the file:
    then, and where a server serves no ranges, the file is read from its beginning.
    """
    with disk.open_stream(path) as stream, suppress(ValueError):
        stream.seek(offset)
        tape = Tape(stream, offset)
        if tape.peek(tape.rewind(), 5).startswith((GZIP, b"WARC/")):
            rest = scan(tape, form)
            first = next(rest, None)
            if first and first[0] == offset and first[1] is not None:
                return first[1]
    for start, record in records(path, form):
        if start == offset and record is not None:
            return record
        if start > offset:
            break
    raise ValueError(f"{path} has no whole record of a page at byte {offset}")


# --------------------------------------------------------------------------------------------------
# The metadata records of a WAT file: one JSON object each.


METADATA = re.compile(rb"(?im)^WARC-Type:\s*metadata\s*$")


def _whole_json(_: object, block: bytes) -> bytes | None:
    return block if block[:1] == b"{" and block[-1:] == b"}" else None


def _scanned_json(head: bytes, block: bytes) -> list[bytes | None]:
    if not METADATA.search(head):
        return []
    body = block.strip()
    if not body.endswith(b"}"):  # what follows the JSON's line is no part of it
        body = body.partition(b"\n")[0].rstrip()
    return [body if body.startswith(b"{") else None]


JSON_RECORDS: Form[bytes] = Form(WarcRecordType.metadata, _whole_json, _scanned_json)


# --- the content of a record ----------------------------------------------------------------------

L = TypeVar("L")
# Common Crawl's writer decodes the character references of links and texts since CC-MAIN-2019-26.
UNESCAPED_SINCE = "2019-06"
REFERENCE = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
UNREAD = (msgspec.DecodeError, UnicodeDecodeError)
NONE, NOTHING, EMPTY = msgspec.Raw(b"[]"), msgspec.Raw(b"{}"), msgspec.Raw(b"null")
KINDS = 200  # of links that a Reader learns
USUAL = (
    "FORM@/action",
    "STYLE/#text",
    "IMG@/longdesc",
    "IFRAME@/src",
    "EMBED@/src",
    "AREA@/href",
    "INPUT@/src",
)


class Link(msgspec.Struct, gc=False):  # a hundred a page, and none in a cycle
    path: str = ""
    url: Any = None
    alt: Any = None
    title: Any = None
    text: msgspec.Raw = EMPTY
    rel: Any = None
    type: Any = None


class Rel:
    """The `rel` of a link. `Reader` looks for "license" in it and keeps nothing."""


class Kind(msgspec.Struct, gc=False, tag_field="path"):
    rel: Rel | None = None


class Image(Kind, gc=False, tag="IMG@/src"):
    url: Any = None
    alt: Any = None
    title: Any = None


class Anchor(Kind, gc=False, tag="A@/href"):
    url: Any = None
    text: msgspec.Raw = EMPTY


class Head(msgspec.Struct, gc=False):
    base: Any = msgspec.field(name="Base", default=None)
    metas: msgspec.Raw = msgspec.field(name="Metas", default=NONE)
    links: msgspec.Raw = msgspec.field(name="Link", default=NONE)


class Html(msgspec.Struct, Generic[L], gc=False):
    head: Head = msgspec.field(name="Head", default_factory=Head)
    links: list[L] = msgspec.field(name="Links", default_factory=list)


class Http(msgspec.Struct, Generic[L], gc=False):
    # Of str, or list[str] since 2024-51
    headers: msgspec.Raw = msgspec.field(name="Headers", default=NOTHING)
    html: Html[L] = msgspec.field(name="HTML-Metadata", default_factory=Html)


class MetadataField(msgspec.Struct, gc=False):
    name: Any = msgspec.field(name="Name", default=None)
    value: Any = msgspec.field(name="Value", default=None)


class Metadata(msgspec.Struct, gc=False):
    records: list[MetadataField] = msgspec.field(name="Metadata-Records", default_factory=list)


class Payload(msgspec.Struct, Generic[L], gc=False):
    http: Http[L] = msgspec.field(name="HTTP-Response-Metadata", default_factory=Http)
    metadata: Metadata = msgspec.field(name="WARC-Metadata-Metadata", default_factory=Metadata)


class Warc(msgspec.Struct, gc=False):
    target: Any = msgspec.field(name="WARC-Target-URI", default=None)
    date: Any = msgspec.field(name="WARC-Date", default=None)


class Envelope(msgspec.Struct, Generic[L], gc=False):
    payload: Payload[L] = msgspec.field(name="Payload-Metadata", default_factory=Payload)
    warc: Warc = msgspec.field(name="WARC-Header-Metadata", default_factory=Warc)

    @property
    def page(self) -> str:
        """The address of the page."""
        return text_of(self.warc.target)

    @property
    def is_escaped(self) -> bool:
        """Whether links and texts are as the HTML has them, with its character references."""
        return "" < text_of(self.warc.date) < UNESCAPED_SINCE


class Record(msgspec.Struct, Generic[L], gc=False):
    envelope: Envelope[L] = msgspec.field(name="Envelope", default_factory=Envelope)


_decoder = msgspec.json.Decoder(Record[Link])


def decode(body: bytes) -> Record[Link]:
    """A record's JSON. ValueError (msgspec's errors are such) where it is none."""
    try:
        return _decoder.decode(body)
    except UNREAD:
        return _decoder.decode(mended(body))


class Reader:
    """Decodes records, each link as the struct of its kind, so that a link's kind is its type.

    A kind that is not known makes msgspec refuse the record: it is decoded once more, and the kind
    is known from then on. What is neither image nor anchor has no more than a `rel`.
    """

    def __init__(self) -> None:
        # A link of the last record may have rel=license. A search of the bytes takes 6 us.
        self.named = False
        self._kinds: dict[str, Any] = {"IMG@/src": Image, "A@/href": Anchor}
        self._learn(USUAL)

    def _learn(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path not in self._kinds and len(self._kinds) < KINDS:
                self._kinds[path] = msgspec.defstruct(
                    "Other", [], bases=(Kind,), tag=path, gc=False
                )
        links: Any = Union[tuple(self._kinds.values())]  # noqa: UP007  (X | Y is for types that are known here)
        self._decode = msgspec.json.Decoder(Record[links], dec_hook=self._rel).decode

    def _rel(self, kind: type, value: object) -> Rel:
        if "license" in str(value).lower():
            self.named = True
        return REL

    def __call__(self, body: bytes) -> Record[Any]:
        """ValueError where it is no JSON, or another's."""
        self.named = False
        try:
            return self._decode(body)
        except UNREAD:
            record: Record[Any] = _decoder.decode(body)
        html = record.envelope.payload.http.html
        self.named = any("license" in str(link.rel).lower() for link in html.links if link.rel)
        if unknown := {link.path for link in html.links if link.path} - self._kinds.keys():
            self._learn(unknown)
        html.links = [_of_kind(link) for link in html.links]
        return record


REL = Rel()


def _of_kind(link: Link) -> Kind:
    if link.path == "IMG@/src":
        return Image(url=link.url, alt=link.alt, title=link.title)
    return Anchor(url=link.url, text=link.text) if link.path == "A@/href" else Kind()


def mended(body: bytes) -> bytes:
    """A record without what strict JSON may not hold: bytes that are not UTF-8, and halves of
    surrogate pairs.
    """
    text = json.dumps(json.loads(body.decode("utf-8", "replace")), ensure_ascii=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def unescaped(value: object) -> Any:
    """A text with its character references decoded; any other value as it is."""
    if type(value) is not str or "&" not in value:
        return value
    return REFERENCE.sub(lambda reference: unescape(reference[0]), value)


def text_of(value: Any) -> str:
    """A header or attribute as one text; of a repeated one the first."""
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) else ""


# --------------------------------------------------------------------------------------------------
# A WAT file as pairs: links, resolved URLs, and what the page says about itself.
#
# Format: what Common Crawl's writer (ia-web-commons) leaves: for each page three `metadata`
# records (of the WARC's request, response and metadata records), each one JSON object on one
# line, usually one gzip member each. Of a page's 20 KB of JSON a pair needs one tenth: the rest
# is passed over undecoded until it is asked for, and columns are built a batch at a time. Figures
# in comments are of a page of benchmarks/fetching/crawl.py, of which FastWARC's bare reading
# takes 52 us.


ROWS = 10_000  # of a batch, at least
# Records that are inflated before their JSON is read. One by one is 20 us slower, by the caches.
AT_ONCE = 15
IMAGE, IMAGE_ESCAPED = b"IMG@/src", b"IMG@\\/src"  # some writers escape every slash
LANGUAGES = b"languages-cld2"
IMAGE_URL = re.compile(r"(?i)\.(?:jpe?g|png|webp|gif|avif|bmp|tiff?)[\x00-\x20]*(?:[?#]|\Z)")
SUFFIX = 5  # characters at the end of an image's name in which its dot is
COMMONS = "creativecommons.org/"
LICENSES = (COMMONS + "licenses/", COMMONS + "publicdomain/")
# Names of most meta tags, which have no signals for robots; nor has one with a colon, as og:image.
QUIET_TAGS = frozenset(
    (
        "viewport", "description", "keywords", "generator", "author", "HTML@/lang", "theme-color",
        "msvalidate.01", "google-site-verification", "format-detection",
        "msapplication-TileColor", "msapplication-TileImage",
    )
)  # fmt: skip
ONE_CRAWLERS_TAGS = ("img2dataset", "anthropic-ai")  # beside *bot and *-extended
SIGNALS = frozenset(
    ("x-robots-tag", "tdm-reservation", "tdm-policy", "content-usage", "content-signal")
)
RSL = "rsl+xml"  # in the type of a link to a licence in the form of RSL

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
    header: Any = msgspec.field(name="http-equiv", default=None)
    property: Any = None


_detected, _metas = msgspec.json.Decoder(Detected), msgspec.json.Decoder(list[Meta] | None)
_headers, _links = msgspec.json.Decoder(dict[str, Any] | None), msgspec.json.Decoder(list[Link])
_value = msgspec.json.Decoder()
_json = json.JSONEncoder(ensure_ascii=False)  # json.dumps makes one a call


# --- pages ----------------------------------------------------------------------------------------


class RecordPair(NamedTuple):
    """What a record says about one of its links."""

    url: str
    caption: str
    page_url: str


@dataclass(slots=True)
class PagePairs:
    """What a page says, and its pairs: (digest, url, caption, title, anchor, number of the
    image)."""

    url: str
    offset: int
    metas: list[Meta]
    robots: str | None
    license: str | None
    language: str | None
    pairs: list[tuple[bytes, str, str, str | None, str | None, int]]


def _pages(path: str, counts: Counter[str]) -> Iterator[PagePairs]:
    """Every page that has pairs. Its language is in the record after it, so that the page waits."""
    page: PagePairs | None = None
    reader, source = Reader(), records(path, JSON_RECORDS)
    groups = iter(lambda: list(islice(source, AT_ONCE)), [])
    for offset, body in chain.from_iterable(groups):
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


def pairs_of_wat_record(path: str, offset: int) -> dict[int, RecordPair]:
    """{link: pair} of the metadata record at `offset` (`warc_offset` of PAIRS) of a WAT.

    ValueError where no such record begins there, or it is damaged.
    """
    body = record_at(path, offset, JSON_RECORDS)
    try:
        page = _readable_page(Reader(), body, offset, Counter())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the record at byte {offset} of {path} cannot be read") from error
    return {pair[-1]: RecordPair(pair[1], pair[2], page.url) for pair in page.pairs}


def _readable_page(reader: Reader, body: bytes, offset: int, counts: Counter[str]) -> PagePairs:
    try:
        return _page(reader, body, offset, counts)
    except UNREAD:
        return _page(reader, mended(body), offset, counts)


def _page(reader: Reader, body: bytes, offset: int, counts: Counter[str]) -> PagePairs:
    """The page of `body`. `counts` does not change before all of it is read."""
    envelope = reader(body).envelope
    http, url = envelope.payload.http, envelope.page
    head, links = http.html.head, http.html.links
    if envelope.is_escaped:
        head.base = unescaped(head.base)
        for link in links:
            _unescape(link)
    base = _base(url, head.base) if head.base else url
    links.append(None)  # behind the last
    images = [position for position, link in enumerate(links) if type(link) is Image]
    pairs, reasons = _pairs(base, links, images)
    metas = _metas.decode(head.metas) or []
    license: str | None = None
    terms: list[str] = []
    names_license = reader.named or b"license" in bytes(head.links).lower()
    if names_license or _holds(body, b"creativecommons.org"):
        license, terms = _license(body, base)  # of one page in fifteen
    robots = _robots(metas, http.headers, terms)
    counts["links"] += len(images)
    counts["pairs"] += len(pairs)
    if reasons:
        reject_images(counts, reasons, url, lambda number: links[images[number]].url)
    return PagePairs(url, offset, metas, robots, license, None, pairs)


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


def _unescape(link: object) -> None:
    if type(link) is Image:
        link.url, link.alt = unescaped(link.url), unescaped(link.alt)
        link.title = unescaped(text_of(link.title))
    elif type(link) is Anchor:
        link.url = unescaped(link.url)
        if link.text is not EMPTY:
            text = unescaped(text_of(_value.decode(link.text)))
            link.text = msgspec.Raw(_json.encode(text).encode())


def _base(page: str, base: object) -> str:
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


def _robots(metas: Sequence[Meta], headers: msgspec.Raw, terms: Sequence[str]) -> str | None:
    """The signals of page and headers for robots, raw, as JSON; None where there are none.
    `terms`: the page's links to licences of RSL.
    """
    tags = []
    for meta in metas:
        name = meta.name or meta.header or meta.property
        if name and not (type(name) is str and (name in QUIET_TAGS or ":" in name)):
            tags.append((text_of(name).strip().lower(), text_of(meta.content)))
    lines = []
    for name, value in (_headers.decode(headers) or {}).items():
        if (low := name.lower()) in SIGNALS or low == "link":
            values = value if isinstance(value, list) else [value]
            lines += [(low, text) for text in values if isinstance(text, str)]
    if not (tags or lines or terms):
        return None
    signals = signals_of(tags, lines, terms)
    return _json.encode(signals) if signals else None


def signals_of(
    metas: Iterable[tuple[str, str]],
    headers: Iterable[tuple[str, str]],
    terms: Iterable[str] = (),
) -> dict[str, list[str]]:
    """The signals for robots in a page's tags, headers (names in lower case) and links, raw; {}
    where there are none.
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
        elif name == "link" and RSL in value.lower():
            signals.setdefault("license", []).append(value)
    for url in terms:
        signals.setdefault("license", []).append(
            f'<{url}>; rel="license"; type="application/{RSL}"'
        )
    return signals if any(signals.values()) else {}


def _license(body: bytes, base: str) -> tuple[str | None, list[str]]:
    """The first link with rel=license, else the first to Creative Commons; and those of RSL."""
    html = decode(body).envelope.payload.http.html
    links = [*_links.decode(html.head.links), *html.links]
    named = [link for link in links if link.rel and "license" in text_of(link.rel).lower().split()]
    commons = [link for link in links if COMMONS in text_of(link.url)]
    commons = [link for link in commons if any(part in link.url for part in LICENSES)]
    terms = [text_of(link.url) for link in named if RSL in text_of(link.type).lower()]
    for link in chain(named, commons):
        with suppress(ValueError):
            return resolve(base, text_of(link.url)), terms
    return None, terms


def _html_language(page: PagePairs) -> str | None:
    """The language that the page declares at its <html>."""
    for meta in page.metas:
        if meta.name == "HTML@/lang":
            return text_of(meta.content).strip().lower().replace("_", "-").partition("-")[0] or None
    return None


def _language(body: bytes, page: PagePairs) -> str | None:
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


def batches_of_wat(path: str, counts: Counter[str]) -> Iterator[pa.RecordBatch]:
    """The image links with alternative text of a WAT (a local path or an fsspec URL) in document
    order, as batches of PAIRS.

    `counts` gets `links` and `pairs`, every reason for which a link is no pair, and
    `damaged_records`, which are no links: links = pairs + Σ reasons. A WAT keeps a page's last
    <base> where browsers take the first.
    """
    name = path if disk.is_url(path) else disk.local_path(path).name
    pages: list[PagePairs] = []
    rows = 0
    for page in _pages(path, counts):
        pages.append(page)
        rows += len(page.pairs)
        if rows >= ROWS:
            yield _batch(pages, name)
            pages, rows = [], 0
    if pages:
        yield _batch(pages, name)


def _batch(pages: Sequence[PagePairs], wat: str) -> pa.RecordBatch:
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
