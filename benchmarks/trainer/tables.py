"""Cells as plain text and as a plot: the figures of each, and samples/s against ranks.

Weak scaling keeps the samples of a rank, strong scaling those of a step. The perfect line is the
rate of the fewest ranks times the factor by which there are more; speedup is against these too.
The plot is an SVG file that opens by itself: no script, no outside address.

A figure that every cell may have is a column in `figure_lines`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from clipmill.bench.report_form import Cell
from clipmill.manifests import disk
from clipmill.manifests.web_page import line_at, number, svg, text_at, ticks
from clipmill.train.config import PRESETS

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


# --- figures of every cell, and scaling -----------------------------------------------------------

GIB = 2**30
RUNS = (
    f"runs/h: runs of {PRESETS['datacomp_small']().samples_seen:,} samples (DataComp small) in an "
    f"hour; micro runs: of {PRESETS['micro']().samples_seen:,} samples; a CPU s: samples for a "
    "second of processor time of all ranks"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSeries:
    """Cells that differ by their ranks alone, the fewest first. The first is measured."""

    name: str
    cells: tuple[Cell, ...]

    def perfect(self, cell: Cell) -> float:
        """Samples/s of as many ranks if every rank were as fast as those of the first cell."""
        first = self.cells[0]
        return rate_of(first) * cell.ranks / first.ranks

    def speedup(self, cell: Cell) -> float:
        """Samples/s as a multiple of the first cell's."""
        return rate_of(cell) / rate_of(self.cells[0])


def rate_of(cell: Cell) -> float:
    """Samples/s of a measured cell."""
    rate = cell.figures["samples_per_s"]
    assert rate is not None
    return rate


def scaling_series(cells: Sequence[Cell]) -> list[ScalingSeries]:
    """The series of weak and strong scaling with two measured cells at least."""
    groups: dict[tuple[str, int, tuple[str, ...]], list[Cell]] = {}
    for cell in cells:
        if cell.measured and cell.scaling:
            size = cell.batch if cell.scaling == "weak" else cell.global_batch
            same = (cell.model, cell.variant, cell.dtype, cell.parallel, cell.data)
            groups.setdefault((cell.scaling, size, same), []).append(cell)
    series = []
    for (scaling, size, names), members in groups.items():
        if len(members) > 1:
            members.sort(key=lambda cell: cell.ranks)
            kind = "a rank" if scaling == "weak" else "a step"
            words = ", ".join(word for word in names if word)
            name = f"{scaling} scaling, {words}, {size} samples {kind}"
            series.append(ScalingSeries(name=name, cells=tuple(members)))
    return series


def scaling_lines(cells: Sequence[Cell]) -> list[str]:
    """A table of every series."""
    text = []
    for series in scaling_series(cells):
        rows = []
        for cell in series.cells:
            speedup = series.speedup(cell)
            factor = cell.ranks / series.cells[0].ranks
            rows.append(
                [
                    str(cell.ranks),
                    str(cell.batch),
                    str(cell.global_batch),
                    short(rate_of(cell), 4),
                    short(series.perfect(cell), 4),
                    f"{speedup:.2f}x",
                    f"{speedup / factor:.1%}",
                ]
            )
        head = ["ranks", "batch", "global batch", "samples/s", "perfect", "speedup", "efficiency"]
        text += ["", series.name, *text_table(head, rows, 0)]
    return text


def figure_lines(cells: Sequence[Cell]) -> list[str]:
    """One row of figures for every cell that is measured; the reason of every other one."""
    if not cells:
        return []
    rates, times = [], []
    for cell in cells:
        name = [cell.model, cell.dtype, cell.parallel, cell.data, str(cell.ranks), _batch(cell)]
        if cell.measured:
            rates.append([*name, *_rates(cell)])
            times.append([*name, *_times(cell)])
    head = ["model", "dtype", "layout", "data", "ranks", "batch"]
    text = []
    if rates:
        text += text_table(
            [
                *head, "samples/s", "SD", "a CPU s", "a rank", "batches/s", "TFLOP/s", "MFU",
                "GiB", "wait", "tokens/s", "runs/h", "micro runs/h",
            ],
            rates,
            4,
        )  # fmt: skip
        text += [RUNS, "", "step time in ms"]
        text += text_table(
            [*head, "mean", "SD", "min", "p50", "p90", "p95", "p99", "max"], times, 4
        )
    text += _power_lines(cells)
    failed = [cell for cell in cells if not cell.measured]
    if failed:
        text += ["", *(f"{cell.state}: {cell.label}: {cell.reason}" for cell in failed)]
    return text


def _batch(cell: Cell) -> str:
    """The batch of a rank, and the global one where the command named that."""
    return str(cell.batch) if cell.scaling != "strong" else f"{cell.global_batch} / {cell.ranks}"


def _rates(cell: Cell) -> list[str]:
    figures = cell.figures
    memory, mfu, wait = (figures.get(f) for f in ("peak_memory_bytes", "mfu", "wait_share"))
    return [
        short(figures.get("samples_per_s"), 4),
        short(figures.get("samples_per_s_sd"), 2),
        short(figures.get("samples_per_cpu_s")),
        short(figures.get("samples_per_s_per_gpu"), 4),
        short(figures.get("global_batches_per_s")),
        short(figures.get("model_tflops")),
        NONE if mfu is None else f"{mfu:.1%}",
        NONE if memory is None else f"{memory / GIB:.2f}",
        NONE if wait is None else f"{wait:.1%}",
        short(figures.get("text_tokens_per_s"), 4),
        short(figures.get("runs_per_hour_datacomp_small")),
        short(figures.get("runs_per_hour_micro")),
    ]


def _times(cell: Cell) -> list[str]:
    names = ("mean", "sd", "min", "p50", "p90", "p95", "p99", "max")
    return [short(cell.figures.get(f"step_ms_{name}"), 4) for name in names]


def _power_lines(cells: Sequence[Cell]) -> list[str]:
    """Utilisation and power, where NVML has answered."""
    text = []
    for cell in cells:
        watts, busy = cell.figures.get("watts"), cell.figures.get("device_utilisation")
        if watts is not None and busy is not None:
            joule = short(cell.figures.get("samples_per_joule"))
            text.append(
                f"{cell.label}: utilisation {busy:.0%}, {watts:,.0f} W, {joule} samples a joule"
            )
    return ["", *text] if text else []


# --- the plot -------------------------------------------------------------------------------------

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
    return str(drawn).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


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
