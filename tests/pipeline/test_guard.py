"""Where no socket may go: addresses, the ways to spell them, names that lead to them."""

from __future__ import annotations

import asyncio
import socket

import pytest

from manifests.schema import Fetch
from pipeline import guard
from pipeline.guard import Refused, check_address, check_url, target

PLAIN = Fetch()
PRIVATE = Fetch(allow_private=True)
OPENED = [
    "127.0.0.1", "127.255.255.254", "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1",
    "::1", "fc00::1", "fd12:3456::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:c0a8:1",
]  # fmt: skip
NEVER = [
    "0.0.0.0", "0.1.2.3", "100.64.0.1", "100.100.100.200", "100.127.255.255", "168.63.129.16", "169.254.0.1",
    "169.254.169.254", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.31.196.1", "192.52.193.1", "192.88.99.1",
    "192.175.48.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255",
    "240.0.0.1", "255.255.255.255", "::", "::2", "::7f00:1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1", "2001:10::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::1", "3fff::1", "5f00::1",
    "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "4000::1",
]  # fmt: skip
PUBLIC = [
    "8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.0.1.1", "192.169.0.1",
    "198.20.0.1", "223.255.255.255", "168.63.129.17", "2606:4700:4700::1111", "2a00:1450:4001::1", "::ffff:8.8.8.8",
]  # fmt: skip


def reason(url: str, settings: Fetch = PLAIN) -> str:
    with pytest.raises(Refused) as refused:
        check_url(url, settings)
    return refused.value.reason


@pytest.mark.parametrize("address", [*OPENED, *NEVER])
def test_forbidden_addresses(address: str) -> None:
    with pytest.raises(Refused, match="private_address"):
        check_address(address, PLAIN)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    check_address(address, PLAIN)
    check_address(address, PRIVATE)


def test_allow_private_opens_loopback_and_private_and_nothing_else() -> None:
    for address in OPENED:
        check_address(address, PRIVATE)
    for address in NEVER:
        with pytest.raises(Refused, match="private_address"):
            check_address(address, PRIVATE)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1.", "2130706433", "0x7f000001", "0X7F000001", "017700000001", "127.1", "127.0.1",
        "0177.0.0.1", "0x7f.0.0.1", "0x7f.1", "127.0.0.01", "0", "0.0.0.0", "00", "0x", "1\uff127.0.0.1", "①27.0.0.1",
        "127。0。0。1", "127\uff0e0\uff0e0\uff0e1", "[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "169.254.169.254", "2852039166", "0xA9.0xFE.0xA9.0xFE", "169.254.43518",
        "3232235521", "10.0.0.1",
    ],
)  # fmt: skip
def test_every_spelling_of_a_forbidden_address(host: str) -> None:
    assert reason(f"http://{host}/picture.jpg") == "private_address"


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
    ],
)
def test_a_url_has_one_spelling(url: str, expected: str) -> None:
    assert target(url, PLAIN).url == expected


def test_ports_and_origin() -> None:
    found = target("http://example.org:8080/a", Fetch(allow_ports=(8080,)))
    assert (found.host, found.port, found.origin) == ("example.org", 8080, "http://example.org:8080")
    assert target("https://[2606:4700::1]/", PLAIN).origin == "https://[2606:4700::1]"
    assert check_url("https://example.org/", PLAIN) == ("example.org", 443)


# --- names and sockets ---------------------------------------------------------------------------------------------


def resolve(resolver: guard.Resolver, host: str) -> list[tuple[str, int]]:
    async def ask() -> list[tuple[str, int]]:
        try:
            return [(answer["host"], answer["port"]) for answer in await resolver.resolve(host, 80)]
        finally:
            await resolver.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("answers", [["10.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["2606:4700::1", "fe80::1%2"]])
def test_a_name_with_one_forbidden_answer_is_refused(answers: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_look_up", lambda host: answers)
    with pytest.raises(Refused, match="private_address"):
        resolve(guard.Resolver(PLAIN), "example.org")


def test_a_name_is_looked_up_once_and_so_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def look_up(host: str) -> list[str]:
        asked.append(host)
        if host == "nowhere.example":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return ["8.8.8.8"] if len(asked) == 1 else ["127.0.0.1"]  # a name that changes its mind

    monkeypatch.setattr(guard, "_look_up", look_up)

    async def ask() -> None:
        resolver = guard.Resolver(PLAIN)
        answers = await asyncio.gather(*(resolver.resolve("rebinding.example", 80) for _ in range(50)))
        assert {answer[0]["host"] for answer in answers} == {"8.8.8.8"}
        for _ in range(3):
            with pytest.raises(socket.gaierror):
                await resolver.resolve("nowhere.example", 80)
        await resolver.close()

    asyncio.run(ask())
    assert asked == ["rebinding.example", "nowhere.example"]


def test_connect_to_maps_names_by_the_longest_suffix() -> None:
    places = {"*.test": "127.0.0.1:1", "*.web.test": "127.0.0.1:2", "one.web.test": "[::1]:3"}
    settings = Fetch(connect_to=places, allow_private=True)
    assert resolve(guard.Resolver(settings), "a.test") == [("127.0.0.1", 1)]
    assert resolve(guard.Resolver(settings), "a.b.web.test") == [("127.0.0.1", 2)]
    assert resolve(guard.Resolver(settings), "one.web.test") == [("::1", 3)]
    assert guard.mapped("web.example", guard.mapping(settings)) is None
    with pytest.raises(Refused, match="private_address"):
        resolve(guard.Resolver(Fetch(connect_to=places)), "a.test")


@pytest.mark.parametrize("places", [{"a.test": "localhost:80"}, {"a.test": "127.0.0.1"}, {"10.0.0.1": "127.0.0.1:80"}])
def test_connect_to_that_cannot_be_meant(places: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="connect_to"):
        guard.Resolver(Fetch(connect_to=places))


def test_the_socket_is_made_for_permitted_numbers_only() -> None:
    make = guard.socket_factory(Fetch(connect_to={"a.test": "8.8.8.8:8640"}))
    make((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("8.8.8.8", 443))).close()
    make((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("8.8.8.8", 8640))).close()
    for address, why in (("127.0.0.1", 443), "private_address"), (("8.8.8.8", 22), "port"):
        with pytest.raises(Refused, match=why):
            make((socket.AF_INET, socket.SOCK_STREAM, 0, "", address))
