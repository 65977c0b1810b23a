"""One planned shard to one committed shard: images are fetched or read, decoded, and written.

The work of the stage fetch. A worker keeps its event loop, connections, decoders and the files of
sites between shards. It works on several shards at once, so the slow rows of one shard overlap the
next one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeVar

import uvloop

from clipmill.manifests import disk
from clipmill.manifests.columns import STORED
from clipmill.manifests.content import is_unchanged
from clipmill.manifests.hashes import KnownBad
from clipmill.manifests.identity import manners_of
from clipmill.manifests.layout import CommitRecord
from clipmill.manifests.schema import SOURCES, Fetch, Pair
from clipmill.pipeline.executor.tickets import Ticket
from clipmill.pipeline.fetch.fetcher import Fetched, Fetcher, user_agent
from clipmill.pipeline.fetch.request import Budget
from clipmill.pipeline.images.decoders import Decoders
from clipmill.pipeline.images.header import RejectedImage
from clipmill.pipeline.images.transform import (
    DecodedImage,
    boxes_of,
    check_hash,
    content_hashes,
    limits_of,
)
from clipmill.pipeline.planning.plan_files import RowsOfShard
from clipmill.pipeline.pool.shard_writer import ShardJob, ShardWriter, read_commit_record
from clipmill.pipeline.progress.state import Measure, WorkerReport
from clipmill.pipeline.table_files import image_rows, row_of_address

READ_AT_ONCE = 32  # local or remote files
# For one of them: a mount whose server is gone never answers. A store is tried again for a minute.
FILE_DEADLINE_S = 180.0
# Parquet files that a worker reads at a time: each may have pages of a hundred megabytes.
TABLES_AT_ONCE = 2
T = TypeVar("T")
Box = tuple[float, float, float, float]  # to blur: left, top, right, bottom
# Bodies that are fetched and not decoded, per decoder. The next ones wait in the network.
BODIES_WAITING = 6
WAITING_BYTES = 64 * 2**20  # of these bodies


class Downloader:
    """What a worker keeps between shards. Shards come in threads and share one event loop."""

    def __init__(self, job: ShardJob) -> None:
        """The factory of the stage. ValueError for settings that cannot work."""
        settings, source = job.recipe.fetch, job.recipe.source
        limits_of(settings)  # refuse now what every image would end with
        self.images, self.image_column = SOURCES[source.kind].images, None
        if self.images == "rows":
            self.image_column, self.contents = source.image_column, job.contents or {}
        if self.images == "web":
            user_agent(settings)
        self.out, self.settings = job.out, settings
        self.manners = manners_of(settings) if self.images == "web" else None
        self.children: int = job.decoders or os.cpu_count() or 1
        self.extra_columns, self.replace = job.recipe.sidecar_extra, job.replace
        self.known_bad = None
        if settings.known_bad is not None:
            self.known_bad = KnownBad.read(settings.known_bad, settings.phash_distance)
        self._report = WorkerReport()
        self._fetcher: Fetcher | None = None
        self._decoders: Decoders | None = None
        self._readers = asyncio.Semaphore(TABLES_AT_ONCE)
        self._decode_slots = asyncio.Semaphore(BODIES_WAITING * self.children)
        self._waiting_bytes = Budget(max(WAITING_BYTES, settings.max_bytes))
        # A tenth less CPU per image over https than asyncio's own loop.
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fetch", daemon=True)
        self._thread.start()

    def __call__(self, ticket: Ticket) -> CommitRecord:
        """The commit record of the ticket's shard, written now or by an earlier run."""
        rows: RowsOfShard = ticket.payload
        number = rows.shard
        record = None if self.replace else read_commit_record(self.out.layout, number)
        if record is not None:
            if record.task != ticket.id:
                raise ValueError(
                    f"{self.out.layout.commit_record(number)} was written for task "
                    f"{record.task}, the plan has {ticket.id} there: the pool's plan was changed; "
                    "build into another folder"
                )
            return record
        pairs, retried = rows.read()
        counts = self._report.tickets[ticket.id] = Measure(total=len(pairs))
        try:
            with ShardWriter(
                self.out, number, ticket.id, ticket.group, self.extra_columns
            ) as writer:
                work = asyncio.run_coroutine_threadsafe(
                    self._collect(pairs, retried, writer, counts), self._loop
                )
                try:
                    work.result()
                except BaseExceptionGroup as group:
                    raise group.exceptions[0] from group
                finally:
                    work.cancel()  # where this thread was interrupted
                return writer.commit(len(pairs), manners=self.manners, replace=self.replace)
        finally:
            del self._report.tickets[ticket.id]

    def progress(self) -> str:
        """The rows of the running tickets that have an outcome, and the hosts that lose time."""
        return self._report.to_json()

    def close(self) -> None:
        """End the connections, the decoders and the event loop."""
        asyncio.run_coroutine_threadsafe(self._close_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _close_all(self) -> None:
        if self._fetcher is not None:
            await self._fetcher.close()
        if self._decoders is not None:
            await self._decoders.__aexit__(None, None, None)
        self._fetcher, self._decoders = None, None
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

    # --- in the event loop -------------------------------------------------------------------

    def _outcomes(
        self, pairs: Sequence[Pair], number: int
    ) -> AsyncGenerator[tuple[int, Fetched], None]:
        if self.images == "files":
            return read_all(pairs, self.settings)
        if self.image_column is not None:
            return read_rows(pairs, self.settings, self.image_column, self.contents, self._readers)
        if self._fetcher is None:
            self._fetcher = Fetcher(self.settings, losses=self._report.losses)
        return self._fetcher.fetch(pairs, number)

    async def _collect(
        self,
        pairs: Sequence[Pair],
        retried: Sequence[str | None],
        writer: ShardWriter,
        counts: Measure,
    ) -> None:
        """The outcome of every pair to the writer, in any order; `counts` follows."""

        async def decode(row: int, fetched: Fetched, body: bytes) -> None:
            add(row, fetched, await self._decode(pairs[row], body))

        def release(size: int, _: object) -> None:
            self._decode_slots.release()
            self._waiting_bytes.release(size)

        def add(row: int, fetched: Fetched, image: DecodedImage | RejectedImage | None) -> None:
            pair = pairs[row]
            record = row_of(pair, fetched, image) | {"retry_of": retried[row]}
            only_in_json = {
                "title": pair.title,
                "anchor": pair.anchor,
                "license": pair.license,
                "robots": pair.robots,
            }
            if fetched.body is not None and record["reason"] != "known_bad":
                record |= content_hashes(fetched.body, self.settings)
            if isinstance(image, DecodedImage):
                writer.add(row, record, image.data, only_in_json, image.extension)
                counts.add_row(None, len(image.data))
            else:
                writer.add(row, record, None, only_in_json)
                counts.add_row(record["reason"], 0)

        asked = []
        for row, pair in enumerate(pairs):
            refused = row_not_asked(pair)
            if refused is None:
                asked.append(row)
            else:
                writer.add(row, refused | {"retry_of": retried[row]}, None)
                counts.add_row(refused["reason"], 0)
        async with (
            asyncio.TaskGroup() as group,
            aclosing(self._outcomes([pairs[row] for row in asked], writer.shard)) as outcomes,
        ):
            async for position, fetched in outcomes:
                row = asked[position]
                if fetched.body is None:
                    add(row, fetched, None)
                    continue
                await self._decode_slots.acquire()
                try:
                    await self._waiting_bytes.acquire(len(fetched.body))
                except BaseException:
                    self._decode_slots.release()
                    raise
                task = group.create_task(decode(row, fetched, fetched.body))
                task.add_done_callback(partial(release, len(fetched.body)))

    async def _decode(self, pair: Pair, body: bytes) -> DecodedImage | RejectedImage:
        """The image of a body as it will be stored, or why there is none.

        What is known to be bad is in memory only: nothing writes a body before this returns.
        """
        known_bad = self.known_bad
        if known_bad is not None and known_bad.has_bytes(body):
            return RejectedImage("known_bad", "")
        try:
            check_locked(body, pair)
            check_hash(body, pair.extra, self.settings)
            boxes = boxes_of(pair.extra, self.settings)
        except RejectedImage as rejected:
            return rejected
        hashed = known_bad is not None and len(known_bad.hashes) > 0
        image = await self._decode_in_child(body, boxes, hashed=hashed)
        hashes = image.hashes if isinstance(image, DecodedImage) else ()
        if known_bad is not None and known_bad.has_image(hashes):
            return RejectedImage("known_bad", "")
        return image

    async def _decode_in_child(
        self, body: bytes, boxes: Sequence[Box], *, hashed: bool
    ) -> DecodedImage | RejectedImage:
        if self._decoders is None:
            self._decoders = Decoders(self.children)
            await self._decoders.__aenter__()
        decoders = self._decoders
        try:
            return await decoders.decode(body, self.settings, boxes, hashed=hashed)
        except Exception:  # no image's fault: the next attempt starts with new decoders
            if self._decoders is decoders:
                self._decoders = None
                await decoders.__aexit__(None, None, None)
            raise


def row_not_asked(pair: Pair) -> dict[str, Any] | None:
    """The columns of a row that is not asked for: it was purged, or it comes from a lock whose pool
    did not store it. None for every other row.
    """
    if pair.locked_outcome is None:
        return {"uid": pair.uid, "reason": "purged"} if pair.url is None else None
    if pair.locked_outcome == STORED:
        return None
    detail = f"its outcome in the lock is {pair.locked_outcome}"
    return row_of(pair, Fetched(body=None, reason="not_locked", detail=detail), None) | {
        "fetched_at": None
    }


def check_locked(body: bytes, pair: Pair) -> None:
    """RejectedImage("substituted") where a row comes from a lock and its bytes are other ones."""
    if pair.locked_outcome is None:
        return
    actual = hashlib.sha256(body).hexdigest()
    if actual != pair.locked_sha256:
        raise RejectedImage("substituted", f"sha256 is {actual}, not {pair.locked_sha256}")


def row_of(
    pair: Pair, fetched: Fetched, image: DecodedImage | RejectedImage | None
) -> dict[str, Any]:
    """Columns of the sidecar: the source of the pair, the outcome of the fetch, and the image."""
    record: dict[str, Any] = {
        **(pair.extra or {}),
        "url": pair.url,
        "caption": pair.caption,
        "uid": pair.uid,
        "page_url": pair.page_url,
        "page_lang": pair.page_lang,
        "wat": pair.wat,
        "warc_offset": pair.warc_offset,
        "link": pair.link,
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
    if isinstance(image, RejectedImage):
        return record | {"reason": image.reason, "error_message": image.detail or None}
    if image is not None:
        record |= {
            "width": image.width,
            "height": image.height,
            "original_width": image.original_width,
            "original_height": image.original_height,
            "exif": image.exif,
        }
    return record


# --- files -----------------------------------------------------------------------------------


async def read_all(
    pairs: Sequence[Pair], settings: Fetch
) -> AsyncGenerator[tuple[int, Fetched], None]:
    """As Fetcher.fetch, for pairs whose url is the path of a file, local or remote."""
    for start in range(0, len(pairs), READ_AT_ONCE):
        batch = pairs[start : start + READ_AT_ONCE]
        files = await asyncio.gather(
            *(_read_in_time(pair.url, settings.max_bytes) for pair in batch)
        )
        for row, fetched in enumerate(files, start):
            yield row, fetched


async def _read_in_time(path: str, max_bytes: int) -> Fetched:
    """`read_file`, or the outcome deadline."""
    started_at, started = time.time(), time.monotonic()
    try:
        return await _in_time(partial(read_file, path, max_bytes))
    except TimeoutError:
        detail = f"the file was not read within {FILE_DEADLINE_S:g} s"
        return _read(None, started_at, started, max_bytes, "deadline", detail)


async def _in_time(read: Callable[[], T]) -> T:
    """What a function returns; TimeoutError after FILE_DEADLINE_S. A thread that still reads then
    is left behind: it is a daemon, so it does not hold up the end of the program.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # from here on it can only end

    def run() -> None:
        try:
            outcome.set_result(read())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="read-file", daemon=True).start()
    return await asyncio.wait_for(asyncio.wrap_future(outcome), FILE_DEADLINE_S)


def read_file(path: str, max_bytes: int) -> Fetched:
    """The bytes of a file, or missing_file, empty or too_many_bytes."""
    started_at, started = time.time(), time.monotonic()
    body, reason, detail = None, None, ""
    try:
        body = disk.read_bytes(path, 0, max_bytes + 1)
    except disk.NotRegular:
        reason, detail = "missing_file", "no regular file"
    except (OSError, ValueError) as error:  # ValueError: not a possible name
        reason, detail = "missing_file", getattr(error, "strerror", None) or type(error).__name__
    return _read(body, started_at, started, max_bytes, reason, detail)


def _read(
    body: bytes | None,
    started_at: float,
    started: float,
    max_bytes: int,
    reason: str | None = None,
    detail: str = "",
) -> Fetched:
    """The outcome of a row whose bytes were read from a file. `started`: by the monotonic clock."""
    if body is not None and not body:
        body, reason, detail = None, "empty", "the file has no bytes"
    elif body is not None and len(body) > max_bytes:
        body, reason, detail = None, "too_many_bytes", f"more than {max_bytes} bytes"
    elapsed_s = time.monotonic() - started
    return Fetched(
        body=body,
        reason=reason,
        detail=detail,
        fetched_at=started_at,
        elapsed_s=elapsed_s,
        attempts=1,
    )


# --- rows of tables --------------------------------------------------------------------------


async def read_rows(
    pairs: Sequence[Pair],
    settings: Fetch,
    column: str,
    contents: Mapping[str, Mapping[str, object]],
    readers: asyncio.Semaphore,
) -> AsyncGenerator[tuple[int, Fetched], None]:
    """As Fetcher.fetch, for pairs whose url is the address of a row of a Parquet file. Each file is
    opened once, each row group read once. OSError of a store that does not answer, and ValueError
    of a file without the content that its rows were named from: the task ends.
    """
    files: dict[str, dict[int, dict[int, list[int]]]] = {}  # path, row group, row -> positions
    for position, pair in enumerate(pairs):
        path, group, row = row_of_address(pair.url)
        files.setdefault(path, {}).setdefault(group, {}).setdefault(row, []).append(position)
    for path, groups in files.items():
        await asyncio.to_thread(_require_content, path, contents[path])
        async with readers, aclosing(_read_table(path, groups, settings, column)) as outcomes:
            async for position, fetched in outcomes:
                yield position, fetched
        await asyncio.to_thread(_require_content, path, contents[path])


def _require_content(path: str, content: Mapping[str, object]) -> None:
    """ValueError where a file that is there has other content than its rows were named from."""
    with suppress(FileNotFoundError):  # each of its rows is missing_file
        if not is_unchanged(path, content):
            raise ValueError(
                f"{path} has changed since the pairs were made of it: give the old file back, or "
                "build into another folder"
            )


async def _read_table(
    path: str, groups: dict[int, dict[int, list[int]]], settings: Fetch, column: str
) -> AsyncGenerator[tuple[int, Fetched], None]:
    """The same of one file. groups: row group -> row -> positions; it is emptied."""
    batches = image_rows(path, column, groups)
    while groups:
        begun = time.time(), time.monotonic()
        images: Mapping[int, bytes | None] | None = None
        reason, detail = "missing_file", "the row has no bytes of an image"
        none_left = (-1, ("missing_file", "the file has no such row"))
        try:
            group, batch = await _in_time(partial(next, batches, none_left))
            if isinstance(batch, tuple):
                reason, detail = batch
            else:
                images = batch
        except TimeoutError:
            group = -1
            reason, detail = "deadline", f"it was not read within {FILE_DEADLINE_S:g} s"
        except (FileNotFoundError, disk.DamagedTable, ValueError):
            group, detail = -1, "the file is gone, damaged or another one"
        for ended in [group] if group >= 0 else list(groups):
            own = groups[ended]
            for row in list(own) if images is None else images:
                body = None if images is None else images[row]
                for position in own.pop(row):
                    if body is None:
                        yield position, _read(None, *begun, 0, reason, detail)
                    else:
                        yield position, _read(body, *begun, settings.max_bytes)
            if not own:
                del groups[ended]
