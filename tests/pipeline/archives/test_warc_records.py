"""WARC records good and damaged: each is read at its offset, or counted; memory stays bounded."""

from __future__ import annotations

import gzip
import random
import zlib
from pathlib import Path

import pytest

from clipmill.manifests.schema import Source
from clipmill.pipeline.archives.warc import PAGE_RECORDS
from clipmill.pipeline.archives.wat import Tape, records
from clipmill.pipeline.crawl.crawler import crawl
from clipmill.pipeline.pool.lease import PoolWriter
from tests.support.warcs import HTML, block, captions, pages, read, record, zipped, zstd


def test_plain_zstd_and_gzip_files_and_their_offsets(tmp_path: Path) -> None:
    parts = [record(b"software: x\r\n", kind="warcinfo"), *pages(3)]
    for name, data in [("x.warc", b"".join(parts)), ("x.warc.gz", zipped(parts))]:
        rows, counts = read(tmp_path / name, data)
        assert captions(rows) == ["caption 0", "caption 1", "caption 2"]
        assert {row["wat"] for row in rows} == {name}
        for row, part in zip(rows, parts[1:], strict=True):
            there = data[row["warc_offset"] :]
            plain = zlib.decompressobj(31).decompress(there) if name.endswith(".gz") else there
            assert plain.startswith(part[:60])
        assert not counts["damaged_records"]
    assert len(read(tmp_path / "x.warc.zst", zstd(parts[1]) + zstd(parts[2]))[0]) == 2


def flipped(data: bytes) -> bytes:
    """A gzip member whose deflate stream breaks."""
    bad = bytearray(data)
    bad[40:44] = b"\xff\xff\xff\xff"
    return bytes(bad)


def members() -> list[bytes]:
    return [gzip.compress(part, mtime=0) for part in pages(4)]


P = pages(4)
LONG, SHORT = (record(block(HTML % (1, 1)), "http://p.test/1", extra=by) for by in (100, -30))
HUGE = record(block(HTML % (1, 1)), "http://p.test/1", extra=1 << 40)


@pytest.mark.parametrize(
    ("data", "kept", "damaged"),
    [
        (gzip.compress(b"".join(P)), "0123", 0),
        (b"\r\n" + b"".join(P), "0123", 0),
        (zipped([P[0], LONG, P[2], P[3]]), "0123", 0),
        (zipped([P[0], SHORT, P[2], P[3]]), "0123", 0),
        (zipped([P[0], HUGE, P[2], P[3]]), "0123", 0),
        (P[0] + LONG + P[2] + P[3], "0123", 0),
        (P[0] + SHORT + P[2] + P[3], "0123", 0),
        (P[0] + HUGE + P[2] + P[3], "0123", 0),
        (b"".join([members()[0], flipped(members()[1]), *members()[2:]]), "023", 1),
        (b"".join([flipped(members()[0]), *members()[1:]]), "123", 1),
        (b"".join([members()[0], members()[1][:-60], *members()[2:]]), "023", 1),
        (b"".join([*members()[:2], b"rubbish" * 9, *members()[2:]]), "0123", 0),
        (b"".join(members())[:-60], "012", 1),
        (b"".join(members()[:3]) + flipped(members()[3]), "012", 1),
        (b"".join(P)[:-8], "0123", 0),
        (b"", "", 0),
    ],
    ids=["one member", "a blank first line", "too long", "too short", "huge", "plain too long",
         "plain too short",
         "plain huge", "a flip", "a flip in the first", "a cut", "rubbish", "a cut at the end",
         "a flip in the last",
         "plain and cut", "empty"],
)  # fmt: skip
def test_damage_costs_the_record_that_it_hits(
    data: bytes, kept: str, damaged: int, tmp_path: Path
) -> None:
    rows, counts = read(tmp_path / "x.warc.gz", data)
    assert captions(rows)[: len(kept)] == [f"caption {k}" for k in kept]
    assert counts["damaged_records"] == damaged


@pytest.mark.parametrize("in_member", [1, 3])
def test_no_page_of_a_damaged_member_is_wrong(in_member: int, tmp_path: Path) -> None:
    """Whichever bit flips: a page is right, or it is a damaged record."""
    texts = [record(block(HTML % (i, i)), f"http://p.test/{i}") for i in range(2 * in_member)]
    members = [b"".join(texts[k : k + in_member]) for k in (0, in_member)]
    whole = zipped(members)
    right = {f"caption {i}" for i in range(2 * in_member)}
    for at in range(24, 8 * len(zipped(members[:1])), 7):
        data = bytearray(whole)
        data[at // 8] ^= 1 << at % 8
        rows, counts = read(tmp_path / "x.warc.gz", bytes(data))
        assert set(captions(rows)) <= right
        assert {f"caption {i}" for i in range(in_member, 2 * in_member)} <= set(captions(rows))
        assert len(rows) == 2 * in_member or counts["damaged_records"]


def test_a_frame_of_several_records_and_one_that_is_cut(tmp_path: Path) -> None:
    several = zstd(b"".join(P[:3]))
    rows, counts = read(tmp_path / "x.warc.zst", several + zstd(P[3]))
    assert (captions(rows), counts["damaged_records"]) == ([f"caption {i}" for i in range(4)], 0)
    rows, counts = read(tmp_path / "x.warc.zst", several[:-5] + zstd(P[3]))
    assert (captions(rows)[-1], bool(counts["damaged_records"])) == ("caption 3", True)


def test_one_member_of_more_than_a_chunk(tmp_path: Path) -> None:
    noise = [str(zlib.crc32(bytes([i % 251, i // 251]))) for i in range(20_000)]
    parts = [
        record(block((HTML % (i, i)) + "".join(noise[i::7]).encode()), f"http://p.test/{i}")
        for i in range(7)
    ]
    rows, counts = read(tmp_path / "x.warc.gz", gzip.compress(b"".join(parts)))
    assert captions(rows) == [f"caption {i}" for i in range(7)]
    assert not counts["damaged_records"]


def test_memory_stays_bounded_by_the_record_and_not_by_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    keep = Tape.keep

    def watched(self: Tape, position: int) -> None:
        keep(self, position)
        sizes.append(len(self._buffer))

    monkeypatch.setattr(Tape, "keep", watched)
    noise = bytes(zlib.crc32(bytes([i % 251, i // 251])) % 251 for i in range(50_000))
    parts = [record(block((HTML % (i, i)) + noise), f"http://p.test/{i}") for i in range(60)]
    (tmp_path / "x.warc.gz").write_bytes(zipped(parts))
    assert len(list(records(str(tmp_path / "x.warc.gz"), PAGE_RECORDS))) == 60
    assert max(sizes) < 400_000 < (tmp_path / "x.warc.gz").stat().st_size


def test_two_hundred_damaged_files_raise_nothing_and_their_counts_add_up(tmp_path: Path) -> None:
    rng = random.Random(0)
    kinds = [zipped(pages(6)), b"".join(pages(6)), gzip.compress(b"".join(pages(6)), mtime=0)]
    kept = 0
    for k in range(200):
        data = bytearray(kinds[k % 3])
        for _ in range(rng.choice([1, 1, 2, 8])):
            offset = rng.randrange(len(data))
            if rng.random() < 0.5:
                data[offset] ^= 1 << rng.randrange(8)
            elif rng.random() < 0.5:
                del data[offset : offset + rng.randrange(1, 200)]
            else:
                data[offset:offset] = rng.randbytes(rng.randrange(1, 100))
        kept += len(read(tmp_path / "x.warc.gz", bytes(data))[0])
    assert kept > 2 * 200


def test_an_address_that_is_not_utf8_costs_nothing(tmp_path: Path) -> None:
    some = [part.replace(b"http://p.test/1", b"http://p.test/\xe9\xff") for part in pages(3)]
    for name, data in (("x.warc.gz", zipped(some)), ("x.warc", b"rubbish\n" + b"".join(some))):
        (tmp_path / name).write_bytes(data)
        pool = str(tmp_path / f"pool-{name}")
        totals = crawl(
            Source(kind="warc", paths=(str(tmp_path / name),)), PoolWriter(pool), "inline"
        )
        assert (totals["failed"], totals["pairs"], totals["damaged_records"]) == ({}, 3, 0)
