"""How each ticket of a stage ended: results, failures after the last try, progress lines."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from pipeline.executor.schedule import Ticket

TRIES = 2  # of a ticket that raises, or whose worker dies
RETRY_PAUSE_S = 2.0  # before the second try; four times that before each further one
MAX_RETRY_PAUSE_S = 60.0
LOG_EVERY_S = 10.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What each ticket returned, or how its last try ended."""

    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def retry_pause_s(tries: int) -> float:
    """Seconds between a failed try and the next, so that an overloaded store can recover."""
    return min(MAX_RETRY_PAUSE_S, RETRY_PAUSE_S * 4.0 ** (tries - 1))


def seconds_until(moment: float | None) -> float | None:
    """Seconds from now to a time (monotonic), at least 0; None stays None."""
    return None if moment is None else max(0.0, moment - time.monotonic())


class Outcomes:
    """Counts the tries of each ticket and fills the report."""

    def __init__(self, stage_name: str, progress: Callable[[bool], None]) -> None:
        """`progress` is called once per ticket: True for done, False for failed."""
        self.report = Report()
        self._stage_name = stage_name
        self._progress = progress
        self._tries: Counter[str] = Counter()

    def retry_time(self, ticket: Ticket) -> float:
        """The time (monotonic) before which a ticket that failed is not tried again."""
        return time.monotonic() + retry_pause_s(self._tries[ticket.id])

    def record(self, ticket: Ticket, kind: str, text: str) -> bool:
        """Record how a try ended (see Worker.run). False: the ticket must be tried again."""
        self._tries[ticket.id] += 1
        if kind == "done":
            self.report.done[ticket.id] = json.loads(text)
            self._progress(True)
            return True
        tries = self._tries[ticket.id]
        logger.warning(
            "stage %s: %s failed in try %d of %d: %s",
            self._stage_name, ticket.id, tries, TRIES, text,
        )  # fmt: skip
        if tries < TRIES:
            return False
        self.report.failed[ticket.id] = text
        self._progress(False)
        return True


@contextlib.contextmanager
def progress_of(name: str, total: int) -> Iterator[Callable[[bool], None]]:
    """A progress bar on a terminal; elsewhere a log line every LOG_EVERY_S seconds.

    The function that it yields is called when a ticket ends: True for done, False for failed.
    """
    started = last_line = time.monotonic()
    ended = failed = 0
    bar = tqdm(
        total=total, desc=name, unit="task", disable=not sys.stderr.isatty(), file=sys.stderr
    )

    def step(done: bool) -> None:
        nonlocal ended, failed, last_line
        ended, failed = ended + 1, failed + (not done)
        bar.update(1)
        now = time.monotonic()
        if bar.disable and (now - last_line >= LOG_EVERY_S or ended == total):
            last_line = now
            logger.info(
                "%s: %d of %d tasks, %d failed, %.1f s", name, ended, total, failed, now - started
            )

    with bar:
        yield step
