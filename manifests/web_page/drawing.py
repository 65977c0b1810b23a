"""Drawing as SVG text: numbers in, one <svg> out. No script, no font, no outside address."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, isfinite, log10

COLOURS = 12  # --c0 to --c11 of the style sheet, which differ in the dark
MINUS = "\u2212"


def colour(index: int) -> str:
    """The colour of the arm with that index: the same in every chart of a page."""
    return f"var(--c{index % COLOURS})"


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about `about` of them."""
    span = high - low
    if not isfinite(span) or span <= 0:
        return [low]
    step = 10 ** floor(log10(span / about))
    step *= min((m for m in (1, 2, 5, 10) if span / (step * m) <= about), default=10)
    first = -floor(-low / step + 1e-9)
    return [round((first + i) * step, 12) for i in range(floor(high / step + 1e-9) - first + 1)]


def number(value: float) -> str:
    """An axis label: 12.8k, 0.25, 3."""
    text = f"{value:g}"
    if abs(value) >= 1e6:
        text = f"{value / 1e6:g}M"
    elif abs(value) >= 1e4:
        text = f"{value / 1e3:g}k"
    return text.replace("-", MINUS)


def svg(width: int, height: int, body: Sequence[str], title: str, kind: str = "wide") -> str:
    size = f'class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = escape(title)
    head = f'<svg {size} role="img" aria-label="{label}"><title>{label}</title>'
    return f"{head}{''.join(body)}</svg>"


def text_at(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
    )


def line_at(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def bars(rows: Sequence[tuple[str, float, str]], title: str, shade: str = colour(1)) -> str:
    """Horizontal bars from 0. rows: (name, value, label)."""
    width, left, right, step = 720, 190, 150, 24
    most = max([value for _, value, _ in rows] or [1]) or 1
    body = []
    for i, (name, value, label) in enumerate(rows):
        y = 6 + step * i
        length = max(1.0, value / most * (width - left - right)) if value else 0.0
        body.append(text_at(left - 10, y + 14, name, "end", "name"))
        box = f'x="{left}" y="{y + 2}" width="{length:.1f}" height="{step - 8}"'
        body.append(f'<rect {box} rx="2" fill="{shade}"/>')
        body.append(text_at(left + length + 8, y + 14, label))
    return svg(width, 12 + step * len(rows), body, title)
