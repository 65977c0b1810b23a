"""Names to addresses: each is asked for once, and a silent name costs nobody else anything."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp.abc import ResolveResult

from clipmill.manifests.schema import Fetch
from clipmill.pipeline.fetch import guard
from clipmill.pipeline.fetch.guard import Dns, Refused, Resolver
from tests.support.dns import NameServer
from tests.support.fetched import fetch_all

PLAIN = Fetch()


class Source:
    """DNS as a function of the test. It counts what it is asked for."""

    def __init__(self, look_up: Callable[[str], Any]) -> None:
        self.look_up = look_up
        self.asked: list[str] = []
        self.closed = False

    async def addresses(self, host: str) -> list[str]:
        self.asked.append(host)
        answer = self.look_up(host)
        if asyncio.iscoroutine(answer):
            answer = await answer
        return list(answer)

    async def close(self) -> None:
        self.closed = True


def resolve(settings: Fetch, host: str, addresses: list[str]) -> list[tuple[str, int]]:
    async def run() -> list[tuple[str, int]]:
        names = Resolver(settings, Source(lambda _: addresses))
        try:
            return [(answer["host"], answer["port"]) for answer in await names.resolve(host, 80)]
        finally:
            await names.close()

    return uvloop.run(run())


@pytest.mark.parametrize(
    "answers", [["10.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["2606:4700::1", "fe80::1%2"]]
)
def test_a_name_with_one_forbidden_address_is_refused(answers: list[str]) -> None:
    with pytest.raises(Refused, match="private_address"):
        resolve(PLAIN, "example.org", answers)


def test_each_address_has_its_family_and_the_port_that_was_asked_for() -> None:
    async def run() -> list[ResolveResult]:
        names = Resolver(PLAIN, Source(lambda _: ["8.8.8.8", "2606:4700::1"]))
        try:
            return [*await names.resolve("both.example", 443), *await names.resolve("both.example")]
        finally:
            await names.close()

    answers = [(each["host"], each["family"], each["port"]) for each in uvloop.run(run())]
    four, six = ("8.8.8.8", socket.AF_INET), ("2606:4700::1", socket.AF_INET6)
    assert answers == [(*each, port) for port in (443, 0) for each in (four, six)]


def test_a_lookup_that_outlived_its_time_as_a_new_one_gives_its_place_back_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "LOOKUPS", 1)
    monkeypatch.setattr(guard, "NEW_S", 0.0)

    async def ask() -> list[str]:
        answered = asyncio.Event()
        old_is_over = asyncio.Event()

        async def after(event: asyncio.Event) -> list[str]:
            await event.wait()
            return ["8.8.8.8"]

        source = Source(lambda host: after(old_is_over if host == "old.example" else answered))
        names = Resolver(PLAIN, source)
        old = asyncio.create_task(names.resolve("old.example", 80))
        await names.wait_for_start("old.example")
        await names.wait_for_start("next.example")  # begins as soon as the first is no new one
        old_is_over.set()
        await old
        monkeypatch.setattr(guard, "NEW_S", 3600.0)
        hosts = ["a.example", "b.example", "c.example"]
        tasks = [asyncio.create_task(names.resolve(host, 80)) for host in hosts]
        await names.wait_for_start("a.example")
        for _ in range(20):
            await asyncio.sleep(0)
        asked = list(source.asked)
        answered.set()
        await asyncio.gather(*tasks)
        await names.close()
        return asked

    assert uvloop.run(ask()) == ["old.example", "next.example", "a.example"]


def test_a_name_is_looked_up_once_and_an_unknown_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: str) -> list[str]:
        if host == "nowhere.example":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        first = source.asked == ["rebinding.example"]
        return ["8.8.8.8"] if first else ["127.0.0.1"]  # a name whose address changes

    source = Source(look_up)
    monkeypatch.setattr(guard, "FAILED_S", 0.0)

    async def ask() -> None:
        names = Resolver(PLAIN, source)
        answers = await asyncio.gather(*(names.resolve("rebinding.example", 80) for _ in range(50)))
        assert {answer[0]["host"] for answer in answers} == {"8.8.8.8"}
        for _ in range(3):
            with pytest.raises(socket.gaierror):
                await names.resolve("nowhere.example", 80)
        await names.close()

    uvloop.run(ask())
    assert source.asked == ["rebinding.example", "nowhere.example"]
    assert source.closed


@pytest.mark.parametrize(("failed_s", "lookups"), [(60.0, 1), (0.0, 2)])
def test_a_lookup_that_failed_for_now_is_repeated_after_a_while(
    failed_s: float, lookups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(_: str) -> list[str]:
        if len(source.asked) == 1:
            raise socket.gaierror(socket.EAI_AGAIN, "later")
        return ["8.8.8.8"]

    source = Source(look_up)
    monkeypatch.setattr(guard, "FAILED_S", failed_s)

    async def ask() -> list[str]:
        names = Resolver(PLAIN, source)
        try:
            with pytest.raises(socket.gaierror):
                await names.resolve("slow.example", 80)
            await asyncio.sleep(0.01)
            return [answer["host"] for answer in await names.resolve("slow.example", 80)]
        except socket.gaierror:
            return []
        finally:
            await names.close()

    assert uvloop.run(ask()) == (["8.8.8.8"] if lookups == 2 else [])
    assert len(source.asked) == lookups


def test_old_addresses_are_looked_up_again_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LOOKUP_AGE_S", 0.0)
    source = Source(lambda _: ["8.8.8.8"])

    async def ask() -> int:
        names = Resolver(PLAIN, source)
        for i in range(200):
            await names.resolve(f"h{i}.example", 80)
            await asyncio.sleep(0.0005)
        await names.resolve("h0.example", 80)
        kept = len(names._lookups)
        await names.close()
        return kept

    assert uvloop.run(ask()) <= 3
    assert source.asked.count("h0.example") == 2


def test_connect_to_maps_names_by_the_longest_suffix() -> None:
    targets = {"*.test": "127.0.0.1:1", "*.web.test": "127.0.0.1:2", "one.web.test": "[::1]:3"}
    settings = Fetch(connect_to=targets, allow_private=True)
    assert resolve(settings, "a.test", []) == [("127.0.0.1", 1)]
    assert resolve(settings, "a.b.web.test", []) == [("127.0.0.1", 2)]
    assert resolve(settings, "one.web.test", []) == [("::1", 3)]
    assert resolve(settings, "web.example", ["8.8.8.8"]) == [("8.8.8.8", 80)]
    with pytest.raises(Refused, match="private_address"):
        resolve(Fetch(connect_to=targets), "a.test", [])


@pytest.mark.parametrize(
    "targets", [{"a.test": "localhost:80"}, {"a.test": "127.0.0.1"}, {"10.0.0.1": "127.0.0.1:80"}]
)
def test_connect_to_that_cannot_be_meant(targets: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="connect_to"):
        Resolver(Fetch(connect_to=targets), Source(list))


# --- the real client -------------------------------------------------------------------------


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
def test_dns_reads_the_hosts_file_and_asks_its_server(run: Callable[[Any], Any]) -> None:
    async def ask(server: str) -> tuple[list[str], list[str], list[str]]:
        dns = Dns([server])
        try:
            local = await dns.addresses("localhost")
            known, again = await asyncio.gather(
                dns.addresses("a.example.test"), dns.addresses("b.example.test")
            )
            with pytest.raises(socket.gaierror, match="Name or service not known") as unknown:
                await dns.addresses("none.example.test")
            assert unknown.value.errno == socket.EAI_NONAME
            return local, known, again
        finally:
            await dns.close()

    with NameServer({"a.example.test": "192.0.2.1", "b.example.test": "192.0.2.2"}) as server:
        local, known, again = run(ask(server.address))
    assert set(local) <= {"127.0.0.1", "::1"}
    assert local
    assert (known, again) == (["192.0.2.1"], ["192.0.2.2"])
    assert "localhost" not in server.asked


def test_a_silent_server_is_asked_twice_and_is_no_unknown_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "FIRST_TRY_S", 0.05)
    monkeypatch.setattr(guard, "LOOKUP_S", 600.0)  # the client ends it
    monkeypatch.setattr(guard, "_has_ipv6", lambda: False)  # one question a try

    async def ask(server: str) -> None:
        dns = Dns([server])
        try:
            with pytest.raises(socket.gaierror, match="no answer from DNS") as failed:
                await dns.addresses("a.silent.test")
            assert failed.value.errno == socket.EAI_AGAIN
        finally:
            await dns.close()

    with NameServer({}) as server:
        uvloop.run(ask(server.address))
    assert server.asked == ["a.silent.test"] * 2


def test_a_name_may_have_an_ipv6_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(server: str) -> list[str]:
        dns = Dns([server])
        try:
            return await dns.addresses("six.example.test")
        finally:
            await dns.close()

    with NameServer({"six.example.test": "2606:4700::6"}) as server:
        monkeypatch.setattr(guard, "_has_ipv6", lambda: True)
        assert uvloop.run(ask(server.address)) == ["2606:4700::6"]
        monkeypatch.setattr(guard, "_has_ipv6", lambda: False)  # it could not be connected to
        with pytest.raises(socket.gaierror):
            uvloop.run(ask(server.address))


@pytest.mark.parametrize(
    ("lines", "has"),
    [
        ("fe80000000000000 04 40 20 80 eth0\n0000000000000001 01 80 10 80 lo\n", False),
        ("fe80000000000000 04 40 20 80 eth0\n2606470000000001 04 40 00 82 eth0\n", True),
        ("", False),
        (None, True),
    ],
)
def test_an_ipv6_address_of_the_machine_is_a_global_one(
    lines: str | None, has: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lines is not None:
        (tmp_path / "if_inet6").write_text(lines)
    monkeypatch.setattr(guard, "IPV6_ADDRESSES", tmp_path / "if_inet6")
    assert guard._has_ipv6() is has


def test_a_row_waits_for_no_name_that_is_asked_already() -> None:
    """The lookup of a host begins, its row's time starts, and the answer may come later."""

    async def never() -> list[str]:
        await asyncio.sleep(60)
        return []

    source = Source(lambda _: never())

    async def ask() -> None:
        names = Resolver(Fetch(connect_to={"fixed.test": "8.8.8.8:80"}), source)
        for host in ["silent.test", "silent.test", "fixed.test", "8.8.8.8", "2606:4700::1"]:
            await asyncio.wait_for(names.wait_for_start(host), 1)
        await names.close()

    uvloop.run(ask())
    assert source.asked == ["silent.test"]


def test_a_server_that_nobody_runs_is_a_failure_and_not_an_unknown_name() -> None:
    async def ask() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("127.0.0.1", 0))
            dns = Dns([f"127.0.0.1:{taken.getsockname()[1]}"])
        try:
            with pytest.raises(socket.gaierror) as failed:
                await dns.addresses("a.example.test")
            assert failed.value.errno == socket.EAI_AGAIN
        finally:
            await dns.close()

    uvloop.run(ask())


@pytest.mark.slow
@pytest.mark.parametrize(("lookup_s", "silent", "others"), [(1800.0, 150, 60), (2.0, 5, 0)])
def test_silent_names_cost_other_rows_no_time(
    lookup_s: float, silent: int, others: int, web: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 good rows on 60 hosts end while 150 names before them wait for an answer. Names without
    one end, too, where they are waited for a short time."""
    monkeypatch.setattr(guard, "FIRST_TRY_S", lookup_s / 2)
    monkeypatch.setattr(guard, "LOOKUP_S", lookup_s)
    good = {f"good{i}.example.test": "127.0.0.1" for i in range(others)}
    urls = [f"http://name{i}.silent.test/a.jpg" for i in range(silent)]
    urls += [f"http://{name}:{web.port}/picture/{i}" for i, name in enumerate(good)]
    settings = web.fetch(
        connect_to={}, allow_ports=(80, web.port), robots_txt=False, deadline_s=1800.0
    )
    expected = dict.fromkeys(range(silent, silent + others)) or dict.fromkeys(range(silent), "dns")

    async def run(server: str) -> dict[int, str | None]:
        reasons = {}
        pairs = web.pairs(*urls)
        async with contextlib.aclosing(fetch_all(pairs, settings, source=Dns([server]))) as ends:
            while len(reasons) < len(expected):
                index, end = await anext(ends)
                reasons[index] = end.reason
        return reasons

    with NameServer(good) as server:
        assert uvloop.run(run(server.address)) == expected
