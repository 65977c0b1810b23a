"""A network that goes away: no row ends for it, and dead hosts are not taken for it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable

import pytest
import uvloop

from clipmill.manifests.schema import Fetch, Pair
from clipmill.pipeline.fetch import outage, request
from clipmill.pipeline.fetch.fetcher import Fetcher
from clipmill.pipeline.fetch.outage import Outage

HOSTS, ROWS = 40, 600
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Type: image/jpeg\r\n\r\nhello"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "BACKOFF_S", 0.05)
    monkeypatch.setattr(outage, "PAUSE_S", 0.05)


class Web:
    """A server for every name, which can be taken away and put back on its port."""

    def __init__(self) -> None:
        self.requests, self.port = 0, 0
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    def stop(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()


def settings(port: int, **more: object) -> Fetch:
    return Fetch(
        user_agent="clipmilltest/1.0 (+http://clipmill.example/bot)",
        allow_private=True,
        connect_to={"*.web.test": f"127.0.0.1:{port}", "*.dead.test": f"127.0.0.1:{nobody()}"},
        robots_txt=False,
        site_files=(),
        **more,  # type: ignore[arg-type]
    )


def nobody() -> int:
    """A port on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def pairs(domain: str, rows: int = ROWS) -> list[Pair]:
    return [
        Pair(uid=f"{n:032x}", url=f"http://h{n % HOSTS}.{domain}/{n}.jpg", caption=f"picture {n}")
        for n in range(rows)
    ]


async def reasons(web: Web, rows: list[Pair], at: Callable[[int], None], **more: object) -> Counter:
    """How the rows end. at: is called with the number of rows that have ended."""
    fetcher = Fetcher(settings(web.port, **more))
    counts: Counter[str] = Counter()
    async for _, fetched in fetcher.fetch(rows):
        counts[fetched.reason or "stored"] += 1
        at(counts.total())
    await fetcher.close()
    return counts


@pytest.mark.parametrize(("patience_s", "away_s"), [(600.0, 0.5), (2.5, 3.0)])
def test_no_row_ends_for_a_network_that_goes_away(
    patience_s: float, away_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> tuple[Counter, int]:
        web = Web()
        await web.start()
        back: list[asyncio.Task[None]] = []

        async def come_back() -> None:
            await asyncio.sleep(away_s)
            await web.start()

        def at(ended: int) -> None:
            if ended == ROWS // 3:
                web.stop()
                back.append(asyncio.create_task(come_back()))

        counts = await reasons(web, pairs("web.test"), at, patience_s=patience_s)
        web.stop()
        return counts, web.requests

    with caplog.at_level(logging.WARNING):
        counts, requests = uvloop.run(run())
    assert counts == {"stored": ROWS}
    assert requests <= ROWS + 200  # those that were under way
    assert "no host answers, and h" in caplog.text
    assert "requests go on after" in caplog.text


def test_dead_hosts_do_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> Counter:
        web = Web()
        await web.start()
        rows = pairs("web.test", 200) + pairs("dead.test", 200)
        counts = await reasons(web, rows, lambda _: None, retries=0)
        web.stop()
        return counts

    with caplog.at_level(logging.WARNING):
        counts = uvloop.run(run())
    assert counts["stored"] == 200
    assert counts["connect"] + counts["host_busy"] == 200
    assert not caplog.records


def test_a_network_that_stays_away_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "LONGEST_S", 0.3)

    async def run() -> Counter:
        web = Web()
        await web.start()
        return await reasons(
            web, pairs("web.test"), lambda ended: web.stop() if ended == 200 else None, retries=0
        )

    counts = uvloop.run(run())
    assert counts.total() == ROWS
    assert counts["connect"] > 0
    assert counts["stored"] >= 200


def test_nothing_is_suspected_before_some_hosts_have_answered() -> None:
    async def never(host: str, port: int) -> bool:
        return False

    network = Outage(never)
    for number in range(100):
        network.failed(f"h{number}")
    assert not network.is_suspected
    for number in range(outage.WITNESSES):
        network.answered(f"w{number}", 80)
    assert not network.is_suspected
    for number in range(outage.SUSPECT):
        assert not network.is_suspected
        network.failed(f"h{number}")
        network.failed(f"h{number}")  # a host counts once
    assert network.is_suspected


def test_one_witness_is_enough() -> None:
    async def last(host: str, port: int) -> bool:
        return host == "w3"

    network = Outage(last)
    for number in range(4):
        network.answered(f"w{number}", 80)
    for number in range(outage.SUSPECT):
        network.failed(f"h{number}")
    assert asyncio.run(network.wait()) is False
    assert not network.is_suspected
