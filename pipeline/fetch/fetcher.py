"""URLs to bytes, or to one reason each: an event loop with a queue per host, kept from shard to shard.

Every row ends in exactly one outcome. What a row may cost is bounded before it is asked for: where it may lead
(guard.py), who forbids it (optout.py), whose turn it is (hosts.py), how many bytes are taken and how fast (body.py),
how long all of it may take, how often it is tried. The time for one shard is bounded by fetch.patience_s: what has
had no turn by then ends as host_busy.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urljoin

from manifests.columns import REASONS
from manifests.schema import Fetch, Pair
from pipeline.fetch import guard
from pipeline.fetch import sites as site_rules
from pipeline.fetch.body import beyond
from pipeline.fetch.guard import Refused, Target
from pipeline.fetch.hosts import Host, Queues
from pipeline.fetch.optouts import OptoutPolicy, signals
from pipeline.fetch.request import Answer, Requests, backoff_s
from pipeline.fetch.sites import Sites

AGAIN = frozenset(
    {"http_429", "http_5xx", "reset", "connect", "truncated"}
)  # a timeout has had its time
SILENT = frozenset({"deadline", "connect", "too_slow"})  # reasons of a host that does not answer
BUSY = frozenset({429, 503})  # what a host says that wants to be left alone
UNREAD_BYTES = (
    64 * 2**20
)  # of bodies that nobody has taken yet, from where on no further row is started
FEED = 200  # rows that are dealt to their hosts before others have their turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The end of one row: `body`, or a `reason` of manifests.columns.REASONS with words that repeat from run to run."""

    body: bytes | None
    reason: str | None
    detail: str = ""
    http_status: int | None = None
    final_url: str | None = None  # the last URL that was asked for; None where none was
    content_type: str | None = None
    optout: str | None = None  # every signal seen, raw, as JSON
    fetched_at: float = 0.0  # seconds since 1970, when the row's turn came
    elapsed_s: float = 0.0  # without the wait for its turn
    attempts: int = 0  # requests for the picture, redirects not counted


@dataclass(slots=True, kw_only=True)
class _Row:
    """A row under way."""

    index: int
    pair: Pair
    job: _Job
    target: Target | None = None  # None until it has been checked
    seen: list[str] = field(default_factory=list)  # URLs asked for, redirects
    signals: dict[str, Any] = field(default_factory=dict)
    begun: float = 0.0  # of this turn, by the clock of the queues
    spent_s: float = 0.0  # in earlier turns
    attempts: int = 0
    repeats: int = 0  # attempts that count against fetch.retries
    pause_s: float = 0.0  # before it may have its next turn, for a repeat
    last: Answer | None = None  # what is repeated because of
    started_at: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    """One shard's rows."""

    number: int
    ended: asyncio.Queue[tuple[int, Fetched] | BaseException] = field(default_factory=asyncio.Queue)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    patience: asyncio.TimerHandle | None = None  # runs from when no older job is left
    over: bool = False  # it has run out
    pauses: set[asyncio.TimerHandle] = field(default_factory=set)  # of rows that are repeated

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.ended.put_nowait(error)  # a mistake of ours: the caller hears of it


async def fetch_all(
    pairs: Sequence[Pair], settings: Fetch, sites: Sites | None = None
) -> AsyncGenerator[tuple[int, Fetched], None]:
    """(index in `pairs`, its end) for every pair, in the order in which they end: a Fetcher with one job.

    Give the same `sites` to calls that follow each other, and a host is asked for its robots.txt once. To leave early
    use contextlib.aclosing. ValueError where settings.user_agent is not set.
    """
    fetcher = Fetcher(settings, sites)
    try:
        async with aclosing(fetcher.fetch(pairs)) as ends:
            async for end in ends:
                yield end
    finally:
        await fetcher.close()


def user_agent(settings: Fetch) -> str:
    """What we call ourselves. ValueError where it is not set, or cannot be sent."""
    if not settings.user_agent or not settings.user_agent.strip():
        raise ValueError(
            "fetch.user_agent is not set: give a name and an address to write to, "
            'as in "mycrawler/1.0 (+https://example.org/bot)"'
        )
    if not (settings.user_agent.isascii() and settings.user_agent.isprintable()):
        raise ValueError(f"fetch.user_agent is {settings.user_agent!r}; it must be printable ASCII")
    return settings.user_agent.strip()


class Fetcher:
    """Fetches for one worker, several jobs at a time. Session, names, site rules and queues outlive a job.

    At most `settings.concurrency` rows are under way or wait to be taken. Rows of an earlier job go first; a later one
    uses what is left free.
    """

    def __init__(self, settings: Fetch, sites: Sites | None = None) -> None:
        self.settings = settings
        self.agent = user_agent(settings)
        self.policy = OptoutPolicy(self.agent, settings.optout)
        self.sites = sites or Sites(self.agent, settings)
        self.requests = Requests(settings, self.agent)
        self.queues: Queues[_Row] = Queues(settings, time.monotonic)
        self._jobs: dict[int, _Job] = {}
        self._number = 0
        self._running = 0
        self._unread = self._unread_bytes = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at: float | None = None
        self._no_time = f"its host had no time for it in {settings.patience_s:g} s"

    async def fetch(
        self, pairs: Sequence[Pair], number: int | None = None
    ) -> AsyncGenerator[tuple[int, Fetched], None]:
        """(index in `pairs`, its end) for every pair of a job, in the order in which they end. Jobs with lower numbers
        go first (default: in the order of their calls)."""
        self._number = max(self._number + 1, number or 0)
        job = _Job(number=self._number if number is None else number)
        assert job.number not in self._jobs
        self._jobs[job.number] = job
        self._start_patience()
        try:
            job.start(self._feed(job, pairs))
            for _ in range(len(pairs)):
                item = await job.ended.get()
                if isinstance(item, BaseException):
                    raise item
                self._taken(item[1])
                self._pump()
                yield item
        finally:
            await self._leave(job)

    async def close(self) -> None:
        """End what is under way and close every connection."""
        for job in list(self._jobs.values()):
            await self._leave(job)
        self._set_alarm(None)
        try:
            await self.sites.close()
        finally:
            await self.requests.close()

    async def _leave(self, job: _Job) -> None:
        """A job has ended, or is given up: nothing of it stays behind."""
        if self._jobs.pop(job.number, None) is None:
            return
        for timer in (job.patience, *job.pauses):
            if timer is not None:
                timer.cancel()
        self.queues.remove(job.number)
        tasks = list(job.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while not job.ended.empty():
            if not isinstance(item := job.ended.get_nowait(), BaseException):
                self._taken(item[1])
        self._start_patience()
        self._pump()

    def _taken(self, fetched: Fetched) -> None:
        size = len(fetched.body or b"")
        self._unread -= 1
        self._unread_bytes -= size
        if beyond(size):
            self.requests.budget.give(beyond(size))

    # --- queues ---------------------------------------------------------------------------------------------------

    async def _feed(self, job: _Job, pairs: Sequence[Pair]) -> None:
        """Puts every pair into its host's queue; what may not be asked for ends here."""
        for index, pair in enumerate(pairs):
            if index % FEED == FEED - 1:
                self._pump()
                await asyncio.sleep(0)
            row = _Row(index=index, pair=pair, job=job)
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
        self._pump()

    def _enqueue(self, row: _Row, *, first: bool = False) -> None:
        assert row.target is not None
        if row.job.over:
            self._busy([(row, self._no_time)])
        elif (
            why := self.queues.add(row.target.host, row.job.number, row, first=first)
        ) is not None:
            self._busy([(row, why)])

    def _start_patience(self) -> None:
        """The oldest job's time begins when it becomes that: what a later one waits for it is not counted."""
        if self._jobs and (job := self._jobs[min(self._jobs)]).patience is None:
            job.patience = asyncio.get_running_loop().call_later(
                self.settings.patience_s, self._out_of_patience, job
            )

    def _out_of_patience(self, job: _Job) -> None:
        job.over = True
        self._busy([(row, self._no_time) for row in self.queues.remove(job.number)])

    def _busy(self, rows: Sequence[tuple[_Row, str]]) -> None:
        for row, why in rows:
            self._end(row, row.last or Answer(reason="host_busy", detail=why))

    def _pump(self) -> None:
        """Starts rows while there is room, and sets the alarm for hosts that have a row to start later."""
        while (
            self._running + self._unread < self.settings.concurrency
            and self._unread_bytes < UNREAD_BYTES
        ):
            if (turn := self.queues.take()) is None:
                break
            host, row = turn
            self._running += 1
            row.job.start(self._visit(row, host))
        if (at := self.queues.wake_at()) != self._alarm_at:
            self._set_alarm(at)

    def _set_alarm(self, at: float | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_at = None, at
        if at is not None:
            self._alarm = asyncio.get_running_loop().call_later(
                max(at - time.monotonic(), 0.001), self._wake
            )

    def _wake(self) -> None:
        self._alarm, self._alarm_at = None, None
        self._pump()

    async def _visit(self, row: _Row, host: Host[_Row]) -> None:
        """A row's turn at a host: it ends there, a redirect sends it to another queue, or its turn came too early."""
        row.started_at = row.started_at or time.time()
        row.begun = time.monotonic()
        answer: Answer | None = None
        try:
            try:
                async with asyncio.timeout(self.settings.deadline_s - row.spent_s) as limit:
                    answer = await self._ask(row, host, limit)
            except TimeoutError:
                answer = Answer(
                    reason="deadline",
                    detail=f"no whole answer within {self.settings.deadline_s:g} s",
                )
        finally:
            self._running -= 1
            cut = self.queues.left(
                host, answered=None if answer is None else answer.reason not in SILENT
            )
        self._busy(cut)
        row.spent_s += time.monotonic() - row.begun
        if answer is None:
            self._later(row)
        elif answer.location is None:
            self._end(row, answer)
        else:
            self._move(row, answer)
        self._pump()

    def _later(self, row: _Row) -> None:
        """Back to the head of its host's queue, after the pause before a repeat: others use the host meanwhile."""

        def again() -> None:
            row.job.pauses.discard(timer)
            self._enqueue(row, first=True)
            self._pump()

        pause_s, row.pause_s = row.pause_s, 0.0
        if not pause_s:
            self._enqueue(row, first=True)
            return
        row.spent_s += pause_s
        timer = asyncio.get_running_loop().call_later(pause_s, again)
        row.job.pauses.add(timer)

    def _move(self, row: _Row, answer: Answer) -> None:
        """On to where a redirect leads, checked like any URL, at the head of its host's queue."""
        assert answer.location is not None
        try:
            target = guard.target(urljoin(row.seen[-1], answer.location), self.settings)
        except Refused as refused:
            self._end(
                row, replace(answer, reason=refused.reason, detail=f"redirect: {refused.detail}")
            )
        except ValueError as error:  # of urljoin
            self._end(row, replace(answer, reason="bad_url", detail=f"redirect: {error}"))
        else:
            if target.url in row.seen:
                self._end(row, replace(answer, reason="redirects", detail="a loop"))
            elif len(row.seen) > self.settings.max_redirects:
                self._end(
                    row,
                    replace(
                        answer,
                        reason="redirects",
                        detail=f"more than {self.settings.max_redirects}",
                    ),
                )
            else:
                row.target = target
                self._enqueue(row, first=True)

    def _end(self, row: _Row, answer: Answer) -> None:
        """The row's one outcome."""
        optout = (
            json.dumps(row.signals, sort_keys=True, ensure_ascii=False) if row.signals else None
        )
        fetched = Fetched(
            body=answer.body,
            reason=answer.reason,
            detail=answer.detail,
            http_status=answer.status,
            final_url=row.seen[-1] if row.seen else None,
            content_type=answer.content_type,
            optout=optout,
            fetched_at=row.started_at or time.time(),
            elapsed_s=row.spent_s,
            attempts=row.attempts,
        )
        assert (fetched.body is None) == (fetched.reason in REASONS)
        self._unread += 1
        self._unread_bytes += len(answer.body or b"")
        row.job.ended.put_nowait((row.index, fetched))

    # --- requests -------------------------------------------------------------------------------------------------

    async def _ask(self, row: _Row, host: Host[_Row], limit: asyncio.Timeout) -> Answer | None:
        """What the site says, then the picture. None: its turn came too early, or it is to be repeated."""
        target = row.target
        assert target is not None
        loop = asyncio.get_running_loop()
        if host.delay_s:  # its files are asked for at that pace too, which is not this row's time
            limit.reschedule(loop.time() + self.settings.patience_s)
        verdict = await self.sites.verdict(target.origin, target.url, self._site_file)
        if host.delay_s:
            limit.reschedule(loop.time() + self.settings.deadline_s - row.spent_s)
            row.begun = time.monotonic()
        if verdict.signal is not None:
            row.signals.setdefault("site", {})[target.origin] = verdict.signal
        if verdict.reason is not None:
            return Answer(reason=verdict.reason, detail=verdict.detail)
        if verdict.crawl_delay_s:
            self.queues.slow(host, verdict.crawl_delay_s)
        if self.queues.wait_s(host) > 0:
            return None
        if not row.seen or row.seen[-1] != target.url:
            row.seen.append(target.url)
        row.attempts = max(row.attempts, 1)
        self.queues.start(host)
        answer = await self.requests.image(target.url, row.signals, last=not host.rows)
        if answer.stale:  # the host had closed a connection that was kept: nobody's fault, once
            row.attempts += 1
            await asyncio.sleep(self.queues.start(host))
            answer = await self.requests.image(target.url, row.signals, last=not host.rows)
        self._told(host, answer)
        if answer.reason not in AGAIN or row.repeats >= self.settings.retries:
            return answer
        pause_s = max(
            backoff_s(row.pair.uid, row.repeats + 1, answer.retry_after_s), self.queues.wait_s(host)
        )
        if row.spent_s + time.monotonic() - row.begun + pause_s >= self.settings.deadline_s:
            return answer
        row.attempts += 1
        row.repeats += 1
        row.pause_s, row.last = pause_s, answer
        return None

    def _told(self, host: Host[_Row], answer: Answer) -> None:
        """Holds the host back if it says that it is busy."""
        busy = answer.status in BUSY
        if busy or host.strikes:
            self._busy(self.queues.told(host, busy=busy, retry_after_s=answer.retry_after_s))

    async def _site_file(self, url: str) -> site_rules.Answer:
        return await self.requests.site_file(url, self._turn)

    async def _turn(self, name: str) -> None:
        """Waits until a request to this host may start."""
        if (wait_s := self.queues.start(self.queues.host(name))) > 0:
            await asyncio.sleep(wait_s)
