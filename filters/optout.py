"""Who has said no, judged again from what was kept: the grammar of every opt-out, and a filter over
stored signals.

A row's signals are one JSON object (sidecar column `optout`): the raw values of "x-robots-tag",
"tdm-reservation", "tdm-policy" and "content-usage"; "page" with the same of the page, and its
"meta"; "site" with what robots.txt, tdmrep.json and ai.txt of each origin said about this very URL.
A signal that can be read in two ways is read as a no.

Policies. respect: every no to indexing, mining or training. strict: also noarchive, nocache and
unavailable_after, a no to any crawler of AI_CRAWLERS, a tdm-policy, and a statement that cannot be
read. ignore: nothing is a no.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from filters.base import Batch, Columns, Filter
from manifests.schema import Recipe

POLICIES = ("respect", "strict", "ignore")
# Who names one of these speaks to builders of training sets. The first one speaks to us under every
# policy.
AI_CRAWLERS = (
    "img2dataset",
    "ccbot",
    "gptbot",
    "google-extended",
    "anthropic-ai",
    "claudebot",
    "bytespider",
    "applebot-extended",
)
LIKE_US = AI_CRAWLERS[:1]
# img2dataset's four, and `none` (noindex, nofollow) and `noml`, which it does not know. Not
# `noarchive` and `nocache`: they are about copies shown to readers. Not `unavailable_after`: it
# would make the same row a no on another day.
NO = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none", "noml"})
LAPSES = frozenset({"unavailable_after", "unavailable-after"})
STRICTLY_NO = NO | LAPSES | {"noarchive", "nocache"}
VALUED = frozenset({"max-snippet", "max-image-preview", "max-video-preview"}) | LAPSES
# A name before a colon is another crawler's only if it looks like one; `foo: bar, noai` is
# addressed to everybody.
CRAWLER = re.compile(
    r"[a-z0-9_.*-]*(bot|crawl|spider|slurp|archiver|externalhit|externalagent|-extended|yandex|baidu)[a-z0-9_.*-]*"
    r"|anthropic-ai|cohere-ai|claude-web|chatgpt-user|perplexity-user|duckassist|img2dataset"
)
TOKEN = re.compile(r"[a-z0-9_.*-]+")
TRAINING = (
    "train-ai",
    "train-genai",
    "genai",
    "ai-train",
)  # AIPREF's drafts, and Cloudflare's Content-Signal
ANY_USE = (
    "bots",
    "tdm",
    "ai",
    "all",
)  # wider categories of earlier drafts; an explicit train-ai=y outweighs them
_KEY = r"[a-z*][a-z0-9_.*-]*"
_TOKEN = r"[A-Za-z*][A-Za-z0-9:/!#$%&'*+.^_`|~-]*"
_VALUE = rf'"(?:[^"\\]|\\.)*"|\?[01]|{_TOKEN}|-?[0-9]+(?:\.[0-9]+)?|:[A-Za-z0-9+/=]*:|\([^()]*\)'
MEMBER = re.compile(
    rf"[ \t]*({_KEY})(?:=({_VALUE}))?(?:[ \t]*;[ \t]*{_KEY}(?:=(?:{_VALUE}))?)*[ \t]*(,|$)"
)
LENIENT = re.compile(rf"(?<![a-z0-9_-])({'|'.join(TRAINING)}|bots)\s*[=:]\s*\"?(no?)\b", re.I)


@dataclass(frozen=True, slots=True)
class _Reading:
    """By which names we are spoken to, and which words are a no."""

    us: tuple[str, ...]
    words: frozenset[str]
    strict: bool


def product(user_agent: str) -> str:
    """The name by which headers and robots.txt address us: `clipmill/0.1 (+https://…)` is
    `clipmill`."""
    return re.split(r"[/\s(]", user_agent.strip(), maxsplit=1)[0].lower()


def refuses(found: Mapping[str, Any], user_agent: str, policy: str = "respect") -> bool:
    """True where one of the signals is a no to us."""
    return refusal(found, user_agent, policy) is not None


def refusal(found: Mapping[str, Any], user_agent: str, policy: str) -> tuple[str, str] | None:
    """(reason, the words that say no), or None. In the order in which a fetch learns of them:
    page, site, header."""
    if policy not in POLICIES:
        raise ValueError(f"there is no opt-out policy {policy!r}; there are {', '.join(POLICIES)}")
    if policy == "ignore":
        return None
    strict = policy == "strict"
    us = (product(user_agent), *(AI_CRAWLERS if strict else LIKE_US))
    reading = _Reading(us, STRICTLY_NO if strict else NO, strict)
    page, sites = found.get("page"), found.get("site")
    if isinstance(page, Mapping) and (words := _statement(page, reading)):
        return "optout_page", words
    if isinstance(sites, Mapping):
        for origin in sorted(sites):
            if no := _site(sites[origin], reading):
                return no
    if words := _statement(found, reading):
        return "optout_header", words
    return None


def _statement(said: Mapping[str, Any], reading: _Reading) -> str | None:
    """The first no among the values that headers and meta tags have in common."""
    for where in ("meta", "x-robots-tag"):
        for text in _texts(said.get(where)):
            if word := directive(text, reading.us, reading.words):
                return f"{where}: {word}"
    for text in _texts(said.get("tdm-reservation")):
        if word := _reserved(text, reading.strict):
            return f"tdm-reservation: {word}"
    for text in _texts(said.get("content-usage")):
        if word := usage(text, strict=reading.strict):
            return f"content-usage: {word}"
    if reading.strict and any(text.strip() for text in _texts(said.get("tdm-policy"))):
        return "tdm-policy"
    return None


def _site(said: Mapping[str, Any], reading: _Reading) -> tuple[str, str] | None:
    """The first no among what the files of one origin said about the URL."""
    rules, tdm, ai = (said.get(name) or {} for name in ("robots.txt", "tdmrep.json", "ai.txt"))
    if rules.get("allowed") is False:
        return "robots_txt", "disallowed"
    for line in rules.get("usage", ()):
        if word := usage(re.sub(r"^/\S*\s+", "", line), strict=reading.strict):
            return "optout_site", f"robots.txt: {word}"
    if _reserved(str(tdm.get("tdm-reservation", "0")), reading.strict):
        return (
            "optout_site",
            f"tdmrep.json: tdm-reservation {tdm['tdm-reservation']} for {tdm.get('location')}",
        )
    if ai.get("allowed") is False:
        return "optout_site", f"ai.txt: {ai.get('rule')}"
    if not reading.strict:
        return None
    for name in rules.get("disallowed", ()):
        if name.lower() in AI_CRAWLERS:
            return "optout_site", f"robots.txt: {name} is disallowed"
    if tdm.get("tdm-policy"):
        return "optout_site", "tdmrep.json: tdm-policy"
    for name, file in (("robots.txt", rules), ("tdmrep.json", tdm), ("ai.txt", ai)):
        if file.get("unread"):
            return "optout_site", f"{name} cannot be read: {file['unread']}"
    return None


def _texts(value: Any) -> list[str]:
    """One or several header texts; a meta tag may be kept as {"name": …, "content": …}."""
    if isinstance(value, Mapping):
        name = str(value.get("name") or "robots").strip().lower()
        return [
            text if name == "robots" else f"{name}: {text}" for text in _texts(value.get("content"))
        ]
    if isinstance(value, str):
        return [value]
    return [text for item in value for text in _texts(item)] if isinstance(value, list) else []


# --- grammars -------------------------------------------------------------------------------------


def directive(text: str, us: tuple[str, ...], no: frozenset[str]) -> str | None:
    """The directive of one X-Robots-Tag or robots meta text that refuses us.

    Directives are separated by commas. `name:` before one begins a group for that crawler, up to
    the next name; a directive that takes a value has a colon too and begins none.
    """
    for for_us, head, words in _pieces(text.lower(), us):
        if not for_us:
            continue
        if head in no:
            return head
        for word in words:
            if word.strip(";") in no:
                return word.strip(";")
    return None


def _pieces(text: str, us: tuple[str, ...]) -> Iterator[tuple[bool, str, list[str]]]:
    """(is it for us, the directive that carries a value or "", the other words) of each piece
    between commas."""
    for_us = True
    for piece in text.split(","):
        head, colon, rest = (part.strip() for part in piece.partition(":"))
        if (
            colon
            and TOKEN.fullmatch(head)
            and (head in us or head == "*" or CRAWLER.fullmatch(head))
        ):
            for_us = head in us or head == "*"
            piece = rest
            head, colon, rest = (part.strip() for part in rest.partition(":"))
        if colon and head in VALUED:
            yield for_us, head, rest.split()[1:]  # the value; words after it lack a comma
        elif colon and TOKEN.fullmatch(head):
            for_us = True  # a name that is neither a crawler's nor a directive's
            yield for_us, "", [head, *rest.split()]
        else:
            yield for_us, "", piece.split()


def _reserved(text: str, strict: bool) -> str | None:
    """`1` is a no, `0` is none; anything else counts as unset (TDMRep), and strictly as a no."""
    values = [value.strip().strip("\"'").strip() for value in text.split(",")]
    if "1" in values:
        return "1"
    return text.strip()[:40] if strict and set(values) - {"0", ""} else None


def usage(text: str, *, strict: bool) -> str | None:
    """The no of a Content-Usage value (AIPREF) or a Content-Signal (`ai-train=no`).

    A dictionary of RFC 9651: the last of equal keys counts. What is none, for a capital letter or a
    space, says nothing by that rule; here a no in it is a no.
    """
    said = _dictionary(text)
    if said is None:
        match = LENIENT.search(text)
        return (
            re.sub(r"\s", "", match[0].lower())
            if match
            else "cannot be read"
            if strict and text.strip()
            else None
        )
    for key in TRAINING:
        if said.get(key) in ("n", "no"):
            return f"{key}={said[key]}"
    if not any(said.get(key) in ("y", "yes") for key in ("train-ai", "ai-train")):
        for key in ANY_USE:
            if said.get(key) in ("n", "no"):
                return f"{key}={said[key]}"
    return None


def _dictionary(text: str) -> dict[str, str] | None:
    """Keys and values of a structured field, without parameters; None where it is none."""
    found: dict[str, str] = {}
    at, comma = 0, ","
    while at < len(text):
        match = MEMBER.match(text, at)
        if match is None:
            return None
        found[match[1]] = match[2] or "?1"
        at, comma = match.end(), match[3]
    return found if not found or comma != "," else None  # a comma at the end is an error there


# --- the filter -----------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Optout(Filter):
    """optout_respect, optout_strict: the words by which a stored signal refuses the row, "" where
    none does.

    A row that may stay has "" and not NULL, so that the rule `optout_strict = ''` keeps no row that
    was never judged. user_agent: the agent that the pool was fetched under; headers address it by
    its product name. A recipe's `fetch.user_agent` is taken where the filter list does not name
    one. There is no default, because the answer depends on it.
    """

    name: ClassVar[str] = "optout"
    needs: ClassVar[frozenset[str]] = frozenset({"row"})
    adds: ClassVar[dict[str, pa.DataType]] = {
        "optout_respect": pa.string(),
        "optout_strict": pa.string(),
    }
    meanings: ClassVar[dict[str, str]] = {
        "optout_respect": "the words that refuse the row under policy respect, '' if none do",
        "optout_strict": "the words that refuse the row under policy strict, '' if none do",
    }
    user_agent: str = ""

    def __post_init__(self) -> None:
        self.user_agent = product(self.user_agent)
        if not self.user_agent:
            raise ValueError(
                "filter optout: user_agent is empty; set fetch.user_agent in the recipe, or give "
                "the agent that the pool was fetched under: {optout: {user_agent: NAME}}"
            )

    @classmethod
    def options_from(cls, recipe: Recipe) -> dict[str, Any]:
        agent = recipe.fetch.user_agent
        return {"user_agent": agent} if agent else {}

    def score(self, batch: Batch) -> Columns:
        if "optout" not in batch.rows.column_names:
            return {column: [None] * len(batch.captions) for column in self.adds}
        texts = batch.rows.column("optout").to_pylist()
        signals = [json.loads(text) if text else {} for text in texts]
        columns: Columns = {}
        for policy in ("respect", "strict"):
            refusals = [refusal(row, self.user_agent, policy) for row in signals]
            columns[f"optout_{policy}"] = [answer[1] if answer else "" for answer in refusals]
        return columns
