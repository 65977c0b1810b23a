"""Small charts as SVG text: numbers in, one <svg> out. No script, no font, no outside address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import fsum, isfinite

from markupsafe import Markup

from clipmill.manifests.text import printable
from clipmill.manifests.web_page import colour, line_at, number, svg, text_at, ticks
from clipmill.verdict import wording

LETTER = 6.6  # width of a letter of a label, for labels that must not overlap
ROW, EDGE = (320, 34), 22  # size of a picture in a row of a table, and the room left and right


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestRow:
    """A difference with its interval (None: there is none), and one dot per seed."""

    mean: float
    low: float | None
    high: float | None
    colour: str
    dots: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """One axis of differences for the rows of a table: a picture in its head and one in each row.

    So names are text of the table, which wraps, and no two labels can overlap. `band` is drawn
    around 0.
    """

    low: float
    high: float
    band: float

    def part(self, value: float) -> float:
        """Where a value lies on the axis, from 0 to 1; an end without bound is at the edge."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def x(self, value: float) -> float:
        return EDGE + self.part(value) * (ROW[0] - 2 * EDGE)

    def head(self, title: str) -> Markup:
        """The numbers of the axis."""
        body = []
        for tick in ticks(self.low, self.high, 6):
            body.append(text_at(self.x(tick), 16, signed(tick), "middle"))
        return svg(ROW[0], 20, body, printable(title), "row")

    def row(self, row: ForestRow | None) -> Markup:
        """The line of a row, whose numbers are in the other cells; without one the grid alone."""
        (width, height), x, body = ROW, self.x, []
        if self.band > 0:
            zone = f'x="{x(-self.band):.1f}" width="{x(self.band) - x(-self.band):.1f}"'
            body.append(f'<rect {zone} height="{height}" class="zone"/>')
        grid = "".join(f"M{x(tick):.1f} 0v{height}" for tick in ticks(self.low, self.high, 6))
        body.append(
            f'<path d="{grid}" class="grid"/><path d="M{x(0):.1f} 0v{height}" class="axis"/>'
        )
        if row is not None:
            y = height - 11 if row.dots else height // 2
            body.append(f'<g stroke="{row.colour}" fill="{row.colour}">')
            if row.low is not None and row.high is not None:
                end = x(row.high)
                body.append(f'<path d="M{x(row.low):.1f} {y}H{end:.1f}" class="whisker"/>')
            body.append(f'<circle cx="{x(row.mean):.1f}" cy="{y}" r="4.5"/><g class="seed">')
            body += [f'<circle cx="{x(dot):.1f}" cy="{y - 13}" r="3"/>' for dot in row.dots]
            body.append("</g></g>")
        kind = "row" if row is not None else "row empty"
        box = f'viewBox="0 0 {width} {height}" class="{kind}" aria-hidden="true"'
        return Markup(f"<svg {box}>{''.join(body)}</svg>")


def signed(tick: float) -> str:
    """The label of a difference on an axis: +0.5, 0, +2e-05."""
    text = f"{tick:+g}" if tick else "0"
    return wording.MINUS + text[1:] if text.startswith("-") else text


def forest(rows: Sequence[ForestRow], band: float) -> Forest:
    """The axis of all rows, 0 and the band."""
    values = [-band * 2, band * 2]
    for row in rows:
        values += [row.mean, *row.dots]
        values += [end for end in (row.low, row.high) if end is not None]
    values = [value for value in values if isfinite(value)]
    pad = (max(values) - min(values)) * 0.05 or 1.0  # all are 0 where nothing varies
    return Forest(low=min(values) - pad, high=max(values) + pad, band=band)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A mean with the lowest and the highest value over seeds: (x, mean, low, high) per point."""

    name: str
    colour: str
    points: tuple[tuple[float, float, float, float], ...]


def band_over_seeds(name: str, shade: str, curves: Sequence[Sequence[tuple[float, float]]]) -> Band:
    """The band of one curve per seed, at the x that all curves have; other points are left out."""
    values: dict[float, list[float]] = {}
    for curve in curves:
        for x, y in curve:
            if isfinite(x) and isfinite(y):
                values.setdefault(x, []).append(y)
    points = []
    for x in sorted(values):
        ys = values[x]
        if len(ys) == len(curves):
            points.append((x, fsum(ys) / len(ys), min(ys), max(ys)))
    return Band(name=name, colour=shade, points=tuple(points))


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """A pair of axes in a picture of fixed size; `x` and `y` give pixels."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    width: int = 720
    height: int = 300
    left: int = 56
    right: int = 16
    top: int = 22
    bottom: int = 40

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        low, high = self.y_range
        span = self.height - self.top - self.bottom
        return self.height - self.bottom - (value - low) / (high - low) * span

    def frame(self, x_name: str, y_name: str) -> list[str]:
        """Grid, numbers and names."""
        body = []
        for tick in ticks(*self.y_range):
            y = self.y(tick)
            body.append(line_at(self.left, y, self.width - self.right, y))
            body.append(text_at(self.left - 8, y + 4, number(tick), "end"))
        base = self.height - self.bottom
        for tick in ticks(*self.x_range, 7):
            body.append(text_at(self.x(tick), base + 18, number(tick), "middle"))
        body.append(line_at(self.left, base, self.width - self.right, base, "axis"))
        body.append(text_at((self.left + self.width) / 2, self.height - 4, x_name, "middle"))
        body.append(text_at(self.left, 12, y_name))
        return body


def _range(values: Sequence[float], pad: float = 0.0) -> tuple[float, float]:
    """From the lowest to the highest value; never empty."""
    low, high = min(values), max(values)
    if high <= low:
        return low - 0.5, high + 0.5
    return low - pad * (high - low), high + pad * (high - low)


def bands(series: Sequence[Band], x_name: str, y_name: str, title: str) -> Markup:
    """Means as lines and the spread of the seeds as bands, over one pair of axes."""
    xs: list[float] = []
    ys: list[float] = []
    for band in series:
        for x, _, low, high in band.points:
            xs.append(x)
            ys += [low, high]
    if not xs:
        return svg(720, 40, [text_at(12, 24, "no points were logged")], title)
    axes = Axes(x_range=_range(xs), y_range=_range(ys))
    body = axes.frame(x_name, y_name)
    for band in series:
        mean, low_edge, high_edge = [], [], []
        for x, middle, low, high in band.points:
            mean.append(f"{axes.x(x):.1f},{axes.y(middle):.1f}")
            low_edge.append(f"{axes.x(x):.1f},{axes.y(low):.1f}")
            high_edge.append(f"{axes.x(x):.1f},{axes.y(high):.1f}")
        outline = " ".join([*high_edge, *reversed(low_edge)])
        body.append(f'<polygon points="{outline}" fill="{band.colour}" class="spread"/>')
        name = f"<title>{escape(band.name)}</title>"
        line = f'points="{" ".join(mean)}" stroke="{band.colour}" class="curve"'
        body.append(f"<polyline {line}>{name}</polyline>")
    return svg(axes.width, axes.height, body, title)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of a scatter, with a vertical interval where there is one."""

    name: str
    colour: str
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    hollow: bool = False


def scatter(
    points: Sequence[Point],
    x_name: str,
    y_name: str,
    title: str,
    *,
    level: float | None = 0.0,
    links: Sequence[tuple[Point, Point]] = (),
    from_zero: bool = False,
) -> Markup:
    """Points with their intervals.

    level: a value of y that the axis contains, with a line there. links: pairs of points that a
    thin line joins. from_zero: the x axis begins at 0.
    """
    ys = [] if level is None else [level]
    for point in points:
        ys += [end for end in (point.y, point.low, point.high) if end is not None]
    xs = [point.x for point in points]
    low, high = _range([*xs, 0.0] if from_zero else xs, 0.08)
    x_range = (0.0 if from_zero else low, high)
    axes = Axes(x_range=x_range, y_range=_range(ys, 0.08))
    body = axes.frame(x_name, y_name)
    if level is not None:
        y = axes.y(level)
        body.append(line_at(axes.left, y, axes.width - axes.right, y, "reference"))
    for one, other in links:
        body.append(line_at(axes.x(one.x), axes.y(one.y), axes.x(other.x), axes.y(other.y), "link"))
    for point in points:
        x, y = axes.x(point.x), axes.y(point.y)
        title_of = f"<title>{escape(point.name)}</title>"
        if point.low is not None and point.high is not None:
            ends = f'y1="{axes.y(point.low):.1f}" y2="{axes.y(point.high):.1f}"'
            body.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" {ends} stroke="{point.colour}" class="whisker"/>'
            )
        fill = "var(--paper)" if point.hollow else point.colour
        body.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{fill}" stroke="{point.colour}" '
            f'stroke-width="2">{title_of}</circle>'
        )
    return svg(axes.width, axes.height, body, title)


def histogram(
    edges: Sequence[float],
    counts: Mapping[str, Sequence[int]],
    marks: Mapping[str, float],
    shades: Mapping[str, str],
    title: str,
) -> Markup:
    """Counts per bin as steps, one outline per name. `marks` are labelled vertical lines."""
    inside = {name: value for name, value in marks.items() if edges[0] <= value <= edges[-1]}
    top, x0, x1 = 12 + 14 * max(1, len(inside)), edges[0], edges[-1]
    y_range = (0, max([1, *map(max, counts.values())]))
    axes = Axes(x_range=(x0, x1), y_range=y_range, height=214 + top, top=top, bottom=30)
    x, y = axes.x, axes.y
    body = axes.frame("", "")
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
    # One line of text per label, so that labels of near thresholds do not overlap.
    for line, (name, value) in enumerate(inside.items()):
        above = 12 + 14 * line
        body.append(line_at(x(value), above + 3, x(value), y(0), "mark"))
        half = LETTER * len(name) / 2
        centre = min(max(x(value), axes.left + half), axes.width - axes.right - half)
        body.append(text_at(centre, above, name, "middle"))
    return svg(axes.width, axes.height, body, title)
