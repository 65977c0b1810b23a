"""What the files of a site say about one URL: robots.txt, /.well-known/tdmrep.json and /ai.txt.

Bytes in, rules out. From rules and a URL follow the few words that are kept beside the row. Nothing
is requested here.
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

FILE_BYTES = 500 * 1024  # of a file that are read: RFC 9309 asks for as much of a robots.txt
MOST_LINES = 5000  # above it only our own names are judged: ten others would cost ten times as much
MOST_STARS = 2000  # each is a search through the URL: 24,000 of them took half a second a long URL
MOST_RULES = 1000  # of a tdmrep.json or ai.txt, and Content-Usage lines: 28,000 took 0.3 s a URL
AGENTS = (
    "img2dataset", "CCBot", "GPTBot", "Google-Extended", "anthropic-ai", "ClaudeBot", "Bytespider",
    "Applebot-Extended",
)  # fmt: skip
AGENT_LINE = re.compile(r"(?i)[ \t]*user[ \t-]?agent[ \t]*(?::|[ \t])[ \t]*([^#]*)")
USAGE_LINE = re.compile(r"(?i)[ \t]*(?:content-usage|content-signal)[ \t]*:[ \t]*([^#]*)")
FIELD = re.compile(r"(?i)[ \t]*(?:[a-z][a-z -]*:|(?:dis)?allow[ \t])")  # ends a list of names
# These lines belong to no group and end none.
SITE_WIDE = re.compile(r"(?i)[ \t]*(?:sitemaps?|site-map|host)[ \t]*:?")
RULE = re.compile(r"(?i)[ \t]*(allow|disallow)[ \t]*:[ \t]*([^#]*)")
ESCAPE = re.compile(r"%([0-9a-f]{2})", re.I)
UNRESERVED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")
FILE_TYPE = re.compile(r"/?\*?(\.[a-z0-9]+)\$?", re.I)  # `*.jpg` and its other spellings
# What a URL without a file type may turn out to be.
IMAGE_TYPES = (".jpg", ".jpeg", ".png", ".gif", ".webp")


class Unreadable(ValueError):
    """A file that makes a statement, in a form that cannot be read."""


# --- patterns --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of robots.txt: `*` is anything, `$` at the end is the end of the path."""

    prefix: str
    pieces: tuple[str, ...]  # between and after the stars
    ends: bool  # the path must end with the last piece
    length: int  # characters as written

    def covers(self, path: str) -> bool:
        """Whether the pattern covers a path from its start.

        Time in proportion to the lengths: each piece between stars is searched once.
        """
        if not path.startswith(self.prefix):
            return False
        if not self.pieces:
            return not self.ends or len(path) == len(self.prefix)
        offset = len(self.prefix)
        for piece in self.pieces[:-1]:
            start = path.find(piece, offset)
            if start < 0:
                return False
            offset = start + len(piece)
        last = self.pieces[-1]
        if self.ends:
            return len(path) - len(last) >= offset and path.endswith(last)
        return path.find(last, offset) >= 0


def pattern_of(text: str) -> Pattern:
    """The pattern that a text spells."""
    ends = text.endswith("$")
    prefix, *pieces = re.split(r"\*+", _normal_escapes(text[:-1] if ends else text))
    return Pattern(prefix, tuple(pieces), ends, len(text))


def path_of(url: str) -> str:
    """Path and query of a URL, as patterns are compared with it."""
    parts = urlsplit(url)
    return _normal_escapes((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


def _normal_escapes(text: str) -> str:
    """One spelling of escapes: unreserved characters plain, all others as %XX in capitals."""
    text = ESCAPE.sub(_normal_escape, text)
    if text.isascii():
        return text
    return "".join(c if c.isascii() else _escaped(c) for c in text)


def _normal_escape(match: re.Match[str]) -> str:
    character = chr(int(match[1], 16))
    return character if character in UNRESERVED else match[0].upper()


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _location_pattern(location: str) -> str:
    """A location as a pattern: whole URLs lose scheme and host, others get a leading slash."""
    location = re.sub(r"(?i)^https?://[^/]*", "", location.strip())
    return location if location.startswith(("/", "*")) else f"/{location}"


# --- robots.txt ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Robots:
    """The rules of one robots.txt for the names in `judged` and for us, and Content-Usage lines."""

    parsed: Protego
    us: tuple[str, ...]  # our own name; img2dataset's where the file has a group for it
    named: frozenset[str]  # in lower case, of AGENTS and ours
    usage: Mapping[str, tuple[tuple[int, Pattern, str], ...]]  # name or * -> (bytes, path, line)
    judged: tuple[str, ...]  # the names whose verdicts are kept
    delay_s: float | None  # the longest pause that Crawl-delay or Request-rate asks of us

    def allows(self, url: str) -> bool:
        """Whether we may fetch the URL."""
        return not self._disallowed(url, self.us)

    def summary(self, url: str) -> dict[str, Any]:
        """What is kept beside the row. Empty lists and fields are left out."""
        disallowed = self._disallowed(url, (*self.us, *self.judged, "*"))
        summary: dict[str, Any] = {"allowed": not any(name in disallowed for name in self.us)}
        if others := [name for name in (*self.judged, "*") if name in disallowed]:
            summary["disallowed"] = others
        if self.usage and (lines := self._usage_lines(path_of(url))):
            summary["usage"] = lines
        if self.delay_s is not None:
            summary["crawl-delay"] = self.delay_s
        if not self.judged:
            summary["unread"] = f"more than {MOST_LINES} lines: judged for us only"
        return summary

    def _disallowed(self, url: str, names: Iterable[str]) -> frozenset[str]:
        """The names that may not fetch the URL. Those without a group share one check."""
        groups = {name: name.lower() if name.lower() in self.named else "*" for name in names}
        allowed = {
            group: self.parsed.can_fetch(url, group) for group in dict.fromkeys(groups.values())
        }
        return frozenset(name for name, group in groups.items() if not allowed[group])

    def _usage_lines(self, path: str) -> list[str]:
        """The Content-Usage lines for a path: for each of our names those with the longest path."""
        lines: dict[str, None] = {}
        for name in self.us:
            rules = self.usage.get(name if name in self.named else "*", ())
            fitting = [(length, line) for length, pattern, line in rules if pattern.covers(path)]
            longest = max((length for length, _ in fitting), default=0)
            lines.update((line, None) for length, line in fitting if length == longest)
        return list(lines)


def read_robots(body: bytes, us: tuple[str, ...]) -> Robots:
    """The rules of a robots.txt.

    `us`: our name, and the names that address us where the file has a group for them. Groups of
    other crawlers are left out: 16,000 names before 20,000 rules, half a megabyte, would cost 320
    million entries. Unreadable for too many rules with a star, or Content-Usage lines.
    """
    lines = text_of(body).splitlines()
    judged = AGENTS if len(lines) <= MOST_LINES else ()
    reader = _RobotsReader({"*", *us, *(name.lower() for name in judged)})
    for line in lines:
        reader.read(line)
    if reader.stars > MOST_STARS:
        raise Unreadable(f"more than {MOST_STARS} rules with a star")
    if reader.usage_lines > MOST_RULES:
        raise Unreadable(f"more than {MOST_RULES} Content-Usage lines")
    parsed = Protego.parse("\n".join(reader.kept))
    ours = (us[0], *(name for name in us[1:] if name in reader.named))
    return Robots(
        parsed=parsed,
        us=ours,
        named=frozenset(reader.named - {"*"}),
        usage={name: tuple(rules) for name, rules in reader.usage.items()},
        judged=judged,
        delay_s=_delay_s(parsed, [name if name in reader.named else "*" for name in ours]),
    )


class _RobotsReader:
    """The lines of a robots.txt that concern the names in `known`."""

    def __init__(self, known: set[str]) -> None:
        self.known = known
        self.named: set[str] = set()
        self.usage: dict[str, list[tuple[int, Pattern, str]]] = {}
        self.kept: list[str] = []
        self.stars = self.usage_lines = 0
        self._group: set[str] = set()  # of known names
        self._group_is_open = False  # a further name joins it

    def read(self, line: str) -> None:
        if match := AGENT_LINE.match(line):
            self._read_name(match[1])
            return
        if FIELD.match(line) and not SITE_WIDE.match(line):
            self._group_is_open = False
        if not self._group:
            return
        self.named |= self._group
        self.stars += "*" in line and RULE.match(line) is not None
        if match := USAGE_LINE.match(line):
            self._read_usage(match[1].strip()[:500])
        self.kept.append(line)

    def _read_name(self, text: str) -> None:
        if not self._group_is_open:
            self._group = set()
        self._group_is_open = True
        name = re.split(r"[/\s]", text.strip().lower(), maxsplit=1)[0]
        name = name.replace("*", "") or ("*" if name else "")
        if name in self.known:
            self._group.add(name)
            self.kept.append(f"User-agent: {name}")

    def _read_usage(self, value: str) -> None:
        """A value may begin with the path that it is about."""
        path, *rest = re.split(r"[ \t]+", value, maxsplit=1) if value[:1] == "/" else ("/", value)
        if not rest:
            return
        self.usage_lines += 1
        if self.usage_lines <= MOST_RULES:
            for name in self._group:
                self.usage.setdefault(name, []).append(
                    (len(path.encode()), pattern_of(path), value)
                )


def _delay_s(parsed: Protego, names: Iterable[str]) -> float | None:
    delays: list[float] = []
    for name in names:
        if (delay := parsed.crawl_delay(name)) is not None:
            delays.append(delay)
        if (rate := parsed.request_rate(name)) is not None:
            delays.append(rate.seconds / rate.requests)
    return max(delays, default=None)


# --- TDMRep ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TdmRule:
    """One rule of a tdmrep.json."""

    pattern: Pattern
    location: str  # as it was written
    reservation: Any
    policy: str | None


def read_tdmrep(body: bytes) -> tuple[TdmRule, ...]:
    """The rules of a tdmrep.json in their order; () for a page that says "not found".

    Unreadable for other content and for more than MOST_RULES rules.
    """
    text = text_of(body)
    if _is_page(text):
        return ()
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable("no JSON") from error
    if isinstance(entries, dict):  # a single rule without its brackets
        entries = [entries]
    if not isinstance(entries, list):
        raise Unreadable("no list of rules")
    if len(entries) > MOST_RULES:
        raise Unreadable(f"more than {MOST_RULES} rules")
    return tuple(_tdm_rule(entry) for entry in entries)


def _tdm_rule(entry: Any) -> TdmRule:
    if not isinstance(entry, dict) or not isinstance(entry.get("location"), str):
        raise Unreadable("a rule without a location")
    location, policy = entry["location"], entry.get("tdm-policy")
    reservation = entry.get("tdm-reservation")
    if reservation is not None and not isinstance(reservation, int):
        reservation = str(reservation)[:40]
    return TdmRule(
        pattern=pattern_of(_location_pattern(location)),
        location=location[:500],
        reservation=reservation,
        policy=str(policy)[:500] if policy else None,
    )


def tdm_summary(rules: Iterable[TdmRule], url: str) -> dict[str, Any] | None:
    """The rule that decides about a URL.

    The report asks for "the most specific match" and calls it "the first in sequence". Where the
    longest pattern and the first one differ, the one that reserves counts.
    """
    path = path_of(url)
    fitting = [rule for rule in rules if rule.pattern.covers(path)]
    if not fitting:
        return None
    longest = max(fitting, key=lambda rule: rule.pattern.length)
    rule = next((rule for rule in (longest, fitting[0]) if str(rule.reservation) == "1"), longest)
    summary = {"location": rule.location, "tdm-reservation": rule.reservation}
    if rule.policy:
        summary["tdm-policy"] = rule.policy
    return summary


# --- ai.txt ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AiRule:
    """One line of an ai.txt."""

    pattern: Pattern
    file_type: str | None  # `.jpg` for a pattern about files of that name
    allow: bool
    line: str
    length: int  # of the pattern, as the line has it

    def covers(self, path: str) -> bool:
        """Whether the rule is about a path, with its query."""
        if self.file_type is None:
            return self.pattern.covers(path)
        return path.partition("?")[0].lower().endswith(self.file_type)


def read_ai_txt(body: bytes, us: tuple[str, ...]) -> tuple[AiRule, ...]:
    """The rules of an ai.txt that address us: those of our names, else those for everybody.

    Rules before any name are for everybody. A page or a text without rules says nothing.
    Unreadable for more than MOST_RULES rules.
    """
    text = text_of(body)
    known = {*us, "*"}
    rules: dict[str, list[AiRule]] = {}
    group, group_is_open, count = {"*"}, False, 0
    for line in () if _is_page(text) else text.splitlines():
        if match := AGENT_LINE.match(line):
            if not group_is_open:
                group, group_is_open = set(), True
            group.add(re.split(r"[/\s]", match[1].strip().lower(), maxsplit=1)[0])
        elif match := RULE.match(line):
            group_is_open = False
            value, names = match[2].strip(), group & known
            if not value or not names:
                continue
            count += 1
            if count > MOST_RULES:
                raise Unreadable(f"more than {MOST_RULES} rules")
            rule = _ai_rule(match[1], value)
            for name in names:
                rules.setdefault(name, []).append(rule)
    ours = [rule for name in us for rule in rules.get(name, ())]
    return tuple(ours or rules.get("*", ()))


def _ai_rule(word: str, value: str) -> AiRule:
    file_type = FILE_TYPE.fullmatch(value)
    return AiRule(
        pattern=pattern_of(_location_pattern(value)),
        file_type=file_type[1].lower() if file_type else None,
        allow=word.lower() == "allow",
        line=f"{word.capitalize()}: {value[:200]}",
        length=len(value[:200]),
    )


def ai_summary(rules: Iterable[AiRule], url: str) -> dict[str, Any] | None:
    """The line that decides about a URL: the longest that covers it, of equal ones a Disallow.

    A URL without a file type may be any of IMAGE_TYPES: a Disallow for one of them counts.
    """
    path = path_of(url)
    bare = path.partition("?")[0]
    has_type = bare.lower().endswith(IMAGE_TYPES) or re.search(r"\.[a-z0-9]{2,5}$", bare.lower())
    paths = [path] if has_type else [bare + ending for ending in IMAGE_TYPES]
    deciding = []
    for candidate in paths:
        fitting = [rule for rule in rules if rule.covers(candidate)]
        if fitting:
            deciding.append(max(fitting, key=lambda rule: (rule.length, not rule.allow)))
    if not deciding:
        return None
    rule = next((rule for rule in deciding if not rule.allow), deciding[0])
    return {"allowed": rule.allow, "rule": rule.line}


# --- what they share -------------------------------------------------------------------------


def inflated(body: bytes, encoding: str) -> bytes:
    """The bytes behind a Content-Encoding, up to FILE_BYTES. Unreadable for an unknown one."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity") and not body.startswith(b"\x1f\x8b"):
        return body[:FILE_BYTES]
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise Unreadable(f"Content-Encoding {encoding[:40]}")
    try:  # 32: gzip or zlib, whatever the header of the data says
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, FILE_BYTES)
    except zlib.error as error:
        raise Unreadable(f"broken {encoding or 'gzip'}") from error


def text_of(body: bytes) -> str:
    """The text of a file, its first FILE_BYTES."""
    return body[:FILE_BYTES].decode("utf-8", "replace").removeprefix("\ufeff")


def _is_page(text: str) -> bool:
    """Whether a server sent a page instead of a file, as many do for every unknown path."""
    return text.lstrip().startswith("<")
