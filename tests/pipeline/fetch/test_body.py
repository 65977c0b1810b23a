"""A body is bounded on the wire, unpacked and in memory, however it is packed."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from clipmill.pipeline.fetch.request import FREE_BYTES, Body, Budget, budget_bytes


class Content:
    """A StreamReader that has these parts."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)

    def is_eof(self) -> bool:
        return False

    async def readany(self) -> bytes:
        await asyncio.sleep(0)
        return self.parts.pop(0) if self.parts else b""


def read(
    *parts: bytes,
    limit: int = 10_000,
    encoding: str | None = None,
    announced: int | None = None,
    budget: Budget | None = None,
) -> tuple[str | None, str, bytes]:
    async def run() -> tuple[str | None, str, bytes]:
        body = Body(limit, announced, encoding, budget or Budget(2 * limit))
        content: Any = Content(*parts)
        reason, detail = await body.read(content, 0)
        if reason is None:
            return reason, detail, body.take()
        body.discard()
        return reason, detail, b""

    return asyncio.run(run())


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        (None, bytes),
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
    ],
)
def test_a_body_is_unpacked(encoding: str | None, pack: Callable[[bytes], bytes]) -> None:
    data = b"an image " * 500
    packed = pack(data)
    assert read(packed[:10], packed[10:], encoding=encoding) == (None, "", data)


def test_a_body_is_bounded_when_it_is_unpacked() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    assert len(bomb) < 10_000
    assert read(bomb, encoding="gzip", limit=50_000)[:2] == ("too_many_bytes", "more than 50000")


def test_a_body_is_bounded_on_the_wire() -> None:
    """Empty blocks: many bytes that unpack to nothing."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    empty = packer.compress(b"x") + b"".join(packer.flush(zlib.Z_FULL_FLUSH) for _ in range(10))
    blocks = b"\x00\x00\x00\xff\xff" * 2500
    assert read(empty, blocks, encoding="gzip")[:2] == ("too_many_bytes", "more than 10000")
    assert read(empty, blocks, encoding="gzip", limit=20_000)[0] == "truncated"


@pytest.mark.parametrize(
    ("parts", "encoding", "expected"),
    [
        ((b"plain",), "gzip", ("encoding", "the body is not gzip, as its header says")),
        ((gzip.compress(b"abc")[:-6],), "gzip", ("truncated", "the gzip ended early")),
        ((), None, ("empty", "no body")),
        ((gzip.compress(b""),), "gzip", ("empty", "no body")),
    ],
)
def test_bodies_that_are_none(
    parts: tuple[bytes, ...], encoding: str | None, expected: tuple[str, str]
) -> None:
    assert read(*parts, encoding=encoding)[:2] == expected


def test_memory_beyond_the_free_part_is_counted_and_returned() -> None:
    budget = Budget(3 * FREE_BYTES)
    size = 2 * FREE_BYTES
    assert budget_bytes(size) == FREE_BYTES
    parts = [bytes(FREE_BYTES // 2)] * 4
    assert read(*parts, limit=size, announced=size, budget=budget)[0] is None
    assert budget.free == budget.size - FREE_BYTES, "the caller holds it"
    assert read(*parts, b"x", limit=size, announced=size, budget=budget)[0] == "too_many_bytes"
    assert budget.free == budget.size - FREE_BYTES


def test_a_budget_serves_in_order_and_forgets_who_gave_up() -> None:
    async def run() -> list[str]:
        budget, served = Budget(10), []

        async def acquire(name: str, amount: int) -> None:
            await budget.acquire(amount)
            served.append(name)

        await acquire("first", 8)
        tasks = [
            asyncio.create_task(acquire(name, size))
            for name, size in (("gives up", 5), ("large", 9), ("small", 1))
        ]
        await asyncio.sleep(0)
        tasks[0].cancel()
        budget.release(8)
        await asyncio.gather(*tasks[1:])
        assert budget.free == 0
        return served

    assert asyncio.run(run()) == ["first", "large", "small"]
