"""Filters that look at the whole pool: a map over shards, an exchange, columns back."""

from __future__ import annotations

from pipeline.pool_scores.engine import compute, remove_transient
from pipeline.pool_scores.job import PoolJob, plan_job

__all__ = ["PoolJob", "compute", "plan_job", "remove_transient"]
