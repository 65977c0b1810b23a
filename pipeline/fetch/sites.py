"""What the files of a site say about its URLs: robots.txt, tdmrep.json and ai.txt, kept for a day.

The files are requested once per origin and run, by the first row that needs them. What they say is
kept raw beside the row, so that another policy can be applied later without a request.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urljoin, urlsplit

from manifests.schema import Fetch
from pipeline.fetch import guard, site_files
from pipeline.fetch.guard import Refused
from pipeline.fetch.hosts import Queues, limit_of
from pipeline.fetch.optouts import OptoutPolicy
from pipeline.fetch.request import FileAnswer, Requests
from pipeline.fetch.site_files import AiRule, Robots, TdmRule, Unreadable

KEPT_S = 24 * 3600.0  # how long RFC 9309 lets a robots.txt be kept
FAILED_S = 600.0  # the same for a file without an answer
MOST_SITES = 20_000  # origins in memory, some kilobytes each; the least recently used are dropped
MOST_HOPS = 6  # requests for one file: RFC 9309 asks for five redirects
NOT_ASKED = "disallowed by robots.txt"
OTHERS_SHARE = 0.25  # of a row's deadline: the time for tdmrep.json and ai.txt together


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a site says about one URL: `reason` is None where it may be fetched."""

    reason: str | None
    detail: str = ""
    # For the row's raw signals; None where the site says nothing.
    signal: dict[str, Any] | None = None
    crawl_delay_s: float | None = None  # what robots.txt asks for between two requests


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """The files of one origin, parsed. A text instead of rules says why they cannot be read."""

    answer: FileAnswer | None  # for robots.txt; None where it was not requested
    robots: Robots | str | None
    tdm: tuple[TdmRule, ...] | str
    ai: tuple[AiRule, ...] | str
    good_until: float


class FileClient(Protocol):
    """What Sites asks."""

    async def get(self, url: str) -> FileAnswer:
        """The file behind a URL, after its redirects."""


class SiteFileClient:
    """Requests for the files of sites: redirects, limits and delays of their hosts, a deadline."""

    def __init__(self, settings: Fetch, requests: Requests, queues: Queues[Any]) -> None:
        self._settings = settings
        self._requests = requests
        self._queues = queues

    async def get(self, url: str) -> FileAnswer:
        """The file behind a URL. Each redirect is checked. The wait for a host is not counted."""
        status, left_s = None, self._settings.deadline_s
        for _ in range(MOST_HOPS):
            try:
                target = guard.target(url, self._settings)
            except Refused as refused:
                answer = FileAnswer(status=None, reason=refused.reason, detail=refused.detail)
                break
            await self._requests.wait_for_lookup(target.host)
            delay_s = self._queues.reserve_start(self._queues.host(target.host))
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            started = time.monotonic()
            try:
                async with asyncio.timeout(left_s):
                    answer = await self._requests.file(target.url, site_files.FILE_BYTES)
            except TimeoutError:
                detail = "no whole answer in time"
                return FileAnswer(status=status, reason="deadline", detail=detail)
            if answer.location is None:
                break
            status = answer.status
            left_s -= time.monotonic() - started
            try:
                url = urljoin(target.url, answer.location)
            except ValueError:
                break
        if status is None or (answer.reason is None and answer.location is None):
            return answer
        return FileAnswer(status=status)  # a redirect that leads nowhere gives no permission


@dataclass(slots=True)
class SiteCache:
    """What was read of the sites of a run. Event loops that follow each other may share it."""

    sites: dict[str, _Site] = field(default_factory=dict)

    def get(self, origin: str) -> _Site | None:
        """The site, if it was read and is not too old. It becomes the most recently used one."""
        site = self.sites.get(origin)
        if site is None or time.monotonic() > site.good_until:
            return None
        self.sites[origin] = self.sites.pop(origin)
        return site

    def put(self, origin: str, site: _Site) -> None:
        """Keep a site, and drop the least recently used one where there are too many."""
        self.sites.pop(origin, None)
        self.sites[origin] = site
        while len(self.sites) > MOST_SITES:
            del self.sites[next(iter(self.sites))]


class Sites:
    """The files of the origins of a run.

    robots.txt follows RFC 9309: 4xx means no rules, 5xx means no permission, and so does 429, as
    Google reads it. A host that cannot be reached gives its rows the reason for that. A tdmrep.json
    or ai.txt without an answer is no statement; why is kept.
    """

    def __init__(
        self,
        settings: Fetch,
        policy: OptoutPolicy,
        client: FileClient,
        cache: SiteCache | None = None,
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._client = client
        self._cache = SiteCache() if cache is None else cache
        self._reading: dict[str, asyncio.Task[_Site]] = {}

    async def verdict(self, origin: str, url: str) -> Verdict:
        """Whether `url` of `origin` (scheme://host:port) may be fetched."""
        if not self._settings.robots_txt and not self._settings.site_files:
            return Verdict(reason=None)
        site = self._cache.get(origin)
        if site is None:
            if origin not in self._reading:
                self._reading[origin] = asyncio.create_task(self._read(origin))
            site = await asyncio.shield(self._reading[origin])
        return self._verdict(site, origin, url)

    async def close(self) -> None:
        """Stop the requests under way, for the end of an event loop. The cache stays."""
        for task in self._reading.values():
            task.cancel()
        await asyncio.gather(*self._reading.values(), return_exceptions=True)
        self._reading.clear()

    # --- reading -----------------------------------------------------------------------------

    async def _read(self, origin: str) -> _Site:
        """One file after the other, so that a host gets one request at a time."""
        try:
            answer, robots, failed = None, None, False
            if self._settings.robots_txt:
                answer = await self._client.get(f"{origin}/robots.txt")
                robots = self._robots(answer)
                failed = answer.reason is not None or _forbids(answer.status)
            others: dict[str, Any] = {}
            if not failed and not isinstance(robots, str):
                others = await self._read_others(origin, robots)
            for rules in others.values():
                failed = failed or (isinstance(rules, str) and rules != NOT_ASKED)
            site = _Site(
                answer=answer,
                robots=robots,
                tdm=others.get("tdmrep", ()),
                ai=others.get("ai.txt", ()),
                good_until=time.monotonic() + (FAILED_S if failed else KEPT_S),
            )
            self._cache.put(origin, site)
            return site
        finally:
            self._reading.pop(origin, None)

    def _robots(self, answer: FileAnswer) -> Robots | str | None:
        """The rules of a robots.txt; None where there are none, a text where it is unreadable."""
        if answer.reason is not None or answer.status is None or not 200 <= answer.status < 300:
            return None
        try:
            body = site_files.inflated(answer.body, answer.encoding)
            return site_files.read_robots(body, self._policy.names)
        except Unreadable as error:
            return str(error)

    async def _read_others(self, origin: str, robots: Robots | None) -> dict[str, Any]:
        """tdmrep.json and ai.txt: rules, or why they cannot be read.

        Where one gets no answer the next is not requested.
        """
        others: dict[str, Any] = {}
        failure: str | None = None
        _, delay_s = limit_of(urlsplit(origin).hostname or "", self._settings)
        ends = time.monotonic() + OTHERS_SHARE * self._settings.deadline_s + 2 * delay_s
        for name, path in (("tdmrep", "/.well-known/tdmrep.json"), ("ai.txt", "/ai.txt")):
            if name not in self._settings.site_files:
                continue
            if failure is not None:
                others[name] = failure
                continue
            if robots is not None and not robots.allows(origin + path):
                others[name] = NOT_ASKED
                continue
            try:
                async with asyncio.timeout(ends - time.monotonic()):
                    answer = await self._client.get(origin + path)
            except TimeoutError:
                answer = FileAnswer(status=None, reason="deadline")
            failure = answer.reason
            others[name] = failure or self._other_rules(name, answer)
        return others

    def _other_rules(self, name: str, answer: FileAnswer) -> Any:
        status = answer.status or 0
        if status != 200:
            return () if 400 <= status < 500 and status != 429 else f"status {status}"
        try:
            body = site_files.inflated(answer.body, answer.encoding)
            if name == "tdmrep":
                return site_files.read_tdmrep(body)
            return site_files.read_ai_txt(body, self._policy.names)
        except Unreadable as error:
            return str(error)

    # --- the verdict -------------------------------------------------------------------------

    def _verdict(self, site: _Site, origin: str, url: str) -> Verdict:
        """What the files of a site say about a URL, and whether the policy reads it as a no."""
        signal: dict[str, Any] = {}
        delay_s = None
        if (answer := site.answer) is not None:
            if answer.reason is not None:
                return Verdict(reason=answer.reason, detail=f"robots.txt: {answer.detail}")
            if isinstance(site.robots, Robots):
                signal["robots.txt"] = {"status": answer.status} | site.robots.summary(url)
                delay_s = site.robots.delay_s
            elif site.robots is not None or _forbids(answer.status):
                detail = site.robots or f"status {answer.status}"
                signal["robots.txt"] = {
                    "status": answer.status,
                    "allowed": False,
                    "unread": detail,
                }
                return Verdict(reason="robots_txt", detail=detail, signal=signal)
        if tdm := _summary(site.tdm, url, site_files.tdm_summary):
            signal["tdmrep.json"] = tdm
        if ai := _summary(site.ai, url, site_files.ai_summary):
            signal["ai.txt"] = ai
        # robots.txt counts under every policy: fetch.robots_txt is its switch.
        if signal.get("robots.txt", {}).get("allowed") is False:
            return Verdict(
                reason="robots_txt", detail="disallowed", signal=signal, crawl_delay_s=delay_s
            )
        reason, detail = self._policy.refusal({"site": {origin: signal}}) or (None, "")
        return Verdict(reason=reason, detail=detail, signal=signal or None, crawl_delay_s=delay_s)


def _summary(rules: Any, url: str, summarize: Any) -> dict[str, Any] | None:
    """What is kept of one file. A file that robots.txt disallows may not exist at all."""
    if isinstance(rules, str):
        return {"not_asked" if rules == NOT_ASKED else "unread": rules}
    if not rules:
        return None
    summary: dict[str, Any] | None = summarize(rules, url)
    return summary


def _forbids(status: int | None) -> bool:
    """Whether a status other than 2xx gives no permission: all but the 4xx without 429."""
    if status is None:
        return True
    return not (200 <= status < 300 or (400 <= status < 500 and status != 429))
