"""The metadata records of a WAT file, however it is written, and what they say.

FastWARC reads what is well formed. From the first record on that is not (another line ending, a
wrong length, a broken gzip member, several records in one member) a tolerant scan takes over, which
believes neither lengths nor members.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import Any, Generic, TypeVar, Union

import fsspec
import msgspec
from fastwarc.warc import ArchiveIterator, WarcRecordType

from manifests import disk
from pipeline.archives.gzip_scan import END_OF_HEAD, GZIP, LONGEST_RECORD, Tape, chunks

OVERLAP = 16  # bytes that are searched again with the next chunk: a record's first line has 10
# A literal beginning is searched 5 times faster than a line's
START = re.compile(rb"WARC/\d\.\d\r?\n")
METADATA = re.compile(rb"(?im)^WARC-Type:\s*metadata\s*$")


def records(path: str) -> Iterator[tuple[int, bytes | None]]:
    """(offset, JSON) of every metadata record in order; None for one that is damaged.

    The offset is that of the record's gzip member; of a record that shares one with records before
    it, plus its position in the decompressed bytes. FastWARC is used while its offsets increase and
    its bodies are whole. It skips damage in an uncompressed file silently, so such a file is
    scanned.
    """
    if disk.is_url(path):
        plain = not path.endswith(".gz")
    else:
        plain = disk.read_bytes(path, 0, len(GZIP)) != GZIP
    last_given: int | None = None
    with fsspec.open(path, "rb") as stream:
        try:
            for record in () if plain else _whole_records(stream):
                yield record
                last_given = record[0]
        except OSError:
            pass  # damage: the scan counts it. A broken connection breaks the scan too, and raises
        start, known = (0, 0) if last_given is None else (last_given, 1)
        try:
            stream.seek(start)
            tape = Tape(stream, start)
        except ValueError:  # a server that serves no ranges
            tape = Tape(io.BytesIO(disk.read_bytes(path)[start:]), start)
        yield from islice(scan(tape), known, None)


def _whole_records(stream: Any) -> Iterator[tuple[int, bytes]]:
    """Records by FastWARC until the first that is damaged. A record is given when the next has
    shown that it ended where it should: the last one is left to the scan."""
    waiting: tuple[int, bytes] | None = None
    for record in ArchiveIterator(
        stream, record_types=WarcRecordType.metadata, parse_http=False, inplace=True
    ):
        length = record.content_length
        if length > LONGEST_RECORD:
            return
        # With its length given, `read` takes 1 us a page less.
        offset, body = record.stream_pos, record.reader.read(length)
        if body[:1] != b"{" or body[-1:] != b"}" or (waiting and offset <= waiting[0]):
            return
        if waiting:
            yield waiting
        waiting = (offset, body)


def scan(tape: Tape) -> Iterator[tuple[int, bytes | None]]:
    """What `records` yields, from what a tape holds: a record begins where a line says so."""
    buffer, member, position = b"", -1, 0  # position: of the buffer in the member's bytes
    for offset, chunk in chunks(tape):
        if offset != member:
            yield from _metadata(member + position, buffer)
            buffer, member, position = b"", offset, 0
        if chunk is None:
            yield member + position, None
            buffer = b""
            continue
        searched = max(0, len(buffer) - OVERLAP)
        buffer += chunk
        starts = _record_starts(buffer, searched)
        for start, end in pairwise(starts):
            yield from _metadata(member + position + start, buffer[start:end])
        if starts and len(buffer) - starts[-1] > LONGEST_RECORD:
            yield member + position + starts[-1], None
            starts = []
        keep = starts[-1] if starts else max(0, len(buffer) - OVERLAP)
        buffer, position = buffer[keep:], position + keep
    yield from _metadata(member + position, buffer)


def _record_starts(buffer: bytes, searched: int) -> list[int]:
    """Where records begin: at the start of a line. `searched` bytes were searched before."""
    matches = (match.start() for match in START.finditer(buffer, searched))
    starts = [start for start in matches if start and buffer[start - 1 : start] == b"\n"]
    return [0, *starts] if buffer.startswith(b"WARC/") else starts


def _metadata(offset: int, record: bytes) -> Iterator[tuple[int, bytes | None]]:
    """The JSON of a record, if it is a metadata record; None where it has no head or no JSON."""
    if not record.startswith(b"WARC/"):
        return
    head = END_OF_HEAD.search(record)
    if head is None:
        yield offset, None
    elif METADATA.search(record, 0, head.start() + 1):
        body = record[head.end() :].strip()
        if not body.endswith(b"}"):  # what follows the JSON's line is no part of it
            body = body.partition(b"\n")[0].rstrip()
        yield offset, body if body.startswith(b"{") else None


# --- the content of a record ----------------------------------------------------------------------

L = TypeVar("L")
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


class Envelope(msgspec.Struct, Generic[L], gc=False):
    payload: Payload[L] = msgspec.field(name="Payload-Metadata", default_factory=Payload)
    warc: Warc = msgspec.field(name="WARC-Header-Metadata", default_factory=Warc)

    @property
    def page(self) -> str:
        """The address of the page."""
        return text_of(self.warc.target)


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

    def _rel(self, kind: type, value: Any) -> Rel:
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


def text_of(value: Any) -> str:
    """A header or attribute as one text; of a repeated one the first."""
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) else ""
