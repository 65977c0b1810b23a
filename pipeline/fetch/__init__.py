"""Pairs to shards: plan, guard, opt-outs, requests, downloads."""

from __future__ import annotations

from pipeline.fetch import guard, plan, sites
from pipeline.fetch.fetcher import user_agent

__all__ = ["guard", "plan", "sites", "user_agent"]
