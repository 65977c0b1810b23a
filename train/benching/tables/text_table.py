"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Sequence

NONE = "-"


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Lines of columns with two spaces between; all but the first `left` are aligned right."""
    widths = [max(len(row[c]) for row in (head, *rows)) for c in range(len(head))]
    text = []
    for row in (head, *rows):
        words = []
        for c, (word, width) in enumerate(zip(row, widths, strict=True)):
            words.append(word.ljust(width) if c < left else word.rjust(width))
        text.append("  ".join(words).rstrip())
    return text


def short(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits and no exponent; `-` for None."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    places = 0
    size = abs(value)
    while size < 10 ** (digits - 1) and places < 12:
        size *= 10
        places += 1
    return f"{value:,.{places}f}"
