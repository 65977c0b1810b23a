"""Servers that do everything wrong, all at once: each ends in its reason, in bounded time, bytes and memory."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
import uvloop

from manifests.schema import Fetch, Pair
from pipeline.fetch import guard, request, sites
from pipeline.fetch.fetcher import Fetched, fetch_all
from pipeline.images.transform import BadPicture, check_and_resize
from tests.support.hostile_server import HostileServer, certificates
from tests.support.tables import table

DEADLINE_S, CAP = 2.0, 300_000
ENTRIES = table("hostile_routes")


def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets that take little ahead of their reader, so that what a server has sent is what was read."""
    real = guard.socket_factory

    def factory(settings: Fetch) -> Any:
        make = real(settings)

        def small(info: Any) -> socket.socket:
            made = make(info)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            return made

        return small

    monkeypatch.setattr(guard, "socket_factory", factory)


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def final_reason(end: Fetched) -> str:
    """After decoding too."""
    if end.body is None:
        assert end.reason is not None
        return end.reason
    try:
        check_and_resize(end.body, Fetch(image_size=32))
    except BadPicture as bad:
        return bad.reason
    return "stored"


async def fetched(
    pairs: list[Pair], settings: Fetch
) -> tuple[dict[str, tuple[Fetched, float]], int]:
    """(end, seconds since the start) by uid, and by how many bytes this process has grown meanwhile."""
    before = peak = resident()
    begun, ends = time.monotonic(), {}

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, resident())
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    async for index, end in fetch_all(pairs, settings):
        ends[pairs[index].uid] = (end, time.monotonic() - begun)
    watching.cancel()
    return ends, peak - before


def test_every_route_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusting: ssl.SSLContext = certificates(tmp_path)
    monkeypatch.setattr(request, "tls", lambda: trusting)
    monkeypatch.setattr(request, "BACKOFF_S", 0.01)
    monkeypatch.setattr(guard, "_look_up", lambda host: ["169.254.169.254"])
    small_buffers(monkeypatch)
    with HostileServer(ENTRIES, tmp_path) as server:
        settings = Fetch(
            user_agent="clipmilltest/1.0 (+http://clipmill.example/bot)",
            allow_private=True,
            connect_to=server.places(),
            deadline_s=DEADLINE_S,
            max_bytes=CAP,
            retries=1,
            site_files=(),
        )
        pairs = [
            Pair(uid=entry["name"], url=server.url(entry["name"]), caption="") for entry in ENTRIES
        ]
        ends, grown = uvloop.run(fetched(pairs, settings))
    wrong = {
        entry["name"]: (final_reason(end), end.detail)
        for entry in ENTRIES
        if final_reason(end := ends[entry["name"]][0]) != entry["ends"]
    }
    assert not wrong, f"{len(ENTRIES) - len(wrong)} of {len(ENTRIES)} as the table says"
    late = {
        name: (end.elapsed_s, at)
        for name, (end, at) in ends.items()
        if max(end.elapsed_s, at) > DEADLINE_S + 1
    }
    assert not late
    for entry in ENTRIES:
        cap = sites.ROBOTS_BYTES if "robots" in entry else CAP
        assert (
            server.sent[entry["name"]] / max(server.asked[entry["name"]], 1) <= cap + 64 * 1024
        ), entry["name"]
    assert grown < 32 * 2**20, f"{grown / 2**20:.0f} MiB"
    assert server.cookies == []
