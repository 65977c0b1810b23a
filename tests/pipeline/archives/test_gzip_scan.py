"""A stream that is wound back, and gzip members whole, broken and cut off."""

from __future__ import annotations

import gzip
import io
import random
from typing import Any

import pyarrow as pa
import pytest

from clipmill.pipeline.archives.wat import CHUNK, Break, Tape, chunks

NOISE = [random.Random(k).randbytes(3 * CHUNK) for k in range(3)]
MEMBERS = [gzip.compress(data, mtime=0) for data in NOISE]


def read(data: bytes, start: int = 0) -> list[tuple[int, bytes | None]]:
    """Members with their bytes joined; None for each break."""
    spans: list[tuple[int, bytes | None]] = []
    for offset, given in chunks(Tape(io.BytesIO(data), start)):
        chunk = None if isinstance(given, Break) else given
        if chunk is not None and spans and spans[-1][0] == offset and spans[-1][1] is not None:
            spans[-1] = (offset, spans[-1][1] + chunk)
        else:
            spans.append((offset, chunk))
    return spans


def test_members_come_with_their_offsets_and_bytes() -> None:
    starts = [0, len(MEMBERS[0]), len(MEMBERS[0] + MEMBERS[1])]
    assert read(b"".join(MEMBERS)) == list(zip(starts, NOISE, strict=True))
    assert read(MEMBERS[0], start=1000) == [(1000, NOISE[0])]
    assert read(MEMBERS[0] + b"rubbish" + MEMBERS[1])[-1] == (starts[1] + 7, NOISE[1])


def test_a_file_that_is_not_compressed_is_one_member() -> None:
    assert read(NOISE[0]) == [(0, NOISE[0])]
    assert read(b"") == []


def test_a_broken_member_gives_what_is_in_front_of_the_break_and_the_next_follows() -> None:
    bad = bytearray(MEMBERS[0])
    bad[2 * CHUNK : 2 * CHUNK + 8] = b"\xff" * 8
    spans = read(bytes(bad) + MEMBERS[1])
    assert [offset for offset, data in spans if data is not None][-1] == len(bad)
    assert (0, None) in spans
    assert spans[-1][1] == NOISE[1]


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_frames_come_with_their_offsets_and_a_broken_one_costs_itself(codec: str) -> None:
    texts = [data.hex().encode() for data in NOISE]  # more than a chunk, and repeated
    frames = [bytearray(packed(data, codec)) for data in texts]
    starts = [0, len(frames[0]), len(frames[0] + frames[1])]
    assert read(b"".join(frames)) == list(zip(starts, texts, strict=True))
    frames[1][8:5000] = b"\xff" * 4992
    spans = read(b"".join(frames))
    assert (spans[0], spans[-1]) == ((0, texts[0]), (starts[2], texts[2]))
    assert (starts[1], None) in spans
    cut = read(b"".join(frames)[:-100])
    assert cut[-1] == (starts[2], None)
    assert all(data is None or texts[starts.index(at)].startswith(data) for at, data in cut)


def packed(data: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def test_a_member_whose_magic_is_damaged_is_a_break_and_rubbish_is_none() -> None:
    members = [gzip.compress(b"WARC/1.0 %d" % k, mtime=0) for k in range(3)]
    at = len(members[0])
    for damaged in (b"\0" + members[1][1:], members[1][:2] + b"\0" + members[1][3:]):
        spans = read(members[0] + damaged + members[2])
        assert spans == [
            (0, b"WARC/1.0 0"), (at, None), (at + len(damaged), b"WARC/1.0 2"),
        ]  # fmt: skip
    assert read(members[0] + members[1][:2])[1:] == [(at, None)]
    assert read(members[0] + b"rubbish" + members[2])[1:] == [(at + 7, b"WARC/1.0 2")]


def test_a_member_that_runs_over_those_behind_it_costs_itself_only() -> None:
    stored = b"\x01\xff\xff\x00\x00"  # the head of a last block of 65,535 bytes, not compressed
    small = [gzip.compress(data[:500], mtime=0) for data in NOISE]
    bad = small[0][:10] + stored + NOISE[0][:500]
    spans = read(bad + small[1] + small[2])
    assert spans[1:] == [
        (0, None),
        (len(bad), NOISE[1][:500]),
        (len(bad + small[1]), NOISE[2][:500]),
    ]
    assert spans[0][0] == 0
    assert (spans[0][1] or b"").startswith(NOISE[0][:500])


def test_a_tape_is_wound_back_to_what_it_keeps() -> None:
    tape = Tape(io.BytesIO(b"0123456789"))
    assert tape.read(4) == b"0123"
    tape.keep(2)
    assert (tape.rewind(), tape.read(3), tape.tell()) == (2, b"23", 4)
    assert (tape.read(1), tape.rewind(), tape.read(1), tape.read(-1)) == (b"4", 2, b"2", b"34")
    assert (tape.read(-1), tape.rewind()) == (b"56789", 2)
    assert (tape.find(b"78", 4), tape.read(2), tape.find(b"x", 9)) == (7, b"78", -1)
    with pytest.raises(AssertionError):
        tape.seek(0)


def test_a_stream_that_ends_before_its_size_is_a_broken_connection() -> None:
    class Short(io.BytesIO):
        size = 10

    tape = Tape(Short(b"abc"))
    assert tape.read() == b"abc"
    with pytest.raises(ConnectionError, match="ended at byte 3 of 10"):
        tape.read()
    error: Any = tape.broken
    assert isinstance(error, ConnectionError)
