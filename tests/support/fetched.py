"""Rows that one fetcher fetches, to their outcomes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from clipmill.manifests.schema import Fetch, Pair
from clipmill.pipeline.fetch.fetcher import Fetched, Fetcher
from clipmill.pipeline.fetch.guard import AddressSource


async def fetch_all(
    pairs: Sequence[Pair], settings: Fetch, source: AddressSource | None = None
) -> AsyncGenerator[tuple[int, Fetched], None]:
    """(index in `pairs`, outcome) for every pair, in the order in which they end."""
    fetcher = Fetcher(settings, source)
    try:
        async with aclosing(fetcher.fetch(pairs)) as outcomes:
            async for outcome in outcomes:
                yield outcome
    finally:
        await fetcher.close()
