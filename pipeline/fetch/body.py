"""The bytes of one answer as they come: counted on the wire and unpacked, with leave for what is large, at a pace."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

RATE_AFTER_S = 5.0  # from when on a body must have come at fetch.min_rate on average
FREE = 256 * 1024  # bytes of a body that need no leave; the median picture has 100 KB
# Encodings that are read although nobody asked for them: some servers pack whatever they send. br and zstd are refused.
INFLATED = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


def beyond(size: int) -> int:
    """What a body of that size takes from the budget."""
    return max(size - FREE, 0)


class Budget:
    """Bytes that may be held at once. Whoever needs more waits, in order; each takes all it needs in one go, so that
    nobody waits for more while holding some."""

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, amount: int) -> None:
        """Wait until there is room for `amount`."""
        assert amount <= self.size
        if not self._waiting and amount <= self.free:
            self.free -= amount
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((amount, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(amount)
            raise

    def give(self, amount: int) -> None:
        """Hand back what was taken; a negative amount is taken without waiting, by who holds it already."""
        self.free += amount
        while self._waiting:
            amount, turn = self._waiting[0]
            if not turn.done():
                if amount > self.free:
                    return
                self.free -= amount
                turn.set_result(None)
            self._waiting.popleft()


class Body:
    """A body under way: at most `limit` bytes on the wire and unpacked, and leave from the budget for what is large."""

    def __init__(
        self, limit: int, announced: int | None, encoding: str | None, budget: Budget
    ) -> None:
        self._limit = limit
        self._expected = limit if announced is None or encoding is not None else announced
        self._encoding = encoding
        self._budget = budget
        self._reserved = 0
        self._wire = self._size = 0
        self._parts: list[bytes] = []
        self._unpack: Any = None

    async def read(self, content: aiohttp.StreamReader, min_rate: int) -> tuple[str | None, str]:
        """All of it. (None, "") or a reason with its words; aiohttp.ClientError where the body breaks off."""
        if content.is_eof():  # a small one has come with its head
            part = content.read_nowait()
            return (self._add(part) if part else None) or self._ended()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        limit = asyncio.timeout_at(begun + RATE_AFTER_S if min_rate else None)
        try:
            async with limit:
                while part := await content.readany():
                    if end := self._add(part):
                        return end
                    if self._size > FREE and not self._reserved:
                        begun += await self._reserve(limit)
                    if min_rate:  # when the average falls below it, if nothing more comes
                        limit.reschedule(begun + max(RATE_AFTER_S, self._wire / min_rate))
        except TimeoutError:
            if not limit.expired():
                raise
            return "too_slow", f"less than {min_rate} bytes/s"
        return self._ended()

    async def _reserve(self, limit: asyncio.Timeout) -> float:
        """Leave for all that is expected. Returns the seconds that it took, which are not the server's."""
        asked = asyncio.get_running_loop().time()
        limit.reschedule(None)
        await self._budget.take(beyond(self._expected))
        self._reserved = beyond(self._expected)
        return asyncio.get_running_loop().time() - asked

    def _add(self, part: bytes) -> tuple[str, str] | None:
        self._wire += len(part)
        if self._encoding is not None:
            try:
                part = self._inflated(part)
            except zlib.error:
                return "encoding", f"said to be {self._encoding}, and is not"
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._limit or self._wire > self._limit:
            return "too_many_bytes", f"more than {self._limit}"
        return None

    def _inflated(self, part: bytes) -> bytes:
        if self._unpack is None:
            assert self._encoding is not None
            bits = INFLATED[self._encoding]
            if self._encoding == "deflate" and (
                part[0] & 0x0F != 8 or int.from_bytes(part[:2], "big") % 31
            ):
                bits = -zlib.MAX_WBITS  # without zlib's header, as some servers understand the name
            self._unpack = zlib.decompressobj(bits)
        found: bytes = self._unpack.decompress(part, self._limit + 1 - self._size)
        return found

    def _ended(self) -> tuple[str | None, str]:
        if self._unpack is not None and not self._unpack.eof:
            return "truncated", f"the {self._encoding} ended early"
        return (None, "") if self._size else ("empty", "no body")

    def whole(self) -> bytes:
        """The body; of the budget it holds what its size takes."""
        self._budget.give(self._reserved - beyond(self._size))
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def give_back(self) -> None:
        """Nothing is kept."""
        self._budget.give(self._reserved)
        self._reserved = 0
