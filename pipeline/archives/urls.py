"""Links of pages as absolute http(s) URLs, and the one spelling of a host name.

The short ways through `resolve` are there for speed; `_resolve_any` is the reference for all of
them (a property test compares the two). Times in comments are per link on one core.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from yarl import URL

from clipmill.manifests.text import printable

# --------------------------------------------------------------------------------------------------
# Counts of the rows of a part that are no pairs: by reason, each with the first as an example.


LONGEST_EXAMPLE = 200  # characters


class PartCounts(Counter[str]):
    """`links`, `pairs`, `damaged_records` and every reason of one part; `examples` has the first
    row of each reason."""

    def __init__(self) -> None:
        super().__init__()
        self.examples: dict[str, str] = {}


def reject(counts: Counter[str], reason: str, example: str) -> None:
    """Count a row that is no pair. Its example is kept where `counts` is PartCounts."""
    counts[reason] += 1
    if isinstance(counts, PartCounts) and reason not in counts.examples:
        counts.examples[reason] = shortened(example)


def reject_images(
    counts: Counter[str], reasons: Mapping[int, str], page: str, urls: Callable[[int], object]
) -> None:
    """Count the images of a page that are no pairs, given as {number: reason}. `urls` has the link
    of an image: it is asked only for the first of a reason."""
    examples = counts.examples if isinstance(counts, PartCounts) else {}
    for number, reason in reasons.items():
        counts[reason] += 1
        if reason not in examples:
            examples[reason] = shortened(f"{page}: {urls(number)!r}")


def shortened(text: str) -> str:
    """Printable text of at most LONGEST_EXAMPLE characters. Text of web pages is not trusted."""
    text = printable(text)
    return text if len(text) <= LONGEST_EXAMPLE else text[: LONGEST_EXAMPLE - 1] + "…"


LONGEST_URL = 8000  # characters; common servers refuse a request line above 8 KiB
SPACE = "".join(map(chr, range(0x21)))  # C0 controls and space: browsers trim them at both ends
LINE_BREAKS = dict.fromkeys(map(ord, "\t\n\r"))  # browsers remove these anywhere in a URL
HOST = r"//[A-Za-z0-9.-]*[A-Za-z0-9](?::[0-9]{1,5})?"
PLAIN = re.compile(rf"(https?:)({HOST})(?:/|\Z)")
QUERY = r"(?:\?[^\x00-\x20#]++)?\Z"
# Links that need no parser. Groups: absolute, scheme-relative, root-relative, folder-relative.
SHORT = re.compile(
    rf"(https?:{HOST}(?:/[^\x00-\x20#?\\]*+{QUERY}|\Z))|({HOST}(?:/[^\x00-\x20#?\\]*+{QUERY}|\Z))"
    rf"|(/(?!/)[^\x00-\x20#?\\]*+{QUERY})|([A-Za-z0-9_%-][^\x00-\x20#?\\:;]*+{QUERY})"
)
SAFE = r"!\"$->@-\[\]-~"  # printable ASCII except #, ? and \
# The commonest cases of SHORT: 0.2 us instead of 0.4
ABSOLUTE = re.compile(rf"https?:{HOST}/[{SAFE}]*+(?:\?[{SAFE}?]++)?").fullmatch
ROOTED = re.compile(rf"/(?!/)[{SAFE}]*+(?:\?[{SAFE}?]++)?").fullmatch
DOTTED = re.compile(r";|/\.\.?(?:[/?#]|\Z)")  # a "/." that is only the start of a name is no match
ODD_FOLDER = re.compile(r"[\x00-\x20\\;]|//|/\.")


def resolve(base: str, link: str) -> str:
    """The absolute http(s) URL of `link` on a page at `base`, without its fragment, as browsers
    request it. ValueError whose text is the reason: data_url, scheme or bad_url.
    """
    if (short := SHORT.match(link)) and len(link) + len(base) <= LONGEST_URL:
        if short.lastindex == 1:
            return link
        scheme, origin, folder = split_base(base)
        if short.lastindex == 2 and scheme:
            return scheme + link
        if "/." not in link or not DOTTED.search(link):
            if short.lastindex == 3 and scheme:
                return origin + link
            if short.lastindex == 4 and folder and "//" not in link:
                return folder + link
    return _resolve_any(base, link)


def resolver(base: str) -> Callable[[str], str]:
    """`resolve` for the many links of one page: `base` is split once."""
    scheme, origin, _ = split_base(base)
    room = LONGEST_URL - len(base)

    def resolve_link(link: str) -> str:
        if len(link) <= room:
            url = scheme + link if link[:2] == "//" else link
            if ABSOLUTE(url):
                return url
            if origin and ROOTED(link) and ("/." not in link or not DOTTED.search(link)):
                return origin + link
        return resolve(base, link)

    return resolve_link


@lru_cache(maxsize=16)
def split_base(base: str) -> tuple[str, str, str]:
    """Scheme (`http:`), origin and folder of a page's URL; "" for each that the short ways cannot
    use."""
    match = PLAIN.match(base)
    if match is None:
        return "", "", ""
    origin = match[1] + match[2]
    path = base[len(origin) :].partition("#")[0].partition("?")[0]
    folder = path.rpartition("/")[0] + "/"
    return match[1], origin, "" if ODD_FOLDER.search(folder) else origin + folder


def _resolve_any(base: str, link: str) -> str:
    """`resolve` for every link: the short ways take nineteen of twenty before it."""
    link = link.strip(SPACE)
    if link[:5].lower() == "data:":
        raise ValueError("data_url")
    path, _, query = link.translate(LINE_BREAKS).partition("#")[0].partition("?")
    path, query = path.replace("\\", "/"), query and f"?{query}"
    scheme, origin, _ = split_base(base)
    if PLAIN.match(path):
        url = path + query
    elif path[:2] == "//" and PLAIN.match(scheme + path):
        url = scheme + path + query
    elif path[:1] == "/" != path[1:2] and "/." not in path and origin:
        url = origin + path + query
    else:
        url = _joined(base, path + query)
    if len(url) > LONGEST_URL:
        raise ValueError("bad_url")
    return url


def _joined(base: str, link: str) -> str:
    try:
        url = joined(base, link) if link else ""
        parts = split(url)
    except ValueError:
        raise ValueError("bad_url") from None
    if parts.scheme not in ("http", "https", ""):
        raise ValueError("scheme")
    if not parts.scheme or not parts.host:
        raise ValueError("bad_url")
    return url


# --- the parts of a URL ----------------------------------------------------------------------
#
# Not by urllib.parse: what it strips, which brackets it takes, how it joins and the texts of its
# errors are not the same in all releases of Python 3.11 to 3.13.


@dataclass(frozen=True, slots=True)
class UrlParts:
    """The parts of a URL as they are written (RFC 3986, appendix B); "" for one that is not there.

    The scheme is in lower case.
    """

    scheme: str
    authority: str  # user, host and port
    path: str
    query: str

    @property
    def host(self) -> str:
        """In lower case, without brackets."""
        host = self.authority.rpartition("@")[2]
        return (BRACKETED.match(host) or UNBRACKETED.match(host))[1].lower()  # type: ignore[index]

    @property
    def port(self) -> int | None:
        """None where there is none. ValueError where it is no number up to 65535."""
        text = self.authority.rpartition("@")[2].rpartition("]")[2].partition(":")[2]
        if text and not (PORT.fullmatch(text) and int(text) < 1 << 16):
            raise ValueError(f"{text!r} is no port")
        return int(text) if text else None


PARTS = re.compile(
    r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?", re.DOTALL
)
BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+)\](?=:|\Z)")
UNBRACKETED = re.compile("([^:]*)")
PORT = re.compile("[0-9]{1,9}")


def split(url: str) -> UrlParts:
    """The parts of a URL, without its fragment. ValueError for brackets around what is no IPv6
    address, and for characters that IDNA maps to the end of a host, such as U+2100 (a/c)."""
    match = PARTS.match(trimmed(url))
    assert match is not None
    scheme, authority, path, query = match.groups("")
    host = authority.rpartition("@")[2]
    if "[" in authority or "]" in authority:
        if not (bracketed := BRACKETED.match(host)) or "[" in authority[: -len(host)]:
            raise ValueError("the brackets of its host hold no IPv6 address")
        try:
            ipaddress.IPv6Address(bracketed[1])
        except ValueError:
            raise ValueError(f"[{bracketed[1]}] is not an address") from None
    if not authority.isascii():
        mapped = unicodedata.normalize("NFKC", authority.translate(ENDS_OF_HOST))
        if any(chr(code) in mapped for code in ENDS_OF_HOST):
            raise ValueError("its host holds a character that stands for the end of a host")
    return UrlParts(scheme.lower(), authority, path, query)


ENDS_OF_HOST = dict.fromkeys(map(ord, "/?#@:"))


def joined(base: str, link: str) -> str:
    """The URL that `link` names on a page at `base` (RFC 3986, 5.2), without its fragment; as in
    browsers, `http:a.jpg` is relative to a page of http. ValueError as `split` has it."""
    page, target = split(base), split(link)
    if not page.scheme or target.scheme not in ("", page.scheme):
        return link
    authority, path, query = target.authority, target.path, target.query
    if not authority:
        authority = page.authority
        if not path:
            path, query = page.path, query or page.query
        else:
            if not path.startswith("/"):
                path = f"{page.path.rpartition('/')[0]}/{path}"
            path = without_dots(path)
    return f"{page.scheme}://{authority}{path}{query and f'?{query}'}"


DOT_SEGMENT = re.compile(r"/\.\.?(?:/|\Z)")


def without_dots(path: str) -> str:
    """A path without its dot segments, which browsers resolve (WHATWG URL, path state)."""
    if not DOT_SEGMENT.search(path):
        return path
    first, *segments = path.split("/")
    kept: list[str] = []
    for number, segment in enumerate(segments, 1):
        if segment == "..":
            del kept[-1:]
        if segment not in (".", ".."):
            kept.append(segment)
        elif number == len(segments):
            kept.append("")
    return "/".join([first, *kept])


def trimmed(url: str) -> str:
    """A URL without the characters that browsers ignore: C0 controls and spaces at both ends, and
    tabs and line breaks anywhere."""
    return url.strip(SPACE).translate(LINE_BREAKS)


def ascii_host(host: str) -> str:
    """A host name in the one spelling that hosts are compared by: lower case, ASCII by IDNA 2008
    with the mapping of UTS 46, without a trailing dot. ValueError where IDNA has no such name.

    An ASCII name is not checked further: it may still be no name that DNS can hold.
    """
    host = unicodedata.normalize("NFKC", host).replace("\u3002", ".").lower()  # ideographic stop
    host = host.removesuffix(".")
    if host and not host.isascii():
        return URL.build(scheme="http", host=host).raw_host or ""
    return host


# The host of most URLs, 4 times faster than urlsplit.
PLAIN_HOST = re.compile(r"https?://([a-z0-9-]+(?:\.[a-z0-9-]+)*)(?::[0-9]*)?(?:[/?#]|\Z)")


def host_of(url: str) -> str:
    """The host of a URL as `ascii_host` writes it, without user or port; "" where it has none."""
    if plain := PLAIN_HOST.match(url):
        return plain[1]
    try:
        return ascii_host(split(url).host)
    except ValueError:  # not a host name: the fetcher refuses such a row before it connects
        return ""
