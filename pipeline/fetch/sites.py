"""What the files of a site say about its URLs: robots.txt, tdmrep.json and ai.txt, kept for a day.

The files are requested once per origin and run, by the first row that needs them. What they say is
kept raw beside the row, so that another policy can be applied later without a request.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from protego import Protego

from clipmill.filters.optout import plain, reserves, usages
from clipmill.manifests.columns import REASONS
from clipmill.manifests.schema import Fetch
from clipmill.pipeline.archives.codings import (
    GZIP,
    INFLATED,
    PACKED,
    Inflater,
    coding_names,
    is_whole,
)
from clipmill.pipeline.archives.urls import split
from clipmill.pipeline.fetch import guard, own_time
from clipmill.pipeline.fetch.guard import Refused
from clipmill.pipeline.fetch.hosts import Queues
from clipmill.pipeline.fetch.request import FileAnswer, OptoutPolicy, Requests, retry_after_s
from clipmill.pipeline.table_files import utf_16

# --------------------------------------------------------------------------------------------------
# What the files of a site say about one URL: robots.txt, /.well-known/tdmrep.json and /ai.txt.
#
# Bytes in, rules out. From rules and a URL follow the few words that are kept beside the row.
# Nothing is requested here.


FILE_BYTES = 500 * 1024  # of a file that are read: RFC 9309 asks for as much of a robots.txt
MOST_LINES = 5000  # above it only our own names are judged: ten others would cost ten times as much
MOST_STARS = 2000  # each is a search through the URL: 24,000 of them took half a second a long URL
MOST_RULES = 1000  # of a tdmrep.json or ai.txt, and Content-Usage lines: 28,000 took 0.3 s a URL
MOST_LICENSES = 10  # of a robots.txt that are kept beside each row
AGENTS = (
    "img2dataset", "CCBot", "GPTBot", "Google-Extended", "anthropic-ai", "ClaudeBot", "Bytespider",
    "Applebot-Extended",
)  # fmt: skip
AGENT_LINE = re.compile(r"(?i)[ \t]*user[ \t-]?agent[ \t]*(?::|[ \t])[ \t]*([^#]*)")
# Content-Usage, Content-Signal, and a bare `ai-train: no` as some sites write the latter
USAGE_LINE = re.compile(
    r"(?i)[ \t]*(?:(?:x-)?content[-_ ]?(usage|signal)s?[ \t]*:|"
    r"(?=[\"']?(?:ai[-_]train(?:ing)?|train[-_](?:gen)?ai|training)[\"']?[ \t]*[:=]))[ \t]*([^#]*)"
)
# draft-canel-robots-ai-control: a path that may be used for training, or may not
TRAINING_LINE = re.compile(r"(?i)[ \t]*(dis)?allow[-_ ]?ai[-_ ]?training[ \t]*:[ \t]*([^\s#]+)")
# RSL 1.0: an absolute URL; what follows a blank is a comment.
LICENSE_LINE = re.compile(r"(?i)[ \t]*licen[cs]e[ \t]*:[ \t]*([^\s#]\S*)")
# A rule of a group, in the spellings that Protego reads: it ends a list of names. Lines of other
# fields belong to no group and end none (RFC 9309, 2.2.4): a site map, a licence, what is unknown.
GROUP_LINE = re.compile(
    r"(?i)[ \t]*(?:allow|disallow|dissallow|dissalow|disalow|diasllow|disallaw|crawl[ -]delay|"
    r"request[ -]rate|visit[ -]time)[ \t]*(?:[: \t]|$)"
)
RULE = re.compile(r"(?i)[ \t]*(allow|disallow)[ \t]*:[ \t]*([^#]*)")
# A field whose value is a path, and how alike Disallow a name is that is meant as it: Desallow and
# Disllaow have 0.87, Allow has 0.77
PATH_FIELD = re.compile(r"[ \t]*([^:#/]{6,20}):(?=[ \t]*[/*])")
ALIKE = 0.8
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
    parts = split(url)
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
    # usage, signal or training -> name, * or "" (before the first group) -> (bytes, path, line)
    usage: Mapping[str, Mapping[str, list[tuple[int, Pattern, str]]]]
    licenses: tuple[str, ...]  # what the License lines that address us name, as written
    judged: tuple[str, ...]  # the names whose verdicts are kept
    delay_s: float | None  # the longest pause that Crawl-delay or Request-rate asks of us

    def allows(self, url: str) -> bool:
        """Whether we may fetch the URL."""
        return not self._disallowed(url, self.us)

    def summary(self, url: str) -> dict[str, object]:
        """What is kept beside the row. Empty lists and fields are left out."""
        disallowed = self._disallowed(url, (*self.us, *self.judged, "*"))
        summary: dict[str, object] = {"allowed": not any(name in disallowed for name in self.us)}
        if others := [name for name in (*self.judged, "*") if name in disallowed]:
            summary["disallowed"] = others
        for field, rules in self.usage.items():
            if lines := self._usage_lines(rules, path_of(url)):
                summary[field] = lines
        if self.licenses:
            summary["license"] = list(self.licenses)
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

    def _usage_lines(
        self, rules: Mapping[str, list[tuple[int, Pattern, str]]], path: str
    ) -> list[str]:
        """The lines of one field for a path: for each of our names those with the longest path,
        and those before the first group, which are read as everybody's.
        """
        lines: dict[str, None] = {}
        for group in (*(name if name in self.named else "*" for name in self.us), ""):
            fitting = []
            for length, pattern, line in rules.get(group, ()):
                if pattern.covers(path):
                    fitting.append((length, line))
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
    groups = [name if name in reader.named else "*" for name in ours]
    licenses: dict[str, None] = {}
    for group in groups:  # RSL 1.0, 4.4: those of a group hide those outside of the groups
        own = [text for names, _, text in reader.licenses if group in names]
        others = [text for _, is_outside, text in reader.licenses if is_outside]
        licenses |= dict.fromkeys(own or others)
    return Robots(
        parsed=parsed,
        us=ours,
        named=frozenset(reader.named - {"*"}),
        usage=reader.usage,
        licenses=tuple(licenses)[:MOST_LICENSES],
        judged=judged,
        delay_s=_delay_s(parsed, groups),
    )


class _RobotsReader:
    """The lines of a robots.txt that concern the names in `known`."""

    def __init__(self, known: set[str]) -> None:
        self.known = known
        self.named: set[str] = set()
        self.usage: dict[str, dict[str, list[tuple[int, Pattern, str]]]] = {}
        # Names of the group, which may grow; whether it may be everybody's; the text
        self.licenses: list[tuple[set[str], bool, str]] = []
        self.kept: list[str] = []
        self.stars = self.usage_lines = 0
        self._group: set[str] = set()  # of known names
        self._group_is_open = False  # a further name joins it
        self._is_outside = True  # no group was begun yet, or a blank line may have ended the last
        self._is_first = True  # no group was begun yet

    def read(self, line: str) -> None:
        line = corrected(line)
        if line and (match := AGENT_LINE.match(line)):
            self._read_name(match[1])
            return
        self.named |= self._group
        if not line or line.isspace():
            self._is_outside = True
            return
        if match := LICENSE_LINE.match(line):
            # Behind a blank line it may be the last group's or everybody's, and counts as both
            self.licenses.append((self._group, self._is_outside, match[1][:500]))
            return
        is_rule = GROUP_LINE.match(line)
        usage = None if is_rule else USAGE_LINE.match(line)
        training = None if is_rule or usage else TRAINING_LINE.match(line)
        if not is_rule and not usage and not training:
            return
        self._group_is_open, self._is_outside = False, self._is_first
        if usage:
            self._read_usage((usage[1] or "signal").lower(), usage[2].strip()[:500])
        if training:
            path, value = f"/{training[2].removeprefix('/')}"[:480], "n" if training[1] else "y"
            self._read_usage("training", f"{path} train-ai={value}")
        if not self._group:
            return
        self.stars += "*" in line and RULE.match(line) is not None
        self.kept.append(line)

    def _read_name(self, text: str) -> None:
        if not self._group_is_open:
            self._group = set()
        self._group_is_open, self._is_first, self._is_outside = True, False, False
        for name in _names_of(text):
            name = name.replace("*", "") or "*"
            if name in self.known:
                self._group.add(name)
                self.kept.append(f"User-agent: {name}")

    def _read_usage(self, field: str, value: str) -> None:
        """A value may begin with the path that it is about."""
        names = {""} if self._is_first else self._group
        path, *rest = re.split(r"[ \t]+", value, maxsplit=1) if value[:1] == "/" else ("/", value)
        if not rest or not names:
            return
        self.usage_lines += 1
        if self.usage_lines <= MOST_RULES:
            rules = self.usage.setdefault(field, {})
            for name in names:
                rules.setdefault(name, []).append((len(path.encode()), pattern_of(path), value))


def corrected(line: str) -> str:
    """A line with a misspelt Disallow, which is a no, as it should be; any other as it is."""
    match = None if GROUP_LINE.match(line) else PATH_FIELD.match(line)
    name = re.sub(r"[\W_]", "", match[1]).lower() if match else ""
    if match and difflib.SequenceMatcher(None, name, "disallow").ratio() >= ALIKE:
        return f"Disallow:{line[match.end() :]}"
    return line


def _names_of(text: str) -> Iterator[str]:
    """The names of a User-agent line, in lower case, without versions and quotes. A line has one;
    some sites write several with commas.
    """
    for part in re.split(r"[,;]", plain(text[:8000]).lower()):
        if name := re.split(r"[/\s]", part.strip(" \t\"'"), maxsplit=1)[0].strip("\"'"):
            yield name


def _delay_s(parsed: Protego, names: Iterable[str]) -> float | None:
    delays: list[float] = []
    for name in names:
        if (delay := parsed.crawl_delay(name)) is not None:
            delays.append(delay)
        if (rate := parsed.request_rate(name)) is not None:
            delays.append(rate.seconds / rate.requests)
    return max(delays, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of a tdmrep.json or ai.txt."""

    pattern: Pattern
    said: dict[str, Any]  # what is kept beside a row about which it decides
    file_type: str | None = None  # `.jpg` for a pattern about files of that name
    length: int = 0  # of an ai.txt's pattern, as the line has it

    def covers(self, path: str) -> bool:
        """Whether the rule is about a path, with its query."""
        if self.file_type is None:
            return self.pattern.covers(path)
        return path.partition("?")[0].lower().endswith(self.file_type)


# --- TDMRep ----------------------------------------------------------------------------------


def read_tdmrep(body: bytes) -> tuple[Rule, ...]:
    """The rules of a tdmrep.json in their order; () for a page that says "not found".

    Unreadable for other content and for more than MOST_RULES rules.
    """
    text = text_of(body)
    if _is_page(text):
        return ()
    try:
        entries = json.loads(text)
        rules = tuple(islice(_tdm_rules(entries, "/"), MOST_RULES + 1))
    except (ValueError, RecursionError) as error:
        raise Unreadable("no JSON") from error
    if not isinstance(entries, list | dict) or (entries and not rules):
        raise Unreadable("no list of rules")
    if len(rules) > MOST_RULES:
        raise Unreadable(f"more than {MOST_RULES} rules")
    if rules and all("unread" in rule.said for rule in rules):
        raise Unreadable(rules[0].said["unread"])
    return rules


def _tdm_rules(entry: object, location: str) -> Iterator[Rule]:
    """The rules in a value of a tdmrep.json: a list, a rule without brackets or without a location,
    rules under a name or under their paths. A rule that cannot be read is about every path.
    """
    if isinstance(entry, list):
        for each in entry:
            yield from _tdm_rules(each, location) if each else ()
    elif isinstance(entry, dict):
        fields = {plain(name).strip().lower().replace("_", "-"): entry[name] for name in entry}
        if {"location", "tdm-reservation"} & fields.keys():
            own = fields.get("location", fields.get("path", location))
            places = own if isinstance(own, list) else [own]
            yield from (_tdm_rule(place, fields) for place in places)
            return
        for name, each in entry.items():
            if isinstance(each, dict | list):
                yield from _tdm_rules(each, name if name.startswith("/") else location)
    else:
        yield _tdm_rule(None, {})


def _tdm_rule(location: object, fields: Mapping[str, object]) -> Rule:
    reservation, policy = fields.get("tdm-reservation"), fields.get("tdm-policy")
    if not isinstance(location, str) and not reserves(reservation):
        return Rule(pattern=pattern_of("/"), said={"unread": "a rule without a location"})
    location = location if isinstance(location, str) else "/"
    if reservation is not None and not isinstance(reservation, int):
        reservation = str(reservation)[:40]
    said = {"location": location[:500], "tdm-reservation": reservation}
    if policy:
        said["tdm-policy"] = str(policy)[:500]
    return Rule(pattern=pattern_of(_location_pattern(location)), said=said)


def tdm_summary(rules: Iterable[Rule], url: str) -> dict[str, object] | None:
    """The rule that decides about a URL.

    The report asks for "the most specific match" and calls it "the first in sequence". Where the
    longest pattern and the first one differ, the one that reserves counts. Where a rule cannot be
    read, `unread` says why.
    """
    path = path_of(url)
    fitting = [rule for rule in rules if rule.covers(path)]
    unread = next((rule.said for rule in fitting if "unread" in rule.said), {})
    fitting = [rule for rule in fitting if "unread" not in rule.said]
    if not fitting:
        return unread or None
    longest = max(fitting, key=lambda rule: rule.pattern.length)
    for rule in fitting:
        is_deciding = rule is fitting[0] or rule.pattern.length == longest.pattern.length
        if is_deciding and reserves(rule.said["tdm-reservation"]):
            return rule.said | unread
    return longest.said | unread


# --- ai.txt ----------------------------------------------------------------------------------


def read_ai_txt(body: bytes, us: tuple[str, ...]) -> tuple[Rule, ...]:
    """The rules of an ai.txt that address us: those of our names, else those for everybody.

    Rules before any name are for everybody. A line such as `Content-Signal: ai-train=no` or
    `training: no` outweighs every Allow. A page or a text without rules says nothing.
    Unreadable for more than MOST_RULES rules.
    """
    text = text_of(body)
    known = {*us, "*"}
    rules: dict[str, list[Rule]] = {}
    group, group_is_open, count = {"*"}, False, 0
    for line in () if _is_page(text) else map(corrected, text.splitlines()):
        if match := AGENT_LINE.match(line):
            if not group_is_open:
                group, group_is_open = set(), True
            group.update(_names_of(match[1]))
            continue
        names = group & known
        if match := USAGE_LINE.match(line):
            signal, words = next(iter(usages(match[2].strip()[:500])), ("unread", ""))
            said, is_no = {"allowed": False, "rule": words}, signal != "unread"
            found = [Rule(pattern=pattern_of("/"), said=said, length=FILE_BYTES)] * is_no
        elif match := RULE.match(line):
            value = match[2].strip().strip("\"'")
            found = [_ai_rule(match[1], value)] if value else []
        else:
            continue
        group_is_open = False
        count += len(found) if names else 0
        if count > MOST_RULES:
            raise Unreadable(f"more than {MOST_RULES} rules")
        for name in names:
            rules.setdefault(name, []).extend(found)
    ours = [rule for name in us for rule in rules.get(name, ())]
    return tuple(ours or rules.get("*", ()))


def _ai_rule(word: str, value: str) -> Rule:
    file_type = FILE_TYPE.fullmatch(value)
    return Rule(
        pattern=pattern_of(_location_pattern(value)),
        file_type=file_type[1].lower() if file_type else None,
        said={"allowed": word.lower() == "allow", "rule": f"{word.capitalize()}: {value[:200]}"},
        length=len(value[:200]),
    )


def ai_summary(rules: Iterable[Rule], url: str) -> dict[str, object] | None:
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
            deciding.append(max(fitting, key=lambda rule: (rule.length, not rule.said["allowed"])))
    if not deciding:
        return None
    return next((rule for rule in deciding if not rule.said["allowed"]), deciding[0]).said


# --- what they share -------------------------------------------------------------------------


def inflated(body: bytes, encoding: str) -> bytes:
    """The bytes behind a Content-Encoding, up to FILE_BYTES. Unreadable for an unknown one."""
    names = coding_names([encoding])
    if packed := [name for name in names if name in PACKED]:
        raise Unreadable(f"Content-Encoding {packed[0]}")
    known = [name for name in names if name in INFLATED]
    for name in reversed(known or (["gzip"] if body.startswith(GZIP) else [])):
        try:
            body = Inflater(name).add(body, FILE_BYTES)
        except zlib.error as error:
            raise Unreadable(f"broken {name}") from error
    return body[:FILE_BYTES]


def text_of(body: bytes) -> str:
    """The text of a file, its first FILE_BYTES, in UTF-8 or UTF-16."""
    encoding = utf_16(body[:4]) or "utf-8"
    return body[:FILE_BYTES].decode(encoding, "replace").removeprefix("\ufeff")


def _is_page(text: str) -> bool:
    """Whether a server sent a page instead of a file, as many do for every unknown path."""
    return text.lstrip().startswith("<")


KEPT_S = 24 * 3600.0  # how long RFC 9309 lets a robots.txt be kept
FAILED_S = 600.0  # the same for a file without an answer, where its host does not say how long
SHORTEST_S = 1.0  # of a Retry-After that is obeyed
MOST_SITES = 20_000  # origins in memory, some kilobytes each; the least recently used are dropped
MOST_HOPS = 6  # requests for one file: RFC 9309 asks for five redirects
NOT_ASKED = "disallowed by robots.txt"
# Beside robots.txt, in this order: name in the signals -> entry of fetch.site_files, path, reader
# of bytes and our names, what is kept for a URL.
OTHER_FILES: dict[str, tuple[str, str, Callable[..., Any], Callable[..., Any]]] = {
    "tdmrep.json": (
        "tdmrep", "/.well-known/tdmrep.json", lambda body, _: read_tdmrep(body), tdm_summary,
    ),
    "ai.txt": ("ai.txt", "/ai.txt", read_ai_txt, ai_summary),
}  # fmt: skip
OTHERS_SHARE = 0.25  # of a row's deadline: the time for tdmrep.json and ai.txt together


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a site says about one URL: `reason` is None where it may be fetched."""

    reason: str | None
    detail: str = ""
    # For the row's raw signals; None where the site says nothing.
    signal: dict[str, object] | None = None
    crawl_delay_s: float | None = None  # what robots.txt asks for between two requests
    # Until the site may be asked for its files again, if it said.
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """The files of one origin, parsed. A text instead of rules says why they cannot be read."""

    answer: FileAnswer | None  # for robots.txt; None where it was not requested
    robots: Robots | str | None
    others: dict[str, tuple[Rule, ...] | str]  # by their names in OTHER_FILES
    good_until: float
    unreachable: frozenset[str]  # files that another request may get: 429, 5xx, no answer in time
    failures: int  # in a row
    retry_at: float | None  # what the Retry-After of an unreachable file says


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
            started = own_time.now()
            try:
                async with own_time.limit(left_s):
                    answer = await self._requests.file(target.url, FILE_BYTES)
            except TimeoutError:
                detail = "no whole answer in time"
                return FileAnswer(status=status, reason="deadline", detail=detail)
            if answer.location is None:
                break
            status = answer.status
            left_s -= own_time.now() - started
            try:
                url = guard.joined(target.url, answer.location)
            except ValueError:
                break
        found = answer.reason is None and answer.location is None
        if status is None or found or _is_unreachable(answer):
            return answer
        return FileAnswer(status=status)  # a redirect that leads nowhere gives no permission


class Sites:
    """The files of the origins of a run.

    robots.txt follows RFC 9309: 4xx means no rules, 5xx means no permission for now, and so does
    429, as Google reads it. A host that cannot be reached gives its rows the reason for that. A
    tdmrep.json or ai.txt without an answer is no statement, and for policy strict no permission for
    now; why is kept. A Retry-After is obeyed; after fetch.retries of them in a row the site is left
    alone for FAILED_S, as one that names none.
    """

    def __init__(
        self,
        settings: Fetch,
        policy: OptoutPolicy,
        client: FileClient,
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._client = client
        self._sites: dict[str, _Site] = {}  # the most recently used one is the last
        self._reading: dict[str, asyncio.Task[_Site]] = {}

    async def verdict(self, origin: str, url: str) -> Verdict:
        """Whether `url` of `origin` (scheme://host:port) may be fetched."""
        if not self._settings.robots_txt and not self._settings.site_files:
            return Verdict(reason=None)
        site = self._sites.get(origin)
        if site is None or time.monotonic() > site.good_until:
            if origin not in self._reading:
                self._reading[origin] = asyncio.create_task(self._read(origin))
            site = await asyncio.shield(self._reading[origin])
        else:
            self._sites[origin] = self._sites.pop(origin)
        return self._verdict(site, origin, url)

    def forgive(self) -> None:
        """Forget the sites whose files could not be read, but for those that asked for a pause."""
        for origin, site in list(self._sites.items()):
            if site.failures and site.retry_at is None:
                del self._sites[origin]

    async def close(self) -> None:
        """Stop the requests under way."""
        for task in self._reading.values():
            task.cancel()
        await asyncio.gather(*self._reading.values(), return_exceptions=True)
        self._reading.clear()

    # --- reading -----------------------------------------------------------------------------

    async def _read(self, origin: str) -> _Site:
        """One file after the other, so that a host gets one request at a time."""
        try:
            answers: dict[str, FileAnswer] = {}
            robots: Robots | str | None = None
            failed = False
            if self._settings.robots_txt:
                answer = answers["robots.txt"] = await self._client.get(f"{origin}/robots.txt")
                robots = self._robots(answer)
                failed = answer.reason is not None or _forbids(answer.status)
            others: dict[str, tuple[Rule, ...] | str] = {}
            if not failed and not isinstance(robots, str):
                others = await self._read_others(origin, robots, answers)
            for rules in others.values():
                failed = failed or (isinstance(rules, str) and rules != NOT_ASKED)
            before = self._sites.pop(origin, None)
            failures = (before.failures if before is not None else 0) + 1 if failed else 0
            unreachable = {name: each for name, each in answers.items() if _is_unreachable(each)}
            asked = (retry_after_s(each.retry_after) for each in unreachable.values())
            pauses = [max(each, SHORTEST_S) for each in asked if each is not None]
            pause_s = max(pauses, default=None)
            now = time.monotonic()
            site = self._sites[origin] = _Site(
                answer=answers.get("robots.txt"),
                robots=robots,
                others=others,
                good_until=now + self._kept_s(failures, pause_s),
                unreachable=frozenset(unreachable),
                failures=failures,
                retry_at=None if pause_s is None else now + pause_s,
            )
            if len(self._sites) > MOST_SITES:
                del self._sites[next(iter(self._sites))]
            return site
        finally:
            self._reading.pop(origin, None)

    def _kept_s(self, failures: int, pause_s: float | None) -> float:
        """How long the files of a site are kept; `pause_s`: what the site asked for."""
        if not failures:
            return KEPT_S
        if pause_s is None:
            return FAILED_S
        if failures > self._settings.retries:
            pause_s = max(FAILED_S, pause_s)
        return min(pause_s, KEPT_S)

    def _robots(self, answer: FileAnswer) -> Robots | str | None:
        """The rules of a robots.txt; None where there are none, a text where it is unreadable."""
        if answer.reason is not None or answer.status is None or not 200 <= answer.status < 300:
            return None
        rules: Robots | str = self._rules(answer, read_robots)
        return rules

    async def _read_others(
        self, origin: str, robots: Robots | None, answers: dict[str, FileAnswer]
    ) -> dict[str, tuple[Rule, ...] | str]:
        """tdmrep.json and ai.txt: rules, or why they cannot be read. `answers` gets what came.

        Where one gets no answer the next is not requested.
        """
        others: dict[str, tuple[Rule, ...] | str] = {}
        answer: FileAnswer | None = None
        delay_s = self._settings.delay_s
        ends = own_time.now() + OTHERS_SHARE * self._settings.deadline_s + 2 * delay_s
        for name, (key, path, read, _) in OTHER_FILES.items():
            if key not in self._settings.site_files:
                continue
            if answer is not None and answer.reason is not None:
                others[name], answers[name] = answer.reason, answer
                continue
            if robots is not None and not robots.allows(origin + path):
                others[name] = NOT_ASKED
                continue
            try:
                async with own_time.limit(ends - own_time.now()):
                    answer = await self._client.get(origin + path)
            except TimeoutError:
                answer = FileAnswer(status=None, reason="deadline")
            answers[name] = answer
            status = answer.status or 0
            if answer.reason is not None:
                others[name] = answer.reason
            elif is_whole(status):
                others[name] = self._rules(answer, read)
            else:
                is_missing = 400 <= status < 500 and status != 429
                others[name] = () if is_missing else f"status {status}"
        return others

    def _rules(self, answer: FileAnswer, read: Callable[[bytes, tuple[str, ...]], object]) -> Any:
        """What `read` finds in a file, or why it cannot be read."""
        try:
            return read(inflated(answer.body, answer.encoding), self._policy.names)
        except Unreadable as error:
            return str(error)

    # --- the verdict -------------------------------------------------------------------------

    def _verdict(self, site: _Site, origin: str, url: str) -> Verdict:
        """What the files of a site say about a URL, and whether the policy reads it as a no."""
        signal: dict[str, Any] = {}
        delay_s = retry_s = None
        if site.retry_at is not None and site.retry_at > time.monotonic():
            retry_s = site.retry_at - time.monotonic()
        if (answer := site.answer) is not None:
            if answer.reason is not None:
                return Verdict(reason=answer.reason, detail=f"robots.txt: {answer.detail}")
            if isinstance(site.robots, Robots):
                signal["robots.txt"] = {"status": answer.status} | site.robots.summary(url)
                delay_s = site.robots.delay_s
            elif "robots.txt" in site.unreachable:
                detail = f"status {answer.status}"
                robots = {"status": answer.status, "unread": detail}
                if answer.retry_after is not None:
                    robots["retry-after"] = answer.retry_after
                return Verdict(
                    reason="permission_unknown",
                    detail=f"robots.txt: {detail}",
                    signal={"robots.txt": robots},
                    retry_after_s=retry_s,
                )
            elif site.robots is not None or _forbids(answer.status):
                detail = site.robots or f"status {answer.status}"
                signal["robots.txt"] = {
                    "status": answer.status,
                    "allowed": False,
                    "unread": detail,
                }
                return Verdict(reason="robots_txt", detail=detail, signal=signal)
        for name, rules in site.others.items():
            if said := _summary(rules, url, OTHER_FILES[name][3]):
                signal[name] = said
        # robots.txt counts under every policy: fetch.robots_txt is its switch.
        if signal.get("robots.txt", {}).get("allowed") is False:
            return Verdict(
                reason="robots_txt", detail="disallowed", signal=signal, crawl_delay_s=delay_s
            )
        reason, detail = self._policy.refusal({"site": {origin: signal}}) or (None, "")
        said = {name: words for name, words in signal.items() if name not in site.unreachable}
        if reason is not None and self._policy.refusal({"site": {origin: said}}) is None:
            reason = "permission_unknown"
        return Verdict(
            reason=reason,
            detail=detail,
            signal=signal or None,
            crawl_delay_s=delay_s,
            retry_after_s=retry_s if reason == "permission_unknown" else None,
        )


def _summary(
    rules: tuple[Rule, ...] | str, url: str, summarize: Callable[..., Any]
) -> dict[str, object] | None:
    """What is kept of one file. A file that robots.txt disallows may not exist at all."""
    if isinstance(rules, str):
        return {"not_asked" if rules == NOT_ASKED else "unread": rules}
    if not rules:
        return None
    summary: dict[str, object] | None = summarize(rules, url)
    return summary


def _forbids(status: int | None) -> bool:
    """Whether a status other than 2xx gives no permission: all but the 4xx without 429."""
    if status is None:
        return True
    return not (200 <= status < 300 or (400 <= status < 500 and status != 429))


def _is_unreachable(answer: FileAnswer) -> bool:
    """Whether another request may get the file: RFC 9309 2.3.1.4, and 429."""
    if answer.reason is not None:
        return REASONS.get(answer.reason) == "transient"
    return answer.status is not None and (answer.status == 429 or 500 <= answer.status < 600)
