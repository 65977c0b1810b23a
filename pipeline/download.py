"""One task of the plan to one committed shard: pictures are fetched or read, decoded meanwhile, and written down.

The work of the stage fetch. A worker keeps its event loop, its decoders and the robots.txt it has read from one task
to the next.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, cast

from manifests import disk
from manifests.schema import Fetch, Pair
from pipeline import optout, plan, shard
from pipeline.fetch import Fetched, fetch_all, user_agent
from pipeline.picture import BadPicture, Decoders, Picture
from pipeline.pixels import limits_of
from pipeline.stage import Ticket

READ_AT_ONCE = 32  # local or remote files
BODIES_WAITING = 16  # fetched and not yet decoded; the next ones wait in the network


def download(config: dict[str, Any]) -> Downloader:
    """Factory of the stage: {"pool", "fetch": plain Fetch, "source_kind", "decoders": children per worker (default: one
    per core)}. ValueError where the settings do not do."""
    settings: Fetch = disk.from_plain(Fetch, config["fetch"])
    files = config["source_kind"] == "files"
    return Downloader(config["pool"], settings, files=files, decoders=config.get("decoders"))


class Downloader:
    """Holds what outlives a task: event loop, decoders, robots.txt."""

    def __init__(self, pool: str, settings: Fetch, *, files: bool, decoders: int | None = None) -> None:
        limits_of(settings)  # refuses now what every picture would end with
        self.pool, self.settings, self.children = pool, settings, decoders
        self.robots = None if files else optout.Robots(user_agent(settings))
        self._runner = asyncio.Runner()
        self._decoders: Decoders | None = None

    def __call__(self, ticket: Ticket) -> dict[str, Any]:
        """The commit record of the ticket's shard, written now or by an earlier run."""
        number = int(ticket.payload["shard"])
        place = shard.commit_path(self.pool, number)
        if disk.exists(place):
            record: dict[str, Any] = disk.read_json(place)
            if record["task"] != ticket.id:
                raise ValueError(
                    f"{place} was written for task {record['task']}, the plan has {ticket.id} there: "
                    "the pool's plan was changed; build into another folder"
                )
            return record
        pairs = plan.rows_of_shard(self.pool, number)
        retried = plan.retries_of_shard(self.pool, number)
        with shard.ShardWriter(self.pool, number, ticket.id, ticket.group) as writer:
            try:
                self._runner.run(self._collect(pairs, retried, writer))
            except BaseExceptionGroup as group:
                self._end_decoders()  # the next try begins with new ones
                raise group.exceptions[0] from group
            return writer.commit(len(pairs))

    def close(self) -> None:
        """End the decoders and the event loop."""
        self._end_decoders()
        self._runner.close()

    def _end_decoders(self) -> None:
        if self._decoders is not None:
            self._runner.run(self._decoders.__aexit__(None, None, None))
        self._decoders = None

    async def _collect(self, pairs: Sequence[Pair], retried: Sequence[str | None], writer: shard.ShardWriter) -> None:
        """Every pair's outcome into the writer, in whatever order they come."""
        if self._decoders is None:
            self._decoders = await Decoders(self.children).__aenter__()
        decoders, waiting = self._decoders, asyncio.Semaphore(BODIES_WAITING)

        async def decode(row: int, fetched: Fetched, body: bytes) -> None:
            try:
                add(row, fetched, await decoders.decode(body, self.settings))
            finally:
                waiting.release()

        def add(row: int, fetched: Fetched, picture: Picture | BadPicture | None) -> None:
            pair = pairs[row]
            record = row_of(pair, fetched, picture) | {"retry_of": retried[row]}
            extra = {"title": pair.title, "anchor": pair.anchor, "license": pair.license, "robots": pair.robots}
            writer.add(row, record, picture.data if isinstance(picture, Picture) else None, extra)

        arriving = fetch_all(pairs, self.settings, self.robots) if self.robots else read_all(pairs, self.settings)
        stream = cast(AsyncGenerator[tuple[int, Fetched], None], arriving)
        async with asyncio.TaskGroup() as group, aclosing(stream) as outcomes:
            async for row, fetched in outcomes:
                if fetched.body is None:
                    add(row, fetched, None)
                else:
                    await waiting.acquire()
                    group.create_task(decode(row, fetched, fetched.body))


def row_of(pair: Pair, fetched: Fetched, picture: Picture | BadPicture | None) -> dict[str, Any]:
    """Columns of the sidecar: where the pair is from, how fetching ended, what the picture is."""
    record: dict[str, Any] = {
        "url": pair.url,
        "caption": pair.caption,
        "uid": pair.uid,
        "page_url": pair.page_url,
        "page_lang": pair.page_lang,
        "wat": pair.wat,
        "warc_offset": pair.warc_offset,
        "link": pair.link,
        "sha256": None if fetched.body is None else hashlib.sha256(fetched.body).hexdigest(),
        "reason": fetched.reason,
        "error_message": fetched.detail or None,
        "http_status": fetched.http_status,
        "final_url": fetched.final_url,
        "content_type": fetched.content_type,
        "optout": fetched.optout,
        "fetched_at": round(fetched.fetched_at * 1000),
        "elapsed_ms": round(fetched.elapsed_s * 1000),
        "attempts": fetched.attempts,
    }
    if isinstance(picture, BadPicture):
        return record | {"reason": picture.reason, "error_message": picture.detail or None}
    if picture is not None:
        record |= {
            "width": picture.width,
            "height": picture.height,
            "original_width": picture.original_width,
            "original_height": picture.original_height,
            "exif": picture.exif,
        }
    return record


# --- files ---------------------------------------------------------------------------------------------------------


async def read_all(pairs: Sequence[Pair], settings: Fetch) -> AsyncIterator[tuple[int, Fetched]]:
    """As `fetch_all` for pairs whose url is the place of a file, local or remote."""
    for start in range(0, len(pairs), READ_AT_ONCE):
        batch = pairs[start : start + READ_AT_ONCE]
        found = await asyncio.gather(*(asyncio.to_thread(read_file, pair.url, settings.max_bytes) for pair in batch))
        for row, fetched in enumerate(found, start):
            yield row, fetched


def read_file(path: str, max_bytes: int) -> Fetched:
    """The bytes of a file, or missing_file, empty or too_many_bytes."""
    started_at, started = time.time(), time.monotonic()
    body, reason, detail = None, None, ""
    try:
        body = disk.read_bytes(path, 0, max_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a name that cannot be one
        reason, detail = "missing_file", getattr(error, "strerror", None) or type(error).__name__
    if body is not None and not body:
        body, reason, detail = None, "empty", "the file has no bytes"
    elif body is not None and len(body) > max_bytes:
        body, reason, detail = None, "too_many_bytes", f"more than {max_bytes} bytes"
    elapsed_s = time.monotonic() - started
    return Fetched(body=body, reason=reason, detail=detail, fetched_at=started_at, elapsed_s=elapsed_s, attempts=1)
