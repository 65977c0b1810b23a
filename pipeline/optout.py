"""Who has said no: robots.txt, X-Robots-Tag, TDMRep and AIPREF headers, and the page's own robots tags.

What was seen is kept raw beside the row, so that another policy can be applied later without asking again. A signal
that can be read in two ways is read as a no.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from protego import Protego

# img2dataset's four, and `none` (noindex, nofollow) and `noml`, which it does not know. Not `noarchive` and `nocache`:
# they are about copies shown to readers.
NO = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none", "noml"})
VALUED = frozenset({"max-snippet", "max-image-preview", "max-video-preview", "unavailable_after", "unavailable-after"})
# A name before a colon is another crawler's only if it looks like one; `foo: bar, noai` is addressed to everybody.
CRAWLER = re.compile(
    r"[a-z0-9_.*-]*(bot|crawl|spider|slurp|archiver|externalhit|externalagent|-extended|yandex|baidu)[a-z0-9_.*-]*"
    r"|anthropic-ai|cohere-ai|claude-web|chatgpt-user|perplexity-user|duckassist|img2dataset"
)
TOKEN = re.compile(r"[a-z0-9_.*-]+")
LIKE_US = ("img2dataset",)  # who names this crawler speaks to every builder of image-text sets
HEADERS = ("x-robots-tag", "tdm-reservation", "tdm-policy", "content-usage")
ROBOTS_BYTES = 500 * 1024  # what RFC 9309 asks to be read
ROBOTS_AGE_S = 24 * 3600.0  # and for how long it may be kept
AGENT_LINE = re.compile(r"(?im)^([ \t]*user[ \t-]?agent[ \t]*:?[ \t]*)([^#\r\n]*)")


def product(user_agent: str) -> str:
    """The name by which headers and robots.txt address us: `clipmill/0.1 (+https://…)` is `clipmill`."""
    return re.split(r"[/\s(]", user_agent.strip(), maxsplit=1)[0].lower()


def signals(headers: Iterable[tuple[str, str]], page_robots: str | None) -> dict[str, Any]:
    """Every signal of an answer's headers and of the page, raw; {} where there is none.

    `page_robots` is the JSON that crawl keeps: {"meta": […], "x-robots-tag": […]}.
    """
    found: dict[str, Any] = {}
    for name, value in headers:
        if name.lower() in HEADERS:
            found.setdefault(name.lower(), []).append(value[:2000])
    if page_robots:
        found["page"] = json.loads(page_robots)
    return found


def refuses(found: Mapping[str, Any], user_agent: str) -> bool:
    """True where one of the signals is a no to us."""
    return refusal(found, user_agent) is not None


def refusal(found: Mapping[str, Any], user_agent: str) -> tuple[str, str] | None:
    """(reason, the words that say no), or None. The page speaks first: it is known before anything is fetched."""
    us: tuple[str, ...] = (product(user_agent), *LIKE_US)
    page = found.get("page")
    if isinstance(page, Mapping):
        for where in ("meta", "x-robots-tag"):
            for text in _texts(page.get(where)):
                if word := _says_no(text, us):
                    return "optout_page", f"{where}: {word}"
        if any(text.strip() == "1" for text in _texts(page.get("tdm-reservation"))):
            return "optout_page", "tdm-reservation: 1"
    for text in _texts(found.get("x-robots-tag")):
        if word := _says_no(text, us):
            return "optout_header", f"x-robots-tag: {word}"
    if any(text.strip() == "1" for text in _texts(found.get("tdm-reservation"))):
        return "optout_header", "tdm-reservation: 1"
    for text in _texts(found.get("content-usage")):
        if match := re.search(r"\b(train-ai|bots)\s*=\s*n\b", text.lower()):
            return "optout_header", f"content-usage: {match[0]}"
    return None


def _texts(value: Any) -> list[str]:
    """One or several header texts; a meta tag may be kept as {"name": …, "content": …}."""
    if isinstance(value, Mapping):
        value = value.get("content")
    if isinstance(value, str):
        return [value]
    return [text for item in value for text in _texts(item)] if isinstance(value, list) else []


def _says_no(text: str, us: tuple[str, ...]) -> str | None:
    """The directive of one X-Robots-Tag or robots meta text that refuses us.

    Directives are separated by commas. `name:` before one begins a group for that crawler, up to the next name; a
    directive that takes a value has a colon too and begins none.
    """
    for_us = True
    for piece in text.lower().split(","):
        head, colon, rest = (part.strip() for part in piece.partition(":"))
        if colon and head in VALUED:
            words = rest.split()[1:]  # the value; words after it lack a comma
        elif colon and TOKEN.fullmatch(head) and (head in us or head == "*" or CRAWLER.fullmatch(head)):
            for_us = head in us or head == "*"
            words = _after_value(rest)
        elif colon and TOKEN.fullmatch(head):
            for_us, words = True, [head, *rest.split()]
        else:
            words = piece.split()
        if for_us:
            for word in words:
                if word.strip(";") in NO:
                    return word.strip(";")
    return None


def _after_value(rest: str) -> list[str]:
    """Words of a group's first directive, without the value that it may carry."""
    head, colon, value = (part.strip() for part in rest.partition(":"))
    return value.split()[1:] if colon and head in VALUED else rest.split()


# --- robots.txt ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a host said when asked for its robots.txt; `reason` where it could not be asked."""

    status: int | None
    body: bytes = b""
    reason: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What robots.txt says about one URL: `reason` is None where it may be fetched."""

    reason: str | None
    detail: str = ""
    signal: dict[str, Any] | None = None  # for the row's raw signals; None where the host has no rules


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    answer: Answer
    parsed: Protego | None
    agents: tuple[str, ...]
    read_at: float


class Robots:
    """robots.txt of the origins of a run: each is asked for once, by whoever needs it first, and kept for a day.

    RFC 9309: a 4xx means no rules; a 5xx means keep out, and so does 429, as Google reads it. A host that cannot be
    reached gives its rows the reason for that. Only finished answers are shared between event loops.
    """

    def __init__(self, user_agent: str) -> None:
        self._us = (product(user_agent), *LIKE_US)
        self._rules: dict[str, _Rules] = {}
        self._asked: dict[str, asyncio.Task[_Rules]] = {}

    async def verdict(self, origin: str, url: str, get: Callable[[str], Awaitable[Answer]]) -> Verdict:
        """Whether `url` of `origin` (scheme://host:port) may be fetched; `get` fetches the file, guarded."""
        rules = self._rules.get(origin)
        if rules is None or time.monotonic() - rules.read_at > ROBOTS_AGE_S:
            if origin not in self._asked:
                self._asked[origin] = asyncio.create_task(self._read(origin, get))
            rules = await asyncio.shield(self._asked[origin])
        return _judge(rules, url)

    async def close(self) -> None:
        """Stops the fetches under way, for the end of an event loop; what was read is kept."""
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
        self._asked.clear()

    async def _read(self, origin: str, get: Callable[[str], Awaitable[Answer]]) -> _Rules:
        answer = await get(f"{origin}/robots.txt")
        parsed: Protego | None = None
        agents: tuple[str, ...] = self._us
        if answer.reason is None and answer.status is not None and 200 <= answer.status < 300:
            parsed, agents = _parse(answer.body, self._us)
        self._rules[origin] = _Rules(answer=answer, parsed=parsed, agents=agents, read_at=time.monotonic())
        del self._asked[origin]
        return self._rules[origin]


def _parse(body: bytes, us: tuple[str, ...]) -> tuple[Protego, tuple[str, ...]]:
    """The rules, and by which of our names to ask: always our own, another only where the file has a group for it.

    Names of other crawlers are replaced by one: 16,000 names before 20,000 rules (half a megabyte) would otherwise
    cost 320 million entries.
    """
    text = "\n".join(body[:ROBOTS_BYTES].decode("utf-8", "replace").removeprefix("\ufeff").splitlines())
    named: set[str] = set()

    def keep(match: re.Match[str]) -> str:
        name = re.split(r"[/\s]", match[2].strip().lower(), maxsplit=1)[0]
        bare = name.replace("*", "")
        ours = [us_name for us_name in us if bare and bare in us_name]
        named.update(ours)
        return match[1] + (name if ours or not bare else "other")

    parsed = Protego.parse(AGENT_LINE.sub(keep, text))
    return parsed, (us[0], *(name for name in us[1:] if name in named))


def _judge(rules: _Rules, url: str) -> Verdict:
    answer = rules.answer
    if answer.reason is not None:
        return Verdict(reason=answer.reason, detail=f"robots.txt: {answer.detail}")
    status = answer.status or 0
    if rules.parsed is not None:
        allowed = all(rules.parsed.can_fetch(url, agent) for agent in rules.agents)
        signal = {"status": status, "allowed": allowed}
        return Verdict(reason=None if allowed else "robots_txt", detail="" if allowed else "disallowed", signal=signal)
    if 400 <= status < 500 and status != 429:
        return Verdict(reason=None)
    return Verdict(reason="robots_txt", detail=f"status {status}", signal={"status": status, "allowed": False})
