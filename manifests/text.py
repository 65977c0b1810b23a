"""Text of strangers: made valid before it is stored, and made printable before it is shown."""

from __future__ import annotations

REPLACEMENT = "\ufffd"


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
    if text.isprintable():
        return text
    return "".join(map(_printable_character, text))


def printable_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(printable, text.splitlines()))


def _valid_character(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return chr(code - 0xDC00)
    return REPLACEMENT if 0xD800 <= code <= 0xDFFF else character


def _printable_character(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
