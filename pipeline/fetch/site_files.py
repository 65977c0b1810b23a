"""What the files of a site say about one URL: robots.txt, /.well-known/tdmrep.json and /ai.txt.

Bytes in, rules out, and from rules and a URL the few words that are kept beside the row. Nothing is asked for here.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from protego import Protego

FILE_BYTES = (
    500 * 1024
)  # what RFC 9309 asks to be read of a robots.txt; the other files get as much
MOST_LINES = 5000  # above it only our own names are judged: the ten others would cost ten times a hostile file
MOST_STARS = 2000  # each is a search through the URL: 24,000 of them held the loop for half a second per long URL
AGENTS = (
    "img2dataset", "CCBot", "GPTBot", "Google-Extended", "anthropic-ai", "ClaudeBot", "Bytespider", "Applebot-Extended",
)  # fmt: skip
AGENT_LINE = re.compile(r"(?i)[ \t]*user[ \t-]?agent[ \t]*(?::|[ \t])[ \t]*([^#]*)")
USAGE_LINE = re.compile(r"(?i)[ \t]*(?:content-usage|content-signal)[ \t]*:[ \t]*([^#]*)")
FIELD = re.compile(r"(?i)[ \t]*(?:[a-z][a-z -]*:|(?:dis)?allow[ \t])")  # ends a list of names
SITE_WIDE = re.compile(
    r"(?i)[ \t]*(?:sitemaps?|site-map|host)[ \t]*:?"
)  # belong to no group, and end none
RULE = re.compile(r"(?i)[ \t]*(allow|disallow)[ \t]*:[ \t]*([^#]*)")
ESCAPE = re.compile(r"%([0-9a-f]{2})", re.I)
UNRESERVED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")
FILE_TYPE = re.compile(r"/?\*?(\.[a-z0-9]+)\$?", re.I)  # `*.jpg` and its other spellings
PICTURES = (
    ".jpg",
    ".jpeg",
    ".png",
    ".gif",
    ".webp",
)  # what a URL without a file type may turn out to be


class Unreadable(ValueError):
    """A file that makes a statement, in a form that we cannot read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Robots:
    """The rules of one robots.txt for the names in `agents`, and of Content-Usage lines."""

    parsed: Protego
    us: tuple[str, ...]  # our own name; img2dataset's where the file has a group for it
    named: frozenset[str]  # in lower case, of AGENTS and ours
    usage: Mapping[str, tuple[tuple[str, str], ...]]  # name or * -> (path pattern, line)
    judged: tuple[str, ...]  # the names whose verdicts are written down
    delay_s: float | None  # the longest pause that Crawl-delay or Request-rate asks of us

    def allows(self, url: str) -> bool:
        """Whether we may fetch the URL."""
        return not self._shut(url, self.us)

    def said(self, url: str) -> dict[str, Any]:
        """What is kept beside the row; lists and fields that would be empty are left out."""
        shut = self._shut(url, (*self.us, *self.judged, "*"))
        found: dict[str, Any] = {"allowed": not any(name in shut for name in self.us)}
        if others := [name for name in (*self.judged, "*") if name in shut]:
            found["disallowed"] = others
        if self.usage and (
            lines := [line for name in self.us for line in self._usage(name, path_of(url))]
        ):
            found["usage"] = list(dict.fromkeys(lines))
        if self.delay_s is not None:
            found["crawl-delay"] = self.delay_s
        if not self.judged:
            found["unread"] = f"more than {MOST_LINES} lines: judged for us only"
        return found

    def _shut(self, url: str, names: Iterable[str]) -> frozenset[str]:
        """Which of these names may not fetch the URL; those without a group of their own are judged as one."""
        groups = {name: name.lower() if name.lower() in self.named else "*" for name in names}
        allowed = {
            group: self.parsed.can_fetch(url, group) for group in dict.fromkeys(groups.values())
        }
        return frozenset(name for name, group in groups.items() if not allowed[group])

    def _usage(self, name: str, path: str) -> list[str]:
        """The Content-Usage lines for a path: those with the longest pattern, all of them if several are equal."""
        rules = self.usage.get(name if name in self.named else "*", ())
        fitting = [
            (len(pattern.encode()), line) for pattern, line in rules if matches(pattern, path)
        ]
        longest = max((length for length, _ in fitting), default=0)
        return [line for length, line in fitting if length == longest]


def read_robots(body: bytes, us: tuple[str, ...]) -> Robots:
    """The rules of a robots.txt. `us`: our name, and those that speak to us where the file has a group for them.

    Groups and names of crawlers that we do not ask about are left out: 16,000 names before 20,000 rules (half a
    megabyte) would otherwise cost 320 million entries. Unreadable for more rules with a star than MOST_STARS.
    """
    lines = text_of(body).splitlines()
    judged = AGENTS if len(lines) <= MOST_LINES else ()
    known = {"*", *us, *(name.lower() for name in judged)}
    named: set[str] = set()
    group: set[str] = set()  # of the names that we know
    usage: dict[str, list[tuple[str, str]]] = {}
    kept, open_group, stars = [], False, 0
    for line in lines:
        if match := AGENT_LINE.match(line):
            group, open_group = (group if open_group else set()), True
            name = re.split(r"[/\s]", match[1].strip().lower(), maxsplit=1)[0]
            name = name.replace("*", "") or ("*" if name else "")
            if name in known:
                group.add(name)
                kept.append(f"User-agent: {name}")
            continue
        if FIELD.match(line) and not SITE_WIDE.match(line):
            open_group = False
        if not group:
            continue
        named |= group
        stars += "*" in line and RULE.match(line) is not None
        if match := USAGE_LINE.match(line):
            value = match[1].strip()[:500]
            pattern, *rest = (
                re.split(r"[ \t]+", value, maxsplit=1) if value.startswith("/") else ("/", value)
            )
            for name in group if rest else ():
                usage.setdefault(name, []).append((pattern, value))
        kept.append(line)
    if stars > MOST_STARS:
        raise Unreadable(f"more than {MOST_STARS} rules with a star")
    parsed = Protego.parse("\n".join(kept))
    ours = (us[0], *(name for name in us[1:] if name in named))
    return Robots(
        parsed=parsed,
        us=ours,
        named=frozenset(named - {"*"}),
        usage={name: tuple(rules) for name, rules in usage.items()},
        judged=judged,
        delay_s=_delay_s(parsed, [name if name in named else "*" for name in ours]),
    )


def _delay_s(parsed: Protego, names: Iterable[str]) -> float | None:
    pauses = [pause for name in names if (pause := parsed.crawl_delay(name)) is not None]
    rates = [rate for name in names if (rate := parsed.request_rate(name)) is not None]
    return max([*pauses, *(rate.seconds / rate.requests for rate in rates)], default=None)


# --- TDMRep --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tdm:
    """One rule of a tdmrep.json."""

    pattern: str
    location: str  # as it was written
    reservation: Any
    policy: str | None


def read_tdmrep(body: bytes) -> tuple[Tdm, ...]:
    """The rules of a tdmrep.json, in their order; () for a page that says "not found". Unreadable for what is none."""
    text = text_of(body)
    if _is_page(text):
        return ()
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable("no JSON") from error
    entries = (
        [entries] if isinstance(entries, dict) else entries
    )  # a single rule without its brackets
    if not isinstance(entries, list):
        raise Unreadable("no list of rules")
    found = []
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("location"), str):
            raise Unreadable("a rule without a location")
        location, policy = entry["location"], entry.get("tdm-policy")
        found.append(
            Tdm(
                pattern=_pattern_of(location),
                location=location[:500],
                reservation=entry.get("tdm-reservation"),
                policy=str(policy)[:500] if policy else None,
            )
        )
    return tuple(found)


def tdm_said(rules: Iterable[Tdm], url: str) -> dict[str, Any] | None:
    """The rule that decides about a URL.

    The report asks for "the most specific match" and calls it "the first in sequence". Where the longest pattern and
    the first one differ, the one that reserves counts.
    """
    path = path_of(url)
    fitting = [rule for rule in rules if matches(rule.pattern, path)]
    if not fitting:
        return None
    longest = max(fitting, key=lambda rule: len(rule.pattern))
    rule = next((rule for rule in (longest, fitting[0]) if str(rule.reservation) == "1"), longest)
    found: dict[str, Any] = {"location": rule.location, "tdm-reservation": _short(rule.reservation)}
    return found | ({"tdm-policy": rule.policy} if rule.policy else {})


# --- ai.txt --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AiRule:
    """One line of an ai.txt."""

    pattern: str
    file_type: str | None  # `.jpg` for a pattern that is about files of that name
    allow: bool
    line: str

    def covers(self, path: str) -> bool:
        """Whether the rule is about a path, with its query."""
        if self.file_type is None:
            return matches(self.pattern, path)
        return path.partition("?")[0].lower().endswith(self.file_type)


def read_ai_txt(body: bytes, us: tuple[str, ...]) -> tuple[AiRule, ...]:
    """The rules of an ai.txt that are addressed to us: those of our own names where it has some, else of everybody.

    Rules before any name are for everybody. A page or a text without rules says nothing.
    """
    text = text_of(body)
    rules: dict[str, list[AiRule]] = {}
    group, open_group = {"*"}, False
    for line in () if _is_page(text) else text.splitlines():
        if match := AGENT_LINE.match(line):
            if not open_group:
                group, open_group = set(), True
            group.add(re.split(r"[/\s]", match[1].strip().lower(), maxsplit=1)[0])
        elif (match := RULE.match(line)) and (value := match[2].strip()):
            open_group = False
            allow, word = match[1].lower() == "allow", match[1].capitalize()
            kind = FILE_TYPE.fullmatch(value)
            rule = AiRule(
                pattern=_pattern_of(value),
                file_type=kind[1].lower() if kind else None,
                allow=allow,
                line=f"{word}: {value[:200]}",
            )
            for name in group & {*us, "*"}:
                rules.setdefault(name, []).append(rule)
        elif match:
            open_group = False
    ours = [rule for name in us for rule in rules.get(name, ())]
    return tuple(ours or rules.get("*", ()))


def ai_said(rules: Iterable[AiRule], url: str) -> dict[str, Any] | None:
    """The line that decides about a URL: the longest that covers it, of equal ones the one that disallows.

    A URL without a picture's file type may be any of PICTURES: a no to one of them is a no.
    """
    path = path_of(url)
    bare = path.partition("?")[0].lower()
    endings = ("",) if bare.endswith(PICTURES) or re.search(r"\.[a-z0-9]{2,5}$", bare) else PICTURES
    verdicts = []
    for ending in endings:
        fitting = [
            rule
            for rule in rules
            if rule.covers(path.partition("?")[0] + ending if ending else path)
        ]
        if fitting:
            verdicts.append(
                max(fitting, key=lambda rule: (len(rule.line.partition(": ")[2]), not rule.allow))
            )
    if not verdicts:
        return None
    rule = next((rule for rule in verdicts if not rule.allow), verdicts[0])
    return {"allowed": rule.allow, "rule": rule.line}


# --- what they share -----------------------------------------------------------------------------------------------


def inflated(body: bytes, encoding: str) -> bytes:
    """The bytes behind a Content-Encoding that nobody asked for, up to FILE_BYTES. Unreadable for another one."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity") and not body.startswith(b"\x1f\x8b"):
        return body[:FILE_BYTES]
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise Unreadable(f"Content-Encoding {encoding[:40]}")
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(
            body, FILE_BYTES
        )  # 32: gzip or zlib, as it finds
    except zlib.error as error:
        raise Unreadable(f"broken {encoding or 'gzip'}") from error


def text_of(body: bytes) -> str:
    """The text of a file, its first FILE_BYTES."""
    return body[:FILE_BYTES].decode("utf-8", "replace").removeprefix("\ufeff")


def path_of(url: str) -> str:
    """Path and query of a URL, as patterns are compared with it."""
    parts = urlsplit(url)
    return _usual((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern of robots.txt covers a path from its start: `*` is anything, `$` at the end is the end.

    Time in proportion to the lengths, whatever the pattern: each piece between stars is looked for once.
    """
    ends = pattern.endswith("$")
    first, *others = re.split(r"\*+", _usual(pattern[:-1] if ends else pattern))
    if not path.startswith(first):
        return False
    if not others:
        return not ends or len(path) == len(first)
    at = len(first)
    for piece in others[:-1]:
        found = path.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    if ends:
        return len(path) - len(others[-1]) >= at and path.endswith(others[-1])
    return path.find(others[-1], at) >= 0


def _usual(text: str) -> str:
    """One spelling of escapes: unreserved characters bare, all others and what is no ASCII as %XX in capitals."""

    def spell(match: re.Match[str]) -> str:
        character = chr(int(match[1], 16))
        return character if character in UNRESERVED else match[0].upper()

    text = ESCAPE.sub(spell, text)
    return text if text.isascii() else "".join(c if c.isascii() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _pattern_of(location: str) -> str:
    """A location as a pattern: whole URLs lose scheme and host, what begins with neither / nor * gets its /."""
    location = re.sub(r"(?i)^https?://[^/]*", "", location.strip())
    return location if location.startswith(("/", "*")) else f"/{location}"


def _is_page(text: str) -> bool:
    """Whether a server sent a page where a file was asked for, as many do for every path that they do not know."""
    return text.lstrip().startswith("<")


def _short(value: Any) -> Any:
    return value if value is None or isinstance(value, int) else str(value)[:40]
