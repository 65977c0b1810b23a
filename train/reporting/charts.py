"""Small charts as SVG text: numbers in, one <svg> out. No script, no font, no outside address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, isfinite, log10

from train.ablation import wording

COLOURS = ("#5b6470", "#2f6fb7", "#c8561b", "#1f8a5b", "#8a5bb5", "#b8881a", "#b33c6a", "#3a8f9c")


def colour(index: int) -> str:
    """The colour of the arm with that index: the same in every chart of a page."""
    return COLOURS[index % len(COLOURS)]


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
    return text.replace("-", wording.MINUS)


def _svg(width: int, height: int, body: Sequence[str], title: str, kind: str = "wide") -> str:
    size = f'class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = escape(title)
    head = f'<svg {size} role="img" aria-label="{label}"><title>{label}</title>'
    return f"{head}{''.join(body)}</svg>"


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestRow:
    """A difference in points with its interval (None: there is none), and one dot per seed."""

    name: str
    mean: float
    low: float | None
    high: float | None
    colour: str
    dots: tuple[float, ...] = ()


def forest(rows: Sequence[ForestRow], band: float, title: str) -> str:
    """Differences with their intervals and single seeds, in points. `band` is drawn around 0."""
    width, left, right, step = 560, 170, 20, 30
    values = [-band * 2, band * 2]
    for row in rows:
        values += [row.mean, *row.dots]
        values += [end for end in (row.low, row.high) if end is not None]
    pad = (max(values) - min(values)) * 0.05
    low, high = min(values) - pad, max(values) + pad

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (width - left - right)

    bottom = 12 + step * len(rows)
    zone = f'x="{x(-band):.1f}" y="6" width="{x(band) - x(-band):.1f}" height="{bottom - 6}"'
    body = [f'<rect {zone} class="band"/>']
    for tick in ticks(low, high, 6):
        label = f"{tick:+g}".replace("-", wording.MINUS) if tick else "0"
        body.append(_line(x(tick), 6, x(tick), bottom))
        body.append(_text(x(tick), bottom + 16, label, "middle"))
    body.append(_line(x(0), 4, x(0), bottom, "axis"))
    for index, row in enumerate(rows):
        y = 26 + step * index
        body.append(_text(left - 10, y + 4, row.name, "end", "name"))
        if row.low is not None and row.high is not None:
            ends = f'x1="{x(row.low):.1f}" y1="{y}" x2="{x(row.high):.1f}" y2="{y}"'
            body.append(f'<line {ends} stroke="{row.colour}" class="whisker"/>')
        body.append(f'<circle cx="{x(row.mean):.1f}" cy="{y}" r="5" fill="{row.colour}"/>')
        for dot in row.dots:
            centre = f'cx="{x(dot):.1f}" cy="{y - 9}"'
            body.append(f'<circle {centre} r="3" stroke="{row.colour}" class="seed"/>')
    # It fits a phone: the other charts scroll sideways there.
    return _svg(width, 12 + step * len(rows) + 26, body, title, "fit")


def _finite(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [point for point in curve if all(map(isfinite, point))]


def lines(
    series: Sequence[tuple[str, str, Sequence[tuple[float, float]]]],
    x_name: str,
    y_name: str,
    title: str,
) -> str:
    """Curves over one pair of axes. series: (name, colour, points)."""
    width, height, left, right, top, bottom = 720, 300, 56, 16, 12, 40
    curves = [(name, shade, _finite(curve)) for name, shade, curve in series]
    points: list[tuple[float, float]] = []
    for _, _, curve in curves:
        points += curve
    if not points:
        return _svg(width, 40, [_text(12, 24, "no points were logged")], title)
    x0, x1 = min(p[0] for p in points), max(p[0] for p in points)
    y0, y1 = min(p[1] for p in points), max(p[1] for p in points)
    x1, y1 = x1 if x1 > x0 else x0 + 1, y1 if y1 > y0 else y0 + 1

    def pixel(point: tuple[float, float]) -> tuple[float, float]:
        return (
            left + (point[0] - x0) / (x1 - x0) * (width - left - right),
            height - bottom - (point[1] - y0) / (y1 - y0) * (height - top - bottom),
        )

    body = []
    for tick in ticks(y0, y1):
        y = pixel((x0, tick))[1]
        body += [_line(left, y, width - right, y), _text(left - 8, y + 4, number(tick), "end")]
    for tick in ticks(x0, x1, 7):
        body.append(_text(pixel((tick, y0))[0], height - bottom + 18, number(tick), "middle"))
    body.append(_line(left, height - bottom, width - right, height - bottom, "axis"))
    body += [
        _text((left + width) / 2, height - 4, x_name, "middle"),
        _text(width - right, top + 2, y_name, "end"),
    ]
    for name, shade, curve in curves:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(pixel, curve))
        line = f'<polyline points="{path}" stroke="{shade}" class="curve">'
        body.append(f"{line}<title>{escape(name)}</title></polyline>")
    return _svg(width, height, body, title)


def histogram(
    edges: Sequence[float],
    counts: Mapping[str, Sequence[int]],
    marks: Mapping[str, float],
    shades: Mapping[str, str],
    title: str,
) -> str:
    """Counts per bin as steps, one outline per name. `marks` are labelled vertical lines."""
    width, height, left, right, top, bottom = 720, 240, 56, 16, 26, 30
    top_count = max([1, *map(max, counts.values())])
    x0, x1 = edges[0], edges[-1]

    def x(value: float) -> float:
        return left + (value - x0) / ((x1 - x0) or 1) * (width - left - right)

    def y(count: float) -> float:
        return height - bottom - count / top_count * (height - top - bottom)

    body = []
    for tick in ticks(0, top_count, 4):
        body += [
            _line(left, y(tick), width - right, y(tick)),
            _text(left - 8, y(tick) + 4, number(tick), "end"),
        ]
    for tick in ticks(x0, x1, 8):
        body.append(_text(x(tick), height - bottom + 18, number(tick), "middle"))
    for i, (name, row) in enumerate(counts.items()):
        points = [f"{x(x0):.1f},{y(0):.1f}"]
        for j, count in enumerate(row):
            points += [f"{x(edges[j]):.1f},{y(count):.1f}", f"{x(edges[j + 1]):.1f},{y(count):.1f}"]
        points.append(f"{x(x1):.1f},{y(0):.1f}")
        shade = shades.get(name, colour(i))
        body.append(
            f'<polygon points="{" ".join(points)}" fill="{shade}" stroke="{shade}" '
            f'class="steps"><title>{escape(name)}</title></polygon>'
        )
    for name, value in marks.items():
        if x0 <= value <= x1:
            body += [
                _line(x(value), top - 6, x(value), height - bottom, "mark"),
                _text(x(value), top - 10, name, "middle"),
            ]
    return _svg(width, height, body, title)


def bars(rows: Sequence[tuple[str, float, str]], title: str, shade: str = COLOURS[1]) -> str:
    """Horizontal bars from 0. rows: (name, value, label)."""
    width, left, right, step = 720, 190, 150, 24
    most = max([value for _, value, _ in rows] or [1]) or 1
    body = []
    for i, (name, value, label) in enumerate(rows):
        y = 6 + step * i
        length = max(1.0, value / most * (width - left - right)) if value else 0.0
        body.append(_text(left - 10, y + 14, name, "end", "name"))
        box = f'x="{left}" y="{y + 2}" width="{length:.1f}" height="{step - 8}"'
        body.append(f'<rect {box} rx="2" fill="{shade}"/>')
        body.append(_text(left + length + 8, y + 14, label))
    return _svg(width, 12 + step * len(rows), body, title)
