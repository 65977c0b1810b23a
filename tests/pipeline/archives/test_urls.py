"""Links as browsers resolve them, reasons for the others, and one spelling of a host name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.manifests.schema import Fetch
from clipmill.pipeline.archives import urls
from clipmill.pipeline.archives.urls import (
    LONGEST_URL,
    ascii_host,
    host_of,
    resolve,
    resolver,
    split,
)
from clipmill.pipeline.fetch import guard

PAGE = "http://page.test/deep/er/page.html"


@pytest.mark.parametrize(
    ("base", "link", "url"),
    [
        (PAGE, "a.jpg", "http://page.test/deep/er/a.jpg"),
        (PAGE, "../a.jpg", "http://page.test/deep/a.jpg"),
        (PAGE, "../../../../a.jpg", "http://page.test/a.jpg"),
        (PAGE, "/a.jpg", "http://page.test/a.jpg"),
        (PAGE, "/a/../b.jpg", "http://page.test/b.jpg"),
        (PAGE, "/a/.jpg", "http://page.test/a/.jpg"),
        (PAGE, "/.;", "http://page.test/.;"),
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
        (PAGE, "\x00 /a! \x1f", "http://page.test/a!"),
        (PAGE, "a//b.jpg", "http://page.test/deep/er/a//b.jpg"),
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
        ("http://[1:2:3]/a.jpg", "bad_url"),
        ("https:///a.jpg", "bad_url"),
        ("http://a\u2100b.test/a.jpg", "bad_url"),  # a/c
        ("//[broken/a.jpg", "bad_url"),
        ("/" + "a" * LONGEST_URL, "bad_url"),
    ],
)
def test_a_link_that_cannot_be_requested_has_a_reason(link: str, reason: str) -> None:
    for resolve_link in (resolver(PAGE), lambda text: resolve(PAGE, text)):
        with pytest.raises(ValueError, match=f"^{reason}$"):
            resolve_link(link)


def test_a_page_without_an_address_gives_a_link_none() -> None:
    for link in ("a.jpg", "/a.jpg", "//cdn.test/a.jpg"):
        with pytest.raises(ValueError, match=r"^bad_url$"):
            resolve("", link)


@pytest.mark.parametrize(
    ("authority", "port"),
    [
        ("a.test", None),
        ("a.test:", None),
        ("a.test:80", 80),
        ("a.test:0", 0),
        ("a.test:65535", 65535),
        ("me:1@a.test:2", 2),
        ("me:1@a.test", None),
        ("[2001:db8::1]", None),
        ("[2001:db8::1]:8080", 8080),
    ],
)
def test_the_port_of_a_url(authority: str, port: int | None) -> None:
    assert split(f"http://{authority}/a.jpg").port == port


@pytest.mark.parametrize("text", ["65536", "99999", "123456789012", "-1", "8_0", "x", "\u0661"])
def test_what_is_no_port(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is no port"):
        assert split(f"http://a.test:{text}/a.jpg").port is None


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
@settings(max_examples=500)
def test_the_short_ways_give_what_the_long_way_gives(base: str, start: str, rest: str) -> None:
    def outcome(short_ways: bool = True) -> str:
        resolve_link = resolver(base) if short_ways else lambda link: resolve(base, link)
        try:
            return resolve_link(start + rest)
        except ValueError as error:
            return f"refused: {error}"

    by_resolver = outcome()
    assert outcome(short_ways=False) == by_resolver
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(urls, "SHORT", re.compile("(?!)"))
        assert outcome(short_ways=False) == by_resolver


def test_a_url_is_as_long_in_crawl_as_in_fetch() -> None:
    settings = Fetch()
    longest = "http://page.test/".ljust(LONGEST_URL, "a")
    assert resolve(PAGE, longest) == longest
    assert guard.target(longest, settings).url == longest
    with pytest.raises(ValueError, match="bad_url"):
        resolve(PAGE, longest + "a")
    with pytest.raises(guard.Refused, match="longer than"):
        guard.target(longest + "a", settings)


def test_an_example_is_as_long_as_it_may_be_and_a_longer_one_shows_its_cut() -> None:
    counts, longest = urls.PartCounts(), "x" * urls.LONGEST_EXAMPLE
    urls.reject(counts, "whole", longest)
    urls.reject(counts, "cut", longest + "x")
    assert counts.examples == {"whole": longest, "cut": longest[:-1] + "…"}


@pytest.mark.parametrize(
    ("host", "spelled"),
    [
        ("PAGE.Test.", "page.test"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("straße.example", "xn--strae-oqa.example"),  # IDNA 2003 had strasse.example
        ("\uff45xample.com", "example.com"),
        ("東京\u3002example", "xn--1lqs71d.example"),
        ("", ""),
    ],
)
def test_a_host_has_one_spelling_in_crawl_plan_and_fetch(host: str, spelled: str) -> None:
    assert ascii_host(host) == spelled
    url = f"http://{host}/a.jpg"
    assert host_of(url) == spelled
    if spelled:
        assert guard.target(url, Fetch()).host == spelled


def test_a_host_that_idna_has_no_name_for_is_refused() -> None:
    with pytest.raises(ValueError, match=r"."):
        ascii_host("é" * 300 + ".test")


@pytest.mark.parametrize("host", ["-a_b..c d", "a" * 300, "%41"])
def test_a_name_in_ascii_is_not_checked(host: str) -> None:
    assert ascii_host(host) == host
