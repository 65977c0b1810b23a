"""URLs to bytes, or to one reason each: an event loop with a queue per host, kept between shards.

Every row ends in exactly one outcome. Its cost is bounded before the request: the address
(guard.py), the permission of the site (sites.py), the limits of the host (hosts.py), bytes and
rate (request.py), the time for all of it and the number of attempts. fetch.patience_s bounds the
time for one shard: a row whose host had no time until then ends as host_busy.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clipmill.manifests.columns import REASONS
from clipmill.manifests.schema import Fetch, Pair
from clipmill.manifests.text import printable, valid_text
from clipmill.pipeline.fetch import guard, own_time
from clipmill.pipeline.fetch.guard import AddressSource, Refused, Target
from clipmill.pipeline.fetch.hosts import Host, Queues
from clipmill.pipeline.fetch.request import (
    Answer,
    OptoutPolicy,
    Requests,
    backoff_s,
    budget_bytes,
    signals,
)
from clipmill.pipeline.fetch.sites import SiteFileClient, Sites
from clipmill.pipeline.progress.state import HostLosses

# Reasons that are repeated. A timeout is not: it has used its time.
REPEATED = frozenset({"http_429", "http_5xx", "reset", "connect", "truncated"})
SILENT = frozenset({"deadline", "connect", "too_slow"})  # reasons of a host that does not answer
BUSY = frozenset({429, 503})  # statuses of a host that asks for a pause
UNREAD_BYTES = 64 * 2**20  # of bodies that the caller has not taken; above it no row is started
ENQUEUED_AT_ONCE = 200  # rows, before other tasks of the event loop run


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The outcome of one row: `body`, or a `reason` of manifests.columns.REASONS.

    All text is valid UTF-8. `detail` is printable and does not change from run to run.
    """

    body: bytes | None
    reason: str | None
    detail: str = ""
    http_status: int | None = None
    final_url: str | None = None  # the last URL that was requested; None where none was
    content_type: str | None = None
    optout: str | None = None  # every signal, raw, as JSON
    fetched_at: float = 0.0  # seconds since 1970, when the row started
    elapsed_s: float = 0.0  # without the wait in the queue
    attempts: int = 0  # requests for the image, redirects not counted


@dataclass(slots=True, kw_only=True)
class _Row:
    """A row under way."""

    index: int
    pair: Pair
    shard: _ShardFetch
    target: Target | None = None  # None until it has been checked
    requested: list[str] = field(default_factory=list)  # URLs, redirects included
    signals: dict[str, Any] = field(default_factory=dict)
    started: float = 0.0  # of this visit, by own_time.now
    spent_s: float = 0.0  # in earlier visits
    attempts: int = 0
    repeats: int = 0  # attempts that count against fetch.retries
    pause_s: float = 0.0  # before the next visit, for a repeat
    last: Answer | None = None  # the answer that is the reason for a repeat
    started_at: float = 0.0  # seconds since 1970


@dataclass(slots=True, kw_only=True, eq=False)
class _ShardFetch:
    """The rows of one shard that are being fetched."""

    number: int
    outcomes: asyncio.Queue[tuple[int, Fetched] | BaseException] = field(
        default_factory=asyncio.Queue
    )
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    patience: asyncio.TimerHandle | None = None  # runs from when no earlier shard is left
    patient_until: float = 0.0  # by own_time.now
    out_of_patience: bool = False
    pauses: set[asyncio.TimerHandle] = field(default_factory=set)  # of rows that are repeated

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.outcomes.put_nowait(error)  # a defect of this program: the caller raises it


def user_agent(settings: Fetch) -> str:
    """The User-Agent header. ValueError where it is not set."""
    if not settings.user_agent or not settings.user_agent.strip():
        raise ValueError(
            "fetch.user_agent is not set: give a name and an address to write to, "
            'as in "mycrawler/1.0 (+https://example.org/bot)"'
        )
    return settings.user_agent.strip()


class Fetcher:
    """Fetches for one worker, several shards at a time. Needs a running event loop.

    Session, names, sites and queues are kept between shards. At most `settings.concurrency` rows
    are under way or wait for the caller. Rows of an earlier shard start first; those of a later one
    use what is left free.
    """

    def __init__(
        self,
        settings: Fetch,
        source: AddressSource | None = None,
        losses: HostLosses | None = None,
        requests: type[Requests] = Requests,
    ) -> None:
        """`losses`: where the time is added that rows lose on slow or failing hosts. `requests`:
        how an image is asked for.
        """
        self.settings = settings
        self.losses = HostLosses() if losses is None else losses
        self.policy = OptoutPolicy(user_agent(settings), settings.optout)
        self.queues: Queues[_Row] = Queues(settings, time.monotonic)
        self.requests = requests(settings, self.policy, source)
        client = SiteFileClient(settings, self.requests, self.queues)
        self.sites = Sites(settings, self.policy, client)
        self._shards: dict[int, _ShardFetch] = {}
        self._number = 0
        self._running = 0
        self._unread = self._unread_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._outage: asyncio.Task[None] | None = None  # while no row starts
        self._no_time = f"its host had no time for it in {settings.patience_s:g} s"

    async def fetch(
        self, pairs: Sequence[Pair], number: int | None = None
    ) -> AsyncGenerator[tuple[int, Fetched], None]:
        """(index in `pairs`, outcome) for every pair of a shard, in the order in which they end.

        Shards with lower numbers go first (default: in the order of the calls).
        """
        self._number = max(self._number + 1, number or 0)
        shard = _ShardFetch(number=self._number if number is None else number)
        assert shard.number not in self._shards
        self._shards[shard.number] = shard
        self._start_patience()
        try:
            shard.start(self._enqueue_all(shard, pairs))
            for _ in range(len(pairs)):
                outcome = await shard.outcomes.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                self._release(outcome[1])
                self._start_rows()
                yield outcome
        finally:
            await self._drop(shard)

    async def close(self) -> None:
        """End what is under way and close every connection."""
        for shard in list(self._shards.values()):
            await self._drop(shard)
        self._set_timer(None)
        if self._outage is not None:
            self._outage.cancel()
        try:
            await self.sites.close()
        finally:
            await self.requests.close()

    async def _drop(self, shard: _ShardFetch) -> None:
        """A shard has ended, or is given up: nothing of it remains."""
        if self._shards.pop(shard.number, None) is None:
            return
        for timer in (shard.patience, *shard.pauses):
            if timer is not None:
                timer.cancel()
        self.queues.remove(shard.number)
        tasks = list(shard.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while not shard.outcomes.empty():
            if not isinstance(outcome := shard.outcomes.get_nowait(), BaseException):
                self._release(outcome[1])
        self._start_patience()
        self._start_rows()

    def _release(self, fetched: Fetched) -> None:
        """The caller has taken an outcome."""
        size = len(fetched.body or b"")
        self._unread -= 1
        self._unread_bytes -= size
        if budget_bytes(size):
            self.requests.budget.release(budget_bytes(size))

    # --- queues ------------------------------------------------------------------------------

    async def _enqueue_all(self, shard: _ShardFetch, pairs: Sequence[Pair]) -> None:
        """Put every pair into the queue of its host. A row that may not be requested ends here."""
        for index, pair in enumerate(pairs):
            if index % ENQUEUED_AT_ONCE == ENQUEUED_AT_ONCE - 1:
                self._start_rows()
                await asyncio.sleep(0)
            row = _Row(index=index, pair=pair, shard=shard)
            if pair.robots:
                row.signals = signals((), pair.robots)
            try:
                row.target = guard.target(pair.url, self.settings)
            except Refused as refused:
                self._end(row, Answer(reason=refused.reason, detail=refused.detail))
                continue
            if row.signals and (refusal := self.policy.refusal(row.signals)):
                self._end(row, Answer(reason=refusal[0], detail=refusal[1]))
            else:
                self._enqueue(row)
        self._start_rows()

    def _enqueue(self, row: _Row, *, first: bool = False) -> None:
        assert row.target is not None
        detail: str | None = self._no_time
        if not row.shard.out_of_patience:
            detail = self.queues.add(row.target.host, row.shard.number, row, first=first)
        if detail is not None:
            self._end_busy([(row, detail)])

    def _start_patience(self) -> None:
        """The patience of a shard starts when it is the earliest one."""
        if self._shards and (shard := self._shards[min(self._shards)]).patience is None:
            shard.patient_until = own_time.now() + self.settings.patience_s
            self._check_patience(shard)

    def _check_patience(self, shard: _ShardFetch) -> None:
        left_s = shard.patient_until - own_time.now()
        if self._outage is not None:  # no host was slow
            shard.patience = None
        elif left_s > 0:
            shard.patience = asyncio.get_running_loop().call_later(
                left_s, self._check_patience, shard
            )
        else:
            shard.out_of_patience = True
            self._end_busy([(row, self._no_time) for row in self.queues.remove(shard.number)])

    def _end_busy(self, rows: Sequence[tuple[_Row, str]]) -> None:
        for row, detail in rows:
            self._end(row, row.last or Answer(reason="host_busy", detail=detail))

    def _start_rows(self) -> None:
        """Start rows while there is room, and set the timer for hosts that have a later row. None
        starts while the network is down.
        """
        if self._outage is not None:
            return
        if self.requests.outage.is_suspected:
            self._outage = asyncio.create_task(self._wait_for_network())
            return
        while (
            self._running + self._unread < self.settings.concurrency
            and self._unread_bytes < UNREAD_BYTES
        ):
            if (host_and_row := self.queues.take()) is None:
                break
            host, row = host_and_row
            self._running += 1
            row.shard.start(self._visit(row, host))
        if (at := self.queues.wake_at()) != self._timer_at:
            self._set_timer(at)

    async def _wait_for_network(self) -> None:
        """No row is rejected meanwhile. What was silent for it is asked again, and the patience of
        the earliest shard starts anew.
        """
        self.queues.is_paused = True
        try:
            if await self.requests.outage.wait():
                self.queues.forgive()
                self.sites.forgive()
                self.requests.forgive()
                for shard in self._shards.values():
                    if shard.patience is not None:
                        shard.patience.cancel()
                        shard.patience = None
        finally:
            self.queues.is_paused, self._outage = False, None
        self._start_patience()
        self._start_rows()

    def _set_timer(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, at
        if at is not None:
            self._timer = asyncio.get_running_loop().call_later(
                max(at - time.monotonic(), 0.001), self._on_timer
            )

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, None
        self._start_rows()

    # --- one row -----------------------------------------------------------------------------

    async def _visit(self, row: _Row, host: Host[_Row]) -> None:
        """A row visits a host: it ends there, or a redirect or a repeat queues it again."""
        assert row.target is not None
        row.started_at = row.started_at or time.time()
        answer: Answer | None = None
        try:
            # Other names' time, not this row's
            await self.requests.wait_for_lookup(row.target.host)
            row.started = own_time.now()
            try:
                async with own_time.limit(self.settings.deadline_s - row.spent_s) as limit:
                    answer = await self._ask(row, row.target, host, limit)
            except TimeoutError:
                answer = Answer(
                    reason="deadline",
                    detail=f"no whole answer within {self.settings.deadline_s:g} s",
                )
        finally:
            self._running -= 1
            answered = None if answer is None else answer.reason not in SILENT
            rejected = self.queues.finish(host, answered=answered)
        self._end_busy(rejected)
        row.spent_s += own_time.now() - row.started
        if answer is None:
            self._queue_again(row)
        elif answer.location is None:
            self._end(row, answer)
        else:
            self._redirect(row, answer)
        self._start_rows()

    async def _ask(
        self, row: _Row, target: Target, host: Host[_Row], limit: asyncio.Timeout
    ) -> Answer | None:
        """What the site permits, then the image. None: the row visits the host again."""
        loop = asyncio.get_running_loop()
        if host.delay_s:  # it holds for the site's files too, and that wait is not this row's time
            limit.reschedule(loop.time() + self.settings.patience_s)
        verdict = await self.sites.verdict(target.origin, target.url)
        if host.delay_s:
            limit.reschedule(loop.time() + self.settings.deadline_s - row.spent_s)
            row.started = own_time.now()
        if verdict.signal is not None:
            row.signals.setdefault("site", {})[target.origin] = verdict.signal
        if verdict.reason is not None:
            after_s = verdict.retry_after_s
            answer = Answer(reason=verdict.reason, detail=verdict.detail, retry_after_s=after_s)
            if after_s is None:
                return answer
            self._end_busy(self.queues.record_answer(host, busy=True, retry_after_s=after_s))
            return None if self._repeats(row, host, answer) else answer
        if verdict.crawl_delay_s:
            self.queues.raise_delay(host, verdict.crawl_delay_s)
        if self.queues.wait_s(host) > 0:
            return None
        if not row.requested or row.requested[-1] != target.url:
            row.requested.append(target.url)
        row.attempts = max(row.attempts, 1)
        self.queues.reserve_start(host)
        answer = await self.requests.image(target.url, row.signals, last=not host.rows)
        if answer.stale:  # the host had closed a kept connection: one more attempt, not a repeat
            row.attempts += 1
            await asyncio.sleep(self.queues.reserve_start(host))
            answer = await self.requests.image(target.url, row.signals, last=not host.rows)
        busy = answer.status in BUSY
        if busy or host.busy_answers:
            after_s = answer.retry_after_s
            self._end_busy(self.queues.record_answer(host, busy=busy, retry_after_s=after_s))
        if answer.reason not in REPEATED or not self._repeats(row, host, answer):
            return answer
        row.attempts += 1
        return None

    def _repeats(self, row: _Row, host: Host[_Row], answer: Answer) -> bool:
        """Whether a row is repeated after this answer: its repeats and its time allow it."""
        pause_s = max(
            backoff_s(row.pair.uid, row.repeats + 1, answer.retry_after_s), self.queues.wait_s(host)
        )
        spent_s = row.spent_s + own_time.now() - row.started
        if row.repeats >= self.settings.retries or spent_s + pause_s >= self.settings.deadline_s:
            return False
        row.repeats += 1
        row.pause_s, row.last = pause_s, answer
        return True

    def _queue_again(self, row: _Row) -> None:
        """Back to the head of the host's queue after the pause. Other rows use the host before."""

        def after_pause() -> None:
            row.shard.pauses.discard(timer)
            self._enqueue(row, first=True)
            self._start_rows()

        pause_s, row.pause_s = row.pause_s, 0.0
        if not pause_s:
            self._enqueue(row, first=True)
            return
        row.spent_s += pause_s
        timer = asyncio.get_running_loop().call_later(pause_s, after_pause)
        row.shard.pauses.add(timer)

    def _redirect(self, row: _Row, answer: Answer) -> None:
        """To the queue of the host that a redirect names. Its URL is checked like any other."""
        assert answer.location is not None
        try:
            target = guard.target(guard.joined(row.requested[-1], answer.location), self.settings)
        except Refused as refused:
            reason, detail = refused.reason, f"redirect: {refused.detail}"
        except ValueError as error:  # of urljoin
            reason, detail = "bad_url", f"redirect: {error}"
        else:
            if target.url in row.requested:
                reason, detail = "redirects", "a loop"
            elif len(row.requested) > self.settings.max_redirects:
                reason, detail = "redirects", f"more than {self.settings.max_redirects}"
            else:
                row.target = target
                self._enqueue(row, first=True)
                return
        self._end(row, replace(answer, reason=reason, detail=detail))

    def _end(self, row: _Row, answer: Answer) -> None:
        """The outcome of a row. Text of strangers is valid UTF-8 from here on."""
        optout = None
        if row.signals:
            optout = valid_text(json.dumps(row.signals, sort_keys=True, ensure_ascii=False))
        fetched = Fetched(
            body=answer.body,
            reason=answer.reason,
            detail=printable(answer.detail),
            http_status=answer.status,
            final_url=row.requested[-1] if row.requested else None,
            content_type=answer.content_type,
            optout=optout,
            fetched_at=row.started_at or time.time(),
            elapsed_s=row.spent_s,
            attempts=row.attempts,
        )
        assert (fetched.body is None) == (fetched.reason in REASONS)
        if row.target is not None:
            self.losses.add(row.target.host, row.spent_s, answer.reason)
        self._unread += 1
        self._unread_bytes += len(answer.body or b"")
        row.shard.outcomes.put_nowait((row.index, fetched))
