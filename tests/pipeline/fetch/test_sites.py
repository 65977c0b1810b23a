"""Who says no, and how it is written: headers, page tags and the files of a site, kept raw."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from clipmill.filters.optout import refusal, refuses
from clipmill.manifests.schema import Fetch, Pair
from clipmill.pipeline.fetch import sites
from clipmill.pipeline.fetch.fetcher import Fetched
from clipmill.pipeline.fetch.hosts import Queues
from clipmill.pipeline.fetch.request import FileAnswer, OptoutPolicy, signals
from clipmill.pipeline.fetch.sites import Sites, Verdict
from tests.support.fetched import fetch_all
from tests.support.tables import table

AGENT = "clipmill/0.1 (+https://clipmill.example/bot)"
ORIGIN = "http://site.example"
POLICIES = ("respect", "strict", "ignore")
TDMREP, AI_TXT, ROBOTS = (
    f"{ORIGIN}/.well-known/tdmrep.json",
    f"{ORIGIN}/ai.txt",
    f"{ORIGIN}/robots.txt",
)


# --- headers and pages ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", table("x_robots_tag"), ids=lambda case: " | ".join(case["headers"])
)
def test_x_robots_tag(case: dict[str, Any]) -> None:
    raw = signals([("X-Robots-Tag", value) for value in case["headers"]], None)
    assert raw == {"x-robots-tag": case["headers"]}
    for policy in ("respect", "strict"):
        word = case[policy]
        expected = None if word is None else ("optout_header", f"x-robots-tag: {word}")
        assert refusal(raw, AGENT, policy) == expected
    assert refusal(raw, AGENT, "ignore") is None
    page = signals([], json.dumps({"meta": case["headers"]}))  # the same words on the page
    assert refuses(page, AGENT) is (case["respect"] is not None)


@pytest.mark.parametrize(
    ("value", "no"),
    [
        ("train-ai=n", True),
        ("search=y, train-ai = N", True),  # no dictionary: what looks like a no is one
        ("train-ai=n, search", True),
        ("train-genai=n, train-ai=y", True),
        ("bots=n", True),
        ("bots=n, train-ai=y", False),  # an earlier draft's category; the narrower word counts
        ("train-ai=y", False),
        ("train-ai=n, train-ai=y", False),  # RFC 9651: the last one
        ("train-ai;allow=n, train-ai=y", False),
        ('train-ai="n"', True),  # a string is no token, and says the same
        ("search=n", False),
        ("", False),
    ],
)
def test_content_usage(value: str, no: bool) -> None:
    assert refuses(signals([("Content-Usage", value)], None), AGENT) is no


@pytest.mark.parametrize(
    ("page", "no"),
    [
        ({"meta": ["noai, noimageai"]}, True),
        ({"meta": ["index,follow"], "x-robots-tag": ["noindex"]}, True),
        ({"meta": [{"name": "robots", "content": "none"}]}, True),
        ({"meta": [{"name": "Googlebot", "content": "none"}]}, False),
        ({"meta": "noimageindex"}, True),
        ({"tdm-reservation": ["1"]}, True),
        ({"content-usage": ["train-ai=n"]}, True),
        ({"meta": ["googlebot: noindex"]}, False),
        ({"meta": ["max-image-preview:large"], "x-robots-tag": []}, False),
        ({"meta": ["nofollow"], "tdm-reservation": ["0"]}, False),
        ({}, False),
    ],
)
def test_pages(page: dict[str, object], no: bool) -> None:
    raw = signals([], json.dumps(page))
    assert refuses(raw, AGENT) is no
    assert raw == {"page": page}
    if no:
        assert (refusal(raw, AGENT, "respect") or ("", ""))[0] == "optout_page"


def test_links_to_licences_are_kept_and_others_are_not() -> None:
    headers = [
        ("Link", '</a>; rel=preload, </l1>; rel="license"; type="application/rsl+xml"'),
        ("LINK", '<l2>;title="a, <b>; rel=license";REL=x'),
        ("link", '<l3>; rel=alternate; rel=license, <l4>; rev="license", l5; rel=license'),
        ("Link", "<l6>;rel=License"),
        ("Link", "<l7>; rel=license, <l8"),
    ]
    assert signals(headers, None) == {
        "license": [
            '</l1>; rel="license"; type="application/rsl+xml"',
            "<l6>;rel=License",
            "<l7>; rel=license",
        ]
    }
    many = signals([("Link", f"<{'y' * 3000}>; rel=license, " * 20)], None)["license"]
    assert (len(many), {len(text) for text in many}) == (10, {2000})


def test_nothing_said_is_nothing_kept() -> None:
    assert refusal(signals([("Server", "x")], None), AGENT, "strict") is None
    assert signals([("Server", "x")], None) == {}
    with pytest.raises(ValueError, match="no opt-out policy 'polite'; there are respect"):
        refusal({}, AGENT, "polite")


def test_another_policy_and_another_name_can_be_applied_to_what_was_kept() -> None:
    kept = json.loads(
        json.dumps(
            signals([("X-Robots-Tag", "otherbot: noai"), ("tdm-policy", "https://x/p")], None)
        )
    )
    assert kept == {"x-robots-tag": ["otherbot: noai"], "tdm-policy": ["https://x/p"]}
    assert not refuses(kept, AGENT)
    assert refuses(kept, AGENT, "strict")
    assert refuses(kept, "otherbot/2.0")


# --- the files of a site -------------------------------------------------------------------


class Client:
    """A web of the test. `get` is its only function; every URL that is asked for is kept."""

    def __init__(self, get: Callable[[str], Awaitable[FileAnswer]]) -> None:
        self._get = get
        self.asked: list[str] = []

    async def get(self, url: str) -> FileAnswer:
        self.asked.append(url)
        return await self._get(url)


def site_rules(
    settings: Fetch,
    get: Callable[[str], Awaitable[FileAnswer]],
    agent: str = AGENT,
) -> tuple[Sites, Client]:
    client = Client(get)
    return Sites(settings, OptoutPolicy(agent, settings.optout), client), client


def ask(
    files: dict[str, FileAnswer],
    *urls: str,
    policy: Any = "respect",
    agent: str = AGENT,
    **settings: Any,
) -> tuple[list[Verdict], list[str]]:
    """Verdicts on URLs, all at once, and the files requested, in order. Other files are a 404."""

    async def get(url: str) -> FileAnswer:
        await asyncio.sleep(0)
        return files.get(url, FileAnswer(status=404))

    rules, client = site_rules(Fetch(optout=policy, **settings), get, agent=agent)

    async def run() -> list[Verdict]:
        try:
            return list(await asyncio.gather(*(rules.verdict(ORIGIN, url) for url in urls)))
        finally:
            await rules.close()

    return uvloop.run(run()), client.asked


def verdict_of(settings: Fetch, get: Callable[[str], Awaitable[FileAnswer]]) -> Verdict:
    """The verdict on one URL of a site."""

    async def run() -> Verdict:
        rules, _ = site_rules(settings, get)
        try:
            return await rules.verdict(ORIGIN, f"{ORIGIN}/a.jpg")
        finally:
            await rules.close()

    return uvloop.run(run())


def text(body: str) -> FileAnswer:
    return FileAnswer(status=200, body=body.encode())


@pytest.mark.parametrize("case", table("robots"), ids=lambda case: case["what"])
def test_robots_txt(case: dict[str, Any]) -> None:
    body, encoding = case.get("robots", "").encode(), case.get("encoding", "")
    answer = FileAnswer(
        status=None if "unreachable" in case else case.get("status", 200),
        body=gzip.compress(body) if encoding else body,
        encoding=encoding,
        reason=case.get("unreachable"),
    )
    [verdict], asked = ask({ROBOTS: answer}, ORIGIN + case["path"], site_files=())
    assert verdict.reason == case["reason"]
    assert verdict.crawl_delay_s == case.get("crawl_delay_s")
    assert asked == [ROBOTS]
    assert (
        ask({ROBOTS: answer}, ORIGIN + case["path"], policy="ignore", site_files=())[0][0].reason
        == case["reason"]
    )
    assert ask({ROBOTS: answer}, ORIGIN + case["path"], robots_txt=False, site_files=()) == (
        [Verdict(reason=None)],
        [],
    )


@pytest.mark.parametrize("case", table("tdm_aipref_aitxt"), ids=lambda case: case["what"])
def test_tdmrep_aipref_and_ai_txt(case: dict[str, Any]) -> None:
    tdmrep = case.get("tdmrep")
    files = {
        url: text(case[name])
        for url, name in ((ROBOTS, "robots_txt"), (AI_TXT, "ai_txt"))
        if name in case
    }
    if tdmrep is not None:
        files[TDMREP] = text(tdmrep if isinstance(tdmrep, str) else json.dumps(tdmrep))
    page = json.dumps(case["page"]) if "page" in case else None
    for policy, reason in (
        ("respect", case["respect"]),
        ("strict", case["strict"]),
        ("ignore", None),
    ):
        [verdict], _ = ask(files, case["url"], policy=policy)
        kept = signals(case.get("headers", {}).items(), page)
        kept |= {"site": {ORIGIN: verdict.signal}} if verdict.signal else {}
        stored = json.loads(json.dumps(kept, sort_keys=True))
        assert (refusal(stored, AGENT, policy) or (None,))[0] == reason
        if reason == "optout_site":
            assert (verdict.reason, verdict.detail) == refusal(stored, AGENT, policy)
        else:
            assert verdict.reason is None


@pytest.mark.parametrize(
    ("lines", "delay_s"),
    [
        ("Request-rate: 2/10", 5.0),
        ("Request-rate: 2/10\nCrawl-delay: 3", 5.0),
        ("Request-rate: 10/20\nCrawl-delay: 3", 3.0),
    ],
)
def test_the_longest_pause_that_robots_txt_asks_for_counts(lines: str, delay_s: float) -> None:
    [verdict], _ = ask({ROBOTS: text(f"User-agent: *\n{lines}\n")}, f"{ORIGIN}/a.jpg")
    assert verdict.crawl_delay_s == delay_s


def test_a_refusal_stays_one_where_another_file_cannot_be_had() -> None:
    files = {
        AI_TXT: FileAnswer(status=503),
        TDMREP: text('[{"location": "/", "tdm-reservation": 1}]'),
    }
    for policy in ("respect", "strict"):
        assert ask(files, f"{ORIGIN}/a.jpg", policy=policy)[0][0].reason == "optout_site"


def test_what_is_kept_of_a_site() -> None:
    rules = (
        "User-agent: *\nContent-Usage: search=n\nContent-Usage: /b train-ai=y\nCrawl-delay: 3\n\n"
        "User-agent: GPTBot\nUser-agent: ccbot\nDisallow: /\n\n"
        "User-agent: ClaudeBot\nDisallow: /b\n"
    )
    tdm = [
        {"location": "/", "tdm-reservation": 0, "tdm-policy": "https://site.example/p", "more": 1}
    ]
    files = {
        ROBOTS: text(rules),
        TDMREP: text(json.dumps(tdm)),
        AI_TXT: text("User-Agent: *\nAllow: *.jpg\n"),
    }
    [a, b], asked = ask(files, f"{ORIGIN}/a.jpg", f"{ORIGIN}/b.jpg")
    assert asked == [ROBOTS, TDMREP, AI_TXT]
    shut = ["CCBot", "GPTBot"]
    assert a.signal == {
        "robots.txt": {
            "status": 200,
            "allowed": True,
            "disallowed": shut,
            "usage": ["search=n"],
            "crawl-delay": 3.0,
        },
        "tdmrep.json": {
            "location": "/",
            "tdm-reservation": 0,
            "tdm-policy": "https://site.example/p",
        },
        "ai.txt": {"allowed": True, "rule": "Allow: *.jpg"},
    }
    assert b.signal is not None
    assert b.signal["robots.txt"]["disallowed"] == [*shut, "ClaudeBot"]
    assert b.signal["robots.txt"]["usage"] == ["/b train-ai=y"]
    assert (a.reason, a.crawl_delay_s) == (None, 3.0)
    assert [ask(files, f"{ORIGIN}/a.jpg", policy=policy)[0][0].detail for policy in POLICIES] == [
        "",
        "robots.txt: CCBot is disallowed",
        "",
    ]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (FileAnswer(status=503), "status 503"),
        (FileAnswer(status=301), "status 301"),
        (FileAnswer(status=204), "status 204"),
        (FileAnswer(status=None, reason="deadline"), "deadline"),
        (FileAnswer(status=200, body=b"[1]"), "a rule without a location"),
        (FileAnswer(status=200, body=b"7"), "no list of rules"),
        (FileAnswer(status=200, body=b"[" * 100_000), "no JSON"),
        (FileAnswer(status=200, body=b"{}", encoding="br"), "Content-Encoding br"),
        (FileAnswer(status=200, body=b"\x1f\x8b"[:2] + b"rubbish", encoding=""), "broken gzip"),
    ],
)
def test_a_tdmrep_json_that_cannot_be_had_is_no_statement_and_strictly_no_permission(
    answer: FileAnswer, why: str
) -> None:
    [verdict], asked = ask({TDMREP: answer}, f"{ORIGIN}/a.jpg")
    assert (verdict.reason, (verdict.signal or {})["tdmrep.json"]) == (None, {"unread": why})
    # Who does not answer is not asked again
    assert asked == [ROBOTS, TDMREP] + ([] if answer.reason else [AI_TXT])
    lasting = answer.status in (200, 204, 301)
    [strict], _ = ask({TDMREP: answer}, f"{ORIGIN}/a.jpg", policy="strict")
    assert strict.reason == ("optout_site" if lasting else "permission_unknown")
    assert (
        ask({TDMREP: answer}, f"{ORIGIN}/a.jpg", policy="strict", site_files=("ai.txt",))[0][
            0
        ].reason
        is None
    )


def test_a_site_that_is_slow_with_its_other_files_costs_a_quarter_of_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def get(url: str) -> FileAnswer:
        await asyncio.sleep(0 if url == ROBOTS else 60)
        return text("")

    limits, timeout = list[float](), asyncio.timeout

    def limited(seconds: float) -> asyncio.Timeout:
        limits.append(seconds)
        return timeout(seconds)

    monkeypatch.setattr(asyncio, "timeout", limited)
    verdict = verdict_of(Fetch(deadline_s=0.4), get)
    assert limits
    assert max(limits) <= 0.1
    assert verdict.reason is None
    assert (
        (verdict.signal or {})["ai.txt"]
        == (verdict.signal or {})["tdmrep.json"]
        == {"unread": "deadline"}
    )


@pytest.mark.slow
def test_the_pace_of_a_host_is_not_held_against_it() -> None:
    async def get(url: str) -> FileAnswer:
        await asyncio.sleep(0.1)
        return FileAnswer(status=404)

    assert verdict_of(Fetch(deadline_s=0.04), get).signal is not None
    assert verdict_of(Fetch(deadline_s=0.04, delay_s=0.5), get).signal is None


def test_files_that_robots_txt_disallows_are_not_asked_for() -> None:
    [verdict], asked = ask(
        {ROBOTS: text("User-agent: *\nDisallow: /\nAllow: /images/")}, f"{ORIGIN}/images/a.jpg"
    )
    assert asked == [ROBOTS]
    assert (verdict.reason, (verdict.signal or {})["ai.txt"]) == (
        None,
        {"not_asked": "disallowed by robots.txt"},
    )


@pytest.mark.parametrize(
    "answer",
    [FileAnswer(status=503), FileAnswer(status=None, reason="dns"), FileAnswer(status=429)],
)
def test_a_site_without_an_answer_is_asked_for_nothing_more(answer: FileAnswer) -> None:
    assert ask({ROBOTS: answer}, f"{ORIGIN}/a.jpg")[1] == [ROBOTS]


def test_two_hundred_rows_ask_once() -> None:
    async def get(url: str) -> FileAnswer:
        await asyncio.sleep(0.01)
        if url == ROBOTS:
            return text("User-agent: *\nDisallow: /b")
        return FileAnswer(status=404)

    rules, client = site_rules(Fetch(), get)
    urls = [f"{ORIGIN}/{'ab'[i % 2]}.jpg" for i in range(100)]

    async def run() -> None:
        for _ in range(2):
            verdicts = await asyncio.gather(*(rules.verdict(ORIGIN, url) for url in urls))
            assert [verdict.reason for verdict in verdicts] == [None, "robots_txt"] * 50
        await rules.close()

    uvloop.run(run())
    assert client.asked == [ROBOTS, TDMREP, AI_TXT]


def test_a_verdict_tells_when_a_site_may_be_asked_again() -> None:
    [verdict], _ = ask({ROBOTS: FileAnswer(status=503, retry_after="30")}, f"{ORIGIN}/a.jpg")
    assert 29 < (verdict.retry_after_s or 0) <= 30


@pytest.mark.parametrize(
    ("status", "others", "asked_again"),
    [(200, 404, False), (404, 404, False), (503, 404, True), (404, 503, True)],
)
def test_what_could_not_be_had_is_asked_for_again_before_the_day_is_over(
    status: int, others: int, asked_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites, "FAILED_S", -1.0)

    async def get(url: str) -> FileAnswer:
        return FileAnswer(status=status if url == ROBOTS else others)

    rules, client = site_rules(Fetch(), get)

    async def run() -> None:
        for _ in range(2):
            await rules.verdict(ORIGIN, f"{ORIGIN}/a.jpg")

    uvloop.run(run())
    assert client.asked.count(ROBOTS) == (2 if asked_again else 1)


@pytest.mark.parametrize(
    ("answers", "pauses"),
    [
        (["200", "404"], [86_400, 86_400]),
        (["503", "429", "404"], [600, 600, 86_400]),
        (["503 0", "503 1", "404"], [1, 1, 86_400]),
        (["503 30", "503 30", "503 30", "429 700", "404"], [30, 30, 600, 700, 86_400]),
        (["503 30", "200", "503 30", "503 30", "404"], [30, 86_400, 30, 30, 86_400]),
        (["503 99999999", "404"], [86_400, 86_400]),
    ],
)
def test_how_long_what_a_site_said_is_kept(
    answers: list[str], pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are a status and a Retry-After, of which two in a row are obeyed."""
    now, coming = 1000.0, iter(answers)
    monkeypatch.setattr(sites, "time", SimpleNamespace(monotonic=lambda: now))

    async def get(_: str) -> FileAnswer:
        status, _, retry_after = next(coming).partition(" ")
        return FileAnswer(status=int(status), retry_after=retry_after or None)

    rules, client = site_rules(Fetch(site_files=(), retries=2), get)

    async def run() -> None:
        nonlocal now
        for count, pause in enumerate(pauses, 1):
            for later in (0.0, pause - 0.5):
                now += later
                await rules.verdict(ORIGIN, f"{ORIGIN}/a.jpg")
                assert len(client.asked) == count
            now += 1.0

    uvloop.run(run())


class Scripted:
    """Requests of a file client that answer what a table says."""

    def __init__(self, answers: dict[str, FileAnswer]) -> None:
        self.answers = answers

    async def wait_for_lookup(self, _: str) -> None:
        pass

    async def file(self, url: str, limit: int) -> FileAnswer:
        assert limit == sites.FILE_BYTES
        return self.answers[url]


def moved(location: str) -> FileAnswer:
    return FileAnswer(status=301, location=location)


HOPS = {f"{ORIGIN}/{n}": moved(f"/{n + 1}") for n in range(5)}


@pytest.mark.parametrize(
    ("answers", "got"),
    [
        ({ROBOTS: text("a")}, text("a")),
        ({ROBOTS: FileAnswer(status=404)}, FileAnswer(status=404)),
        ({ROBOTS: moved("/other"), f"{ORIGIN}/other": text("b")}, text("b")),
        ({ROBOTS: moved("/0"), **HOPS, f"{ORIGIN}/4": text("5 redirects")}, text("5 redirects")),
        ({ROBOTS: moved("/0"), **HOPS}, FileAnswer(status=301)),
        ({ROBOTS: moved("http://192.168.0.1/robots.txt")}, FileAnswer(status=301)),
        ({ROBOTS: moved("http://[broken/")}, FileAnswer(status=301)),
        (
            {ROBOTS: moved("/a"), f"{ORIGIN}/a": FileAnswer(status=None, reason="private_address")},
            FileAnswer(status=301),
        ),
        (
            {ROBOTS: moved("/a"), f"{ORIGIN}/a": FileAnswer(status=None, reason="reset")},
            FileAnswer(status=None, reason="reset"),
        ),
        (
            {ROBOTS: FileAnswer(status=None, reason="private_address")},
            FileAnswer(status=None, reason="private_address"),
        ),
    ],
)
def test_a_file_is_what_its_redirects_lead_to(
    answers: dict[str, FileAnswer], got: FileAnswer
) -> None:
    """What leads nowhere is no 404, which would be a permission."""
    settings = Fetch()
    requests: Any = Scripted(answers)
    client = sites.SiteFileClient(settings, requests, Queues(settings, lambda: 0.0))
    assert uvloop.run(client.get(ROBOTS)) == got


def test_a_fetch_asks_a_site_for_its_files_and_keeps_what_they_say() -> None:
    files = {
        "/robots.txt": b"User-agent: *\nDisallow: /no\n\nUser-agent: GPTBot\nDisallow: /",
        "/.well-known/tdmrep.json": b'[{"location": "/reserved/", "tdm-reservation": 1}]',
        "/ai.txt": b"User-Agent: *\nDisallow: *.gif\n",
    }
    asked: Counter[str] = Counter()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split(" ")[1]
        asked[path] += 1
        packed = gzip.compress(files.get(path, b"a picture"))
        encoding = "Content-Encoding: gzip\r\n" if path in files else ""
        writer.write(
            f"HTTP/1.1 200 X\r\n{encoding}Content-Length: {len(packed)}\r\n".encode()
            + b"Connection: close\r\n\r\n"
        )
        writer.write(packed)
        await writer.drain()
        writer.close()

    async def run(policy: Any) -> list[Fetched]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        settings = Fetch(
            user_agent=AGENT,
            allow_private=True,
            connect_to={"site.example": address},
            optout=policy,
        )
        paths = ["a.jpg", "no.jpg", "reserved/a.jpg", "a.gif", *(f"{i}.jpg" for i in range(16))]
        pairs = [
            Pair(uid=f"{i:032x}", url=f"{ORIGIN}/{path}", caption="")
            for i, path in enumerate(paths)
        ]
        async with server:
            ends = [item async for item in fetch_all(pairs, settings)]
        return [end for _, end in sorted(ends, key=lambda item: item[0])]

    for policy, reasons in (
        ("respect", [None, "robots_txt", "optout_site", "optout_site", *[None] * 16]),
        ("strict", ["optout_site", "robots_txt", *["optout_site"] * 18]),
        ("ignore", [None, "robots_txt", *[None] * 18]),
    ):
        asked.clear()
        ends = uvloop.run(run(policy))
        assert [end.reason for end in ends] == reasons
        assert {asked[path] for path in files} == {1}
        kept = [json.loads(end.optout or "")["site"][ORIGIN] for end in ends]
        assert kept[0] == {"robots.txt": {"status": 200, "allowed": True, "disallowed": ["GPTBot"]}}
        assert kept[2]["tdmrep.json"] == {"location": "/reserved/", "tdm-reservation": 1}
        assert kept[3]["ai.txt"] == {"allowed": False, "rule": "Disallow: *.gif"}


def test_the_site_that_was_used_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "MOST_SITES", 2)

    async def get(_: str) -> FileAnswer:
        return FileAnswer(status=404)

    rules, client = site_rules(Fetch(site_files=()), get)

    async def run() -> None:
        for host in "abacaba":
            await rules.verdict(f"http://{host}", f"http://{host}/a.jpg")

    uvloop.run(run())
    assert [url[7] for url in client.asked] == ["a", "b", "c", "b"]


# --- what a hostile file may cost ----------------------------------------------------------


def test_a_file_of_many_names_or_rules_costs_no_more_than_its_lines() -> None:
    names = "".join(f"User-agent: b{i}\n" for i in range(12_000))
    # For each of the names: 168 million entries
    rules = "".join(f"Disallow: /{i}*{i}\n" for i in range(14_000))
    [c, d], _ = ask(
        {ROBOTS: text("User-agent: *\nDisallow: /c\n" + names + rules)},
        f"{ORIGIN}/c.jpg",
        f"{ORIGIN}/d",
    )
    assert (c.reason, d.reason) == ("robots_txt", None)
    assert (d.signal or {})["robots.txt"]["unread"] == "more than 5000 lines: judged for us only"
    [verdict], _ = ask({ROBOTS: text("User-agent: *\n" + rules)}, f"{ORIGIN}/d")
    assert (verdict.reason, verdict.detail) == ("robots_txt", "more than 2000 rules with a star")
