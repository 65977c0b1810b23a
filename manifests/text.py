"""Text of strangers: made valid before it is stored, and made printable before it is shown."""

from __future__ import annotations

import re

REPLACEMENT = "\ufffd"
# What a terminal acts on or does not show: controls, formats, private use, surrogates, separators
# other than the space, noncharacters and what Unicode reserves for characters without a sign.
# `str.isprintable` is not the same in all versions of Python: it also refuses what Unicode has
# added since, 14.0 for Python 3.11. All other characters count as printable here.
UNPRINTABLE = re.compile(
    "[\0-\x1f\x7f-\xa0\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u1680\u180e\u2000-\u200f"
    "\u2028-\u202f\u205f-\u206f\u3000\ud800-\uf8ff\ufdd0-\ufdef\ufeff\ufff0-\ufffb\ufffe\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    + "".join(f"{chr(plane - 2)}{chr(plane - 1)}" for plane in range(0x20000, 0x110000, 0x10000))
    + "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff\U000f0000-\U0010ffff]"
)


def valid_text(text: str) -> str:
    """The text without surrogates, which UTF-8, Parquet and JSON files cannot hold.

    A byte that a decoder kept as half of a surrogate pair (`surrogateescape`, U+DC80 to U+DCFF)
    becomes the Latin-1 character of that byte. Any other half becomes U+FFFD.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(map(_valid_character, text))
    return text


def printable(text: str) -> str:
    """The text with escapes for what a terminal would act on or hide: `\\x1b`, `\\u202e`."""
    return text if is_printable(text) else UNPRINTABLE.sub(_escape, text)


def is_printable(text: str) -> bool:
    """Whether `printable` leaves the text as it is."""
    return text.isprintable() or not UNPRINTABLE.search(text)  # the first is faster


def printable_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(printable, text.splitlines()))


def one_line(text: object, most: int = 160) -> str:
    """The beginning of a text, such as that of an error of a library, in one line."""
    return " ".join(str(text).split())[:most]


def _valid_character(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return chr(code - 0xDC00)
    return REPLACEMENT if 0xD800 <= code <= 0xDFFF else character


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
