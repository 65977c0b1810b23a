"""The files of a site: patterns, rules, and what a hostile file may cost."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from clipmill.pipeline.fetch import sites
from clipmill.pipeline.fetch.sites import (
    FILE_BYTES,
    MOST_RULES,
    MOST_STARS,
    Unreadable,
    ai_summary,
    pattern_of,
    read_ai_txt,
    read_robots,
    read_tdmrep,
    tdm_summary,
)

US = ("clipmill", "img2dataset")
ORIGIN = "http://site.example"
LONG = f"{ORIGIN}/" + "1" * 7000


@pytest.mark.parametrize(
    ("pattern", "path", "covered"),
    [
        ("/", "/a", True),
        ("/a", "/a.jpg", True),
        ("/a", "/b", False),
        ("/a$", "/a", True),
        ("/a$", "/ab", False),
        ("*.jpg", "/a/b.jpg?x", True),
        ("*.jpg$", "/a/b.jpg?x", False),
        ("/a*b*c$", "/a1b2c", True),
        ("/a*b*c$", "/a1c2b", False),
        ("/a*b$", "/ab", True),
        ("/a*aa$", "/aa", False),
        ("/a*bb*b$", "/abb", False),
        ("/%61%2f", "/a%2F", True),
        ("/a%2fb", "/a%2Fb", True),
        ("/a%2fb", "/ab", False),
        ("/ä", "/%C3%A4", True),
        ("**", "/", True),
    ],
)
def test_patterns(pattern: str, path: str, covered: bool) -> None:
    assert pattern_of(pattern).covers(path) is covered


def test_the_longest_rule_that_covers_a_url_decides() -> None:
    rules = read_ai_txt(b"User-Agent: *\nDisallow: /\nAllow: /images/\nDisallow: *.gif\n", US)
    assert ai_summary(rules, f"{ORIGIN}/images/a.jpg") == {
        "allowed": True,
        "rule": "Allow: /images/",
    }
    assert ai_summary(rules, f"{ORIGIN}/a.jpg") == {"allowed": False, "rule": "Disallow: /"}
    # Without a file type it may be a GIF.
    only_gif = read_ai_txt(b"Disallow: *.gif", US)
    assert ai_summary(only_gif, f"{ORIGIN}/a") == {"allowed": False, "rule": "Disallow: *.gif"}
    assert ai_summary(only_gif, f"{ORIGIN}/a.x") == ai_summary(only_gif, f"{ORIGIN}/a.longer")
    assert ai_summary(only_gif, f"{ORIGIN}/a.x") == {"allowed": False, "rule": "Disallow: *.gif"}
    for name in ("a.jpg", "a.ps", "a.TIFF?b", "a.html5"):
        assert ai_summary(only_gif, f"{ORIGIN}/{name}") is None
    signal = read_ai_txt(b"Allow: /images/\nContent-Signal: ai-train=no\n", US)
    assert ai_summary(signal, f"{ORIGIN}/images/a.jpg") == {
        "allowed": False,
        "rule": "ai-train=no",
    }
    tdm = read_tdmrep(b'[{"location": "/", "tdm-reservation": 1}, {"location": "/free/*"}]')
    assert tdm_summary(tdm, f"{ORIGIN}/a") == {"location": "/", "tdm-reservation": 1}


@pytest.mark.parametrize("piece", ["*1", "*", "/*"])
def test_a_pattern_of_many_stars_costs_no_time(piece: str) -> None:
    pattern = "/" + piece * 60_000 + "*Z"
    rules = read_robots(f"User-agent: *\nDisallow: {pattern}\n".encode(), US)
    compiled = pattern_of(pattern)
    started = time.process_time()
    assert rules.allows(LONG)
    assert not compiled.covers(sites.path_of(LONG))
    assert time.process_time() - started < 0.05


def lines(count: int, line: str) -> str:
    return "".join(line.format(i=i) for i in range(count))


READERS: dict[str, tuple[Callable[[int], str], Callable[[bytes], Any], Callable[..., Any]]] = {
    "ai.txt": (
        lambda count: "User-Agent: *\n" + lines(count, "Disallow: *a{i}z\n"),
        lambda body: read_ai_txt(body, US),
        ai_summary,
    ),
    "tdmrep.json": (
        lambda count: json.dumps(
            [{"location": f"*a{i}z", "tdm-reservation": 1} for i in range(count)]
        ),
        read_tdmrep,
        tdm_summary,
    ),
    "Content-Usage": (
        lambda count: "User-agent: *\n" + lines(count, "Content-Usage: /a*{i}z train-ai=n\n"),
        lambda body: read_robots(body, US),
        lambda robots, url: robots.summary(url),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_file_of_many_rules_is_read_up_to_a_cap(name: str) -> None:
    """At the cap a URL costs some milliseconds; 500 KB of such rules cost 0.3 s a URL."""
    text, read, summarize = READERS[name]
    rules = read(text(MOST_RULES).encode())
    started = time.process_time()
    summarize(rules, f"{ORIGIN}/images/picture")
    assert time.process_time() - started < 0.05
    started = time.process_time()
    with pytest.raises(Unreadable, match=f"more than {MOST_RULES} "):
        read(text(MOST_RULES + 1).encode())
    assert time.process_time() - started < 0.5


def test_rules_for_other_crawlers_do_not_count() -> None:
    others = "User-Agent: otherbot\n" + lines(5000, "Disallow: /{i}\n")
    rules = read_ai_txt(f"{others}User-Agent: *\nDisallow: /no\n".encode(), US)
    assert [rule.said["rule"] for rule in rules] == ["Disallow: /no"]


def test_a_large_value_is_cut_when_it_is_read() -> None:
    body = json.dumps([{"location": "/" + "a" * 9000, "tdm-reservation": ["x" * 400_000]}])
    [rule] = read_tdmrep(body.encode())
    assert [len(value) for value in rule.said.values()] == [500, 40]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * 100_000, "no JSON"),
        (b"7", "no list of rules"),
        (b"[1]", "a rule without a location"),
        (b'[{"location": 5}]', "a rule without a location"),
    ],
)
def test_a_tdmrep_json_of_another_form_is_unreadable(body: bytes, message: str) -> None:
    with pytest.raises(Unreadable, match=message):
        read_tdmrep(body)


@pytest.mark.parametrize("body", [b"<!doctype html><p>not found", b"  <html>"])
def test_a_page_instead_of_a_file_says_nothing(body: bytes) -> None:
    assert read_tdmrep(body) == read_ai_txt(body, US) == ()


def test_only_the_first_500_kib_are_unpacked() -> None:
    bomb = zlib.compress(b"User-agent: *\nDisallow: /\n" + b"#" * 50_000_000)
    assert len(sites.inflated(bomb, "deflate")) == FILE_BYTES
    assert sites.inflated(gzip.compress(b"a"), "") == b"a"  # a file that is stored compressed
    with pytest.raises(Unreadable, match="Content-Encoding br"):
        sites.inflated(b"a", "br")
    with pytest.raises(Unreadable, match="broken gzip"):
        sites.inflated(b"rubbish", "gzip")


@pytest.mark.parametrize(
    "body", [b"", b"\x00" * 100, b"\xff\xfe", "User-agent: \ud800".encode("utf-8", "surrogatepass")]
)
def test_rubbish_holds_no_rules(body: bytes) -> None:
    assert read_robots(body, US).summary(f"{ORIGIN}/a") == {"allowed": True}
    assert read_ai_txt(body, US) == ()


@pytest.mark.parametrize(
    ("lines", "licenses"),
    [
        ("License: https://x/a", ["https://x/a"]),
        ("license:https://x/a\nLicence : https://x/b # c\nLICENSE: https://x/a", ["a", "b"]),
        ("License: https://x/a\nUser-agent: clipmill\nLicense: https://x/b", ["b"]),
        ("License: https://x/a\nUser-agent: clipmill\nAllow: /", ["a"]),
        ("License: https://x/a\nUser-agent: *\nLicense: https://x/b", ["b"]),
        ("User-agent: *\nLicense: https://x/b\nUser-agent: clipmill\nAllow: /", ["b"]),
        ("User-agent: *\nAllow: /\nLicense: https://x/b\nUser-agent: clipmill\nAllow: /", []),
        ("User-agent: other\nLicense: https://x/b", []),
        ("User-agent: other\nAllow: /\n \nLicense: https://x/b", ["b"]),
        # A rule behind the blank line: the group goes on
        ("User-agent: other\n\nAllow: /\nLicense: https://x/b", []),
        ("User-agent: other\nAllow: /\n\nUser-agent: b\nLicense: https://x/b", []),
        ("User-agent: other\nLicense: https://x/b\nUser-agent: clipmill\nAllow: /", ["b"]),
        # Two names of ours, of which one has a licence: the other's group is everybody's
        (
            "License: https://x/a\nUser-agent: *\nAllow: /\n"
            "User-agent: img2dataset\nLicense: https://x/b",
            ["a", "b"],
        ),
        ("License:\nLicense: #x\nLicenses: https://x/a\n# License: https://x/a", []),
        ("\n".join(f"License: https://x/{i}" for i in range(50)), [str(i) for i in range(10)]),
        ("License: " + "y" * 900, ["y" * 500]),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_licences_that_address_us(lines: str, licenses: list[str], newline: str) -> None:
    body = ("\ufeff" + lines.replace("\n", newline)).encode()
    robots = read_robots(body, US)
    kept = robots.summary(f"{ORIGIN}/a.jpg").get("license", [])
    assert [text.removeprefix("https://x/") for text in kept] == [
        text.removeprefix("https://x/") for text in licenses
    ]
    assert robots.allows(f"{ORIGIN}/a.jpg")


def test_each_field_of_usage_has_its_own_longest_path() -> None:
    body = (
        b"Content-Usage: search=n\nDisallow: /\n\nUser-agent: *\nContent-Signal: ai-train=no\n"
        b"content-usage: /a train-ai=y\nContent-Usage: /a train-ai=n\nContent-Usage: train-ai=y\n"
        b"Content-Usage: /a\n"
    )
    robots = read_robots(body, US)
    assert robots.summary(f"{ORIGIN}/a.jpg") == {
        "allowed": True,  # a rule before the first group is nobody's
        "signal": ["ai-train=no"],
        "usage": ["/a train-ai=y", "/a train-ai=n", "search=n"],
    }
    assert robots.summary(f"{ORIGIN}/b.jpg")["usage"] == ["train-ai=y", "search=n"]


def test_as_many_rules_as_are_read_and_one_more() -> None:
    def tdmrep(count: int) -> bytes:
        return json.dumps([{"location": "/", "tdm-reservation": 0}] * count).encode()

    def robots(count: int, line: bytes = b"Content-Usage: search=n\n") -> bytes:
        return b"User-agent: *\n" + line * count

    assert len(read_tdmrep(tdmrep(MOST_RULES))) == MOST_RULES
    assert read_robots(robots(MOST_RULES), US).summary(LONG)["usage"] == ["search=n"]
    with pytest.raises(Unreadable, match=f"more than {MOST_RULES} rules"):
        read_tdmrep(tdmrep(MOST_RULES + 1))
    with pytest.raises(Unreadable, match=f"more than {MOST_RULES} Content-Usage lines"):
        read_robots(robots(MOST_RULES + 1), US)
    for rule in (b"Disallow: /*z\n", b"Allow: /a*\n"):
        assert read_robots(robots(MOST_STARS, rule), US).allows(f"{ORIGIN}/b")
        with pytest.raises(Unreadable, match=f"more than {MOST_STARS} rules with a star"):
            read_robots(robots(MOST_STARS + 1, rule), US)
    for no_star in (b"Disallow: /z\n", b"Crawl-delay: *\n", b"# Disallow: /*\n"):
        assert read_robots(robots(MOST_STARS + 1, no_star), US).allows(f"{ORIGIN}/b")
