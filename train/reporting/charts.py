"""Small charts as SVG text: numbers in, one <svg> out. No script, no font, no outside address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, isfinite, log10

from markupsafe import Markup

from manifests.web_page import colour, line_at, number, svg, text_at, ticks
from train.ablation import wording

LETTER = 6.6  # width of a letter of a label, for labels that must not overlap
WIDE_LETTER = 9.0  # the same on a phone, where the letters of a forest are larger


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestRow:
    """A difference with its interval (None: there is none), and one dot per seed."""

    name: str
    mean: float
    low: float | None
    high: float | None
    colour: str
    dots: tuple[float, ...] = ()


def forest(rows: Sequence[ForestRow], band: float, title: str) -> Markup:
    """Differences with their intervals and single seeds. `band` is drawn around 0."""
    width, right, step = 560, 20, 30
    left = min(300, max(90, 20 + WIDE_LETTER * max([len(row.name) for row in rows] or [0])))
    values = [-band * 2, band * 2]
    for row in rows:
        values += [row.mean, *row.dots]
        values += [end for end in (row.low, row.high) if end is not None]
    pad = (max(values) - min(values)) * 0.05 or 1.0  # all are 0 where nothing varies
    low, high = min(values) - pad, max(values) + pad

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (width - left - right)

    bottom = 12 + step * len(rows)
    zone = f'x="{x(-band):.1f}" y="6" width="{x(band) - x(-band):.1f}" height="{bottom - 6}"'
    body = [f'<rect {zone} class="zone"/>']
    for tick in ticks(low, high, 6):
        label = f"{tick:+g}".replace("-", wording.MINUS) if tick else "0"
        body.append(line_at(x(tick), 6, x(tick), bottom))
        body.append(text_at(x(tick), bottom + 16, label, "middle"))
    body.append(line_at(x(0), 4, x(0), bottom, "axis"))
    for index, row in enumerate(rows):
        y = 26 + step * index
        body.append(text_at(left - 10, y + 4, row.name, "end", "name"))
        if row.low is not None and row.high is not None:
            ends = f'x1="{x(row.low):.1f}" y1="{y}" x2="{x(row.high):.1f}" y2="{y}"'
            body.append(f'<line {ends} stroke="{row.colour}" class="whisker"/>')
        body.append(f'<circle cx="{x(row.mean):.1f}" cy="{y}" r="5" fill="{row.colour}"/>')
        for dot in row.dots:
            centre = f'cx="{x(dot):.1f}" cy="{y - 9}"'
            body.append(f'<circle {centre} r="3" stroke="{row.colour}" class="seed"/>')
    # It fits a phone: the other charts scroll sideways there.
    return svg(width, 12 + step * len(rows) + 26, body, title, "fit")


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
            points.append((x, sum(ys) / len(ys), min(ys), max(ys)))
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
    log_x: bool = False  # x_range is that of the decimal logarithms

    def x(self, value: float) -> float:
        low, high = self.x_range
        value = log10(value) if self.log_x else value
        return self.left + (value - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        low, high = self.y_range
        span = self.height - self.top - self.bottom
        return self.height - self.bottom - (value - low) / (high - low) * span

    def x_ticks(self) -> list[float]:
        """The numbers below the x axis: of a logarithmic one 1, 2, 5, 10, 20, …"""
        low, high = self.x_range
        if not self.log_x:
            return ticks(low, high, 7)
        powers = range(floor(low), floor(high) + 1)
        numbers = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        return [value for value in numbers if low <= log10(value) <= high]

    def frame(self, x_name: str, y_name: str) -> list[str]:
        """Grid, numbers and names."""
        body = []
        for tick in ticks(*self.y_range):
            y = self.y(tick)
            body.append(line_at(self.left, y, self.width - self.right, y))
            body.append(text_at(self.left - 8, y + 4, number(tick), "end"))
        base = self.height - self.bottom
        for tick in self.x_ticks():
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
        body.append(_curve(" ".join(mean), band.colour, band.name))
    return svg(axes.width, axes.height, body, title)


def _curve(path: str, shade: str, name: str) -> str:
    title = f"<title>{escape(name)}</title>"
    return f'<polyline points="{path}" stroke="{shade}" class="curve">{title}</polyline>'


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line through points (x, y)."""

    name: str
    colour: str
    points: tuple[tuple[float, float], ...]


def scatter(
    points: Sequence[Point],
    x_name: str,
    y_name: str,
    title: str,
    *,
    level: float | None = 0.0,
    links: Sequence[tuple[Point, Point]] = (),
    lines: Sequence[Line] = (),
    from_zero: bool = False,
    log_x: bool = False,
) -> Markup:
    """Points with their intervals, and lines.

    level: a value of y that the axis contains, with a line there. links: pairs of points that a
    thin line joins. from_zero: the x axis begins at 0. log_x: it is logarithmic; x is above 0.
    """
    ys = [] if level is None else [level]
    for point in points:
        ys += [end for end in (point.y, point.low, point.high) if end is not None]
    xs = [point.x for point in points]
    for line in lines:
        xs += [x for x, _ in line.points]
        ys += [y for _, y in line.points]
    if log_x:
        xs = [log10(x) for x in xs]
    low, high = _range([*xs, 0.0] if from_zero else xs, 0.08)
    x_range = (0.0 if from_zero else low, high)
    axes = Axes(x_range=x_range, y_range=_range(ys, 0.08), log_x=log_x)
    body = axes.frame(x_name, y_name)
    for line in lines:
        path = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in line.points)
        body.append(_curve(path, line.colour, line.name))
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


def strip(
    values: Sequence[float],
    shade: str,
    axis: tuple[float, float],
    reference: float | None,
    title: str,
) -> Markup:
    """One line: a dot per seed, their mean as a bar, the baseline's mean as a dashed line."""
    width, height, pad = 210, 24, 8
    low, high = axis if axis[1] > axis[0] else (axis[0] - 0.5, axis[0] + 0.5)

    def x(value: float) -> float:
        return pad + (value - low) / (high - low) * (width - 2 * pad)

    middle = height / 2
    body = [line_at(pad, middle, width - pad, middle)]
    if reference is not None:
        body.append(line_at(x(reference), 1, x(reference), height - 1, "reference"))
    for value in values:
        circle = f'cx="{x(value):.1f}" cy="{middle}" r="4.5" stroke="{shade}"'
        body.append(f'<circle {circle} class="seed"/>')
    if values:
        mean = x(sum(values) / len(values))
        body.append(
            f'<line x1="{mean:.1f}" y1="4" x2="{mean:.1f}" y2="{height - 4}" stroke="{shade}" '
            'class="mean-mark"/>'
        )
    return svg(width, height, body, title, "strip")


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
