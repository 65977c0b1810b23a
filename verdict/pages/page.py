"""The report as one HTML page: what the templates in `templates/` ask for. Pure.

Invariants:

* Nothing is asked for outside the page, all is escaped
  (`tests/study/reporting/page/test_page.py`).
* A part without data is absent.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from clipmill.manifests.layout import random_view_name
from clipmill.manifests.metrics import METRICS
from clipmill.manifests.schema import Role
from clipmill.manifests.web_page import colour, page_templates
from clipmill.verdict import wording
from clipmill.verdict.conclusions import MORE_SEEDS
from clipmill.verdict.pages import charts
from clipmill.verdict.pages.schema import ArmReport, Categories, Histogram, Report
from clipmill.verdict.stats.comparison import Comparison

TEMPLATES = Path(__file__).parent / "templates"
OUTLINES = 7  # views in a histogram beside the stored rows; more cannot be told apart
Shades = dict[str, str]  # the colour of each name of a chart
Drawn = tuple[Markup | str, Shades]  # a chart and the names in it; "" where there is none


def render(
    report: Report,
    written: datetime.date | None = None,
    links: Mapping[str, str] | None = None,
) -> str:
    """The whole page. `written` is the date that it shows. links: {file: title} of pages beside."""
    shades = colours_of(report)
    if report.null_web is not None:
        shades = {**colours_of(report.null_web), **shades}
    templates = page_templates(
        TEMPLATES,
        METRICS=METRICS,
        MORE_SEEDS=MORE_SEEDS,
        wording=wording,
        arm_lines=arm_lines,
        band_of=band_of,
        forest=charts.forest,
        divergences=divergences,
        gain_chart=gain_chart,
        histogram_chart=histogram_chart,
        labelled=labelled,
        labelled_shares=labelled_shares,
        level_of=level_of,
        loss_curves=loss_curves,
        metric_head=metric_head,
        scale_of=scale_of,
        share_kept=share_kept,
        task_band=task_band,
        task_lines=task_lines,
    )
    templates.filters["short"] = Markup('<span class="short">{}</span>').format
    templates.filters["times"] = "{} times".format
    date = "" if written is None else f"{written:%Y-%m-%d}"
    page = templates.get_template("report.html")
    return page.render(r=report, shades=shades, written=date, links=links)


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


def baseline_mean(report: Report) -> float | None:
    """The mean of the baseline on the primary task."""
    for arm in report.arms:
        if arm.arm == report.baseline:
            return arm.metrics[report.ablation.primary].mean
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a table of differences: a score, its difference `d` with a dot for each seed.

    word: stands for the verdict where there is no difference. seeds: the single values, in words.
    note: beside the name.
    """

    name: str
    score: str
    d: Comparison | None = None
    dots: tuple[float, ...] = ()
    shade: str = "var(--c0)"
    word: str = wording.DASH
    seeds: str = ""
    note: str = ""

    @property
    def row(self) -> charts.ForestRow | None:
        """Its picture, in the unit that is shown."""
        if self.d is None:
            return None
        d, scale = self.d, scale_of(self.d.unit)
        return charts.ForestRow(
            mean=scale * d.difference,
            low=None if d.low is None else scale * d.low,
            high=None if d.high is None else scale * d.high,
            colour=self.shade,
            dots=tuple(scale * dot for dot in self.dots),
        )


def arm_lines(report: Report, roles: Sequence[Role]) -> list[Line]:
    """The arms of these roles on the task that decides."""
    task, shades = report.primary, colours_of(report)
    scores = {arm.arm: arm.metrics[task.task] for arm in report.arms}
    of_baseline = scores[report.baseline].values if report.baseline in scores else {}
    lines = []
    for arm in report.arms:
        if arm.role not in roles:
            continue
        own, d = scores[arm.arm], report.difference(arm.arm)
        dots = [
            value - of_baseline[seed] for seed, value in own.values.items() if seed in of_baseline
        ]
        seeds = ", ".join(wording.percent(value, task.unit) for value in own.values.values())
        lines.append(
            Line(
                name=arm.arm,
                score=wording.mean_and_sd(own.mean, own.sd, task.unit),
                d=d,
                dots=tuple(dots) if d else (),
                shade=shades[arm.arm],
                word="baseline" if arm.role == "baseline" else wording.DASH,
                seeds=f"single seeds: {seeds or 'none finished'}",
                note=wording.without(arm.missing) if arm.missing else "",
            )
        )
    return lines


def task_lines(report: Report, arm: ArmReport) -> list[Line]:
    """An arm on every task, the largest losses first; after its score that of the baseline."""
    shade, lines = colours_of(report)[arm.arm], []
    of_baseline = next(one.metrics for one in report.arms if one.arm == report.baseline)
    for spec in report.ablation.evaluate:
        unit, own = report.results.tasks[spec.name].unit, arm.metrics[spec.name]
        score = wording.mean_and_sd(own.mean, own.sd, unit)
        score += f" ({wording.percent(of_baseline[spec.name].mean, unit)})"
        d = None if arm.role == "a_a" else report.difference(arm.arm, spec.name)
        lines.append(Line(name=spec.name, score=score, d=d, shade=shade))
    return sorted(lines, key=lambda line: math.inf if line.d is None else line.d.difference)


def task_band(report: Report) -> float:
    """The grey zone of a table of tasks: that of all of them, or none."""
    bands = {one.range.band for one in report.results.tasks.values() if one.range is not None}
    return bands.pop() if len(bands) == 1 else 0.0


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
