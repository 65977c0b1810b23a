"""WAT files good and damaged: every pair, its place, and a count for everything that is none."""

from __future__ import annotations

import gzip
import json
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

from manifests import disk
from manifests.schema import Pair
from pipeline.wat import decode, pairs_of_wat, records, resolve, scan
from tests.pipeline.wats import INFO, image, language, page, record, response, zipped

PAGE = "http://page.test/deep/er/page.html"


def read(folder: Path, data: bytes, name: str = "x.warc.wat.gz") -> tuple[list[Pair], Counter[str]]:
    (folder / name).write_bytes(data)
    counts = Counter[str]()
    pairs = list(pairs_of_wat(str(folder / name), counts))
    reasons = sum(n for key, n in counts.items() if key not in ("links", "pairs", "damaged_records"))
    assert counts["links"] == counts["pairs"] + reasons
    assert counts["pairs"] == len(pairs)
    return pairs, counts


def one(folder: Path, *links: dict[str, Any], **more: Any) -> Pair:
    pairs, _ = read(folder, zipped([INFO, *page(PAGE, list(links), **more)]))
    return pairs[0]


# --- links ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "link", "url"),
    [
        (PAGE, "a.jpg", "http://page.test/deep/er/a.jpg"),
        (PAGE, "../a.jpg", "http://page.test/deep/a.jpg"),
        (PAGE, "../../../../a.jpg", "http://page.test/a.jpg"),
        (PAGE, "/a.jpg", "http://page.test/a.jpg"),
        (PAGE, "/a/../b.jpg", "http://page.test/b.jpg"),
        (PAGE, "//cdn.test/a.jpg", "http://cdn.test/a.jpg"),
        ("https://page.test/", "//cdn.test/a.jpg", "https://cdn.test/a.jpg"),
        (PAGE, "?id=1", "http://page.test/deep/er/page.html?id=1"),
        (PAGE, "https://other.test", "https://other.test"),
        (PAGE, "https://other.test:8443/a b.jpg?x=/../#part", "https://other.test:8443/a b.jpg?x=/../"),
        (PAGE, "\n\t  /a.jpg\t\t", "http://page.test/a.jpg"),
        (PAGE, "/a\n.jpg", "http://page.test/a.jpg"),
        (PAGE, "\\img\\a.jpg?back\\slash", "http://page.test/img/a.jpg?back\\slash"),
        (PAGE, "http://[2001:db8::1]/a.jpg", "http://[2001:db8::1]/a.jpg"),
        (PAGE, "http://bücher.test/ä.jpg", "http://bücher.test/ä.jpg"),
        (PAGE, "a.jpg?x=&amp;y", "http://page.test/deep/er/a.jpg?x=&amp;y"),
        ("http://page.test", "a.jpg", "http://page.test/a.jpg"),
        ("http://page.test:81/x", "/a.jpg", "http://page.test:81/a.jpg"),
        ("http://me@page.test/x", "/a.jpg", "http://me@page.test/a.jpg"),
    ],
)
def test_links_become_what_a_browser_would_ask_for(base: str, link: str, url: str) -> None:
    assert resolve(base, link) == url


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ("data:image/png;base64,AAAA", "data_url"),
        (" DATA:image/gif;base64,", "data_url"),
        ("javascript:void(0)", "scheme"),
        ("ftp://page.test/a.jpg", "scheme"),
        ("blob:http://page.test/1", "scheme"),
        ("", "bad_url"),
        ("#top", "bad_url"),
        ("http://[broken/a.jpg", "bad_url"),
        ("//[broken/a.jpg", "bad_url"),
        ("/" + "a" * 5000, "bad_url"),
    ],
)
def test_links_that_nobody_can_ask_for_have_a_reason(tmp_path: Path, link: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        resolve(PAGE, link)
    pairs, counts = read(tmp_path, zipped(page(PAGE, [image(link, "text"), image("/ok.jpg", "fine")])))
    assert [p.caption for p in pairs] == ["fine"]
    assert counts == {"links": 2, "pairs": 1, reason: 1}


@given(st.sampled_from(["", "/", "http://a.b", "https://a.b:8/", "//a"]), st.text("ab/.?#:\\@[]% \t", max_size=12))
@settings(deadline=None, max_examples=300)
def test_the_short_ways_give_what_the_long_way_gives(start: str, rest: str) -> None:
    from pipeline import wat

    def outcome(base: str) -> str:
        try:
            return resolve(base, start + rest)
        except ValueError as error:
            return f"refused: {error}"

    short = outcome(PAGE), outcome("http://page.test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wat, "PLAIN", re.compile("(?!)"))
        patch.setattr(wat, "_origin", lambda base: "")
        assert (outcome(PAGE), outcome("http://page.test")) == short


def test_only_images_with_text_are_pairs(tmp_path: Path) -> None:
    links = [
        image("/a.jpg", "a caption"),
        image("/b.jpg"),
        image("/c.jpg", ""),
        image("/d.jpg", " \n\xa0"),
        {"path": "IMG@/longdesc", "url": "/l", "alt": "no"},
        {"path": "VIDEO@/poster", "url": "/p.jpg"},
        {"path": "STYLE/#text", "href": "/bg.png"},
        {"path": "A@/href", "url": "/x", "text": "a link"},
        image("/e.jpg", "last"),
    ]
    pairs, counts = read(tmp_path, zipped(page(PAGE, links)))
    assert [(p.url, p.link) for p in pairs] == [("http://page.test/a.jpg", 0), ("http://page.test/e.jpg", 4)]
    assert counts == {"links": 5, "pairs": 2, "no_alt": 1, "empty_alt": 2}


def test_captions_are_kept_as_they_are(tmp_path: Path) -> None:
    text = " Fish &amp; chips\n\t“déjà vu” 東京 \U0001f41f\xa0"
    found = one(tmp_path, image("/a.jpg", text, title=" a title "))
    assert (found.caption, found.title) == (text, "a title")
    assert found.uid == disk.uid_of("http://page.test/a.jpg", text)


def test_what_the_page_says_goes_along(tmp_path: Path) -> None:
    metas = [
        {"name": "ROBOTS", "content": "noai, noimageai"},
        {"name": "googlebot", "content": "noindex"},
        {"property": "og:image", "content": "/og.jpg"},
        {"name": "tdm-reservation", "content": "1"},
    ]
    found = one(
        tmp_path,
        image("a.jpg", "x"),
        {"path": "A@/href", "url": "//creativecommons.org/licenses/by/4.0/", "text": "CC BY"},
        lang="sr",
        headers={"X-Robots-Tag": ["noarchive", "ccbot: noai"], "Set-Cookie": ["a", "b"], "Content-Usage": "train-ai=n"},
        Metas=metas,
        Base="http://cdn.test/base/",
    )
    assert (found.url, found.page_url, found.page_lang) == ("http://cdn.test/base/a.jpg", PAGE, "sr")
    assert json.loads(found.robots or "") == {
        "meta": ["noai, noimageai", "googlebot: noindex"],
        "x-robots-tag": ["noarchive", "ccbot: noai"],
        "tdm-reservation": ["1"],
        "content-usage": ["train-ai=n"],
    }
    assert found.license == "http://creativecommons.org/licenses/by/4.0/"
    assert (found.wat, found.link) == ("x.warc.wat.gz", 0)


def test_a_page_that_says_nothing_has_nulls(tmp_path: Path) -> None:
    found = one(tmp_path, image("/a.jpg", "x"), headers={"Content-Type": "text/html"})
    assert (found.robots, found.license, found.title, found.anchor) == (None, None, None, None)


def test_a_link_that_is_called_the_licence_comes_before_other_licences(tmp_path: Path) -> None:
    found = one(
        tmp_path,
        image("/a.jpg", "x"),
        {"path": "A@/href", "url": "https://creativecommons.org/licenses/by/4.0/"},
        Link=[{"path": "LINK@/href", "url": "/terms", "rel": "License"}],
    )
    assert found.license == "http://page.test/terms"


@pytest.mark.parametrize(
    ("said", "html", "expected"),
    [(("de", True), "en-GB", "de"), (("de", False), "en-GB", "en"), (("de", False), "", "de"), (None, "pt_BR", "pt")],
)
def test_the_language_is_the_detectors_where_it_is_sure(
    tmp_path: Path, said: tuple[str, bool] | None, html: str, expected: str
) -> None:
    body = response(PAGE, [image("/a.jpg", "x")], Metas=[{"name": "HTML@/lang", "content": html}])
    bodies = [body, *([language(PAGE, *said)] if said else [])]
    pairs, _ = read(tmp_path, zipped([record(b) for b in bodies]))
    assert [p.page_lang for p in pairs] == [expected]


def test_a_language_is_not_taken_from_another_page(tmp_path: Path) -> None:
    bodies = [response(PAGE, [image("/a.jpg", "x")]), language("http://elsewhere.test/", "de")]
    pairs, _ = read(tmp_path, zipped([record(b) for b in bodies]))
    assert [p.page_lang for p in pairs] == [None]


@pytest.mark.parametrize(
    ("link", "anchor"),
    [
        ({"url": "/full.jpg?w=2", "text": " The full picture "}, "The full picture"),
        ({"url": "thumb.jpg", "text": "the same"}, "the same"),
        ({"url": "/article.html", "text": "an article, which may stand beside it"}, None),
        ({"url": "/full.jpg", "text": "  "}, None),
        ({"url": "/full.jpg"}, None),
    ],
)
def test_the_text_around_an_image_only_where_it_is_surely_that(
    tmp_path: Path, link: dict[str, Any], anchor: str | None
) -> None:
    assert one(tmp_path, image("thumb.jpg", "x"), {"path": "A@/href", **link}).anchor == anchor


# --- records -------------------------------------------------------------------------------------------------------


def pages(count: int) -> list[bytes]:
    """Records of `count` pages with one pair each, captions "0", "1", …"""
    return [r for i in range(count) for r in page(f"http://p{i}.test/", [image(f"/{i}.jpg", str(i))])]


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
        record(body, newline=newline, lead=lead if i == 0 else b"", **wrong) for i, body in enumerate(bodies)
    )
    for name, data in (("one.gz", gzip.compress(odd)), ("none.wat", odd)):
        pairs, counts = read(tmp_path, data, name)
        assert [p.caption for p in pairs] == list("0123")
        assert [odd[p.warc_offset or 0 :].lstrip()[:8] for p in pairs] == [b"WARC/1.0"] * 4
        assert counts["damaged_records"] == 0


@pytest.mark.parametrize("place", [0.0, 0.3, 0.5, 0.9])
def test_a_broken_member_costs_its_record(tmp_path: Path, place: float) -> None:
    members = [bytearray(gzip.compress(r, mtime=0)) for r in pages(4)]
    hurt = members[4]  # the response of the second page
    middle = 10 + int((len(hurt) - 20) * place)
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


def test_rubbish_between_records_costs_nothing(tmp_path: Path) -> None:
    some = [gzip.compress(r, mtime=0) for r in pages(3)]
    pairs, counts = read(tmp_path, b"".join([*some[:4], b"rubbish \x1f\x8b\x08 and more\n" * 3, *some[4:]]))
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
    body = response(PAGE, [image("/a.jpg", "HALF and BYTE")]).replace(b"HALF", b"\\ud83d").replace(b"BYTE", b"\xff")
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
            self.send_header("Content-Range", f"bytes {wanted[1]}-{int(wanted[1]) + len(part) - 1}/{len(data)}")
        self.end_headers()
        self.wfile.write(part)


class NoRanges(SimpleHTTPRequestHandler):
    def log_message(self, *words: Any) -> None:
        pass

    def end_headers(self) -> None:
        self._headers_buffer = [h for h in self._headers_buffer if not h.startswith(b"Content-Length")]  # type: ignore[has-type]
        super().end_headers()


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
            pairs = list(pairs_of_wat(url, counts))
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
        list(pairs_of_wat(str(tmp_path / "none.gz")))


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_both_readers_agree_on_damaged_files(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever is hurt: FastWARC followed by the scan gives what the scan alone gives."""
    plain = data.draw(st.booleans())
    whole = bytearray(b"".join(pages(3)) if plain else zipped(pages(3)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    path = tmp_path_factory.mktemp("w") / "x"
    path.write_bytes(whole)
    assert [body for _, body in records(str(path))] == [body for _, body in scan(bytes(whole))]
