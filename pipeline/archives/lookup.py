"""The pairs of one record of a WAT or WARC, found again by its offset."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple, TypeVar

import fsspec

from manifests import disk
from pipeline.archives import warc, wat
from pipeline.archives.wat import GZIP, Tape

BEGINNINGS = (GZIP, b"WARC/")  # of a record, compressed and plain
T = TypeVar("T")
Records = Iterator[tuple[int, T | None]]  # offsets, and records; None for one that is damaged


class RecordPair(NamedTuple):
    """What a record says about one of its links."""

    url: str
    caption: str
    page_url: str


def pairs_of_wat_record(path: str, offset: int) -> dict[int, RecordPair]:
    """{link: pair} of the metadata record at `offset` (`warc_offset` of PAIRS) of a WAT.

    ValueError where no such record begins there, or it is damaged.
    """
    body = _record_at(path, offset, wat.scan, wat.records)
    try:
        page = wat.page_of_record(body, offset, Counter())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the record at byte {offset} of {path} cannot be read") from error
    pairs = {}
    for _, url, caption, _, _, link in page.pairs:
        pairs[link] = RecordPair(url, caption, page.url)
    return pairs


def pairs_of_warc_record(path: str, offset: int) -> dict[int, RecordPair]:
    """{link: pair} of the response at `offset` of a WARC. ValueError as of a WAT."""
    stored = _record_at(
        path,
        offset,
        lambda tape: _numbered(warc.scan(tape)),
        lambda name: _numbered(warc.records(name)),
    )
    pairs = {}
    for row in warc.rows_of_response(stored, b"", "", Counter()):
        _, url, caption, *_, link = row
        pairs[link] = RecordPair(url, caption, stored.url)
    return pairs


def _record_at(
    path: str,
    offset: int,
    scan: Callable[[Tape], Records[T]],
    records: Callable[[str], Records[T]],
) -> T:
    """The record at an offset: the first that is read from there on.

    A record that shares a gzip member with records before it has no place of its own in the file:
    then the file is read from its beginning.
    """
    with fsspec.open(path, "rb") as stream:
        for start, record in chain(_scanned(stream, path, offset, scan), records(path)):
            if start == offset and record is not None:
                return record
            if start > offset:
                break
    raise ValueError(f"{path} has no whole record of a page at byte {offset}")


def _scanned(
    stream: io.RawIOBase, path: str, offset: int, scan: Callable[[Tape], Records[T]]
) -> Records[T]:
    """The first record from an offset on, if one begins there; nothing else."""
    try:
        stream.seek(offset)
        tape = Tape(stream, offset)
        tape.rewind()  # reads
    except ValueError:  # a server that serves no ranges
        tape = Tape(io.BytesIO(disk.read_bytes(path)[offset:]), offset)
        tape.rewind()
    if tape.peek(offset, len(BEGINNINGS[1])).startswith(BEGINNINGS):
        first = next(scan(tape), None)
        if first is not None and first[0] == offset:
            yield first


def _numbered(
    records: Iterator[warc.Stored | None],
) -> Records[warc.Stored]:
    """Records with their offsets; those that are damaged have none."""
    for record in records:
        if record is not None:
            yield record.offset, record
