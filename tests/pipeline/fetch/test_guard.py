"""Where no socket may go: addresses, the ways to spell them, names that lead to them."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp.abc import ResolveResult

from clipmill.manifests import tls
from clipmill.manifests.schema import Fetch, Pair
from clipmill.pipeline.archives.urls import LONGEST_URL
from clipmill.pipeline.fetch import guard, request
from clipmill.pipeline.fetch.fetcher import Fetched
from clipmill.pipeline.fetch.guard import Refused, check_address, target
from tests.support import hostile_server
from tests.support.dns import fake_dns
from tests.support.fetched import fetch_all
from tests.support.tables import table

PLAIN = Fetch()
PRIVATE = Fetch(allow_private=True)
ADDRESSES = table("addresses")
FORBIDDEN = [case["address"] for case in ADDRESSES if case["forbidden"]]
OPENED = [
    "127.0.0.1", "127.255.255.254", "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255",
    "192.168.0.1",
    "::1", "fc00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
]  # fmt: skip
assert set(OPENED) < set(FORBIDDEN)

# Every address that this process asked a socket to connect to
connected: list[tuple[object, ...]] = []
sys.addaudithook(
    lambda event, args: connected.append(args[1]) if event == "socket.connect" else None
)


def reason(url: str, settings: Fetch = PLAIN) -> str:
    with pytest.raises(Refused) as refused:
        target(url, settings)
    return refused.value.reason


@pytest.mark.parametrize("case", ADDRESSES, ids=lambda case: case["address"])
@pytest.mark.parametrize("settings", [PLAIN, PRIVATE], ids=["plain", "private"])
def test_addresses(case: dict[str, Any], settings: Fetch) -> None:
    """`allow_private` opens loopback and private networks and nothing else."""
    address = case["address"]
    if case["forbidden"] and (settings is PLAIN or address not in OPENED):
        with pytest.raises(Refused, match="private_address"):
            check_address(address, settings)
    else:
        check_address(address, settings)


@pytest.mark.parametrize("case", table("spellings"), ids=lambda case: case["what"])
def test_every_spelling_of_a_forbidden_address(case: dict[str, str]) -> None:
    assert reason(f"http://{case['host']}/picture.jpg") == case["reason"]
    assert reason(f"https://{case['host']}:443/?a") == case["reason"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("file:///etc/passwd", "scheme"),
        ("ftp://example.org/a.jpg", "scheme"),
        ("data:image/png;base64,AAAA", "scheme"),
        ("javascript:alert(1)", "scheme"),
        ("gopher://example.org/", "scheme"),
        ("//example.org/a.jpg", "bad_url"),
        ("a.jpg", "bad_url"),
        ("", "bad_url"),
        ("http://", "bad_url"),
        ("http:///a.jpg", "bad_url"),
        ("http:a.jpg", "bad_url"),
        ("http://user:word@example.org/", "bad_url"),
        ("http://example.org\\@127.0.0.1/", "bad_url"),
        ("http://exa mple.org/", "bad_url"),
        ("http://%31%32%37.0.0.1/", "bad_url"),
        ("http://[::1/", "bad_url"),
        ("http://[::1%25lo]/", "bad_url"),
        ("http://256.256.256.256/", "bad_url"),
        ("http://1.2.3.256/", "bad_url"),
        ("http://1.2.65536/", "bad_url"),
        ("http://1.2.3.4.5/", "bad_url"),
        ("http://08.8.8.8/", "bad_url"),
        ("http://134744072/", "bad_url"),  # 8.8.8.8, but nobody writes it so
        ("http://" + "a" * 64 + ".org/", "bad_url"),
        ("http://example..org/", "bad_url"),
        ("http://example.org/" + "a" * 9000, "bad_url"),
        ("http://example.org:99999/", "bad_url"),
        ("http://example.org/\ud800", "bad_url"),
        ("http://example.org:22/", "port"),
        ("https://example.org:8080/", "port"),
        ("http://example.org:0/", "port"),
    ],
)
def test_urls_that_are_refused(url: str, expected: str) -> None:
    assert reason(url) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://Example.ORG/A b.jpg?q=ä#part", "http://example.org/A%20b.jpg?q=%C3%A4"),
        ("https://example.org:443/x%2Fy%zz?a=%20", "https://example.org/x%2Fy%zz?a=%20"),
        ("https://example.org:80/", "https://example.org:80/"),
        ("HTTP://bücher.example.", "http://xn--bcher-kva.example/"),
        (" \thttp://exam\nple.org/im\\ages/a.jpg\r\n", "http://example.org/im/ages/a.jpg"),
        ("http://8.8.8.8/a|b{c}.jpg", "http://8.8.8.8/a%7Cb%7Bc%7D.jpg"),
        ("https://[2606:4700:4700:0::1111]/", "https://[2606:4700:4700::1111]/"),
        ("http://[::FFFF:8.9.10.11]/", "http://[::ffff:809:a0b]/"),
        ("http://example.org/a/%2e%2E/b/%2e/c", "http://example.org/b/c"),
    ],
)
def test_a_url_has_one_spelling(url: str, expected: str) -> None:
    assert target(url, PLAIN).url == expected


def test_a_url_of_the_longest_length_is_requested_and_one_character_more_is_not() -> None:
    start = "http://example.org/"
    longest = start + "a" * (LONGEST_URL - len(start))
    assert target(longest, PLAIN).url == longest
    assert reason(longest + "a") == "bad_url"


@pytest.mark.parametrize(
    ("url", "detail"),
    [("http:///a.jpg", "no host"), ("http://a..b/", "'a..b' is not a host name")],
)
def test_a_refusal_says_whether_there_is_a_host(url: str, detail: str) -> None:
    with pytest.raises(Refused) as refused:
        target(url, PLAIN)
    assert refused.value.detail == detail


@pytest.mark.parametrize(
    "url",
    ["http://\x1b[31m.test/", "http://a\u202eb.test/", "http://[v1.\udce9]/", "\x9b31m://a.test/"],
)
def test_a_refusal_quotes_a_url_without_what_a_terminal_acts_on(url: str) -> None:
    with pytest.raises(Refused) as refused:
        target(url, PLAIN)
    assert refused.value.detail.isprintable()
    assert str(refused.value).isprintable()


def test_ports_and_origin() -> None:
    checked = target("http://example.org:8080/a", Fetch(allow_ports=(8080,)))
    assert (checked.host, checked.port, checked.origin) == (
        "example.org",
        8080,
        "http://example.org:8080",
    )
    assert target("https://[2606:4700::1]/", PLAIN).origin == "https://[2606:4700::1]"
    assert target("https://example.org/", PLAIN).port == 443


# --- names and sockets ---------------------------------------------------------------------


def test_the_socket_is_made_for_permitted_numbers_only() -> None:
    make = guard.socket_factory(Fetch(connect_to={"a.test": "8.8.8.8:8640"}))
    make((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("8.8.8.8", 443))).close()
    make((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("8.8.8.8", 8640))).close()
    for address, why in (("127.0.0.1", 443), "private_address"), (("8.8.8.8", 22), "port"):
        with pytest.raises(Refused, match=why):
            make((socket.AF_INET, socket.SOCK_STREAM, 0, "", address))


# --- on the way: redirects, and names that change their mind -------------------------------

PICTURE = b"\xff\xd8 a picture as far as a fetch can tell"
NEVER = [a for a in FORBIDDEN if a not in OPENED and "%" not in a and a != "0.1.2.3"]


class Moved:
    """A server on loopback: an image, or what `moves` or `flaky` have for host and path."""

    def __init__(self, moves: dict[str, str], flaky: set[str] | None = None) -> None:
        self.moves, self.flaky = moves, set(flaky or ())
        self.asked: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")
        host = next(line[6:] for line in head if line.startswith("Host: ")).partition(":")[0]
        asked = host + head[0].split(" ")[1]
        self.asked.append(asked)
        if asked in self.flaky:
            self.flaky.discard(asked)
            writer.write(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        elif asked in self.moves:
            location = self.moves[asked].encode()
            writer.write(
                b"HTTP/1.1 302 X\r\nContent-Length: 0\r\nConnection: close\r\nLocation: "
                + location
                + b"\r\n\r\n"
            )
        else:
            writer.write(
                b"HTTP/1.1 200 X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(PICTURE)
            )
            writer.write(PICTURE)
        await writer.drain()
        writer.close()


async def ends_of(urls: list[str], settings: Fetch) -> list[Fetched]:
    pairs = [Pair(uid=f"{i:032x}", url=url, caption="") for i, url in enumerate(urls)]
    outcomes = [item async for item in fetch_all(pairs, settings)]
    return [end for _, end in sorted(outcomes, key=lambda item: item[0])]


def forbidden(addresses: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Of the addresses that were connected to, those that are never open."""
    wrong = []
    for address in addresses:
        try:
            check_address(str(address[0]), PRIVATE)
        except Refused:
            wrong.append(address)
    return wrong


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and self-signed certificate of tls.web.test in one file."""
    folder = tmp_path_factory.mktemp("tls")
    hostile_server.certificate(folder, "both", "tls.web.test", None)
    return folder / "both.pem"


@pytest.mark.parametrize("case", table("redirects"), ids=lambda case: case["what"])
def test_redirects(
    case: dict[str, Any], certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    fake_dns(monkeypatch, lambda host: ["169.254.169.254"])
    identity = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    identity.load_cert_chain(certificate)

    async def run() -> Fetched:
        serve = Moved(case["moves"])
        plain = await asyncio.start_server(serve, "127.0.0.1", 0)
        secret = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=identity)
        ports = [server.sockets[0].getsockname()[1] for server in (plain, secret)]
        settings = Fetch(
            user_agent="guardtest/1.0 (+https://crawler.test)",
            allow_private=True,
            connect_to={
                "*.web.test": f"127.0.0.1:{ports[0]}",
                "tls.web.test": f"127.0.0.1:{ports[1]}",
            },
            robots_txt=False,
            site_files=(),
            retries=0,
            deadline_s=5.0,
        )
        async with plain, secret:
            return (await ends_of([case["start"]], settings))[0]

    connected.clear()
    tls.context.cache_clear()
    try:
        end = uvloop.run(run())
    finally:
        tls.context.cache_clear()
    assert end.reason == case["reason"], end.detail
    assert (end.body == PICTURE) is (case["reason"] is None)
    if "final_url" in case:
        assert end.final_url == case["final_url"]
    assert connected
    assert {address[0] for address in connected} == {"127.0.0.1"}


class Rebinding:
    """A fake DNS. A lookup gives loopback, a forbidden address, both in any order, or fails."""

    def __init__(self) -> None:
        self.turns: Counter[str] = Counter()

    def __call__(self, host: str) -> list[str]:
        draw = random.Random(f"{host} {self.turns[host]}")
        good = (self.turns[host] + len(host)) % 2 == 0
        self.turns[host] += 1
        kind = draw.random()
        if kind < 0.1:
            raise socket.gaierror(draw.choice([socket.EAI_AGAIN, socket.EAI_NONAME]), "none")
        if kind < 0.3:
            return draw.sample(["127.0.0.1", draw.choice(NEVER)], 2)
        return ["127.0.0.1" if good else draw.choice(NEVER)]


async def sequence(seed: int) -> list[Fetched]:
    """Two runs over six rows on four names, with redirects between them and repeats."""
    draw = random.Random(seed)
    names = [f"{'h' * (i + 1)}.s{seed}.test" for i in range(4)]
    paths = [f"{draw.choice(names)}/{i}" for i in range(6)]
    serve = Moved({}, set(draw.sample(paths, 2)))
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    serve.moves = {
        path: f"http://{draw.choice(names)}:{port}/end" for path in draw.sample(paths, 3)
    }
    settings = Fetch(
        user_agent="guardtest/1.0 (+https://crawler.test)",
        allow_private=True,
        allow_ports=(port,),
        robots_txt=bool(seed % 2),
        site_files=(),
        deadline_s=20.0,
    )
    urls = ["http://" + path.replace("/", f":{port}/", 1) for path in paths]
    async with server:
        return [end for _ in range(2) for end in await ends_of(urls, settings)]


async def sequences(seeds: range) -> list[Fetched]:
    outcomes = []
    for start in range(seeds.start, seeds.stop, 20):
        for ends in await asyncio.gather(*map(sequence, seeds[start : start + 20])):
            outcomes += ends
    return outcomes


@pytest.mark.slow
def test_200_sequences_of_rebinding_names_connect_to_no_forbidden_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each answer of DNS may differ. `connected` has the addresses that sockets were asked for."""
    names = Rebinding()
    fake_dns(monkeypatch, names)
    monkeypatch.setattr(request, "BACKOFF_S", 0.001)
    monkeypatch.setattr(guard, "FAILED_S", 0.0)
    connected.clear()
    ends = uvloop.run(sequences(range(200)))
    counts = Counter(end.reason for end in ends)
    assert len(ends) == 200 * 12
    assert set(counts) == {None, "private_address", "dns"}
    assert min(counts.values()) > 100
    assert len(connected) > 500
    # Asked again, and answered otherwise
    assert sum(turns > 1 for turns in names.turns.values()) > 400
    assert forbidden(connected) == []


@pytest.mark.parametrize("address", NEVER)
def test_an_address_that_changed_after_its_check_gets_no_socket(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolver lets a forbidden address slip: the maker of sockets does not."""

    async def resolve(
        self: guard.Resolver, host: str, port: int = 0, family: int = 0
    ) -> list[ResolveResult]:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
        ]

    monkeypatch.setattr(guard.Resolver, "resolve", resolve)
    settings = Fetch(
        user_agent="guardtest/1.0",
        allow_private=True,
        robots_txt=False,
        site_files=(),
        deadline_s=5.0,
    )
    connected.clear()
    [end] = uvloop.run(ends_of(["http://slips.test/a.jpg"], settings))
    assert (end.reason, connected) == ("private_address", [])
