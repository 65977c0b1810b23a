"""The records of a WARC file, good and damaged.

FastWARC reads what is well formed. From the first record on that is not, a tolerant scan takes
over: it uses a record's length only where the record ends there, and looks for the next gzip member
behind a broken one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import fsspec
from fastwarc.warc import ArchiveIterator, WarcRecordType

from manifests.text import valid_text
from pipeline.archives.gzip_scan import END_OF_HEAD, GZIP, LONGEST_RECORD, Tape, chunks

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
