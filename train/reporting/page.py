"""The report as one HTML page: what the templates in `templates/` ask for. Pure.

Invariants:

* Nothing is asked for outside the page, all is escaped
  (`tests/train/reporting/page/test_page.py`).
* A part without data is absent.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from markupsafe import Markup

from manifests.layout import random_view_name
from manifests.web_page import colour, page_templates
from train.ablation import wording
from train.ablation.conclusions import ScalingTable
from train.evaluation.metrics import METRICS
from train.reporting import charts
from train.reporting.schema import ArmReport, Categories, Histogram, Report
from train.stats.comparison import Comparison

TEMPLATES = Path(__file__).parent / "templates"
OUTLINES = 7  # views in a histogram beside the stored rows; more cannot be told apart
CURVE_POINTS = 60
Shades = dict[str, str]  # the colour of each name of a chart
Drawn = tuple[Markup | str, Shades]  # a chart and the names in it; "" where there is none


def render(report: Report, written: datetime.date | None = None) -> str:
    """The whole page. `written` is the date that it shows."""
    shades = colours_of(report)
    if report.null_web is not None:
        shades = {**colours_of(report.null_web), **shades}
    templates = page_templates(
        TEMPLATES,
        METRICS=METRICS,
        wording=wording,
        arms_forest=arms_forest,
        band_of=band_of,
        divergences=divergences,
        gain_chart=gain_chart,
        histogram_chart=histogram_chart,
        labelled=labelled,
        labelled_shares=labelled_shares,
        level_of=level_of,
        loss_curves=loss_curves,
        metric_head=metric_head,
        scale_of=scale_of,
        scaling_chart=scaling_chart,
        share_kept=share_kept,
        strip=partial(strip, report, score_axis(report)),
        task_forest=task_forest,
    )
    templates.filters["short"] = Markup('<span class="short">{}</span>').format
    templates.filters["times"] = "{} times".format
    date = "" if written is None else f"{written:%Y-%m-%d}"
    page = templates.get_template("report.html")
    return page.render(r=report, shades=shades, written=date)


def colours_of(report: Report) -> Shades:
    """The colour of each arm, the same in every chart."""
    return {arm.arm: colour(index) for index, arm in enumerate(report.arms)}


def band_of(report: Report) -> float:
    """The equivalence band of the primary task; 0: nothing is called equal."""
    return report.primary.range.band if report.primary.range is not None else 0.0


def level_of(report: Report) -> str:
    """The level of the intervals on the primary task: 95 %, higher after earlier looks."""
    return wording.level(1 + len(report.results.earlier_looks))


def scale_of(unit: str) -> float:
    """What a value of a metric is multiplied by in a chart: shares are shown in points."""
    return 100.0 if unit == "share" else 1.0


def metric_head(metric: str, unit: str) -> str:
    """The head of a column of scores."""
    return f"{metric}, %" if unit == "share" else metric


def labelled(rows: Iterable[tuple[str, float]], text: str) -> list[tuple[str, float, str]]:
    """Bars with their values as labels."""
    return [(name, value, text.format(value)) for name, value in rows]


def labelled_shares(steps: Sequence[tuple[str, int]]) -> list[tuple[str, int, str]]:
    """Bars of a funnel with the rows and their share of the first step."""
    first = max(1, steps[0][1]) if steps else 1
    return [(name, rows, f"{rows:,} ({100 * rows / first:.1f} %)") for name, rows in steps]


# --- charts ---------------------------------------------------------------------------------------


def score_axis(report: Report) -> tuple[float, float]:
    """The lowest and the highest score of a run on the primary task."""
    values: list[float] = []
    for arm in report.arms:
        values += arm.metrics[report.ablation.primary].values.values()
    return (min(values), max(values)) if values else (0.0, 1.0)


def strip(report: Report, axis: tuple[float, float], arm: ArmReport) -> Markup:
    """The seeds of an arm, their mean and the mean of the baseline, on one line."""
    task = report.primary
    values = list(arm.metrics[task.task].values.values())
    texts = [wording.percent(value, task.unit) for value in values]
    title = f"{arm.arm}, single seeds: {', '.join(texts) or 'none finished'}"
    shade = colours_of(report)[arm.arm]
    return charts.strip(values, shade, axis, baseline_mean(report), title)


def baseline_mean(report: Report) -> float | None:
    """The mean of the baseline on the primary task."""
    for arm in report.arms:
        if arm.arm == report.baseline:
            return arm.metrics[report.ablation.primary].mean
    return None


def forest_row(
    name: str, d: Comparison, shade: str, dots: Sequence[float] = ()
) -> charts.ForestRow:
    """A row of a forest in the unit that is shown."""
    scale = scale_of(d.unit)
    return charts.ForestRow(
        name=name,
        mean=scale * d.difference,
        low=None if d.low is None else scale * d.low,
        high=None if d.high is None else scale * d.high,
        colour=shade,
        dots=tuple(scale * dot for dot in dots),
    )


def arms_forest(report: Report, title: str) -> Markup | str:
    """The difference of every arm and control on the task that decides; "" without one."""
    task, shades = report.ablation.primary, colours_of(report)
    of_baseline: Mapping[str, float] = {}
    for arm in report.arms:
        if arm.arm == report.baseline:
            of_baseline = arm.metrics[task].values
    rows = []
    for arm in report.arms:
        d = report.difference(arm.arm)
        if d is not None:
            values = arm.metrics[task].values
            dots = [values[seed] - of_baseline[seed] for seed in values if seed in of_baseline]
            rows.append(forest_row(arm.arm, d, shades[arm.arm], dots))
    if not rows:
        return ""
    return charts.forest(rows, scale_of(report.primary.unit) * band_of(report), title)


def task_forest(report: Report, arm: ArmReport, title: str) -> Markup | str:
    """The differences of an arm on all tasks, the losses first; "" without one."""
    shade, tasks = colours_of(report)[arm.arm], report.results.tasks
    bands = {task.range.band for task in tasks.values() if task.range is not None}
    band = bands.pop() if len(bands) == 1 else 0.0  # one grey zone is of all tasks or of none
    rows = []
    for spec in report.ablation.evaluate:
        d = report.difference(arm.arm, spec.name)
        if d is not None and arm.role != "a_a":
            rows.append(forest_row(spec.name, d, shade))
    rows.sort(key=lambda row: row.mean)
    return charts.forest(rows, 100 * band, title) if rows else ""


def share_kept(report: Report, title: str) -> Drawn:
    """Score against the share of the rows that an arm keeps, each with its random control."""
    known = [arm for arm in report.arms if arm.rows and arm.role != "a_a"]
    if len({arm.share for arm in known}) < 2:
        return "", {}
    task, shades, level = report.primary, colours_of(report), baseline_mean(report)
    scale = scale_of(task.unit)
    points: dict[str, charts.Point] = {}
    for arm in known:
        mean, d = arm.metrics[task.task].mean, report.difference(arm.arm)
        if mean is None:
            continue
        low = high = None
        if d is not None and level is not None and d.low is not None and d.high is not None:
            # The seeds of a difference are those of both arms; its mean may differ by a hair.
            low, high = (
                scale * (mean + d.low - d.difference),
                scale * (mean + d.high - d.difference),
            )
        points[arm.arm] = charts.Point(
            name=f"{arm.arm}: {scale * mean:.1f}",
            colour=shades[arm.arm],
            x=100 * arm.share,
            y=scale * mean,
            low=low,
            high=high,
            hollow=arm.role == "random",
        )
    links = []
    for name, point in points.items():
        if random_view_name(name) in points:
            links.append((point, points[random_view_name(name)]))
    svg = charts.scatter(
        list(points.values()),
        "rows kept, % of the stored rows",
        metric_head(task.metric, task.unit),
        title,
        level=None if level is None else scale * level,
        links=links,
    )
    return svg, {arm: shades[arm] for arm in points}


def loss_curves(report: Report) -> Drawn:
    """Training loss: the mean over the seeds of each arm, and their spread."""
    shades = colours_of(report)
    by_arm: dict[str, list[list[tuple[float, float]]]] = {}
    for curve in report.curves:
        points = [(point[0], point[1]) for point in curve.points]
        by_arm.setdefault(curve.arm, []).append(points)
    series = [charts.band_over_seeds(arm, shades[arm], runs) for arm, runs in by_arm.items()]
    title = "Training loss of every arm"
    svg = charts.bands(series, "samples seen", "training loss", title)
    return svg, {arm: shades[arm] for arm in by_arm}


def gain_chart(report: Report, title: str) -> Drawn:
    """Difference to the baseline against the device seconds of a run; none for one arm."""
    scale, shades = scale_of(report.primary.unit), colours_of(report)
    points, names = [], {}
    for arm in report.arms:
        d = report.difference(arm.arm)
        if arm.device_seconds is None or d is None or arm.role != "arm":
            continue
        names[arm.arm] = shades[arm.arm]
        points.append(difference_point(arm.arm, shades[arm.arm], arm.device_seconds, d, scale))
    if len(points) < 2:
        return "", {}
    name = wording.unit_of_difference(report.primary.unit)
    x_name, y_name = "device seconds of a run", f"difference, {name}"
    return charts.scatter(points, x_name, y_name, title, from_zero=True), names


def difference_point(name: str, shade: str, x: float, d: Comparison, scale: float) -> charts.Point:
    """A difference with its interval at some x."""
    return charts.Point(
        name=name,
        colour=shade,
        x=x,
        y=scale * d.difference,
        low=None if d.low is None else scale * d.low,
        high=None if d.high is None else scale * d.high,
    )


def histogram_chart(report: Report, histogram: Histogram, title: str) -> tuple[Markup, Shades, int]:
    """The stored rows and the first views, the colours, and how many more views there are."""
    views = _views_of(report, histogram.counts)
    names = {"stored": "var(--soft)"} | dict(list(views.items())[:OUTLINES])
    counts = {name: histogram.counts[name] for name in names}
    marks = {name: value for name, value in histogram.marks.items() if name in names}
    svg = charts.histogram(histogram.edges, counts, marks, names, title)
    return svg, names, len(histogram.counts) - len(counts)


def _views_of(report: Report, counts: Mapping[str, object]) -> Shades:
    """{view: colour} of the views of a pool, those of arms before those of controls."""
    shades = colours_of(report)
    views: Shades = {}
    for role in ("arm", "baseline", "random", "a_a"):
        for arm in report.arms:
            for part in arm.view.split(" + "):
                name = part.partition("/")[2]
                if arm.role == role and name in counts:
                    views.setdefault(name, shades[arm.arm])
    for number, name in enumerate(counts):
        if name != "stored":
            views.setdefault(name, colour(number))
    return views


def divergences(report: Report) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Columns, and {view: {column: how far its distribution is from that of the stored rows}}."""
    columns: list[Histogram | Categories] = [*report.histograms, *report.categories]
    lines: dict[str, dict[str, str]] = {}
    for one in columns:
        for view, bits in one.divergence.items():
            lines.setdefault(f"{one.pool}/{view}", {})[one.column] = f"{bits:.3f}"
    return list(dict.fromkeys(one.column for one in columns if one.divergence)), lines


def scaling_chart(table: ScalingTable, title: str) -> Drawn:
    """The fitted curves to the predicted size, and the measured points, in %."""
    shades = {name: colour(index) for index, name in enumerate(table.curves)}
    lines, points = [], []
    for ahead in table.predictions:
        name, law, measured = ahead.arm, table.curves[ahead.arm], table.points[ahead.arm]
        sizes = np.geomspace(min(n for n, _ in measured), ahead.n, CURVE_POINTS).tolist()
        drawn = tuple((n, 100 * float(law.at(n))) for n in sizes)
        lines.append(charts.Line(name=name, colour=shades[name], points=drawn))
        for n, error in measured:
            text = f"{name}, {n:,.0f} samples: {100 * error:.1f} %"
            points.append(charts.Point(name=text, colour=shades[name], x=n, y=100 * error))
    axes = ("samples seen (logarithmic)", "error, %")
    return charts.scatter(points, *axes, title, level=None, lines=lines, log_x=True), shades
