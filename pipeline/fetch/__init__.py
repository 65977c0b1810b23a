"""Planned shards to committed shards: guard, opt-outs, requests, downloads."""

from __future__ import annotations

from pipeline.fetch import guard
from pipeline.fetch.download import make_downloader
from pipeline.fetch.fetcher import user_agent
from pipeline.fetch.optouts import OptoutPolicy, product, signals

__all__ = [
    "OptoutPolicy",
    "guard",
    "make_downloader",
    "product",
    "signals",
    "user_agent",
]
