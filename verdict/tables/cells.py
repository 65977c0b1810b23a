"""What one cell of a stranger's table says: a number, a number with something beside it, or none.

A cell is read alone, but for commas: whether they group digits or are the decimal point is settled
for a column.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

CORE = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
# 12,345.6 and 12.345,6
GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
GROUP_SIGN = r"[.'\s]"
DECIMAL_COMMA = re.compile(rf"[-+]?\d+({GROUP_SIGN}\d{{3}})*,\d+(e[-+]?\d+)?", re.I)
WITH_COMMA = re.compile(r"[-+]?\d[\d.,'\s]*,\d[\d.,]*(e[-+]?\d+)?\s*%?", re.I)
NUMBER = re.compile(rf"({CORE})\s*(%?)", re.I)
SPREAD = re.compile(
    rf"({CORE})\s*(%?)\s*(?:±|\+/-|\+-|\(\s*±)\s*({CORE})\s*%?\s*\)?", re.I
)  # 0.41 ± 0.01
INTERVAL = re.compile(
    rf"({CORE})\s*(%?)\s*[\[(]\s*{CORE}\s*%?\s*(?:,|;|–|to|-)\s*{CORE}\s*%?\s*[\])]", re.I
)
BRACKETS = re.compile(rf"({CORE})\s*(%?)\s*[\[({{]\s*([-+↑↓▲▼△▽]?\s*{CORE})\s*%?\s*[\])}}]", re.I)
CHANGE = re.compile(rf"({CORE})\s*(%?)\s*[↑↓▲▼△▽]\s*(?:{CORE}\s*%?)?", re.I)
WITH_UNIT = re.compile(
    rf"({CORE})(?:\s*(?:±|\+/-|\+-)\s*({CORE}))?\s*(ns|us|[µ\u03bc]s|ms|s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|days?|[kKMBGT]|[KMGT]i?B|dB|px|"
    r"fps|it/s|x|×|pts?|pp|points?|[KMGTPE]?FLOPs?|[kKMG]?W|k?Wh|k?J|[ckm]?m|°C?|deg|img/s|tok/s|USD|\$)"
)
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0}
SIZES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
TAGS = re.compile(r"</?(?:b|strong|i|em|u|code|sup|sub|span|mark|font|br)\b[^>]*>", re.I)
MARKS = re.compile(r"[*†‡§¶⁎∗★☆✓]+|\^\w{1,2}$|\[\^?\w{1,3}\]$|[¹²³ᵃᵇᶜ]+$")
# Words and signs that stand where there is no value.
MISSING = re.compile(
    r"[-–—−.?/_x×✗✘*~\s]*|n\.?/?\s?a\.?|nan|null|none|nil|na|<na>|missing|unknown|tbd|tba|todo|"
    r"pending|not (available|reported|applicable|run|evaluated|measured)|n\.?r\.?|\(?empty\)?|"
    r"#(n/a|na|div/0!|ref!|value!|name\?|num!|null!).*",
    re.I,
)


PLAIN_SIGNS = str.maketrans(  # for a minus and spaces that typesetters and other languages write
    dict.fromkeys("\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}", " ")
    | {"\N{MINUS SIGN}": "-"}
)
SPREAD_NOTE = "a number with its spread"
BRACKETS_NOTE = "a number with another one in brackets"


@dataclass(frozen=True, slots=True)
class Cell:
    """value: the number; None where there is none. note: how a number that stands not alone was
    understood, "" for a plain one. unit: the letters behind it. spread: what stands behind ±, in
    the unit of the value. bracketed: a number without a sign in brackets behind it, likewise: a
    spread where the column's name says so. is_percent: a percent sign stands behind the number.
    """

    value: float | None
    note: str = ""
    unit: str = ""
    spread: float | None = None
    bracketed: float | None = None
    is_percent: bool = False


NOTHING = Cell(None)


def is_empty(value: object) -> bool:
    """Whether a cell holds nothing: None, NaN, or no letter."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and math.isnan(value))


def is_missing(value: object) -> bool:
    """Whether a cell holds nothing, or a sign or word for it."""
    return is_empty(value) or (
        isinstance(value, str) and MISSING.fullmatch(value.strip()) is not None
    )


def read_cell(value: Any, comma: str = "") -> Cell:
    """The number of a cell; `12.5 %` is 0.125. comma: what commas do in its column, `groups` or
    `decimal`.
    """
    if isinstance(value, bool) or value is None:
        return NOTHING
    if not isinstance(value, str):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return NOTHING
        return Cell(number) if math.isfinite(number) else NOTHING
    try:  # nearly all cells are plain numbers
        number = float(value)
    except ValueError:
        return _marked(value, comma)
    if "_" in value or not math.isfinite(number):
        return NOTHING
    return Cell(number)


def _marked(text: str, comma: str) -> Cell:
    """A number with marks, a percent sign, a spread, a change or a unit beside it."""
    text = text.translate(PLAIN_SIGNS).strip()
    if not text or len(text) > 80 or not any(each.isdigit() for each in text):
        return NOTHING
    text = text.replace("\\pm", "±").replace("&plusmn;", "±").replace("$", "")
    plain = MARKS.sub("", TAGS.sub("", text).strip("`$_~ ")).strip()
    if comma == "groups":
        plain = re.sub(r"(?<=\d),(?=\d{3})", "", plain)
    elif comma == "decimal":
        plain = re.sub(rf"(?<=\d){GROUP_SIGN}(?=\d{{3}})", "", plain)
        plain = re.sub(r"(?<=\d),(?=\d)", ".", plain)
    if found := NUMBER.fullmatch(plain):
        note = "" if plain == text or comma else "a number with marks"
        return _cell(found, "a number with a percent sign" if found[2] else note)
    if found := SPREAD.fullmatch(plain):
        return _cell(found, SPREAD_NOTE, "spread")
    if found := INTERVAL.fullmatch(plain):
        return _cell(found, "a number with an interval")
    if found := BRACKETS.fullmatch(plain):
        is_change = found[3][0] in "-+↑↓▲▼△▽"
        return _cell(found, BRACKETS_NOTE, "" if is_change else "bracketed")
    if found := CHANGE.fullmatch(plain):
        return _cell(found, "a number with a change")
    if found := WITH_UNIT.fullmatch(plain):
        unit, spread = found[3], float(found[2]) if found[2] else None
        note = SPREAD_NOTE if found[2] else f"numbers with {unit} behind them"
        size = None if unit == "m" else SIZES.get(unit.lower())
        if size is None:
            return Cell(float(found[1]), note, unit=unit, spread=spread)
        spread = None if spread is None else spread * size
        return Cell(float(found[1]) * size, note, spread=spread)
    return NOTHING


def _cell(found: re.Match[str], note: str, beside: str = "") -> Cell:
    """beside: the field for the number beside the number, which is in its unit."""
    number, scale = float(found[1]), 0.01 if found[2] else 1.0
    if not math.isfinite(number):
        return NOTHING
    second = float(found[3]) * scale if beside else None
    spread, bracketed = (second if beside == name else None for name in ("spread", "bracketed"))
    return Cell(number * scale, note, "", spread, bracketed, is_percent=scale < 1)


def comma_use(texts: Iterable[Any], delimiter: str) -> str:
    """What commas do in the numbers of a column: `groups`, `decimal`, or "" where there are none.

    Beside a semicolon as the delimiter a comma is the decimal point, wherever that can be.
    """
    found = (text for text in texts if isinstance(text, str) and "," in text)
    numbers = (text.translate(PLAIN_SIGNS) for text in found)
    cells = [n.strip().rstrip("%").strip() for n in numbers if WITH_COMMA.fullmatch(n.strip())]
    if not cells:
        return ""
    if delimiter != ";" and all(GROUPED.fullmatch(text) for text in cells):
        return "groups"
    return "decimal" if all(DECIMAL_COMMA.fullmatch(text) for text in cells) else ""
