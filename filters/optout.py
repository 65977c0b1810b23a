"""Opt-out signals: the grammar of each, which of them refuse us, and a filter over stored signals.

A row's signals are one JSON object (sidecar column `optout`): the raw values of the headers
"x-robots-tag", "tdm-reservation", "tdm-policy", "content-usage", "content-signal", and "license"
for links of that kind; "page" with the same of the page, and its "meta"; "site" with what
robots.txt, tdmrep.json and ai.txt of each origin say about this URL. A signal that can be read in
two ways is read as a refusal: names and values count in capitals and in quotes too.

`statements` names everything that says no. A policy is a set of such names: `fetch.optout` lists
them, or is respect (RESPECT), strict (all) or ignore (none). docs/consent.md says why.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from clipmill.filters.base import Batch, Columns, Filter, described
from clipmill.manifests.schema import OPTOUT_POLICIES, OPTOUT_SIGNALS, Recipe

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
DIRECTIVES |= {f"no{mark}{name[2:]}": DIRECTIVES[name] for name in DIRECTIVES for mark in "-_"}
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
    **dict.fromkeys(("ai-train", "ai-training", "training"), "ai-train"),
}
GRANTS = frozenset(TRAINING) - {"train-genai", "genai"}  # a yes to one outweighs ANY_USE
# Wider categories of earlier drafts. An explicit train-ai=y outweighs them.
ANY_USE = ("bots", "tdm", "ai", "all")
# Content-Signal's `use`: nothing may be stored, or only what leads back. Such a yes outweighs it.
LITTLE_USE = ("immediate", "reference")
RSL = "rsl+xml"  # in the type of a link to a licence in the form of RSL
# Values: the tokens of the two drafts, booleans, and what packages for web sites write.
TRUE, FALSE = frozenset({"1", "1.0", "?1", "true"}), frozenset({"0", "0.0", "?0", "false"})
NO = FALSE | {"n", "no", "none", "disallow", "disallowed", "deny", "denied"}
YES = TRUE | {"y", "yes", "allow", "allowed"}
KEYS = frozenset({*TRAINING, *ANY_USE, "use"})
_KEY = r"[a-z*][a-z0-9_.*-]*"
_TOKEN = r"[A-Za-z*][A-Za-z0-9:/!#$%&'*+.^_`|~-]*"
_STRING = r'"(?:[^"\\]|\\.)*+"'
_VALUE = rf"{_STRING}|\?[01]|{_TOKEN}|-?[0-9]+(?:\.[0-9]+)?|:[A-Za-z0-9+/=]*:|\([^()]*\)"
MEMBER = re.compile(
    rf"[ \t]*{_KEY}(?:=(?:{_VALUE}))?(?:[ \t]*;[ \t]*{_KEY}(?:=(?:{_VALUE}))?)*[ \t]*(,|$)"
)
# A key, and its value if it has one, in text of any form
ASSIGNED = re.compile(
    r"(?<![\w=:/.-])[\"']?([a-z][\w-]*+)[\"']?"
    rf"(?:\s*[=:]\s*({_STRING}|'[^']*+'|\([^()]*+\)|[^\w?,;=:]{{0,3}}\??[\w-]++(?:\.[0-9]+)?))?",
    re.I,
)
BARE = re.compile(r"[\"']?\s*(?:[,;]|\Z)")  # what stands behind a key without a value
HYPHENS = re.compile("[\u2010-\u2015\u2212]")
QUOTES = "\"'\u2018\u2019\u201c\u201d\u201e\xab\xbb"
AS_COMMAS = str.maketrans({";": ",", "|": ",", "=": ":", **dict.fromkeys(QUOTES, " ")})


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
    signals: Mapping[str, object], user_agent: str, policy: str | Iterable[str] = "respect"
) -> bool:
    """True if one of the signals refuses us."""
    return refusal(signals, user_agent, policy) is not None


def refusal(
    signals: Mapping[str, object], user_agent: str, policy: str | Iterable[str]
) -> tuple[str, str] | None:
    """(reason, the words that refuse) of the first statement that the policy reads as a no."""
    refusing = refusing_signals(policy)
    if not refusing:
        return None
    found = (each for each in statements(signals, user_agent) if each.signal in refusing)
    first = next(found, None)
    return None if first is None else (first.reason, first.words)


def statements(signals: Mapping[str, object], user_agent: str) -> Iterator[Statement]:
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


def _of_message(
    values: Mapping[str, object], us: tuple[str, ...], reason: str
) -> Iterator[Statement]:
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
        if (reserved := reserves(text)) is not False:
            signal, word = ("tdm-reservation", "1") if reserved else ("unread", text.strip()[:40])
            yield Statement(signal, reason, f"tdm-reservation: {word}")
    for key in ("content-usage", "content-signal"):
        for text in _texts(values.get(key)):
            for signal, word in usages(text):
                yield Statement(signal, reason, f"{key}: {word}")
    for text in _texts(values.get("license")):
        if RSL in text.lower():
            yield Statement("license", reason, f"license: {text[:200]}")
    if any(text.strip() for text in _texts(values.get("tdm-policy"))):
        yield Statement("tdm-policy", reason, "tdm-policy")


def _of_site(files: Any) -> Iterator[Statement]:
    """Among the files of one origin, for this URL. What a pool of others has in another form is
    unread, which is a no.
    """
    reason = "optout_site"
    files = files if isinstance(files, Mapping) else {"robots.txt": files}
    named = {name: files.get(name) or {} for name in ("robots.txt", "tdmrep.json", "ai.txt")}
    robots, tdmrep, ai_txt = (
        file if isinstance(file, Mapping) else {"unread": "of another form"}
        for file in named.values()
    )
    if robots.get("allowed") is False:
        yield Statement(ROBOTS_TXT, "robots_txt", "disallowed")
    for field in ("usage", "signal", "training"):
        for line in _texts(robots.get(field)):
            for signal, word in usages(re.sub(r"^/\S*\s+", "", line)):
                yield Statement(signal, reason, f"robots.txt: {word}")
    for text in _texts(robots.get("license")):
        yield Statement("license", reason, f"robots.txt: license {text[:200]}")
    if (reserved := reserves(tdmrep.get("tdm-reservation", "0"))) is not False:
        value, location = tdmrep["tdm-reservation"], tdmrep.get("location")
        words = f"tdmrep.json: tdm-reservation {value} for {location}"
        yield Statement("tdm-reservation" if reserved else "unread", reason, words)
    if ai_txt.get("allowed") is False:
        yield Statement("ai.txt", reason, f"ai.txt: {ai_txt.get('rule')}")
    for name in _texts(robots.get("disallowed")):
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


def plain(text: str) -> str:
    """A text with ASCII for full-width letters and the hyphens of word processors."""
    return text if text.isascii() else HYPHENS.sub("-", unicodedata.normalize("NFKC", text))


# --- grammars -------------------------------------------------------------------------------------


def directives(text: str, names: tuple[str, ...]) -> Iterator[str]:
    """The directives of one X-Robots-Tag or robots meta text that say no to one of `names`.

    Directives are separated by commas, and by what sites write for them: blanks, semicolons.
    `name:` before one begins a group for that crawler, up to the next name. A directive that takes
    a value has a colon too and begins no group.
    """
    for applies, head, words in _pieces(plain(text).lower().translate(AS_COMMAS), names):
        for word in (head, *words) if applies else ():
            if word in DIRECTIVES:
                yield word


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
        if colon and head.replace("_", "-") in VALUED:
            yield applies, head, rest.split()[1:]  # the value; words after it lack a comma
        elif colon and TOKEN.fullmatch(head):
            applies = True  # a name that is neither a crawler's nor a directive's
            yield applies, "", [head, *rest.split()]
        else:
            yield applies, "", words.split()


def reserves(value: object) -> bool | None:
    """Whether a tdm-reservation says no, as the report writes it (1, 0) or as a boolean; None for
    anything else: it counts as unset (TDMRep), and as a statement that cannot be read.
    """
    parts = re.split(r"[,;]", plain(str(value)).lower())
    values = {part.strip(f"{QUOTES}()[] \t") for part in parts} - {""}
    if values & (TRUE | {"yes", "y"}):
        return True
    return None if values - FALSE else False


@functools.lru_cache(maxsize=4096)
def usages(text: str) -> tuple[tuple[str, str], ...]:
    """(signal, words) of what a Content-Usage (AIPREF) or Content-Signal (`ai-train=no`) denies.

    Of equal keys of a dictionary of RFC 9651 the last one counts. What is written otherwise, in
    capitals, with a semicolon for a comma, as a parameter, says nothing by that rule; here a
    refusal in it counts. A value of our keys that is neither a yes nor a no is `unread`.
    """
    text = plain(text)
    is_dictionary = _is_dictionary(text)
    said: dict[tuple[str, int], str] = {}  # key, and -1 for a member or where it stands -> value
    for match in ASSIGNED.finditer(text):
        key, value = match[1].lower().replace("_", "-"), match[2]
        if key not in KEYS:
            continue
        before = text[: match.start()].rstrip()[-1:]
        if value is None and not (before in ("", ",", ";") and BARE.match(text, match.end())):
            continue  # a word among words
        position = -1 if is_dictionary and before != ";" else match.start()
        said[key, position] = value.strip(f"{QUOTES}() \t\xa0").lower() if value else ""
    is_granted = any(key in GRANTS and value in YES for (key, _), value in said.items())
    found, unread = [], []
    for (key, _), value in said.items():
        signal = TRAINING.get(key, "any-use")
        if is_granted and signal == "any-use":
            continue
        if value in NO or (key == "use" and value in LITTLE_USE):
            found.append((signal, f"{key}={value}"))
        elif value not in YES and (key, value) != ("use", "full"):
            unread.append(("unread", f"{key}={value} cannot be read"))
    if not said and not _is_dictionary(re.sub(r"\s*[=:]\s*", "=", text.strip().lower())):
        unread.append(("unread", "cannot be read"))
    found.sort(key=lambda each: each[0] == "any-use")
    return (*found, *unread)


def _is_dictionary(text: str) -> bool:
    """Whether a text is a dictionary of RFC 9651, without a check of the values inside of lists."""
    position, comma = 0, ""
    while position < len(text):
        match = MEMBER.match(text, position)
        if match is None:
            return False
        position, comma = match.end(), match[1]
    return comma != ","  # a comma at the end is an error


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
    version = 3
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
