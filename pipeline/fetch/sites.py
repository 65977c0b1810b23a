"""Who has said no, while there is still time to listen: headers, the page, and the files of a site.

What was seen is kept raw beside the row, so that another policy can be applied later without asking again
(filters/optout.py, which also holds the grammars). The files of a site are asked for once per origin and run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from manifests.schema import Fetch
from pipeline.fetch import site_files
from pipeline.fetch.hosts import limit_of
from pipeline.fetch.optouts import OptoutPolicy
from pipeline.fetch.site_files import AiRule, Robots, Tdm, Unreadable

__all__ = ["Answer", "Sites", "Verdict"]

ROBOTS_BYTES = site_files.FILE_BYTES  # how much of a file is worth fetching
KEPT_S = 24 * 3600.0  # how long RFC 9309 lets a robots.txt be kept
FAILED_S = 600.0  # and we a file that could not be had
MOST_SITES = 20_000  # origins whose files are kept, some kilobytes each; those used longest ago are forgotten
NOT_ASKED = "disallowed by robots.txt"
OTHERS_SHARE = 0.25  # of a row's deadline: how long tdmrep.json and ai.txt may take together

Get = Callable[[str], Awaitable["Answer"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a host said when asked for a file; `reason` where it could not be asked.

    `body` as it came over the wire (up to ROBOTS_BYTES + 1), `encoding` its Content-Encoding.
    """

    status: int | None
    body: bytes = b""
    encoding: str = ""
    reason: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a site says about one URL: `reason` is None where it may be fetched."""

    reason: str | None
    detail: str = ""
    signal: dict[str, Any] | None = (
        None  # for the row's raw signals; None where the site says nothing
    )
    crawl_delay_s: float | None = None  # what robots.txt asks for between two requests


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """The files of one origin, read. A text in place of rules says why they cannot be read."""

    answer: Answer | None  # to the question for robots.txt; None where it was not asked for
    robots: Robots | str | None
    tdm: tuple[Tdm, ...] | str
    ai: tuple[AiRule, ...] | str
    good_until: float


class Sites:
    """The files of the origins of a run: each is asked for once, by whoever needs it first, and kept for a day.

    robots.txt by RFC 9309: a 4xx means no rules; a 5xx means keep out, and so does 429, as Google reads it. A host that
    cannot be reached gives its rows the reason for that. tdmrep.json and ai.txt that cannot be had say nothing; why is
    written down. Only finished answers are shared between event loops.
    """

    def __init__(self, user_agent: str, settings: Fetch) -> None:
        self._policy = OptoutPolicy(user_agent, settings.optout)
        self._settings = settings
        self._us = self._policy.names
        self._sites: dict[str, _Site] = {}
        self._asked: dict[str, asyncio.Task[_Site]] = {}

    async def verdict(self, origin: str, url: str, get: Get) -> Verdict:
        """Whether `url` of `origin` (scheme://host:port) may be fetched; `get` fetches a file, guarded."""
        if not self._settings.robots_txt and not self._settings.site_files:
            return Verdict(reason=None)
        site = self._sites.get(origin)
        if site is None or time.monotonic() > site.good_until:
            if origin not in self._asked:
                self._asked[origin] = asyncio.create_task(self._read(origin, get))
            site = await asyncio.shield(self._asked[origin])
        self._sites[origin] = self._sites.pop(origin, site)  # now the last to be forgotten
        return self._judge(site, origin, url)

    async def close(self) -> None:
        """Stops the fetches under way, for the end of an event loop; what was read is kept."""
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
        self._asked.clear()

    # --- asking ---------------------------------------------------------------------------------------------------

    async def _read(self, origin: str, get: Get) -> _Site:
        """One file after the other, so that a host is asked one question at a time."""
        try:
            answer, robots, failed = None, None, False
            if self._settings.robots_txt:
                answer = await get(f"{origin}/robots.txt")
                robots = self._rules(answer)
                failed = answer.reason is not None or _shut(answer.status)
            said = (
                {} if failed or isinstance(robots, str) else await self._others(origin, robots, get)
            )
            failed = failed or any(
                isinstance(rules, str) and rules != NOT_ASKED for rules in said.values()
            )
            site = _Site(
                answer=answer,
                robots=robots,
                tdm=said.get("tdmrep", ()),
                ai=said.get("ai.txt", ()),
                good_until=time.monotonic() + (FAILED_S if failed else KEPT_S),
            )
            self._sites[origin] = site
            while len(self._sites) > MOST_SITES:
                del self._sites[next(iter(self._sites))]
            return site
        finally:
            self._asked.pop(origin, None)

    def _rules(self, answer: Answer) -> Robots | str | None:
        """The rules of a robots.txt; None where there are none, a text where they cannot be read."""
        if answer.reason is not None or answer.status is None or not 200 <= answer.status < 300:
            return None
        try:
            return site_files.read_robots(
                site_files.inflated(answer.body, answer.encoding), self._us
            )
        except Unreadable as error:
            return str(error)

    async def _others(self, origin: str, robots: Robots | None, get: Get) -> dict[str, Any]:
        """tdmrep.json and ai.txt: rules, or why they cannot be read. Where one gets no answer the next is not asked."""
        said: dict[str, Any] = {}
        why: str | None = None
        _, delay_s = limit_of(
            urlsplit(origin).hostname or "", self._settings
        )  # `get` waits for its turns there
        ends = time.monotonic() + OTHERS_SHARE * self._settings.deadline_s + 2 * delay_s
        for name, path in (("tdmrep", "/.well-known/tdmrep.json"), ("ai.txt", "/ai.txt")):
            if name not in self._settings.site_files:
                continue
            if why is not None:
                said[name] = why
                continue
            if robots is not None and not robots.allows(origin + path):
                said[name] = NOT_ASKED
                continue
            try:
                async with asyncio.timeout(ends - time.monotonic()):
                    answer = await get(origin + path)
            except TimeoutError:
                answer = Answer(status=None, reason="deadline")
            why = answer.reason
            said[name] = why or self._read_other(name, answer)
        return said

    def _read_other(self, name: str, answer: Answer) -> Any:
        status = answer.status or 0
        if status != 200:
            return () if 400 <= status < 500 and status != 429 else f"status {status}"
        try:
            body = site_files.inflated(answer.body, answer.encoding)
            return (
                site_files.read_tdmrep(body)
                if name == "tdmrep"
                else site_files.read_ai_txt(body, self._us)
            )
        except Unreadable as error:
            return str(error)

    # --- judging --------------------------------------------------------------------------------------------------

    def _judge(self, site: _Site, origin: str, url: str) -> Verdict:
        """What the files of a site say about a URL, and whether that is a no under the policy of the recipe."""
        said: dict[str, Any] = {}
        delay_s = None
        if (answer := site.answer) is not None:
            if answer.reason is not None:
                return Verdict(reason=answer.reason, detail=f"robots.txt: {answer.detail}")
            if isinstance(site.robots, Robots):
                said["robots.txt"] = {"status": answer.status} | site.robots.said(url)
                delay_s = site.robots.delay_s
            elif site.robots is not None or _shut(answer.status):
                why = site.robots or f"status {answer.status}"
                said["robots.txt"] = {"status": answer.status, "allowed": False, "unread": why}
                return Verdict(reason="robots_txt", detail=why, signal=said)
        tdm = (
            _missing(site.tdm) if isinstance(site.tdm, str) else site_files.tdm_said(site.tdm, url)
        )
        ai = _missing(site.ai) if isinstance(site.ai, str) else site_files.ai_said(site.ai, url)
        said |= ({"tdmrep.json": tdm} if tdm else {}) | ({"ai.txt": ai} if ai else {})
        if (
            said.get("robots.txt", {}).get("allowed") is False
        ):  # whatever the policy: it has a switch of its own
            return Verdict(
                reason="robots_txt", detail="disallowed", signal=said, crawl_delay_s=delay_s
            )
        reason, detail = self._policy.refusal({"site": {origin: said}}) or (None, "")
        return Verdict(reason=reason, detail=detail, signal=said or None, crawl_delay_s=delay_s)


def _missing(why: str) -> dict[str, Any]:
    """What is kept of a file that could not be read. One that robots.txt shuts was never said to be there."""
    return {"not_asked" if why == NOT_ASKED else "unread": why}


def _shut(status: int | None) -> bool:
    """Whether a status other than 2xx keeps us out: all but the 4xx without 429."""
    return not (
        status is not None and (200 <= status < 300 or (400 <= status < 500 and status != 429))
    )
