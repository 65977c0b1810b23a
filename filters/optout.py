"""Opt-out signals: the grammar of each, which of them refuse us, and a filter over stored signals.

A row's signals are one JSON object (sidecar column `optout`): the raw values of the headers
"x-robots-tag", "tdm-reservation", "tdm-policy", "content-usage", "content-signal", and "license"
for links of that kind; "page" with the same of the page, and its "meta"; "site" with what
robots.txt, tdmrep.json and ai.txt of each origin say about this URL. A signal that can be read in
two ways is read as a refusal.

`statements` names everything that says no. A policy is a set of such names: `fetch.optout` lists
them, or is respect (RESPECT), strict (all) or ignore (none). docs/consent.md says why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from filters.base import Batch, Columns, Filter, described
from manifests.schema import OPTOUT_POLICIES, OPTOUT_SIGNALS, Recipe

STRICT = frozenset(OPTOUT_SIGNALS)
# Not what speaks to others, to readers of copies, or names terms beside a refusal of its own kind.
RESPECT = STRICT - {"noarchive", "tdm-policy", "other-crawlers", "unread"}
ROBOTS_TXT = "robots_txt"  # a Disallow counts under every policy: fetch.robots_txt is its switch
# A site that names one of these addresses builders of training sets. The first one addresses us
# under every policy.
AI_CRAWLERS = (
    "img2dataset", "ccbot", "gptbot", "google-extended", "anthropic-ai", "claudebot", "bytespider",
    "applebot-extended",
)  # fmt: skip
LIKE_US = AI_CRAWLERS[:1]
LAPSES = ("unavailable_after", "unavailable-after")
# Directive -> entry of fetch.optout. img2dataset knows noai, noimageai, noindex and noimageindex.
# noarchive and nocache are about copies shown to readers; what an expiry says depends on the day.
DIRECTIVES = {
    **dict.fromkeys(("noai", "noimageai", "noml"), "noai"),
    **dict.fromkeys(("noindex", "noimageindex", "none"), "noindex"),
    **dict.fromkeys(("noarchive", "nocache", *LAPSES), "noarchive"),
}
VALUED = frozenset({"max-snippet", "max-image-preview", "max-video-preview", *LAPSES})
# A name before a colon is another crawler's only if it looks like one; `foo: bar, noai` is
# addressed to everybody.
CRAWLER = re.compile(
    r"[a-z0-9_.*-]*(bot|crawl|spider|slurp|archiver|externalhit|externalagent|-extended|yandex|baidu)[a-z0-9_.*-]*"
    r"|anthropic-ai|cohere-ai|claude-web|chatgpt-user|perplexity-user|duckassist|img2dataset"
)
TOKEN = re.compile(r"[a-z0-9_.*-]+")
# Categories of use -> entry of fetch.optout: AIPREF's drafts, and Cloudflare's Content-Signal.
TRAINING = {
    **dict.fromkeys(("train-ai", "train-genai", "genai"), "train-ai"),
    "ai-train": "ai-train",
}
# Wider categories of earlier drafts. An explicit train-ai=y outweighs them.
ANY_USE = ("bots", "tdm", "ai", "all")
# Content-Signal's `use`: nothing may be stored, or only what leads back. Such a yes outweighs it.
LITTLE_USE = ("immediate", "reference")
RSL = "rsl+xml"  # in the type of a link to a licence in the form of RSL
_KEY = r"[a-z*][a-z0-9_.*-]*"
_TOKEN = r"[A-Za-z*][A-Za-z0-9:/!#$%&'*+.^_`|~-]*"
_VALUE = rf'"(?:[^"\\]|\\.)*"|\?[01]|{_TOKEN}|-?[0-9]+(?:\.[0-9]+)?|:[A-Za-z0-9+/=]*:|\([^()]*\)'
MEMBER = re.compile(
    rf"[ \t]*({_KEY})(?:=({_VALUE}))?(?:[ \t]*;[ \t]*{_KEY}(?:=(?:{_VALUE}))?)*[ \t]*(,|$)"
)
LENIENT = re.compile(rf"(?<![a-z0-9_-])({'|'.join(TRAINING)}|bots)\s*[=:]\s*\"?(no?)\b", re.I)


class Statement(NamedTuple):
    """One statement that says no."""

    signal: str  # entry of fetch.optout that makes it refuse, or ROBOTS_TXT
    reason: str  # of a row that it refuses, see manifests.columns.REASONS
    words: str


def product(user_agent: str) -> str:
    """The name by which headers and robots.txt address a crawler.

    `clipmill/0.1 (+https://…)` is `clipmill`.
    """
    return re.split(r"[/\s(]", user_agent.strip(), maxsplit=1)[0].lower()


def refusing_signals(policy: str | Iterable[str]) -> frozenset[str]:
    """The signals that refuse under a value of `fetch.optout`. ValueError for an unknown policy."""
    if policy == "ignore":
        return frozenset()
    if not isinstance(policy, str):
        return frozenset({*policy, ROBOTS_TXT})
    if policy not in OPTOUT_POLICIES:
        known = ", ".join(OPTOUT_POLICIES)
        raise ValueError(f"there is no opt-out policy {policy!r}; there are {known}")
    return (STRICT if policy == "strict" else RESPECT) | {ROBOTS_TXT}


def refuses(
    signals: Mapping[str, Any], user_agent: str, policy: str | Iterable[str] = "respect"
) -> bool:
    """True if one of the signals refuses us."""
    return refusal(signals, user_agent, policy) is not None


def refusal(
    signals: Mapping[str, Any], user_agent: str, policy: str | Iterable[str]
) -> tuple[str, str] | None:
    """(reason, the words that refuse) of the first statement that the policy reads as a no."""
    refusing = refusing_signals(policy)
    if not refusing:
        return None
    found = (each for each in statements(signals, user_agent) if each.signal in refusing)
    first = next(found, None)
    return None if first is None else (first.reason, first.words)


def statements(signals: Mapping[str, Any], user_agent: str) -> Iterator[Statement]:
    """Everything that says no under some policy, in the order in which a fetch learns of it: page,
    files of the sites, headers.
    """
    us = (product(user_agent), *LIKE_US)
    page, sites = signals.get("page"), signals.get("site")
    if isinstance(page, Mapping):
        yield from _of_message(page, us, "optout_page")
    if isinstance(sites, Mapping):
        for origin in sorted(sites):
            yield from _of_site(sites[origin])
    yield from _of_message(signals, us, "optout_header")


def _of_message(values: Mapping[str, Any], us: tuple[str, ...], reason: str) -> Iterator[Statement]:
    """Among the values that headers and meta tags have in common."""
    for key in ("meta", "x-robots-tag"):
        for text in _texts(values.get(key)):
            ours = list(directives(text, us))
            for word in ours:
                yield Statement(DIRECTIVES[word], reason, f"{key}: {word}")
            for word in directives(text, (*us, *AI_CRAWLERS)):
                if word not in ours:
                    yield Statement("other-crawlers", reason, f"{key}: {word}")
    for text in _texts(values.get("tdm-reservation")):
        if found := _reservation(text):
            yield Statement(found[0], reason, f"tdm-reservation: {found[1]}")
    for key in ("content-usage", "content-signal"):
        for text in _texts(values.get(key)):
            for signal, word in usages(text):
                yield Statement(signal, reason, f"{key}: {word}")
    for text in _texts(values.get("license")):
        if RSL in text.lower():
            yield Statement("license", reason, f"license: {text[:200]}")
    if any(text.strip() for text in _texts(values.get("tdm-policy"))):
        yield Statement("tdm-policy", reason, "tdm-policy")


def _of_site(files: Mapping[str, Any]) -> Iterator[Statement]:
    """Among the files of one origin, for this URL."""
    reason = "optout_site"
    robots = files.get("robots.txt") or {}
    tdmrep = files.get("tdmrep.json") or {}
    ai_txt = files.get("ai.txt") or {}
    if robots.get("allowed") is False:
        yield Statement(ROBOTS_TXT, "robots_txt", "disallowed")
    for line in (*robots.get("usage", ()), *robots.get("signal", ())):
        for signal, word in usages(re.sub(r"^/\S*\s+", "", line)):
            yield Statement(signal, reason, f"robots.txt: {word}")
    for text in robots.get("license", ()):
        yield Statement("license", reason, f"robots.txt: license {text[:200]}")
    if found := _reservation(str(tdmrep.get("tdm-reservation", "0"))):
        value, location = tdmrep["tdm-reservation"], tdmrep.get("location")
        words = f"tdmrep.json: tdm-reservation {value} for {location}"
        yield Statement(found[0], reason, words)
    if ai_txt.get("allowed") is False:
        yield Statement("ai.txt", reason, f"ai.txt: {ai_txt.get('rule')}")
    for name in robots.get("disallowed", ()):
        if name.lower() in AI_CRAWLERS:
            yield Statement("other-crawlers", reason, f"robots.txt: {name} is disallowed")
    if tdmrep.get("tdm-policy"):
        yield Statement("tdm-policy", reason, "tdmrep.json: tdm-policy")
    for name, file in (("robots.txt", robots), ("tdmrep.json", tdmrep), ("ai.txt", ai_txt)):
        if file.get("unread"):
            yield Statement("unread", reason, f"{name} cannot be read: {file['unread']}")


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


def directives(text: str, names: tuple[str, ...]) -> Iterator[str]:
    """The directives of one X-Robots-Tag or robots meta text that say no to one of `names`.

    Directives are separated by commas. `name:` before one begins a group for that crawler, up to
    the next name. A directive that takes a value has a colon too and begins no group.
    """
    for applies, head, words in _pieces(text.lower(), names):
        for word in (head, *words) if applies else ():
            if word.strip(";") in DIRECTIVES:
                yield word.strip(";")


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


def _reservation(text: str) -> tuple[str, str] | None:
    """(signal, value) of a tdm-reservation that says no.

    `1` does, `0` does not. Anything else counts as unset (TDMRep), and as a statement that cannot
    be read.
    """
    values = [value.strip().strip("\"'").strip() for value in text.split(",")]
    if "1" in values:
        return "tdm-reservation", "1"
    return ("unread", text.strip()[:40]) if set(values) - {"0", ""} else None


def usages(text: str) -> Iterator[tuple[str, str]]:
    """(signal, words) of what a Content-Usage (AIPREF) or Content-Signal (`ai-train=no`) denies.

    A dictionary of RFC 9651: the last of equal keys counts. What is no dictionary, because of a
    capital letter or a space, says nothing by that rule; here a refusal in it counts.
    """
    values = _dictionary(text)
    if values is None:
        matches = list(LENIENT.finditer(text))
        for match in matches:
            signal = TRAINING.get(match[1].lower(), "any-use")
            yield signal, re.sub(r"\s", "", match[0].lower())
        if text.strip() and not matches:
            yield "unread", "cannot be read"
        return
    for key, signal in TRAINING.items():
        if values.get(key) in ("n", "no"):
            yield signal, f"{key}={values[key]}"
    if any(values.get(key) in ("y", "yes") for key in ("train-ai", "ai-train")):
        return
    for key in ANY_USE:
        if values.get(key) in ("n", "no"):
            yield "any-use", f"{key}={values[key]}"
    if values.get("use") in LITTLE_USE:
        yield "any-use", f"use={values['use']}"


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
    none does. optout_signals: what says no, as fetch.optout names it, sorted, between spaces.

    A row that may stay has "" and not NULL, so that the rule `optout_strict = ''` keeps no row that
    was never judged. user_agent: the agent that the pool was fetched under; headers address it by
    its product name. A recipe's `fetch.user_agent` is taken where the filter list does not name
    one. There is no default, because the answer depends on it.
    """

    name = "optout"
    version = 2
    needs = frozenset({"row"})
    adds, meanings = described(
        optout_respect=(pa.string(), "the words that refuse the row under respect, '' if none do"),
        optout_strict=(pa.string(), "the words that refuse the row under strict, '' if none do"),
        optout_signals=(pa.string(), "what says no, under any policy: ' license train-ai ', or ''"),
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
        names = [{each.signal for each in statements(row, self.user_agent)} for row in signals]
        columns["optout_signals"] = [f" {' '.join(sorted(row))} " if row else "" for row in names]
        return columns
