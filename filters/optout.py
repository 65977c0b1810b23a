"""Opt-out signals: the grammar of each, which of them refuse us, and a filter over stored signals.

A row's signals are one JSON object (sidecar column `optout`): the raw values of "x-robots-tag",
"tdm-reservation", "tdm-policy" and "content-usage"; "page" with the same of the page, and its
"meta"; "site" with what robots.txt, tdmrep.json and ai.txt of each origin say about this URL.
A signal that can be read in two ways is read as a refusal.

Policies. respect: every refusal of indexing, mining or training counts. strict: also noarchive,
nocache and unavailable_after, a refusal of any crawler of AI_CRAWLERS, a tdm-policy, and a
statement that cannot be read. ignore: nothing counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from filters.base import Batch, Columns, Filter, described
from manifests.schema import Recipe

POLICIES = ("respect", "strict", "ignore")
# A site that names one of these addresses builders of training sets. The first one addresses us
# under every policy.
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
# `noarchive` and `nocache`: they are about copies shown to readers. Not `unavailable_after`: the
# answer for the same row would depend on the day.
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
# AIPREF's drafts, and Cloudflare's Content-Signal.
TRAINING = ("train-ai", "train-genai", "genai", "ai-train")
# Wider categories of earlier drafts. An explicit train-ai=y outweighs them.
ANY_USE = ("bots", "tdm", "ai", "all")
_KEY = r"[a-z*][a-z0-9_.*-]*"
_TOKEN = r"[A-Za-z*][A-Za-z0-9:/!#$%&'*+.^_`|~-]*"
_VALUE = rf'"(?:[^"\\]|\\.)*"|\?[01]|{_TOKEN}|-?[0-9]+(?:\.[0-9]+)?|:[A-Za-z0-9+/=]*:|\([^()]*\)'
MEMBER = re.compile(
    rf"[ \t]*({_KEY})(?:=({_VALUE}))?(?:[ \t]*;[ \t]*{_KEY}(?:=(?:{_VALUE}))?)*[ \t]*(,|$)"
)
LENIENT = re.compile(rf"(?<![a-z0-9_-])({'|'.join(TRAINING)}|bots)\s*[=:]\s*\"?(no?)\b", re.I)


@dataclass(frozen=True, slots=True)
class _Reading:
    """How statements are read: the names that address us, and the words that refuse."""

    names: tuple[str, ...]
    words: frozenset[str]
    strict: bool


def product(user_agent: str) -> str:
    """The name by which headers and robots.txt address a crawler.

    `clipmill/0.1 (+https://…)` is `clipmill`.
    """
    return re.split(r"[/\s(]", user_agent.strip(), maxsplit=1)[0].lower()


def refuses(signals: Mapping[str, Any], user_agent: str, policy: str = "respect") -> bool:
    """True if one of the signals refuses us."""
    return refusal(signals, user_agent, policy) is not None


def refusal(signals: Mapping[str, Any], user_agent: str, policy: str) -> tuple[str, str] | None:
    """(reason, the words that refuse), or None. In the order in which a fetch learns of them.

    The order is page, site, header. ValueError for an unknown policy.
    """
    if policy not in POLICIES:
        raise ValueError(f"there is no opt-out policy {policy!r}; there are {', '.join(POLICIES)}")
    if policy == "ignore":
        return None
    strict = policy == "strict"
    names = (product(user_agent), *(AI_CRAWLERS if strict else LIKE_US))
    reading = _Reading(names, STRICTLY_NO if strict else NO, strict)
    page, sites = signals.get("page"), signals.get("site")
    if isinstance(page, Mapping) and (words := _statement_refusal(page, reading)):
        return "optout_page", words
    if isinstance(sites, Mapping):
        for origin in sorted(sites):
            if reason_and_words := _site_refusal(sites[origin], reading):
                return reason_and_words
    if words := _statement_refusal(signals, reading):
        return "optout_header", words
    return None


def _statement_refusal(values: Mapping[str, Any], reading: _Reading) -> str | None:
    """The first refusal among the values that headers and meta tags have in common."""
    for key in ("meta", "x-robots-tag"):
        for text in _texts(values.get(key)):
            if word := directive(text, reading.names, reading.words):
                return f"{key}: {word}"
    for text in _texts(values.get("tdm-reservation")):
        if word := _reservation(text, reading.strict):
            return f"tdm-reservation: {word}"
    for text in _texts(values.get("content-usage")):
        if word := usage(text, strict=reading.strict):
            return f"content-usage: {word}"
    if reading.strict and any(text.strip() for text in _texts(values.get("tdm-policy"))):
        return "tdm-policy"
    return None


def _site_refusal(files: Mapping[str, Any], reading: _Reading) -> tuple[str, str] | None:
    """(reason, words) of the first refusal among the files of one origin, for this URL."""
    robots = files.get("robots.txt") or {}
    tdmrep = files.get("tdmrep.json") or {}
    ai_txt = files.get("ai.txt") or {}
    if robots.get("allowed") is False:
        return "robots_txt", "disallowed"
    for line in robots.get("usage", ()):
        if word := usage(re.sub(r"^/\S*\s+", "", line), strict=reading.strict):
            return "optout_site", f"robots.txt: {word}"
    if _reservation(str(tdmrep.get("tdm-reservation", "0")), reading.strict):
        value, location = tdmrep["tdm-reservation"], tdmrep.get("location")
        return "optout_site", f"tdmrep.json: tdm-reservation {value} for {location}"
    if ai_txt.get("allowed") is False:
        return "optout_site", f"ai.txt: {ai_txt.get('rule')}"
    if not reading.strict:
        return None
    for name in robots.get("disallowed", ()):
        if name.lower() in AI_CRAWLERS:
            return "optout_site", f"robots.txt: {name} is disallowed"
    if tdmrep.get("tdm-policy"):
        return "optout_site", "tdmrep.json: tdm-policy"
    for name, file in (("robots.txt", robots), ("tdmrep.json", tdmrep), ("ai.txt", ai_txt)):
        if file.get("unread"):
            return "optout_site", f"{name} cannot be read: {file['unread']}"
    return None


def _texts(value: Any) -> list[str]:
    """One or several header texts. A meta tag may be stored as {"name": …, "content": …}."""
    if isinstance(value, Mapping):
        name = str(value.get("name") or "robots").strip().lower()
        prefix = "" if name == "robots" else f"{name}: "
        return [prefix + text for text in _texts(value.get("content"))]
    if isinstance(value, str):
        return [value]
    texts = []
    for item in value if isinstance(value, list) else []:
        texts += _texts(item)
    return texts


# --- grammars -------------------------------------------------------------------------------------


def directive(text: str, names: tuple[str, ...], refusing: frozenset[str]) -> str | None:
    """The directive of one X-Robots-Tag or robots meta text that refuses us.

    Directives are separated by commas. `name:` before one begins a group for that crawler, up to
    the next name. A directive that takes a value has a colon too and begins no group.
    """
    for applies, head, words in _pieces(text.lower(), names):
        if not applies:
            continue
        if head in refusing:
            return head
        for word in words:
            if word.strip(";") in refusing:
                return word.strip(";")
    return None


def _pieces(text: str, names: tuple[str, ...]) -> Iterator[tuple[bool, str, list[str]]]:
    """(applies to us, the directive that carries a value or "", the other words) of each piece."""
    applies = True
    for piece in text.split(","):
        words = piece
        head, colon, rest = (part.strip() for part in piece.partition(":"))
        is_ours = head in names or head == "*"
        if colon and TOKEN.fullmatch(head) and (is_ours or CRAWLER.fullmatch(head)):
            applies = is_ours
            words = rest
            head, colon, rest = (part.strip() for part in rest.partition(":"))
        if colon and head in VALUED:
            yield applies, head, rest.split()[1:]  # the value; words after it lack a comma
        elif colon and TOKEN.fullmatch(head):
            applies = True  # a name that is neither a crawler's nor a directive's
            yield applies, "", [head, *rest.split()]
        else:
            yield applies, "", words.split()


def _reservation(text: str, strict: bool) -> str | None:
    """The value of a tdm-reservation that refuses.

    `1` refuses, `0` does not. Anything else counts as unset (TDMRep), and strictly as a refusal.
    """
    values = [value.strip().strip("\"'").strip() for value in text.split(",")]
    if "1" in values:
        return "1"
    return text.strip()[:40] if strict and set(values) - {"0", ""} else None


def usage(text: str, *, strict: bool) -> str | None:
    """The refusal of a Content-Usage value (AIPREF) or a Content-Signal (`ai-train=no`).

    A dictionary of RFC 9651: the last of equal keys counts. What is no dictionary, because of a
    capital letter or a space, says nothing by that rule; here a refusal in it counts.
    """
    values = _dictionary(text)
    if values is None:
        if match := LENIENT.search(text):
            return re.sub(r"\s", "", match[0].lower())
        return "cannot be read" if strict and text.strip() else None
    for key in TRAINING:
        if values.get(key) in ("n", "no"):
            return f"{key}={values[key]}"
    if not any(values.get(key) in ("y", "yes") for key in ("train-ai", "ai-train")):
        for key in ANY_USE:
            if values.get(key) in ("n", "no"):
                return f"{key}={values[key]}"
    return None


def _dictionary(text: str) -> dict[str, str] | None:
    """Keys and values of a structured field, without parameters; None for other text."""
    values: dict[str, str] = {}
    position, comma = 0, ","
    while position < len(text):
        match = MEMBER.match(text, position)
        if match is None:
            return None
        values[match[1]] = match[2] or "?1"
        position, comma = match.end(), match[3]
    return None if values and comma == "," else values  # a comma at the end is an error


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

    name = "optout"
    needs = frozenset({"row"})
    adds, meanings = described(
        optout_respect=(pa.string(), "the words that refuse the row under respect, '' if none do"),
        optout_strict=(pa.string(), "the words that refuse the row under strict, '' if none do"),
    )
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
