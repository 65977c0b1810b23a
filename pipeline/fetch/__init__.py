"""Pairs to shards: plan, guard, opt-outs, requests, downloads."""

from __future__ import annotations

from pipeline.fetch import guard, plan
from pipeline.fetch.download import make_downloader
from pipeline.fetch.fetcher import user_agent
from pipeline.fetch.host_groups import PlannedShard
from pipeline.fetch.optouts import OptoutPolicy, product, signals

__all__ = [
    "OptoutPolicy",
    "PlannedShard",
    "guard",
    "make_downloader",
    "plan",
    "product",
    "signals",
    "user_agent",
]
