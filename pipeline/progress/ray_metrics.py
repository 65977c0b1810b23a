"""Counters of a stage for Prometheus, through Ray's metrics: the port that Ray exports has them.

Tags are the stage and the outcome, so the number of series is bounded; hosts are not among them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from pipeline.progress.state import CommandState, StageState

EVERY_S = 5.0
TICKET_SECONDS = [0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0]  # bounds of the histogram
STAGE = ("stage",)


class RayMetrics:
    """Adds what changed between two states. It does nothing where Ray is not connected."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._counted: dict[tuple[int, str, str | None], float] = {}

    def add(self, state: CommandState, durations: Mapping[str, list[float]]) -> None:
        """Record a state, and the seconds of the tickets that ended since, by stage."""
        if not _is_connected():
            return
        metrics = self._metrics = self._metrics or _make_metrics()
        for stage in state.stages:
            self._add_stage(metrics, stage)
        for name, seconds in durations.items():
            for each in seconds:
                metrics["ticket_seconds"].observe(each, tags={"stage": name})

    def _add_stage(self, metrics: Mapping[str, Any], stage: StageState) -> None:
        name = stage.name
        self._count(stage, "tickets", stage.done, "done")
        self._count(stage, "tickets", stage.failed, "failed")
        self._count(stage, "rows", stage.stored, "stored")
        for reason, rows in (stage.reasons or {}).items():
            self._count(stage, "rows", rows, reason)
        self._count(stage, "bytes", stage.bytes)
        left = stage.total - stage.done - stage.failed
        metrics["tickets_left"].set(left, tags={"stage": name})
        metrics["tickets_running"].set(stage.running, tags={"stage": name})
        if stage.left_s is not None:
            metrics["seconds_left"].set(stage.left_s, tags={"stage": name})

    def _count(
        self, stage: StageState, metric: str, value: float, outcome: str | None = None
    ) -> None:
        """Raise a counter to a value. A running ticket that dies takes rows back; no counter
        does.
        """
        key = (stage.number, metric, outcome)
        more = value - self._counted.get(key, 0.0)
        if more > 0:
            tags = {"stage": stage.name}
            if outcome is not None:
                tags["outcome"] = outcome
            self._metrics[metric].inc(more, tags=tags)
            self._counted[key] = value


def _is_connected() -> bool:
    """Whether this process has a Ray. It is not imported for that."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _make_metrics() -> dict[str, Any]:
    from ray.util.metrics import Counter, Gauge, Histogram

    both = ("stage", "outcome")
    return {
        "tickets": Counter("clipmill_tickets", "Tickets that ended", tag_keys=both),
        "rows": Counter("clipmill_rows", "Rows that have an outcome", tag_keys=both),
        "bytes": Counter("clipmill_bytes", "Bytes of images", tag_keys=STAGE),
        "ticket_seconds": Histogram(
            "clipmill_ticket_seconds", "Time of a ticket", boundaries=TICKET_SECONDS, tag_keys=STAGE
        ),
        "tickets_left": Gauge("clipmill_tickets_left", "Tickets that have not ended", STAGE),
        "tickets_running": Gauge("clipmill_tickets_running", "Tickets that run", STAGE),
        "seconds_left": Gauge("clipmill_seconds_left", "Estimate of the time left", STAGE),
    }
