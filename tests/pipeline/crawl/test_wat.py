"""WAT files good and damaged: every pair, its place, and a count for everything that is none."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urljoin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests import disk
from manifests.columns import PAIRS
from manifests.schema import Pair
from pipeline.crawl import wat
from pipeline.crawl.wat import (
    batches_of_wat,
    decode,
    pairs_of_wat,
    records,
    resolve,
    rows_of_wat,
    scan,
)
from pipeline.crawl.wat_records import KINDS, Image, Reader
from tests.support.wats import INFO, image, language, page, record, response, zipped

PAGE = "http://page.test/deep/er/page.html"


def read(folder: Path, data: bytes, name: str = "x.warc.wat.gz") -> tuple[list[Pair], Counter[str]]:
    (folder / name).write_bytes(data)
    counts = Counter[str]()
    pairs = list(pairs_of_wat(str(folder / name), counts))
    reasons = sum(
        n for key, n in counts.items() if key not in ("links", "pairs", "damaged_records")
    )
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
        (PAGE, "/a/.jpg", "http://page.test/a/.jpg"),
        (PAGE, "/.;", "http://page.test/"),
        (PAGE, "//cdn.test/a.jpg", "http://cdn.test/a.jpg"),
        ("https://page.test/", "//cdn.test/a.jpg", "https://cdn.test/a.jpg"),
        (PAGE, "?id=1", "http://page.test/deep/er/page.html?id=1"),
        (PAGE, "https://other.test", "https://other.test"),
        (
            PAGE,
            "https://other.test:8443/a b.jpg?x=/../#part",
            "https://other.test:8443/a b.jpg?x=/../",
        ),
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
def test_links_that_nobody_can_ask_for_have_a_reason(
    tmp_path: Path, link: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        resolve(PAGE, link)
    pairs, counts = read(
        tmp_path, zipped(page(PAGE, [image(link, "text"), image("/ok.jpg", "fine")]))
    )
    assert [p.caption for p in pairs] == ["fine"]
    assert counts == {"links": 2, "pairs": 1, reason: 1}


@given(
    st.sampled_from(
        [
            PAGE,
            "http://page.test",
            "https://page.test:8/a;b/c?d=/e",
            "http://page.test//x/./y",
            "ftp://p/",
        ]
    ),
    st.sampled_from(["", "/", "http://a.b", "https://a.b:8/", "//a", "a", "%41-", "data:"]),
    st.text("ab/.?#:;\\@[]% \t\xa0é", max_size=12),
)
@settings(deadline=None, max_examples=500)
def test_the_short_ways_give_what_the_long_way_gives(base: str, start: str, rest: str) -> None:
    def outcome() -> str:
        try:
            return resolve(base, start + rest)
        except ValueError as error:
            return f"refused: {error}"

    short = outcome()
    pairs, reasons = wat._pairs(base, [Image(url=start + rest, alt="x"), None], [0])
    assert [row[1] for row in pairs] + [f"refused: {reason}" for reason in reasons] == [short]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wat, "SHORT", re.compile("(?!)"))
        assert outcome() == short


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
    assert [(p.url, p.link) for p in pairs] == [
        ("http://page.test/a.jpg", 0),
        ("http://page.test/e.jpg", 4),
    ]
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
        {"name": "Google-Extended", "content": "none"},
        {"property": "og:image", "content": "/og.jpg"},
        {"name": "tdm-reservation", "content": "1"},
    ]
    found = one(
        tmp_path,
        image("a.jpg", "x"),
        {"path": "A@/href", "url": "//creativecommons.org/licenses/by/4.0/", "text": "CC BY"},
        lang="sr",
        headers={
            "X-Robots-Tag": ["noarchive", "ccbot: noai"],
            "Set-Cookie": ["a", "b"],
            "Content-Usage": "train-ai=n",
        },
        Metas=metas,
        Base="http://cdn.test/base/",
    )
    assert (found.url, found.page_url, found.page_lang) == (
        "http://cdn.test/base/a.jpg",
        PAGE,
        "sr",
    )
    assert json.loads(found.robots or "") == {
        "meta": ["noai, noimageai", "googlebot: noindex", "google-extended: none"],
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


def test_a_link_may_say_that_it_is_the_licence_in_capitals(tmp_path: Path) -> None:
    found = one(
        tmp_path, image("/a.jpg", "x"), {"path": "AREA@/href", "url": "/terms", "rel": ["LICENSE"]}
    )
    assert found.license == "http://page.test/terms"


@pytest.mark.parametrize(
    ("said", "html", "expected"),
    [
        (("de", True), "en-GB", "de"),
        (("de", False), "en-GB", "en"),
        (("de", False), "", "de"),
        (None, "pt_BR", "pt"),
    ],
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


# --- the short way through a record --------------------------------------------------------------------------------


def absolute(base: str, url: str) -> str | None:
    with suppress(ValueError):
        return resolve(base, url)
    return None


def expected(bodies: list[bytes]) -> tuple[list[tuple[Any, ...]], Counter[str]]:
    """Rows (url, caption, title, anchor, page, robots, license, link) and counts by the plainest reading there is."""
    rows: list[tuple[Any, ...]] = []
    counts = Counter[str]()
    for body in bodies:
        envelope = json.loads(body)["Envelope"]
        said, http = (
            envelope["WARC-Header-Metadata"],
            envelope["Payload-Metadata"].get("HTTP-Response-Metadata", {}),
        )
        page_url, html = said["WARC-Target-URI"], http.get("HTML-Metadata", {})
        head, links = html.get("Head", {}), html.get("Links", [])
        base = urljoin(page_url, head.get("Base", ""))
        licenses = [x["url"] for x in links if "license" in str(x.get("rel")).lower().split()]
        licenses += [
            x["url"] for x in links if "creativecommons.org/licenses/" in str(x.get("url"))
        ]
        metas = [m["content"] for m in head.get("Metas", []) if m.get("name") == "robots"]
        header = http.get("Headers", {}).get("X-Robots-Tag", [])
        robots = {"meta": metas, "x-robots-tag": header if isinstance(header, list) else [header]}
        number = -1
        for link, behind in zip(links, [*links, {}][1:], strict=True):
            if link.get("path") != "IMG@/src":
                continue
            number += 1
            counts["links"] += 1
            alt, url = link.get("alt"), link.get("url")
            if not isinstance(alt, str) or not alt.strip():
                counts["empty_alt" if isinstance(alt, str) else "no_alt"] += 1
                continue
            try:
                address = resolve(base, url or "")
            except ValueError as reason:
                counts[str(reason)] += 1
                continue
            counts["pairs"] += 1
            around = behind.get("path") == "A@/href" and (
                behind["url"] == url or behind["url"].endswith(".jpg")
            )
            anchor = (behind.get("text") or "").strip() or None if around else None
            spoken = json.dumps(robots, ensure_ascii=False) if any(robots.values()) else None
            title = (link.get("title") or "").strip() or None
            license = next((x for x in map(partial(absolute, base), licenses) if x), None)
            rows.append((address, alt, title, anchor, page_url, spoken, license, number))
    return rows, counts


def written(value: Any, style: str) -> bytes:
    """JSON as various programs write it."""
    if style == "turned":  # every object the other way round
        value = json.loads(json.dumps(value), object_pairs_hook=lambda items: dict(reversed(items)))
    separators = (", ", ": ") if style == "spaced" else (",", ":")
    text = json.dumps(value, ensure_ascii=style == "ascii", separators=separators)
    return (text.replace("/", "\\/") if style == "slashes" else text).encode()


TEXTS = st.sampled_from([
    "", " ", "a cat", 'say "hi"', "back\\slash\\", "{}", '"}', '"},{"path":"A@/href"', "}]}", '"Links":[{', "\n\t",
    "\u2003", '{"path":"IMG@/src","alt":"x"}', "déjà 東京 \U0001f41f", "</p>", "license", "null", "a\x00b", "\\u0041",
])  # fmt: skip
URLS = st.sampled_from([
    "/a.jpg", "b/c.jpg", "//cdn.test/d.jpg", 'https://x.test/e.jpg?q="1"', "http://x.test/f g.jpg", "/page.html", "",
    "http://[bad/", "/é.jpg", "a\\b.jpg", "data:image/gif;base64,AA", "https://creativecommons.org/licenses/by/4.0/",
])  # fmt: skip
MAYBE = TEXTS | st.none()
IMAGES = st.fixed_dictionaries(
    {"path": st.just("IMG@/src")}, optional={"url": URLS | st.none(), "alt": MAYBE, "title": MAYBE}
)
OTHERS = st.fixed_dictionaries(
    {"path": st.sampled_from(["A@/href", "IMG@/longdesc", "FORM@/action"]), "url": URLS},
    optional={
        "text": TEXTS | st.none(),
        "rel": st.sampled_from(["nofollow", "License me", "x"]),
        "alt": TEXTS,
    },
)
HEADS = st.fixed_dictionaries(
    {},
    optional={
        "Base": st.sampled_from(["/base/", "https://b.test/c", ""]),
        "Metas": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from(["robots", "x"]), "content": TEXTS})
        ),
        "Title": TEXTS,
    },
)
HEADERS = st.fixed_dictionaries(
    {}, optional={"X-Robots-Tag": TEXTS | st.lists(TEXTS, min_size=2), "Link": TEXTS}
)


@given(
    st.lists(
        st.tuples(st.lists(IMAGES | OTHERS, max_size=6), HEADS, HEADERS), min_size=1, max_size=3
    ),
    st.sampled_from(["plain", "ascii", "spaced", "turned", "slashes"]),
)
@settings(deadline=None, max_examples=300)
def test_every_spelling_of_a_record_gives_what_the_plainest_reading_gives(
    tmp_path_factory: pytest.TempPathFactory, some: list[Any], style: str
) -> None:
    bodies = [
        written(
            json.loads(
                response(f"http://page{n}.test/deep/x.html", links, headers=headers, **head)
            ),
            style,
        )
        for n, (links, head, headers) in enumerate(some)
    ]
    path = tmp_path_factory.mktemp("w") / "x.wat.gz"
    path.write_bytes(zipped([record(body) for body in bodies]))
    counts, again = Counter[str](), Counter[str]()
    rows = [dict(zip(PAIRS.names, row, strict=True)) for row in rows_of_wat(str(path), counts)]
    names = ("url", "caption", "title", "anchor", "page_url", "robots", "license", "link")
    assert ([tuple(row[name] for name in names) for row in rows], counts) == expected(bodies)
    assert [row["uid"] for row in rows] == [disk.uid_of(row["url"], row["caption"]) for row in rows]
    assert [row for batch in batches_of_wat(str(path), again) for row in batch.to_pylist()] == rows
    assert again == counts


def test_kinds_of_links_that_nobody_knows_are_learned_up_to_a_number() -> None:
    reader = Reader()
    known = len(reader._kinds)
    links = [{"path": f"X@/{n}", "url": "/x", "rel": "license"} for n in range(KINDS)]
    body = response(PAGE, [image("/a.jpg", "x"), *links[:2], {"url": "/y"}])
    for _ in range(2):
        found = reader(body).envelope.payload.http.html.links
        assert (len(found), found[0], reader.named) == (4, Image(url="/a.jpg", alt="x"), True)
        assert len(reader._kinds) == known + 2
    assert not Reader()(response(PAGE, [image("/a.jpg", "x")])).envelope.payload.http.html.links[1:]
    assert len(reader(response(PAGE, links)).envelope.payload.http.html.links) == KINDS
    assert len(reader._kinds) == KINDS


@pytest.mark.parametrize("hurt", [b"\xff", b"\\ud83d"])
@pytest.mark.parametrize("where", ["title", "text", "meta", "robots"])
def test_what_json_may_not_hold_costs_nothing_wherever_it_is(
    tmp_path: Path, hurt: bytes, where: str
) -> None:
    links = [image("/a.jpg", "a", title="HURT" if where == "title" else "t")]
    links += [{"path": "A@/href", "url": "/b.jpg", "text": "HURT" if where == "text" else "b"}]
    metas = [
        {
            "name": "robots" if where == "robots" else "x",
            "content": "HURT" if where in ("meta", "robots") else "",
        }
    ]
    body = response(PAGE, links, Metas=[*metas, {"name": "HTML@/lang", "content": "de"}]).replace(
        b"HURT", hurt
    )
    pairs, counts = read(tmp_path, zipped([record(body)]))
    assert (pairs[0].caption, pairs[0].page_lang, counts["damaged_records"]) == ("a", "de", 0)
    said = {
        "title": pairs[0].title,
        "text": pairs[0].anchor,
        "robots": pairs[0].robots or "",
        "meta": "\ufffd",
    }[where]
    assert "\ufffd" in str(said)


def test_a_page_waits_for_its_language_behind_a_damaged_record(tmp_path: Path) -> None:
    bodies = [response(PAGE, [image("/a.jpg", "x")]), b'{"languages-cld2":', language(PAGE, "de")]
    pairs, counts = read(tmp_path, zipped([record(body) for body in bodies]))
    assert ([p.page_lang for p in pairs], counts["pairs"]) == (["de"], 1)


def test_an_old_crawls_long_data_urls_are_counted_and_passed_over(tmp_path: Path) -> None:
    links = [image("data:image/png;base64," + "A" * 3_000_000, "inline"), image("/ok.jpg", "fine")]
    pairs, counts = read(tmp_path, zipped(page(PAGE, links)))
    assert [p.caption for p in pairs] == ["fine"]
    assert counts == {"links": 2, "pairs": 1, "data_url": 1}


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("/static/", "http://page.test/static/a.jpg"),
        ("../up/", "http://page.test/deep/up/a.jpg"),
        ("//cdn.test/x/y", "http://cdn.test/x/a.jpg"),
        (" https://b.test/ ", "https://b.test/a.jpg"),
        (["https://b.test/", "https://c.test/"], "https://b.test/a.jpg"),
        ("http://[bad", "http://page.test/deep/er/a.jpg"),
        ("", "http://page.test/deep/er/a.jpg"),
        (None, "http://page.test/deep/er/a.jpg"),
    ],
)
def test_a_base_is_resolved_against_the_page_first(tmp_path: Path, base: Any, url: str) -> None:
    assert one(tmp_path, image("a.jpg", "x"), Base=base).url == url


# --- records -------------------------------------------------------------------------------------------------------


def pages(count: int) -> list[bytes]:
    """Records of `count` pages with one pair each, captions "0", "1", …"""
    return [
        r for i in range(count) for r in page(f"http://p{i}.test/", [image(f"/{i}.jpg", str(i))])
    ]


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
    assert [body for _, body in records(str(path))] == [body for _, body in scan(bytes(whole))]
