"""Metadata records of WAT files good and damaged: each is read at its offset, or counted."""

from __future__ import annotations

import gzip
import io
import re
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.pipeline.archives import wat
from clipmill.pipeline.archives.wat import (
    CHUNK,
    JSON_RECORDS,
    KINDS,
    Image,
    Reader,
    Tape,
    decode,
    records,
    scan,
)
from tests.support.wats import (
    INFO,
    PAGE,
    image,
    pages,
    pairs_of_wat,
    read,
    record,
    response,
    zipped,
)


@pytest.mark.parametrize("name", ["a.warc.wat.gz", "a.warc.wat"])
def test_offsets_lead_back_to_the_record(tmp_path: Path, name: str) -> None:
    data = zipped([INFO, *pages(5)]) if name.endswith("gz") else b"".join([INFO, *pages(5)])
    pairs, counts = read(tmp_path, data, name)
    assert [p.caption for p in pairs] == list("01234")
    assert counts["damaged_records"] == 0
    for pair in pairs:
        rest = data[pair.warc_offset :]
        rest = gzip.decompress(rest) if name.endswith("gz") else rest
        assert rest.startswith(b"WARC/1.0")
        assert decode(rest.split(b"\r\n\r\n")[1]).envelope.page == pair.page_url


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("lead", [b"", b"\n", b"\r\n\r\n"])
@pytest.mark.parametrize("length", [None, 5, 100_000, -1])
def test_one_gzip_member_other_line_ends_wrong_lengths_and_blank_first_lines(
    tmp_path: Path, newline: str, lead: bytes, length: int | None
) -> None:
    wrong: dict[str, Any] = {} if length is None else {"length": length}
    bodies = [r.split(b"\r\n\r\n")[1] for r in pages(4)]
    odd = b"".join(
        record(body, newline=newline, lead=lead if i == 0 else b"", **wrong)
        for i, body in enumerate(bodies)
    )
    for name, data in (("one.gz", gzip.compress(odd)), ("none.wat", odd)):
        pairs, counts = read(tmp_path, data, name)
        assert [p.caption for p in pairs] == list("0123")
        assert [odd[p.warc_offset or 0 :].lstrip()[:8] for p in pairs] == [b"WARC/1.0"] * 4
        assert counts["damaged_records"] == 0


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.9])
def test_a_broken_member_costs_its_record(tmp_path: Path, share: float) -> None:
    members = [bytearray(gzip.compress(r, mtime=0)) for r in pages(4)]
    hurt = members[4]  # the response of the second page
    middle = 10 + int((len(hurt) - 20) * share)
    hurt[middle : middle + 4] = b"\xff\x00\xff\x00"
    pairs, counts = read(tmp_path, b"".join(members))
    assert [p.caption for p in pairs] == list("023")
    assert counts["damaged_records"] == 1


def test_a_file_that_ends_early_gives_what_is_there(tmp_path: Path) -> None:
    data = zipped(pages(4))
    last = len(zipped(pages(4)[:10]))
    pairs, counts = read(tmp_path, data[: last + 100])
    assert [p.caption for p in pairs] == list("012")
    assert counts["damaged_records"] == 1


@pytest.mark.parametrize("name", ["a.warc.wat.gz", "a.warc.wat"])
@pytest.mark.parametrize("cut", [1, 2, 4])
def test_the_last_record_needs_no_blank_lines_behind_it(
    tmp_path: Path, name: str, cut: int
) -> None:
    plain = b"".join([*pages(2), pages(3)[7]])[:-cut]
    pairs, counts = read(tmp_path, gzip.compress(plain) if name.endswith("gz") else plain, name)
    assert [p.caption for p in pairs] == list("012")
    assert counts["damaged_records"] == 0


@pytest.mark.parametrize("in_first", range(-5, 18))
def test_a_first_line_that_two_chunks_share_begins_a_record(tmp_path: Path, in_first: int) -> None:
    filled = CHUNK - in_first - len(record(b"", kind="warcinfo"))
    first = record(b" " * (filled - len(str(filled)) + 1), kind="warcinfo")
    assert len(first) == CHUNK - in_first
    pairs, counts = read(tmp_path, b"".join([first, *pages(2)[1:]]), "a.wat")
    assert [p.caption for p in pairs] == list("01")
    assert pairs[0].warc_offset == len(first)
    assert counts["damaged_records"] == 0


def test_a_record_of_a_wrong_length_is_looked_at_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its block begins late in a chunk, and ends in the next one."""
    monkeypatch.setattr(wat, "LONGEST_RECORD", CHUNK + 2000)
    first = record(b" " * (CHUNK - 1000), kind="warcinfo")
    links = [image("/a.jpg", "long"), {"path": "A@/href", "text": "x" * 3000}]
    wrong = record(response(PAGE, links), length=5)
    pairs, counts = read(tmp_path, b"".join([first, wrong, *pages(1)]), "a.wat")
    assert [p.caption for p in pairs] == ["long", "0"]
    assert counts["damaged_records"] == 0


def test_rubbish_between_records_costs_nothing(tmp_path: Path) -> None:
    some = [gzip.compress(r, mtime=0) for r in pages(3)]
    pairs, counts = read(
        tmp_path, b"".join([*some[:4], b"rubbish \x1f\x8b\x08 and more\n" * 3, *some[4:]])
    )
    assert [p.caption for p in pairs] == list("012")
    assert counts["damaged_records"] == 0


def test_json_that_is_none_or_of_another_shape_costs_its_record(tmp_path: Path) -> None:
    some = pages(4)
    some[1] = record(some[1].split(b"\r\n\r\n")[1].replace(b'"Links":[', b'"Links":[,'))
    some[4] = record(some[4].split(b"\r\n\r\n")[1].replace(b'"Links":[', b'"Links":[5,'))
    pairs, counts = read(tmp_path, zipped(some))
    assert [p.caption for p in pairs] == list("23")
    assert counts["damaged_records"] == 2


def test_bytes_that_json_may_not_hold_are_replaced(tmp_path: Path) -> None:
    body = (
        response(PAGE, [image("/a.jpg", "HALF and BYTE")])
        .replace(b"HALF", b"\\ud83d")
        .replace(b"BYTE", b"\xff")
    )
    pairs, counts = read(tmp_path, zipped([record(body.replace(b"IMG@/src", b"IMG@\\/src"))]))
    assert [p.caption for p in pairs] == ["� and �"]
    assert counts["damaged_records"] == 0


class Ranges(SimpleHTTPRequestHandler):
    """Serves one range of bytes where it is asked for one, as object stores do."""

    def log_message(self, *words: Any) -> None:
        pass

    def do_GET(self) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        data = Path(self.translate_path(self.path)).read_bytes()
        part = data[int(wanted[1]) : int(wanted[2]) + 1 if wanted[2] else None] if wanted else data
        self.send_response(206 if wanted else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(part)))
        if wanted:
            self.send_header(
                "Content-Range", f"bytes {wanted[1]}-{int(wanted[1]) + len(part) - 1}/{len(data)}"
            )
        self.end_headers()
        self.wfile.write(part)


class NoRanges(SimpleHTTPRequestHandler):
    def log_message(self, *words: Any) -> None:
        pass

    def end_headers(self) -> None:
        self._headers_buffer = [
            h for h in self._headers_buffer if not h.startswith(b"Content-Length")
        ]  # type: ignore[has-type]
        super().end_headers()


@pytest.mark.slow
@pytest.mark.parametrize("handler", [Ranges, NoRanges])
def test_a_wat_is_read_over_http_with_and_without_ranges(
    tmp_path: Path, handler: type[SimpleHTTPRequestHandler]
) -> None:
    (tmp_path / "x.wat.gz").write_bytes(zipped([INFO, *pages(5)]))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(tmp_path))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/x.wat.gz"
            counts = Counter[str]()
            pairs = pairs_of_wat(url, counts)
        finally:
            server.shutdown()
            thread.join()
    assert [p.caption for p in pairs] == list("01234")
    assert {p.wat for p in pairs} == {url}
    assert counts == {"links": 5, "pairs": 5}


def test_what_is_no_wat_has_no_pairs(tmp_path: Path) -> None:
    for data in (b"", b"<html>not found</html>", gzip.compress(b"hello")):
        pairs, counts = read(tmp_path, data)
        assert (pairs, counts["links"]) == ([], 0)
    with pytest.raises(FileNotFoundError):
        pairs_of_wat(str(tmp_path / "none.gz"), Counter())


@given(st.data())
@settings(max_examples=60)
def test_both_readers_agree_on_damaged_files(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever is hurt: FastWARC followed by the scan gives what the scan alone gives."""
    plain = data.draw(st.booleans())
    whole = bytearray(b"".join(pages(3)) if plain else zipped(pages(3)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    path = tmp_path_factory.mktemp("w") / "x"
    path.write_bytes(whole)
    assert [body for _, body in records(str(path), JSON_RECORDS)] == [
        body for _, body in scan(Tape(io.BytesIO(whole)), JSON_RECORDS)
    ]


def test_kinds_of_links_that_nobody_knows_are_learned_up_to_a_number() -> None:
    reader = Reader()
    known = len(reader._kinds)
    links = [{"path": f"X@/{n}", "url": "/x", "rel": "license"} for n in range(KINDS)]
    body = response(PAGE, [image("/a.jpg", "x"), *links[:2], {"url": "/y"}])
    for _ in range(2):
        decoded = reader(body).envelope.payload.http.html.links
        assert (len(decoded), decoded[0], reader.named) == (4, Image(url="/a.jpg", alt="x"), True)
        assert len(reader._kinds) == known + 2
    assert not Reader()(response(PAGE, [image("/a.jpg", "x")])).envelope.payload.http.html.links[1:]
    assert len(reader(response(PAGE, links)).envelope.payload.http.html.links) == KINDS
    assert len(reader._kinds) == KINDS


@pytest.mark.parametrize("key", ["Envelope", "Unknown", "Links"])
@pytest.mark.parametrize(
    "deep", [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 60_000 + b"1" + b"}" * 60_000]
)
def test_json_nested_deep_costs_its_record(key: str, deep: bytes, tmp_path: Path) -> None:
    some = pages(3)
    body = some[1].split(b"\r\n\r\n")[1]
    hurt = {
        "Envelope": b'{"Envelope":' + deep + b',"path":"IMG@/src"}',
        "Unknown": b'{"Unknown":' + deep + b"," + body[1:],
        "Links": body.replace(b'"Links":[', b'"Links":[' + deep + b","),
    }[key]
    some[1] = record(hurt)
    pairs, counts = read(tmp_path, zipped(some))
    assert [pair.caption for pair in pairs] == list("12")
    assert counts["damaged_records"] == 1
