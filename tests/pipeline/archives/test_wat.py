"""WAT files good and damaged: every pair, its place, and a count for everything that is none."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.manifests import disk
from clipmill.pipeline.archives.urls import resolve
from tests.support.wats import (
    PAGE,
    image,
    language,
    one,
    page,
    read,
    record,
    response,
    rows_of_wat,
    zipped,
)


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


def test_what_the_page_says_goes_along(tmp_path: Path) -> None:
    metas = [
        {"name": "ROBOTS", "content": "noai, noimageai"},
        {"name": "googlebot", "content": "noindex"},
        {"name": "Google-Extended", "content": "none"},
        {"property": "og:image", "content": "/og.jpg"},
        {"name": "tdm-reservation", "content": "1"},
    ]
    pair = one(
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
    assert (pair.url, pair.page_url, pair.page_lang) == (
        "http://cdn.test/base/a.jpg",
        PAGE,
        "sr",
    )
    assert json.loads(pair.robots or "") == {
        "meta": ["noai, noimageai", "googlebot: noindex", "google-extended: none"],
        "x-robots-tag": ["noarchive", "ccbot: noai"],
        "tdm-reservation": ["1"],
        "content-usage": ["train-ai=n"],
    }
    assert pair.license == "http://creativecommons.org/licenses/by/4.0/"
    assert (pair.wat, pair.link) == ("x.warc.wat.gz", 0)


@pytest.mark.parametrize(
    ("links", "of_head"),
    [
        ([{"path": "A@/href", "url": "/terms", "rel": "nofollow LICENSE"}], []),
        ([], [{"path": "LINK@/href", "url": "/terms", "rel": "license"}]),
        (
            [{"path": "A@/href", "url": "/b", "rel": "license"}],
            [{"url": "/terms", "rel": "license"}],
        ),
    ],
)
def test_a_licence_is_named_by_a_link_of_the_page_or_of_its_head(
    tmp_path: Path, links: list[dict[str, Any]], of_head: list[dict[str, Any]]
) -> None:
    pair = one(tmp_path, image("a.jpg", "x"), *links, Link=of_head)
    assert pair.license == "http://page.test/terms"
    assert one(tmp_path, image("a.jpg", "x"), {"path": "A@/href", "rel": "x"}).license is None


@pytest.mark.parametrize(
    ("detected", "html", "expected"),
    [
        (("de", True), "en-GB", "de"),
        (("de", False), "en-GB", "en"),
        (("de", False), "", "de"),
        (None, "pt_BR", "pt"),
    ],
)
def test_the_language_is_the_detectors_where_it_is_sure(
    tmp_path: Path, detected: tuple[str, bool] | None, html: str, expected: str
) -> None:
    body = response(PAGE, [image("/a.jpg", "x")], Metas=[{"name": "HTML@/lang", "content": html}])
    bodies = [body, *([language(PAGE, *detected)] if detected else [])]
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


# --- the short way through a record ---------------------------------------------------------------


def absolute(base: str, url: str) -> str | None:
    with suppress(ValueError):
        return resolve(base, url)
    return None


def expected(bodies: list[bytes]) -> tuple[list[tuple[Any, ...]], Counter[str]]:
    """Rows (url, caption, title, anchor, page, robots, license, link) and counts by the plainest
    reading there is.
    """
    rows: list[tuple[Any, ...]] = []
    counts = Counter[str]()
    for body in bodies:
        envelope = json.loads(body)["Envelope"]
        headers, http = (
            envelope["WARC-Header-Metadata"],
            envelope["Payload-Metadata"].get("HTTP-Response-Metadata", {}),
        )
        page_url, html = headers["WARC-Target-URI"], http.get("HTML-Metadata", {})
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
                behind["url"] == url or behind["url"].partition("?")[0].endswith(".jpg")
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
    "", " ", "a cat", 'say "hi"', "back\\slash\\", "{}", '"}', '"},{"path":"A@/href"', "}]}",
    '"Links":[{', "\n\t",
    "\u2003", '{"path":"IMG@/src","alt":"x"}', "déjà 東京 \U0001f41f", "</p>", "license", "null",
    "a\x00b", "\\u0041",
])  # fmt: skip
URLS = st.sampled_from([
    "/a.jpg", "b/c.jpg", "//cdn.test/d.jpg", 'https://x.test/e.jpg?q="1"',
    "http://x.test/f g.jpg", "/page.html", "",
    "http://[bad/", "/é.jpg", "a\\b.jpg", "data:image/gif;base64,AA",
    "https://creativecommons.org/licenses/by/4.0/",
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


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.lists(IMAGES | OTHERS, max_size=6), HEADS, HEADERS), min_size=1, max_size=3
    ),
    st.sampled_from(["plain", "ascii", "spaced", "turned", "slashes"]),
)
@settings(max_examples=300)
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
    counts = Counter[str]()
    rows = rows_of_wat(str(path), counts)
    names = ("url", "caption", "title", "anchor", "page_url", "robots", "license", "link")
    assert ([tuple(row[name] for name in names) for row in rows], counts) == expected(bodies)
    assert [row["uid"] for row in rows] == [disk.uid_of(row["url"], row["caption"]) for row in rows]


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
    payload = {
        "title": pairs[0].title,
        "text": pairs[0].anchor,
        "robots": pairs[0].robots or "",
        "meta": "\ufffd",
    }[where]
    assert "\ufffd" in str(payload)


def changed(body: bytes, rng: random.Random) -> bytes:
    """`body` with one byte replaced, inserted or deleted, or one bit flipped."""
    position, value = rng.randrange(len(body)), rng.randrange(256)
    ways = [bytes([value]), bytes([value]) + body[position : position + 1], b""]
    ways.append(bytes([body[position] ^ 1 << value % 8]))
    return body[:position] + rng.choice(ways) + body[position + 1 :]


def test_a_bad_byte_in_the_json_costs_its_page_at_most_and_is_counted(tmp_path: Path) -> None:
    links = [
        image("/a.jpg", "first", title="título"),
        {"path": "A@/href", "url": "/full.jpg", "text": "around", "rel": "nofollow"},
        image("//cdn.test/b.png?w=1", "second \U0001f41f"),
        image("/c.gif", ""),
        image("data:image/gif;base64,AA", "inline"),
    ]
    metas = [{"name": "description", "content": "é"}, {"property": "og:title", "content": "x"}]
    body = response(PAGE, links, headers={"X-Robots-Tag": ["a", "b"]}, Metas=metas, Base="/x/")
    rng = random.Random(0)
    names = ("url", "caption", "title", "anchor", "page_url", "robots", "license", "link")
    outcomes = Counter[str]()
    records: list[bytes] = []
    rows: list[tuple[Any, ...]] = []
    for number in range(400):
        hurt = changed(body, rng)
        try:
            text = json.dumps(json.loads(hurt.decode("utf-8", "replace")))
            page_rows, counts = expected([text.encode()])
        except ValueError:
            page_rows, counts = [], Counter({"damaged_records": 1})
        except (AttributeError, KeyError, TypeError):  # a key is another: the reference gives up
            continue
        outcomes["damaged" if counts["damaged_records"] else "read"] += 1
        records += [record(hurt), *page(f"http://{number}.test/", [image("/ok.jpg", "fine")])]
        rows += [*page_rows, (f"http://{number}.test/ok.jpg", "fine")]
        outcomes.update(counts)
    pairs, counts = read(tmp_path, zipped(records))
    given = [tuple(getattr(pair, name) for name in names) for pair in pairs]
    assert [row[: len(want)] for row, want in zip(given, rows, strict=True)] == rows
    assert counts["damaged_records"] == outcomes["damaged"] > 50
    assert outcomes["read"] > 150
    assert counts["links"] == outcomes["links"] + len(records) // 4


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
