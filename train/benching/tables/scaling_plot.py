"""The scaling of a report as an SVG file that opens by itself: no script, no outside address."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from html import escape

from manifests import disk
from manifests.web_page import line_at, number, svg, text_at, ticks
from train.benching.report import Cell
from train.benching.tables.scaling import ScalingSeries, rate_of, scaling_series

WIDTH, LEFT, RIGHT, TOP, BOTTOM, HEIGHT = 720, 64, 20, 28, 44, 340
TITLE = "samples/s against ranks"
KEY = 18  # height of a line of the key
COLOURS = ("#2a6fbb", "#c4622d", "#3c8f5a", "#8a5bb0", "#a8323e", "#6b6f76")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}"
    ".grid{stroke:#ddd}.axis{stroke:#666}.perfect{stroke-dasharray:5 4;fill:none}"
    ".curve{fill:none;stroke-width:2}"
)


def check_plot(path: str) -> None:
    """ValueError for a path where no plot can be written."""
    disk.output_folder(os.path.dirname(path) or ".", "--plot")
    if not path.endswith(".svg"):
        raise ValueError(f"--plot is {path!r}; it is an SVG file, so its name must end in .svg")
    disk.check_replaceable(path, TITLE.encode(), "--plot")


def write_plot(path: str, cells: Sequence[Cell]) -> None:
    """Write the plot. ValueError where no two cells differ by their ranks alone."""
    disk.write_bytes(path, scaling_svg(cells).encode())


def scaling_svg(cells: Sequence[Cell]) -> str:
    """Samples/s against ranks, both axes logarithmic, with a dashed perfect line for each series.

    ValueError where no two measured cells differ by their ranks alone.
    """
    series = scaling_series(cells)
    if not series:
        raise ValueError(
            "--plot draws samples/s against ranks, and no two cells that are measured differ by "
            "their ranks alone; give several, as in -n 1,2,4"
        )
    xs, ys = [], []
    for one in series:
        for cell in one.cells:
            xs.append(math.log2(cell.ranks))
            ys += [math.log2(rate_of(cell)), math.log2(one.perfect(cell))]
    x_range, y_range = (min(xs), max(xs)), (min(ys) - 0.1, max(ys) + 0.1)
    body = [f"<style>{STYLE}</style>", *_frame(x_range, y_range, sorted(set(xs)))]
    for place, one in enumerate(series):
        body += _series(one, COLOURS[place % len(COLOURS)], x_range, y_range)
        y = HEIGHT + 14 + KEY * place
        shade = COLOURS[place % len(COLOURS)]
        body.append(f'<rect x="{LEFT}" y="{y - 9}" width="11" height="11" fill="{shade}"/>')
        body.append(text_at(LEFT + 18, y, one.name))
    height = HEIGHT + KEY * (len(series) + 1)
    body.append(text_at(LEFT + 18, height - 4, "dashed: the perfect line"))
    drawn = svg(WIDTH, height, body, TITLE)
    return drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def _x(value: float, x_range: tuple[float, float]) -> float:
    low, high = x_range
    return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)


def _y(value: float, y_range: tuple[float, float]) -> float:
    low, high = y_range
    return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def _frame(
    x_range: tuple[float, float], y_range: tuple[float, float], ranks: Sequence[float]
) -> list[str]:
    """Grid, numbers and names of the axes; the numbers of ranks are those that were measured."""
    body = []
    for tick in ticks(*y_range):
        y = _y(tick, y_range)
        body.append(line_at(LEFT, y, WIDTH - RIGHT, y))
        body.append(text_at(LEFT - 8, y + 4, number(float(f"{2**tick:.3g}")), "end"))
    base = HEIGHT - BOTTOM
    for tick in ranks:
        body.append(text_at(_x(tick, x_range), base + 18, str(round(2**tick)), "middle"))
    body.append(line_at(LEFT, base, WIDTH - RIGHT, base, "axis"))
    body.append(text_at((LEFT + WIDTH) / 2, HEIGHT - 8, "ranks", "middle"))
    body.append(text_at(LEFT, 14, "samples/s"))
    return body


def _series(
    series: ScalingSeries, shade: str, x_range: tuple[float, float], y_range: tuple[float, float]
) -> list[str]:
    measured, perfect, dots = [], [], []
    for cell in series.cells:
        x = _x(math.log2(cell.ranks), x_range)
        y = _y(math.log2(rate_of(cell)), y_range)
        measured.append(f"{x:.1f},{y:.1f}")
        perfect.append(f"{x:.1f},{_y(math.log2(series.perfect(cell)), y_range):.1f}")
        label = f"{cell.ranks} ranks: {rate_of(cell):,.1f} samples/s"
        dots.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{shade}">'
            f"<title>{escape(label)}</title></circle>"
        )
    return [
        f'<polyline points="{" ".join(perfect)}" stroke="{shade}" class="perfect"/>',
        f'<polyline points="{" ".join(measured)}" stroke="{shade}" class="curve"/>',
        *dots,
    ]
