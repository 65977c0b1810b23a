"""Sections about metrics and scales: which metric tells arms apart, error against samples seen."""

from __future__ import annotations

from html import escape

import numpy as np

from manifests.web_page import chart, colour, legend, note, table
from train.ablation import wording
from train.reporting.page import charts
from train.reporting.schema import Report, Scaling, ScalingCurve, SignalRow

CURVE_POINTS = 60


def signal_tables(report: Report) -> str:
    """The metrics of every task, most signal first, the deciding one in bold."""
    parts = []
    for task in dict.fromkeys(row.task for row in report.signals):
        rows = [row for row in report.signals if row.task == task]
        caption = f"Metrics of {task} over {rows[0].arms} arms and {rows[0].seeds} seeds"
        cells = [_signal_cells(row) for row in rows]
        head = ["metric", "spread", "noise", "spread / noise [95 %]"]
        head += ["best arm", "two seeds alike, %", "halves alike, %"]
        parts.append(table(head, cells, (1, 2, 3, 5, 6), caption))
    if not parts:
        return ""
    text = (
        "Spread: the largest difference between two arms. Noise: the standard deviation of one run "
        "after what its seed adds to all arms. The larger their ratio, the fewer seeds decide. The "
        "last columns: how often two seeds, or two halves of the seeds, order two arms alike; "
        "50 % is chance. The metric that decides is in bold; it was fixed before the runs."
    )
    return "".join(parts) + note(text)


def _signal_cells(row: SignalRow) -> list[str]:
    name = f"<b>{escape(row.metric)}</b>" if row.deciding else escape(row.metric)
    ratio = wording.DASH
    if row.ratio is not None:
        value, low, high = row.ratio
        ratio = f"{value:.1f} [{low:.1f}, {high:.1f}]"
    return [
        name,
        wording.percent(row.spread, row.unit),
        wording.percent(row.noise, row.unit),
        ratio,
        escape(row.best),
        f"{100 * row.single_agreement:.0f}",
        f"{100 * row.half_agreement:.0f}",
    ]


def scaling(report: Report) -> str:
    """Error against samples seen: points, fitted curves, crossings and predictions."""
    return "".join(_scaling(one) for one in report.scaling)


def _scaling(one: Scaling) -> str:
    shades = {curve.name: colour(index) for index, curve in enumerate(one.curves)}
    lines, points = [], []
    for curve in one.curves:
        lines.append(charts.Line(name=curve.name, colour=shades[curve.name], points=_drawn(curve)))
        for n, error in curve.points:
            name = f"{curve.name}, {n:,.0f} samples: {100 * error:.1f} %"
            point = charts.Point(name=name, colour=shades[curve.name], x=n, y=100 * error)
            points.append(point)
    title = f"Error on {one.task} (1 {wording.MINUS} {one.metric}) against samples seen"
    svg = charts.log_curves(lines, points, "samples seen (logarithmic)", "error, %", title)
    rows = []
    for curve in one.curves:
        n, error, low, high = curve.predicted
        interval = f"{100 * error:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        cells = [escape(curve.name), f"{curve.exponent:.3f}", f"{100 * curve.floor:.1f}"]
        rows.append([*cells, f"{n:,.0f}", interval])
    head = ["data", "exponent", "floor, %", "at samples seen", "predicted error, % [95 %]"]
    numbers = table(
        head,
        rows,
        (1, 2, 3, 4),
        "Fitted: error = floor + scale / samples to the power of the exponent",
    )
    sentences = "".join(f"<p>{escape(line)}.</p>" for line in one.crossings)
    warnings = "".join(note(line) for line in one.warnings)
    heading = f"<h3>{escape(title)}</h3>"
    return heading + legend(shades) + chart(svg, title) + sentences + numbers + warnings


def _drawn(curve: ScalingCurve) -> tuple[tuple[float, float], ...]:
    """The curve from its smallest size to the predicted one, in %."""
    sizes = [n for n, _ in curve.points]
    drawn = []
    for n in np.geomspace(min(sizes), curve.predicted[0], CURVE_POINTS).tolist():
        error = curve.floor + curve.scale * (n / curve.unit) ** -curve.exponent
        drawn.append((n, 100 * error))
    return tuple(drawn)
