"""Servers that do everything wrong, all at once. Each row ends in its reason and in a committed
shard, in bounded time, bytes and memory."""

from __future__ import annotations

import json
import socket
import ssl
import tarfile
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clipmill.manifests import disk, tls
from clipmill.manifests.columns import PAIRS
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Fetch, Recipe, Source
from clipmill.pipeline.executor.tickets import Ticket
from clipmill.pipeline.fetch import guard, request, sites
from clipmill.pipeline.fetch.download import Downloader
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import ShardJob
from tests.support import plans
from tests.support.dns import fake_dns
from tests.support.hostile_server import SITE_FILES, HostileServer, certificates
from tests.support.pairs import write_part
from tests.support.tables import table

CAP = 300_000
ENTRIES = table("hostile_routes")
ASKED_FOR_SITE_FILES = {"tdmrep", "ai"}
# Of a row: what ends by it needs a short one, everything else one that no busy machine reaches
DEADLINES_S = {"images": 300.0, "without end": 4.0, "site files": 300.0}


def kind_of(entry: dict[str, Any]) -> str:
    """The build that an entry of the table belongs to."""
    if ASKED_FOR_SITE_FILES & entry.keys():
        return "site files"
    return "without end" if entry["ends"] == "deadline" else "images"


def limit_receive_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets that take little ahead of their reader: what a server has sent is what was read."""
    real = guard.socket_factory

    def factory(settings: Fetch) -> Any:
        make = real(settings)

        def small(info: Any) -> socket.socket:
            made = make(info)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            return made

        return small

    monkeypatch.setattr(guard, "socket_factory", factory)


def resident_bytes() -> int:
    """Memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class PeakMemory:
    """By how many bytes this process grows meanwhile."""

    def __enter__(self) -> PeakMemory:
        self.before = self.peak = resident_bytes()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(300)
        self.grown = self.peak - self.before

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            self.peak = max(self.peak, resident_bytes())


def planned(pool: Path, urls: dict[str, str], settings: Fetch) -> Ticket:
    """These URLs as the one shard of a pool."""
    rows = [{"uid": name, "url": url, "caption": name} for name, url in urls.items()]
    write_part(pool, pa.Table.from_pylist(rows, schema=PAIRS))
    recipe = Recipe(name="r", source=Source(kind="wat", paths=("a.wat.gz",)), fetch=settings)
    [shard] = plans.planned(str(pool), recipe)
    return plans.ticket(str(pool), shard)


def commit(pool: Path, ticket: Ticket, settings: Fetch) -> None:
    """Download and commit the shard of a ticket."""
    recipe = Recipe(name="r", source=Source(kind="wat", paths=("a.wat.gz",)), fetch=settings)
    job = ShardJob(out=PoolWriter(str(pool)), recipe=recipe, decoders=1)
    downloader = Downloader(job)
    try:
        downloader(ticket)
    finally:
        downloader.close()


def check_text(pool: Path, rows: list[dict[str, Any]]) -> None:
    """All text is valid, what a person reads is printable, and the tar says the same."""
    stored = {row["key"]: row for row in rows if row["status"] == "success"}
    for row in rows:
        for value in row.values():
            if isinstance(value, str):
                value.encode()
        assert (row["error_message"] or "").isprintable()
        json.loads(row["optout"] or "{}")
    with tarfile.open(pool / "shards/00000.tar") as tar:
        members = tar.getmembers()
        assert len(members) == 3 * len(stored)
        for member in members:
            if member.name.endswith(".json"):
                reader = tar.extractfile(member)
                assert reader is not None
                values = json.loads(reader.read().decode())
                row = stored[values["key"]]
                assert values.get("content_type") == row["content_type"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", DEADLINES_S)
def test_every_route_of_the_table_is_committed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [entry for entry in ENTRIES if kind_of(entry) == kind]
    trusting: ssl.SSLContext = certificates(tmp_path)
    monkeypatch.setattr(tls, "context", lambda: trusting)
    monkeypatch.setattr(request, "BACKOFF_S", 0.01)
    fake_dns(monkeypatch, lambda host: ["169.254.169.254"])
    limit_receive_buffers(monkeypatch)
    with HostileServer(entries, tmp_path) as server:
        settings = Fetch(
            image_size=32,
            user_agent="clipmilltest/1.0 (+http://clipmill.example/bot)",
            allow_private=True,
            connect_to=server.connect_to(),
            deadline_s=DEADLINES_S[kind],
            max_bytes=CAP,
            retries=1,
            site_files=("tdmrep", "ai.txt") if kind == "site files" else (),
        )
        urls = {entry["name"]: server.url(entry["name"]) for entry in entries}
        pool = tmp_path / "pool"
        ticket = planned(pool, urls, settings)
        with PeakMemory() as memory:
            commit(pool, ticket, settings)
    rows = disk.read_parquet(PoolLayout(str(pool)).sidecar(0)).to_pylist()
    by_name = {row["uid"]: row for row in rows}
    assert len(by_name) == len(entries)
    wrong = {}
    for entry in entries:
        row = by_name[entry["name"]]
        if (row["reason"] or "stored") != entry["ends"]:
            wrong[entry["name"]] = (row["reason"], row["error_message"])
    assert not wrong, f"{len(entries) - len(wrong)} of {len(entries)} as the table says"
    check_text(pool, rows)
    for entry in entries:
        sent = server.sent[entry["name"]] / max(server.asked[entry["name"]], 1)
        cap = sites.FILE_BYTES if entry.keys() & set(SITE_FILES.values()) else CAP
        assert sent <= cap + 64 * 1024, entry["name"]
    assert memory.grown < 48 * 2**20, f"{memory.grown / 2**20:.0f} MiB"
    assert server.cookies == []
