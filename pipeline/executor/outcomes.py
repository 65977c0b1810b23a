"""How the tickets of a stage ended: counts, and the first failures."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipeline.executor.schedule import Ticket
from pipeline.progress import StageCounter

TRIES = 2  # of a ticket that raises, or whose worker dies
# Of a ticket whose node dies or runs out of memory: other tickets may be the cause, and spot nodes
# are taken away.
LOST_TRIES = 6
RETRY_PAUSE_S = 2.0  # before the second try; four times that before each further one
MAX_RETRY_PAUSE_S = 60.0
# Pauses are up to a quarter shorter: tickets that failed together do not all come back at once.
PAUSE_JITTER = 0.25
EXAMPLES = 100  # failures that a report names, and that are logged one by one
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How many tickets ended, and how the first failed ones did."""

    done: int = 0
    failures: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # id -> error of the last try; EXAMPLES


def retry_pause_s(tries: int) -> float:
    """Seconds between a failed try and the next, so that an overloaded store can recover."""
    pause = min(MAX_RETRY_PAUSE_S, RETRY_PAUSE_S * 4.0 ** min(tries - 1, 9))
    return pause * random.uniform(1 - PAUSE_JITTER, 1)


def seconds_until(moment: float | None) -> float | None:
    """Seconds from now to a time (monotonic), at least 0; None stays None."""
    return None if moment is None else max(0.0, moment - time.monotonic())


class Outcomes:
    """Counts the tries of the tickets that failed, and the tickets that ended."""

    def __init__(
        self,
        stage_name: str,
        counter: StageCounter,
        on_done: Callable[[str, dict[str, Any]], None] | None = None,
    ) -> None:
        """`on_done` gets the id of each ticket that is done, and what it returned."""
        self._stage_name = stage_name
        self.counter = counter
        self._on_done = on_done
        # Of tickets that are tried again: tries that failed, and tries that were lost
        self._failed_tries: dict[str, tuple[int, int]] = {}
        self._logged = 0
        self._done = self._failures = 0
        self._failed: dict[str, str] = {}

    @property
    def report(self) -> Report:
        """What has ended up to now."""
        return Report(done=self._done, failures=self._failures, failed=dict(self._failed))

    def retry_time(self, ticket: Ticket) -> float:
        """The time (monotonic) before which a ticket that failed is not tried again."""
        return time.monotonic() + retry_pause_s(sum(self._failed_tries.get(ticket.id, (1, 0))))

    def record(self, ticket: Ticket, kind: str, text: str) -> bool:
        """Record how a try ended: done or raised (see Worker.run), died with its worker, or lost
        with its node. False: the ticket must be tried again.
        """
        failed, lost = self._failed_tries.pop(ticket.id, (0, 0))
        if kind == "done":
            self._done += 1
            result: dict[str, Any] = {}
            if self._on_done is not None or self.counter.wants_results:
                result = json.loads(text)
            if self._on_done is not None:
                self._on_done(ticket.id, result)
            self.counter.ended(ticket.id, result)
            return True
        if kind == "lost":
            lost += 1
            self._log(ticket, f"was lost in try {lost} of {LOST_TRIES}", text)
        else:
            failed += 1
            self._log(ticket, f"failed in try {failed} of {TRIES}", text)
        if failed < TRIES and lost < LOST_TRIES:
            self._failed_tries[ticket.id] = (failed, lost)
            self.counter.retried(ticket.id)
            return False
        self.fail(ticket, text)
        return True

    def fail(self, ticket: Ticket, text: str) -> None:
        """Record that a ticket ends without an outcome and is not tried again."""
        self._failures += 1
        if len(self._failed) < EXAMPLES:
            self._failed[ticket.id] = text
        self.counter.ended(ticket.id, None)

    def _log(self, ticket: Ticket, end: str, text: str) -> None:
        """One line per failed try, up to a limit: a store that is gone fails them all."""
        self._logged += 1
        if self._logged <= EXAMPLES:
            logger.warning("stage %s: %s %s: %s", self._stage_name, ticket.id, end, text)
        if self._logged == EXAMPLES:
            logger.warning("stage %s: further failed tries are only counted", self._stage_name)
