"""Every fault of a web ends in its own reason, in bounded time and bytes. No forbidden address is
connected to."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import ssl
import sys
import time
from collections import Counter
from email.utils import formatdate
from typing import Any

import pytest
import uvloop

from clipmill.manifests import tls
from clipmill.manifests.columns import REASONS
from clipmill.manifests.schema import Fetch, Pair
from clipmill.pipeline.fetch import request
from clipmill.pipeline.fetch.fetcher import Fetched, Fetcher
from tests.support.fetched import fetch_all

# Every address that this process asked a socket to connect to
connected: list[tuple[object, ...]] = []
sys.addaudithook(
    lambda event, args: connected.append(args[1]) if event == "socket.connect" else None
)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "BACKOFF_S", 0.01)


def run(pairs: list[Pair], settings: Fetch) -> list[Fetched]:
    """Ends of all pairs, in the order of the pairs."""

    async def collect() -> list[tuple[int, Fetched]]:
        return [item async for item in fetch_all(pairs, settings)]

    outcomes = uvloop.run(collect())
    assert sorted(index for index, _ in outcomes) == list(range(len(pairs)))
    assert all((end.body is None) == (end.reason in REASONS) for _, end in outcomes)
    return [end for _, end in sorted(outcomes, key=lambda item: item[0])]


def one(web: Any, path: str, host: str = "a.web.test", **changes: Any) -> Fetched:
    return run(web.pairs(f"http://{host}{path}"), web.fetch(**changes))[0]


# --- what ends how -------------------------------------------------------------------------


def test_a_picture_arrives_with_its_circumstances(web: Any) -> None:
    before = time.time()
    end = one(web, "/picture/1.jpg?Content-Type=image/x-thing")
    assert end.body == web.picture
    assert (end.reason, end.http_status, end.content_type, end.attempts) == (
        None,
        200,
        "image/x-thing",
        1,
    )
    assert end.final_url == "http://a.web.test/picture/1.jpg?Content-Type=image/x-thing"
    assert end.optout is None
    assert before <= end.fetched_at <= time.time()
    host, _, headers = web.requests[-1]
    assert host == "a.web.test"
    assert headers["user-agent"] == "clipmilltest/1.0 (+http://clipmill.example/bot)"
    assert headers["accept-encoding"] == "identity"
    assert "cookie" not in headers


@pytest.mark.parametrize(
    ("path", "reason", "attempts"),
    [
        ("/status/404", "http_4xx", 1),
        ("/status/410", "http_4xx", 1),
        ("/status/403", "http_4xx", 1),
        ("/status/404?Content-Length=99", "http_4xx", 1),  # a lie in an error page changes nothing
        ("/status/500", "http_5xx", 3),
        ("/status/503", "http_5xx", 3),
        ("/status/429", "http_429", 3),
        ("/status/204?Content-Length=", "http_other", 1),
        ("/status/206", "http_other", 1),
        ("/status/304?Content-Length=", "http_other", 1),
        ("/status/302", "http_other", 1),  # a redirect without a place
        ("/truncated", "truncated", 3),
        # The first on the connection of robots.txt, which could have been closed by then
        ("/reset", "reset", 4),
        ("/garbage", "http_other", 1),
        ("/bytes/0", "empty", 1),
        ("/picture/1?Content-Encoding=gzip", "encoding", 1),
        ("/picture/1?Content-Encoding=br", "encoding", 1),
        ("/announced/99999999999", "too_many_bytes", 1),
        ("/endless", "too_many_bytes", 1),
        ("/bytes/100001", "too_many_bytes", 1),
        ("/bytes/100000", None, 1),
        ("/flaky/2/503", None, 3),
        ("/flaky/1/429", None, 2),
        ("/flaky/3/503", "http_5xx", 3),
        ("/picture/1?X-Robots-Tag=noai,+max-image-preview:large", "optout_header", 1),
        ("/picture/1?TDM-Reservation=1", "optout_header", 1),
        ("/picture/1?X-Robots-Tag=otherbot:+noai", None, 1),
    ],
)
def test_routes(web: Any, path: str, reason: str | None, attempts: int) -> None:
    end = one(web, path, max_bytes=100_000, retries=2)
    assert (end.reason, end.attempts) == (reason, attempts), end.detail


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/hang", "/drip", "/slow/30", "/announced/5000"])
def test_a_deadline_is_kept_and_a_timeout_is_not_repeated(web: Any, path: str) -> None:
    end = one(web, path, deadline_s=0.4)
    assert (end.reason, end.attempts) == ("deadline", 1)
    assert 0.39 <= end.elapsed_s < 5  # the loop counts in milliseconds
    assert web.hits[f"a.web.test{path}"] == 1


@pytest.mark.slow
def test_the_time_in_which_the_process_does_not_run_is_not_its_hosts(web: Any) -> None:
    """As where it is stopped, or waits for a processor: no limit of a row passes meanwhile."""
    urls = ["http://a.web.test/slow/0.5", "http://b.web.test/hang"]
    pairs = web.pairs(*urls, "http://b.web.test/picture/1.jpg")  # the last waits for /hang
    settings = web.fetch(deadline_s=1.5, patience_s=2.5, per_host=1)

    async def collect() -> list[tuple[int, Fetched]]:
        asyncio.get_running_loop().call_later(0.3, time.sleep, 3.0)
        return [item async for item in fetch_all(pairs, settings)]

    ends = dict(uvloop.run(collect()))
    assert [ends[n].reason for n in range(3)] == [None, "deadline", None]
    assert all(end.elapsed_s < 2 for end in ends.values())


@pytest.mark.slow
def test_the_deadline_covers_all_retries(web: Any) -> None:
    end = one(web, "/status/503?Retry-After=1", deadline_s=1.5, retries=5)
    assert (end.reason, end.attempts) == ("http_5xx", 2)
    assert end.elapsed_s < 1.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "after",
    ["1", formatdate(time.time() + 86400 * 365, usegmt=True), "soon", "-3"],
    ids=["one second", "a date in a year", "a word", "a negative number"],
)
def test_retry_after(web: Any, after: str) -> None:
    end = one(web, f"/flaky/1/429?Retry-After={after.replace(' ', '+')}", deadline_s=5.0)
    if after.startswith(("1", "soon", "-")):
        assert end.reason is None
        assert (end.elapsed_s >= 0.99) is (after == "1")
    else:  # a year does not fit in the deadline
        assert (end.reason, end.attempts) == ("http_429", 1)


# --- where it may go -----------------------------------------------------------------------


def test_refused_urls_open_no_socket(web: Any) -> None:
    urls = [
        "file:///etc/passwd", "data:image/gif;base64,R0lG", "ftp://a.web.test/", "http://a.web.test:22/",
        "http://a b/",
        "http://169.254.169.254/latest/meta-data", "http://[::ffff:169.254.169.254]/", "http://2852039166/",
        "http://168.63.129.16/", "http://[64:ff9b::7f00:1]/", "http://224.0.0.1/",
        "http://0.0.0.0/", "",
    ]  # fmt: skip
    connected.clear()
    ends = run(web.pairs(*urls), web.fetch())
    assert Counter(end.reason for end in ends) == {
        "scheme": 3,
        "port": 1,
        "bad_url": 2,
        "private_address": 7,
    }
    assert all(end.attempts == 0 and end.final_url is None for end in ends)
    assert connected == []
    assert web.connections == 0


def test_loopback_needs_allow_private(web: Any) -> None:
    literal = f"http://127.0.0.1:{web.port}/picture/1"
    settings = web.fetch(allow_ports=(80, web.port))
    assert run(web.pairs(literal), settings)[0].body == web.picture
    count = web.connections
    connected.clear()
    closed = web.fetch(allow_ports=(80, web.port), allow_private=False)
    ends = run(
        web.pairs(literal, "http://a.web.test/picture/1", f"http://2130706433:{web.port}/"), closed
    )
    assert [end.reason for end in ends] == ["private_address"] * 3
    assert connected == []
    assert web.connections == count


@pytest.mark.parametrize(("hops", "reason"), [(0, None), (3, None), (4, "redirects")])
def test_number_of_redirects(web: Any, hops: int, reason: str | None) -> None:
    end = one(web, f"/hops/{hops}", max_redirects=3)
    assert end.reason == reason
    assert end.attempts == 1
    assert end.final_url == f"http://a.web.test/hops/{max(hops - 3, 0)}"


def test_nobody_listens(web: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        end = one(
            web, "/a", connect_to={"a.web.test": f"127.0.0.1:{port}"}, robots_txt=False, retries=1
        )
    assert (end.reason, end.attempts) == ("connect", 2)


def test_certificates_are_verified(web: Any) -> None:
    assert tls.context().verify_mode is ssl.CERT_REQUIRED
    assert tls.context().check_hostname
    assert tls.context() is tls.context()
    end = run(web.pairs("https://a.web.test/picture/1"), web.fetch(robots_txt=False))[0]
    # The server speaks no TLS; there is no falling back
    assert (end.reason, end.attempts) == ("tls", 1)


# --- opt-outs ------------------------------------------------------------------------------


def test_signals_are_kept_raw_and_decide_only_if_respected(web: Any) -> None:
    path = "/picture/1?X-Robots-Tag=NoAI,+nofollow&tdm-policy=https://x/p"
    pairs = [
        Pair(uid="0", url=f"http://a.web.test{path}", caption="", robots='{"meta": ["noarchive"]}')
    ]
    kept = {
        "page": {"meta": ["noarchive"]},
        "x-robots-tag": ["NoAI, nofollow"],
        "tdm-policy": ["https://x/p"],
    }
    end = run(pairs, web.fetch())[0]
    assert end.reason == "optout_header"
    assert json.loads(end.optout or "") == kept
    end = run(pairs, web.fetch(optout="ignore"))[0]
    assert end.body == web.picture
    assert json.loads(end.optout or "") == kept


def test_a_page_that_says_no_is_not_asked(web: Any) -> None:
    pair = Pair(
        uid="0", url="http://a.web.test/picture/1", caption="", robots='{"meta": ["noimageai"]}'
    )
    end = run([pair], web.fetch())[0]
    assert (end.reason, end.attempts) == ("optout_page", 0)
    assert web.connections == 0
    assert run([pair], web.fetch(optout="ignore"))[0].reason is None


def test_robots_txt_is_fetched_once_per_host_and_obeyed(web: Any) -> None:
    web.robots["a.web.test"] = (200, b"User-agent: clipmilltest\nDisallow: /picture/1")
    web.robots["c.web.test"] = (503, b"")
    urls = [f"http://{host}.web.test/picture/{i}" for host in "abc" for i in range(8)]
    ends = run(web.pairs(*urls), web.fetch())
    assert [i for i, end in enumerate(ends) if end.reason] == [1, *range(16, 24)]
    assert ends[1].reason == "robots_txt"
    assert {end.reason for end in ends[16:]} == {"permission_unknown"}
    assert ends[1].attempts == ends[16].attempts == 0
    closed = json.loads(ends[16].optout or "")["site"]["http://c.web.test"]["robots.txt"]
    assert closed == {"status": 503, "unread": "status 503"}
    robots = json.loads(ends[1].optout or "")["site"]["http://a.web.test"]["robots.txt"]
    assert (robots["status"], robots["allowed"]) == (200, False)
    assert all(web.hits[f"{host}.web.test/robots.txt"] == 1 for host in "abc")
    assert web.hits["a.web.test/picture/1"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("robots", "reason"),
    [
        ("/redirect?to=http://b.web.test/robots.txt", None),  # b has none
        ("/redirect?to=http://169.254.169.254/robots.txt", "robots_txt"),
        ("/hops/9", "robots_txt"),
        ("/picture/1", None),  # rubbish holds no rules
        ("/picture/1?Content-Encoding=gzip", "robots_txt"),
        ("/reset", "reset"),
        ("/redirect?to=http://b.web.test/reset", "reset"),
        ("/redirect?to=http://b.web.test/status/500", "permission_unknown"),
        ("/truncated", "truncated"),
        ("/hang", "deadline"),
        ("/endless", None),
    ],
)
def test_robots_txt_that_is_no_plain_file(web: Any, robots: str, reason: str | None) -> None:
    web.robots["a.web.test"] = robots
    connected.clear()
    end = one(web, "/picture/1", deadline_s=1.0)
    assert end.reason == reason, end.detail
    assert {address[0] for address in connected} == {"127.0.0.1"}


def test_the_host_of_a_redirect_is_asked_for_its_rules(web: Any) -> None:
    web.robots["b.web.test"] = (200, b"User-agent: *\nDisallow: /picture")
    assert one(web, "/redirect?to=http://b.web.test/picture/1").reason == "robots_txt"
    assert web.hits["b.web.test/picture/1"] == 0


# --- queues --------------------------------------------------------------------------------


def test_no_host_gets_more_requests_at_once_than_it_should(web: Any) -> None:
    urls = [f"http://{'abcd'[i % 4]}.web.test/slow/0.01?{i}" for i in range(80)]
    urls += [f"http://a.web.test/redirect?to=http://e.web.test/slow/0.01%3F{i}" for i in range(20)]
    ends = run(web.pairs(*urls), web.fetch(per_host=3))
    assert all(end.body for end in ends)
    assert {host: web.peak[f"{host}.web.test"] for host in "abcde"} == dict.fromkeys("abcde", 3)


def test_redirects_both_ways_between_two_hosts_do_not_lock(web: Any) -> None:
    urls = []
    for i in range(30):
        there, back = ("a", "b") if i % 2 else ("b", "a")
        urls.append(f"http://{there}.web.test/redirect?to=http://{back}.web.test/picture/{i}")
    assert all(end.body for end in run(web.pairs(*urls), web.fetch(per_host=1)))


@pytest.mark.slow
def test_a_hanging_host_holds_nothing_up_and_its_queue_is_not_charged(web: Any) -> None:
    urls = [
        f"http://slow.web.test/hang/{i}" if i % 10 == 0 else f"http://h{i % 7}.web.test/picture/{i}"
        for i in range(60)
    ]
    settings = web.fetch(per_host=2, deadline_s=0.4, concurrency=16, robots_txt=False)

    async def collect() -> list[int]:
        return [index async for index, _ in fetch_all(web.pairs(*urls), settings)]

    order = uvloop.run(collect())
    healthy = [i for i in range(60) if i % 10]
    last_healthy = max(order.index(i) for i in healthy)
    assert last_healthy < 56  # nearly all of the hanging rows end after the last healthy one
    waited = run(
        web.pairs(*(f"http://one.web.test/slow/0.3?{i}" for i in range(6))),
        web.fetch(per_host=1, deadline_s=1),
    )
    assert all(end.body for end in waited)  # 1.8 s in all, each within its own second


@pytest.mark.slow
def test_a_silent_host_is_given_up(web: Any) -> None:
    urls = [f"http://dead.web.test/hang/{i}" for i in range(40)] + ["http://a.web.test/picture/1"]
    ends = run(web.pairs(*urls), web.fetch(per_host=2, deadline_s=1, robots_txt=False))
    assert Counter(end.reason for end in ends[:40]) in (
        {"deadline": 4, "host_busy": 36},
        {"deadline": 5, "host_busy": 35},  # two at a time: the fifth had begun
    )
    assert all(end.attempts == (end.reason == "deadline") for end in ends[:40])
    assert "not asked" in ends[39].detail
    assert ends[40].reason is None
    mixed = [f"http://mixed.web.test/{'hang' if i % 3 else 'picture'}/{i}" for i in range(9)]
    ends = run(web.pairs(*mixed), web.fetch(per_host=1, deadline_s=1, robots_txt=False))
    assert [end.reason for end in ends] == [None if i % 3 == 0 else "deadline" for i in range(9)]
    assert all(end.attempts == 1 for end in ends)


@pytest.mark.slow
def test_a_host_that_has_no_time_does_not_hold_a_shard_for_ever(web: Any) -> None:
    urls = [f"http://one.web.test/slow/0.2?{i}" for i in range(20)] + [
        "http://a.web.test/picture/1"
    ]
    ends = run(web.pairs(*urls), web.fetch(per_host=1, patience_s=0.7))
    reasons = [end.reason for end in ends]
    assert set(reasons[:3]) == {None}
    assert set(reasons[5:20]) == {"host_busy"}
    assert reasons[20] is None
    assert ends[19].detail == "its host had no time for it in 0.7 s"


@pytest.mark.slow
def test_a_host_that_asks_to_wait_is_asked_nothing_meanwhile(web: Any) -> None:
    urls = [
        "http://a.web.test/flaky/1/503?Retry-After=1",
        *(f"http://a.web.test/picture/{i}" for i in range(6)),
    ]
    begun = time.monotonic()
    ends = run(web.pairs(*urls), web.fetch(per_host=1, robots_txt=False))
    assert all(end.body for end in ends)
    assert time.monotonic() - begun >= 0.99
    assert min(end.fetched_at for end in ends[1:]) - ends[0].fetched_at >= 0.9
    ends = run(
        web.pairs("http://b.web.test/status/429?Retry-After=9999", *urls[1:2]),
        web.fetch(deadline_s=2),
    )
    assert [end.reason for end in ends] == ["http_429", None]
    busy = [f"http://c.web.test/status/503?Retry-After=9999&{i}" for i in range(5)]
    ends = run(web.pairs(*busy), web.fetch(deadline_s=2, per_host=1, robots_txt=False))
    assert [end.reason for end in ends] == ["http_5xx", *["host_busy"] * 4]


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 503])
def test_a_robots_txt_that_asks_to_wait_is_asked_again_after_that_time(
    web: Any, status: int
) -> None:
    web.robots["a.web.test"] = f"/flaky/1/{status}?Retry-After=1"
    begun = time.monotonic()
    ends = run(web.pairs(*(f"http://a.web.test/picture/{i}" for i in range(6))), web.fetch())
    assert {end.reason for end in ends} == {None}
    assert time.monotonic() - begun >= 0.99
    assert web.hits["a.web.test/robots.txt"] == 2
    assert {end.attempts for end in ends} == {1}
    web.robots["b.web.test"] = f"/status/{status}?Retry-After=1"  # again and again
    ends = run(web.pairs(*(f"http://b.web.test/picture/{i}" for i in range(6))), web.fetch())
    assert {end.reason for end in ends} == {"permission_unknown"}
    assert web.hits["b.web.test/robots.txt"] == 3
    assert "1" in (ends[0].optout or "")


@pytest.mark.slow
@pytest.mark.parametrize("ours", [True, False])
def test_a_delay_holds_for_files_pictures_and_redirects(web: Any, ours: bool) -> None:
    web.robots["a.web.test"] = (
        200,
        b"User-agent: *\nCrawl-delay: 0.3" if not ours else b"User-agent: *\nAllow: /",
    )
    urls = [f"http://a.web.test/picture/{i}" for i in range(3)] + [
        "http://b.web.test/redirect?to=http://a.web.test/picture/9"
    ]
    begun = time.monotonic()
    ends = run(
        web.pairs(*urls), web.fetch(delay_s=0.3 if ours else 0.0, deadline_s=1.0, per_host=4)
    )
    assert all(end.body for end in ends)
    assert time.monotonic() - begun >= 4 * 0.299
    assert web.peak["a.web.test"] == 1


@pytest.mark.slow
def test_a_body_below_the_minimum_rate(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "RATE_AFTER_S", 0.3)
    end = one(web, "/drip", deadline_s=5.0, min_rate=1000)
    assert (end.reason, end.detail, end.attempts) == ("too_slow", "less than 1000 bytes/s", 1)
    assert 0.29 <= end.elapsed_s < 2
    assert one(web, "/announced/5000", deadline_s=5.0).reason == "too_slow"
    assert one(web, "/drip", deadline_s=1.0, min_rate=10).reason == "deadline"
    assert one(web, "/drip", deadline_s=1.0, min_rate=0).reason == "deadline"


@pytest.mark.slow
def test_large_bodies_wait_for_their_share_of_memory(
    web: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 3 * 2**20
    monkeypatch.setattr(request, "BUDGET", size)
    used_bytes: list[int] = []
    real = request.Budget.acquire

    async def acquire(self: request.Budget, amount: int) -> None:
        await real(self, amount)
        used_bytes.append(self.size - self.free)

    monkeypatch.setattr(request.Budget, "acquire", acquire)
    ends = run(
        web.pairs(*(f"http://h{i}.web.test/bytes/{size}" for i in range(12))),
        web.fetch(max_bytes=size),
    )
    assert [len(end.body or b"") for end in ends] == [size] * 12
    assert len(used_bytes) == 12
    assert max(used_bytes) <= size


def test_a_fetcher_takes_several_shards_the_earlier_first(web: Any) -> None:
    async def together() -> tuple[list[tuple[int, int]], int]:
        fetcher = Fetcher(web.fetch(per_host=1))
        ends: list[tuple[int, int]] = []

        async def shard(number: int) -> None:
            urls = [
                f"http://{name}.web.test/slow/0.05?{number}-{i}"
                for i in range(3)
                for name in ("a", "b")
            ]
            async for index, end in fetcher.fetch(web.pairs(*urls), number):
                assert end.body
                ends.append((number, index))

        await asyncio.gather(shard(7), shard(3))
        await fetcher.close()
        return ends, fetcher.requests.budget.free - fetcher.requests.budget.size

    ends, spare = uvloop.run(together())
    assert [number for number, _ in ends][2:6] == [3] * 4
    assert spare == 0
    assert web.hits["a.web.test/robots.txt"] == 1


def test_unread_results_stop_the_fetching(web: Any) -> None:
    async def look() -> None:
        ends = fetch_all(
            web.pairs(*(f"http://h{i}.web.test/picture/{i}" for i in range(60))),
            web.fetch(concurrency=4),
        )
        async for _ in ends:
            await asyncio.sleep(0.2)
            break
        assert sum(count for path, count in web.hits.items() if "/picture/" in path) <= 6
        await ends.aclose()

    uvloop.run(look())


@pytest.mark.slow
def test_leaving_early_leaves_nothing_behind(web: Any) -> None:
    async def leave() -> None:
        pairs = web.pairs("http://a.web.test/picture/1", "http://b.web.test/hang")
        async with contextlib.aclosing(fetch_all(pairs, web.fetch())) as ends:
            async for _ in ends:
                break
        assert len(asyncio.all_tasks()) == 1

    uvloop.run(leave())
    gc.collect()  # an unclosed socket would warn here, and a warning fails


@pytest.mark.parametrize("agent", [None, "", "  ", "my\ncrawler", "Müller"])
def test_a_user_agent_is_needed(agent: str | None) -> None:
    with pytest.raises(ValueError, match="user_agent"):
        run([], Fetch(user_agent=agent))
