"""The metadata records of a WAT file, however it is written.

FastWARC reads what is well formed. From the first record on that is not (another line ending, a wrong length, a broken
gzip member, several records in one member) a tolerant scan takes over, which believes neither lengths nor members.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice, pairwise
from typing import Any

import fsspec
from fastwarc.warc import ArchiveIterator, WarcRecordType

from manifests import disk

GZIP = b"\x1f\x8b\x08"
CHUNK = 1 << 14
STEP = 256  # bytes of a broken chunk that are lost with it
LONGEST_RECORD = 1 << 26  # a larger length is taken for damage: reading it would swallow the file
OVERLAP = 16  # bytes that are searched again with the next chunk: a record's first line has 10
START = re.compile(rb"WARC/\d\.\d\r?\n")  # a literal beginning is searched 5 times faster than a line's
END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
METADATA = re.compile(rb"(?im)^WARC-Type:\s*metadata\s*$")


def records(path: str) -> Iterator[tuple[int, bytes | None]]:
    """(offset, JSON) of every metadata record in order; None for one that is damaged.

    The offset is that of the record's gzip member; of a record that shares one with records before it, plus its place
    in the decompressed bytes. FastWARC is believed as long as its offsets rise and its bodies are whole; of a file that
    is not compressed it passes over what is damaged without a word, so that is scanned.
    """
    plain = not path.endswith(".gz") if disk.is_url(path) else disk.read_bytes(path, 0, len(GZIP)) != GZIP
    given: int | None = None
    held: tuple[int, bytes] | None = None
    with fsspec.open(path, "rb") as stream:
        try:
            whole = ArchiveIterator(stream, record_types=WarcRecordType.metadata, parse_http=False)
            for record in () if plain else whole:
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
    plain = ((0, data[at : at + CHUNK]) for at in range(0, len(data), CHUNK))
    for at, chunk in _inflated(data) if data.startswith(GZIP) else plain:
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
