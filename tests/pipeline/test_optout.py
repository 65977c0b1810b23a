"""Who says no, and how it is written: headers, page tags and robots.txt, kept raw."""

from __future__ import annotations

import asyncio
import json

import pytest

from pipeline import optout
from pipeline.optout import Answer, Robots, refusal, refuses, signals

AGENT = "clipmill/0.1 (+https://clipmill.example/bot)"


def header_says_no(*values: str) -> bool:
    return refuses(signals([("X-Robots-Tag", value) for value in values], None), AGENT)


@pytest.mark.parametrize(
    "values",
    [
        ["noai"],
        ["NoAI"],
        ["noimageai"],
        ["noindex"],
        ["noimageindex"],
        ["none"],
        ["noml"],
        ["all, noai"],
        ["nofollow,noarchive , noindex"],
        ["noai noimageai"],
        ["noai; noimageai"],
        ["noai, max-image-preview:large"],
        ["max-image-preview: large, noai"],
        ["max-image-preview:large,noai"],
        ["max-snippet:-1, max-video-preview:-1, noindex"],
        ["unavailable_after: 25 Jun 2030 15:00:00 PST, noai"],
        ["unavailable_after: Wednesday, 25-Jun-30 15:00:00 GMT, noai"],
        ["unavailable_after: 2030-06-25T15:00:00+00:00, noimageindex"],
        ["clipmill: noai"],
        ["ClipMill : noindex, nofollow"],
        ["img2dataset: noai"],
        ["*: noindex"],
        ["googlebot: nofollow", "noai"],
        ["otherbot: noindex, clipmill: noai"],
        ["googlebot: max-image-preview:large, clipmill: max-image-preview:none, noai"],
        ["some-directive: value, noai"],  # not the name of a crawler: meant for everybody
    ],
)
def test_headers_that_say_no(values: list[str]) -> None:
    assert header_says_no(*values)


@pytest.mark.parametrize(
    "values",
    [
        [""],
        ["all"],
        ["index, follow"],
        ["noarchive, nosnippet, notranslate"],
        ["max-image-preview:none"],
        ["max-image-preview: none, max-snippet: 20"],
        ["googlebot: noindex"],
        ["googlebot: noindex, noai"],
        ["CCBot: noai"],
        ["anthropic-ai: noai"],
        ["Googlebot-Image: noimageindex"],
        ["meta-externalagent: noai"],
        ["unavailable_after: 25 Jun 2010 15:00:00 PST"],
        ["noairplanes, nonesuch"],
    ],
)
def test_headers_that_do_not(values: list[str]) -> None:
    assert not header_says_no(*values)


@pytest.mark.parametrize(
    ("name", "value", "no"),
    [
        ("tdm-reservation", "1", True),
        ("TDM-Reservation", " 1 ", True),
        ("tdm-reservation", "0", False),
        ("Content-Usage", "train-ai=n", True),
        ("content-usage", "search=y, train-ai = N", True),
        ("content-usage", "bots=n", True),
        ("content-usage", "train-ai=y", False),
        ("content-usage", "search=n", False),
    ],
)
def test_reservations(name: str, value: str, no: bool) -> None:
    found = signals([(name, value)], None)
    assert refuses(found, AGENT) is no
    assert found == {name.lower(): [value]}


@pytest.mark.parametrize(
    ("page", "no"),
    [
        ({"meta": ["noai, noimageai"]}, True),
        ({"meta": ["index,follow"], "x-robots-tag": ["noindex"]}, True),
        ({"meta": [{"name": "robots", "content": "none"}]}, True),
        ({"meta": "noimageindex"}, True),
        ({"tdm-reservation": ["1"]}, True),
        ({"meta": ["max-image-preview:large"], "x-robots-tag": []}, False),
        ({"meta": ["nofollow"], "tdm-reservation": ["0"]}, False),
        ({}, False),
    ],
)
def test_pages(page: dict[str, object], no: bool) -> None:
    found = signals([], json.dumps(page))
    assert refuses(found, AGENT) is no
    assert found == {"page": page}
    if no:
        assert (refusal(found, AGENT) or ("", ""))[0] == "optout_page"


def test_the_reason_says_where_and_what() -> None:
    assert refusal(signals([("X-Robots-Tag", "all"), ("X-Robots-Tag", "noai")], None), AGENT) == (
        "optout_header",
        "x-robots-tag: noai",
    )
    assert refusal(signals([("Server", "x")], None), AGENT) is None
    assert signals([("Server", "x")], None) == {}


def test_a_stricter_policy_can_be_applied_to_what_was_kept() -> None:
    kept = json.loads(json.dumps(signals([("X-Robots-Tag", "otherbot: noai"), ("tdm-policy", "https://x/p")], None)))
    assert kept == {"x-robots-tag": ["otherbot: noai"], "tdm-policy": ["https://x/p"]}
    assert not refuses(kept, AGENT)
    assert refuses(kept, "otherbot/2.0")


# --- robots.txt ----------------------------------------------------------------------------------------------------

ORIGIN = "http://site.example"


def verdicts(answer: Answer, *paths: str, agent: str = AGENT) -> list[str | None]:
    async def ask() -> list[str | None]:
        robots, asked = Robots(agent), []

        async def get(url: str) -> Answer:
            asked.append(url)
            await asyncio.sleep(0)
            return answer

        found = await asyncio.gather(*(robots.verdict(ORIGIN, ORIGIN + path, get) for path in paths))
        assert asked == [f"{ORIGIN}/robots.txt"]
        await robots.close()
        return [verdict.reason for verdict in found]

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("text", "path", "allowed"),
    [
        ("", "/a.jpg", True),
        ("User-agent: *\nDisallow: /", "/a.jpg", False),
        ("User-agent: *\nDisallow:", "/a.jpg", True),
        ("User-agent: *\nDisallow: /private/", "/private/a.jpg", False),
        ("User-agent: *\nDisallow: /private/", "/privates/a.jpg", True),
        ("User-agent: *\nDisallow: /*.gif$", "/x/a.gif", False),
        ("User-agent: *\nDisallow: /*.gif$", "/x/a.gif?b", True),
        ("User-agent: *\nDisallow: /\nAllow: /images/", "/images/a.jpg", True),
        ("User-agent: *\nAllow: /\nDisallow: /images/", "/images/a.jpg", False),
        ("User-agent: clipmill\nDisallow: /", "/a.jpg", False),
        ("user-agent: CLIPMILL\ndisallow: /", "/a.jpg", False),
        ("User-agent: clipmill/2.0\nDisallow: /", "/a.jpg", False),
        ("User-agent: *\nDisallow: /\n\nUser-agent: clipmill\nAllow: /", "/a.jpg", True),
        ("User-agent: clipmill\nAllow: /\n\nUser-agent: *\nDisallow: /", "/a.jpg", True),
        ("User-agent: a\nUser-agent: clipmill\nUser-agent: b\nDisallow: /", "/a.jpg", False),
        ("User-agent: GPTBot\nDisallow: /", "/a.jpg", True),
        ("User-agent: img2dataset\nDisallow: /", "/a.jpg", False),
        ("User-agent: img2dataset\nDisallow: /\n\nUser-agent: clipmill\nAllow: /", "/a.jpg", False),
        ("User-agent: mill\nDisallow: /", "/a.jpg", True),
        ("User-agent: * # all\nDisallow: /a.jpg # this", "/a.jpg", False),
        ("\ufeffUser-agent: *\nDisallow: /", "/a.jpg", False),
        ("User-agent: *\rDisallow: /\r", "/a.jpg", False),
        ("User-agent: *\nDisallow: /%C3%A4.jpg", "/%c3%a4.jpg", False),
        ("Disallow: /", "/a.jpg", True),
        ("<!doctype html><title>no such page</title>", "/a.jpg", True),
    ],
)
def test_rules(text: str, path: str, allowed: bool) -> None:
    assert verdicts(Answer(status=200, body=text.encode()), path) == [None if allowed else "robots_txt"]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (404, None), (401, None), (403, None), (410, None), (204, None),
        (301, "robots_txt"), (429, "robots_txt"), (500, "robots_txt"), (503, "robots_txt"),
    ],
)  # fmt: skip
def test_status(status: int, reason: str | None) -> None:
    assert verdicts(Answer(status=status), "/a.jpg", "/b.jpg") == [reason, reason]


def test_a_host_that_cannot_be_reached_gives_its_own_reason() -> None:
    assert verdicts(Answer(status=None, reason="dns", detail="unknown"), "/a.jpg") == ["dns"]


def test_a_hundred_rows_ask_once_and_a_second_loop_asks_no_more() -> None:
    robots = Robots(AGENT)
    asked = []

    async def ask() -> list[str | None]:
        async def get(url: str) -> Answer:
            asked.append(url)
            await asyncio.sleep(0.01)
            return Answer(status=200, body=b"User-agent: *\nDisallow: /b")

        urls = [f"{ORIGIN}/{'ab'[i % 2]}.jpg" for i in range(100)]
        found = await asyncio.gather(*(robots.verdict(ORIGIN, url, get) for url in urls))
        await robots.close()
        return [verdict.reason for verdict in found]

    assert asyncio.run(ask()) == [None, "robots_txt"] * 50
    assert asyncio.run(ask()) == [None, "robots_txt"] * 50
    assert asked == [f"{ORIGIN}/robots.txt"]


def test_a_hostile_file_costs_no_more_than_its_lines() -> None:
    names = "".join(f"User-agent: b{i}\n" for i in range(12_000))
    rules = "".join(f"Disallow: /{i}*{i}\n" for i in range(14_000))  # for each of the names: 168 million entries
    parsed, asked = optout._parse((names + rules).encode(), ("clipmill", "img2dataset"))
    assert asked == ("clipmill",)
    assert len(parsed._user_agents) == 1
    hostile = ("User-agent: *\nDisallow: /c\n" + names + rules).encode()
    assert verdicts(Answer(status=200, body=hostile), "/c.jpg", "/d.jpg") == ["robots_txt", None]
