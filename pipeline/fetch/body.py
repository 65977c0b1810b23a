"""The body of one response as it arrives: bytes counted on the wire and unpacked, memory, rate."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

RATE_AFTER_S = 5.0  # from then on a body must have arrived at fetch.min_rate on average
FREE_BYTES = 256 * 1024  # of each body are outside the budget; the median image has 100 KB
# Encodings that are unpacked although the request excludes them: some servers pack every response.
# br and zstd are refused.
INFLATED = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


def budget_bytes(size: int) -> int:
    """What a body of that size acquires from the budget."""
    return max(size - FREE_BYTES, 0)


class Budget:
    """Bytes that may be held in memory at once.

    Requests for more wait in order. Each acquires all that it needs in one call, so nobody waits
    for more while holding some.
    """

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def acquire(self, amount: int) -> None:
        """Wait until `amount` bytes are free, and take them."""
        assert amount <= self.size
        if not self._waiting and amount <= self.free:
            self.free -= amount
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((amount, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(amount)
            raise

    def release(self, amount: int) -> None:
        """Return bytes to the budget.

        A negative amount takes bytes without waiting: for a body that grew beyond its share.
        """
        self.free += amount
        while self._waiting:
            needed, granted = self._waiting[0]
            if not granted.done():
                if needed > self.free:
                    return
                self.free -= needed
                granted.set_result(None)
            self._waiting.popleft()


class Body:
    """A body that is being read: at most `limit` bytes on the wire, and as many unpacked."""

    def __init__(
        self, limit: int, announced: int | None, encoding: str | None, budget: Budget
    ) -> None:
        self._limit = limit
        self._expected = limit if announced is None or encoding is not None else announced
        self._encoding = encoding
        self._budget = budget
        self._acquired = 0  # of the budget
        self._wire_bytes = self._size = 0
        self._parts: list[bytes] = []
        self._decompressor: Any = None

    async def read(self, content: aiohttp.StreamReader, min_rate: int) -> tuple[str | None, str]:
        """Read all of it. (None, "") or a reason with a detail.

        aiohttp.ClientError where the body breaks off.
        """
        if content.is_eof():  # a small body has arrived with its head
            part = content.read_nowait()
            return (self._add(part) if part else None) or self._result()
        loop = asyncio.get_running_loop()
        started = loop.time()
        limit = asyncio.timeout_at(started + RATE_AFTER_S if min_rate else None)
        try:
            async with limit:
                while part := await content.readany():
                    if end := self._add(part):
                        return end
                    if self._size > FREE_BYTES and not self._acquired:
                        started += await self._acquire(limit)
                    if min_rate:  # the time at which the average falls below it, without more bytes
                        limit.reschedule(started + max(RATE_AFTER_S, self._wire_bytes / min_rate))
        except TimeoutError:
            if not limit.expired():
                raise
            return "too_slow", f"less than {min_rate} bytes/s"
        return self._result()

    async def _acquire(self, limit: asyncio.Timeout) -> float:
        """Memory for the whole expected body.

        Returns the seconds of the wait, which do not count against the server.
        """
        started = asyncio.get_running_loop().time()
        limit.reschedule(None)
        await self._budget.acquire(budget_bytes(self._expected))
        self._acquired = budget_bytes(self._expected)
        return asyncio.get_running_loop().time() - started

    def _add(self, part: bytes) -> tuple[str, str] | None:
        self._wire_bytes += len(part)
        if self._encoding is not None:
            try:
                part = self._inflated(part)
            except zlib.error:
                return "encoding", f"the body is not {self._encoding}, as its header says"
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._limit or self._wire_bytes > self._limit:
            return "too_many_bytes", f"more than {self._limit}"
        return None

    def _inflated(self, part: bytes) -> bytes:
        if self._decompressor is None:
            assert self._encoding is not None
            window_bits = INFLATED[self._encoding]
            if self._encoding == "deflate" and not _has_zlib_header(part):
                window_bits = -zlib.MAX_WBITS  # raw deflate, as some servers understand the name
            self._decompressor = zlib.decompressobj(window_bits)
        # One byte above the limit is enough to know that there is more.
        unpacked: bytes = self._decompressor.decompress(part, self._limit + 1 - self._size)
        return unpacked

    def _result(self) -> tuple[str | None, str]:
        if self._decompressor is not None and not self._decompressor.eof:
            return "truncated", f"the {self._encoding} ended early"
        return (None, "") if self._size else ("empty", "no body")

    def take(self) -> bytes:
        """The body. It keeps `budget_bytes` of its size: release them when it is dropped."""
        self._budget.release(self._acquired - budget_bytes(self._size))
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def discard(self) -> None:
        """Return all of the budget."""
        self._budget.release(self._acquired)
        self._acquired = 0


def _has_zlib_header(data: bytes) -> bool:
    return data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
