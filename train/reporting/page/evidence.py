"""Sections about the runs: forests, what changed, share kept, curves, cost and single runs.

Each is HTML, or "" where it has nothing to show.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from manifests.pool_layout import random_view_name
from manifests.web_page import bars, chart, chip, colour, details, legend, note, table
from train.ablation import wording
from train.reporting.page import charts
from train.reporting.page.overview import colours_of, primary_task
from train.reporting.schema import (
    ArmChanges,
    ArmReport,
    BaselineDifference,
    Disagreement,
    Report,
    SeedValues,
)

RUNS_AT_ONCE = 30  # more single runs are folded


def scale_of(unit: str) -> float:
    """What a value of a metric is multiplied by in a chart: shares are shown in points."""
    return 100.0 if unit == "share" else 1.0


def forest_row(
    name: str, difference: BaselineDifference, shade: str, unit: str, dots: Sequence[float] = ()
) -> charts.ForestRow:
    """A row of a forest in the unit that is shown."""
    scale = scale_of(unit)
    return charts.ForestRow(
        name=name,
        mean=scale * difference.mean,
        low=None if difference.low is None else scale * difference.low,
        high=None if difference.high is None else scale * difference.high,
        colour=shade,
        dots=tuple(scale * dot for dot in dots),
    )


def arms_forest(report: Report) -> str:
    """The difference of every arm and control on the task that decides."""
    shades, unit = colours_of(report), primary_task(report).unit
    baseline = next((arm for arm in report.arms if arm.arm == report.baseline), None)
    rows = []
    for arm in report.arms:
        if arm.difference is None or baseline is None:
            continue
        metrics = (arm.metrics[report.primary], baseline.metrics[report.primary])
        dots = _seed_differences(*metrics)
        rows.append(forest_row(arm.arm, arm.difference, shades[arm.arm], unit, dots))
    if not rows:
        return ""
    name = wording.unit_of_difference(unit)
    title = f"Difference to {report.baseline} on {report.primary}, {name}"
    return chart(charts.forest(rows, scale_of(unit) * report.equivalence, title), title)


def _seed_differences(arm: SeedValues, baseline: SeedValues) -> list[float]:
    differences = []
    for seed, value in arm.values.items():
        if seed in baseline.values:
            differences.append(value - baseline.values[seed])
    return differences


def task_forests(report: Report) -> str:
    """For every arm its differences on all tasks, the losses first; "" for one task."""
    if len(report.tasks) < 2:
        return ""
    shades = colours_of(report)
    parts = []
    for arm in report.arms:
        rows = []
        for task in report.tasks:
            for row in task.rows:
                if row.arm == arm.arm and row.difference is not None and arm.role != "a_a":
                    one = forest_row(task.task, row.difference, shades[arm.arm], task.unit)
                    rows.append(one)
        if rows:
            rows.sort(key=lambda row: row.mean)
            title = f"{arm.arm} against {report.baseline}, every task, losses first"
            svg = charts.forest(rows, 100 * report.equivalence, title)
            parts.append(f"<h3>{escape(title)}</h3>{chart(svg, title)}")
    return "".join(parts)


# --- what changed ---------------------------------------------------------------------------------


def changes(report: Report) -> str:
    """Per arm: classes, confusions and samples that changed against the baseline."""
    parts, controls = [], []
    for change in report.changes:
        is_arm = any(arm.arm == change.arm and arm.role == "arm" for arm in report.arms)
        body = _sample_text(report, change) + _class_table(report, change)
        body += _confusion_table(report, change) + _samples(report, change)
        title = f"{change.arm} against {report.baseline} on {change.task}"
        if is_arm:
            parts.append(f"<h3>{escape(title)}</h3>{body}")
        else:
            controls.append(details(title, body))
    if not parts:
        return ""
    if controls:
        parts += ["<h3>The same for controls</h3>", *controls]
    text = (
        "Classes and confusions are many comparisons at once, and the largest of many differences "
        "is large by chance too: compare them with those of a control."
    )
    return note(text) + "".join(parts)


def _sample_text(report: Report, change: ArmChanges) -> str:
    text = (
        f"{change.gained:,} samples are right in most seeds of {change.arm} and wrong in most of "
        f"{report.baseline}; {change.lost:,} the other way round."
    )
    return f"<p>{escape(text)}</p>"


def _class_table(report: Report, change: ArmChanges) -> str:
    rows = []
    for one in change.classes:
        rows.append(
            [
                escape(one.name),
                f"{one.samples:,}",
                wording.percent(one.baseline),
                wording.percent(one.arm),
                wording.points(one.arm - one.baseline),
            ]
        )
    head = ["class", "samples", f"{escape(report.baseline)}, %", f"{escape(change.arm)}, %"]
    shown = "all" if len(rows) == change.classes_in_all else "the largest gains and losses of"
    caption = (
        f"Accuracy per class, mean over the seeds: {shown} {change.classes_in_all:,} classes; "
        "these are many comparisons"
    )
    numbers = table([*head, "points"], rows, (1, 2, 3, 4), caption)
    return details("Classes: largest gains and losses", numbers) if rows else ""


def _confusion_table(report: Report, change: ArmChanges) -> str:
    rows = []
    for one in change.confusions:
        difference = f"{one.arm - one.baseline:+.1f}".replace("-", wording.MINUS)
        cells = [escape(one.label), escape(one.predicted), f"{one.baseline:.1f}", f"{one.arm:.1f}"]
        rows.append([*cells, difference])
    head = ["class", "taken for", escape(report.baseline), escape(change.arm), "difference"]
    caption = "Samples of one run, mean over the seeds: the confusions that changed most"
    return details("Confusions", table(head, rows, (2, 3, 4), caption)) if rows else ""


def _samples(report: Report, change: ArmChanges) -> str:
    if not change.shown:
        return ""
    with_image = [shown for shown in change.shown if shown.image is not None]
    if with_image:
        cells = "".join(_figure(report, change, shown) for shown in with_image)
        body = f'<div class="shots">{cells}</div>'
    else:
        rows = []
        for shown in change.shown:
            texts = (shown.sample, shown.label, shown.baseline_answer, shown.arm_answer)
            rows.append([escape(text) for text in texts])
        head = ["sample", "class", escape(report.baseline), escape(change.arm)]
        body = table(head, rows, (), "The most frequent answers over the seeds")
    text = "Drawn at random with a fixed seed, not picked; half are gains, half losses."
    return details("Samples on which the two disagree", note(text) + body)


def _figure(report: Report, change: ArmChanges, shown: Disagreement) -> str:
    alternative = f"{shown.sample}, class {shown.label}"
    lines = (
        f"<b>{escape(shown.label)}</b>",
        f"{escape(report.baseline)}: {escape(shown.baseline_answer)} "
        f"({100 * shown.baseline_right:.0f} % right)",
        f"{escape(change.arm)}: {escape(shown.arm_answer)} ({100 * shown.arm_right:.0f} % right)",
    )
    return (
        f'<figure><img src="{escape(str(shown.image))}" alt="{escape(alternative)}">'
        f"<figcaption>{'<br>'.join(lines)}</figcaption></figure>"
    )


# --- share kept, curves, cost, runs ---------------------------------------------------------------


def share_kept(report: Report) -> str:
    """Score against the share of the rows that an arm keeps, each with its random control."""
    known = [arm for arm in report.arms if arm.rows and arm.role != "a_a"]
    if len({arm.share for arm in known}) < 2:
        return ""
    task, shades = primary_task(report), colours_of(report)
    baseline = next((arm for arm in known if arm.role == "baseline"), None)
    level = None if baseline is None else baseline.metrics[report.primary].mean
    points: dict[str, charts.Point] = {}
    for arm in known:
        kept = _kept_point(report, arm, level, scale_of(task.unit), shades[arm.arm])
        if kept is not None:
            points[arm.arm] = kept
    links = []
    for name, point in points.items():
        if random_view_name(name) in points:
            links.append((point, points[random_view_name(name)]))
    unit = ", %" if task.unit == "share" else ""
    title = f"{task.metric} on {report.primary} against the share of the rows that an arm keeps"
    svg = charts.scatter(
        list(points.values()),
        "rows kept, % of the stored rows",
        f"{task.metric}{unit}",
        title,
        level=None if level is None else scale_of(task.unit) * level,
        links=links,
    )
    text = f"Whiskers are the 95 % intervals of the differences to {report.baseline}."
    if any(arm.role == "random" for arm in known):
        text += (
            " Hollow circles are random subsets of the same size, joined with their arm: fewer "
            "rows, not better ones."
        )
    return legend({arm: shades[arm] for arm in points}) + chart(svg, title) + note(text)


def _kept_point(
    report: Report, arm: ArmReport, level: float | None, scale: float, shade: str
) -> charts.Point | None:
    mean, d = arm.metrics[report.primary].mean, arm.difference
    if mean is None:
        return None
    low = high = None
    if d is not None and level is not None and d.low is not None and d.high is not None:
        # The seeds of a difference are those of both arms; its mean may differ by a hair.
        low, high = mean + d.low - d.mean, mean + d.high - d.mean
    return charts.Point(
        name=f"{arm.arm}: {scale * mean:.1f}",
        colour=shade,
        x=100 * arm.share,
        y=scale * mean,
        low=None if low is None else scale * low,
        high=None if high is None else scale * high,
        hollow=arm.role == "random",
    )


def curves(report: Report) -> str:
    """Training loss: the mean over the seeds of each arm, and their spread."""
    shades = colours_of(report)
    by_arm: dict[str, list[list[tuple[float, float]]]] = {}
    for curve in report.curves:
        points = [(point[0], point[1]) for point in curve.points]
        by_arm.setdefault(curve.arm, []).append(points)
    if not by_arm:
        return ""
    series = [charts.band_over_seeds(arm, shades[arm], runs) for arm, runs in by_arm.items()]
    title = "Training loss of every arm"
    svg = charts.bands(series, "samples seen", "training loss", title)
    text = "Lines are means over the seeds, bands go from the lowest to the highest seed."
    return legend({arm: shades[arm] for arm in by_arm}) + chart(svg, title) + note(text)


def costs(report: Report) -> str:
    """Device seconds of each arm for a point gained, and the seconds of each stage."""
    parts = []
    rows = []
    unit, shades = primary_task(report).unit, colours_of(report)
    for arm in report.arms:
        if arm.device_seconds is None or arm.role in ("a_a", "random"):
            continue
        gain, price = wording.DASH, wording.DASH
        if arm.difference is not None:
            gain = wording.points(arm.difference.mean, unit)
            points = scale_of(unit) * arm.difference.mean
            if arm.difference.verdict == "better" and points > 0:
                price = f"{arm.device_seconds / points:,.1f}"
        name = chip(shades[arm.arm], arm.arm)
        rows.append([name, f"{arm.device_seconds:,.1f}", gain, price])
    if rows:
        name = wording.unit_of_difference(unit)
        head = ["arm", "device seconds of a run", f"{name} gained", f"device seconds per {name}"]
        caption = (
            "Seconds of one run on all its processes, and for each of the gain over "
            f"{report.baseline} where the arm is better"
        )
        parts.append(table(head, rows, (1, 2, 3), caption) + _gain_chart(report))
    if report.costs:
        stages = [(name, seconds, f"{seconds:,.1f} s") for name, seconds in report.costs]
        title = "Seconds of each stage"
        svg = bars(stages, title, colour(3))
        parts.append(f"<h3>{title}</h3>{chart(svg, title)}")
    return "".join(parts)


def _gain_chart(report: Report) -> str:
    """Difference to the baseline against the device seconds of a run."""
    unit, shades = primary_task(report).unit, colours_of(report)
    scale = scale_of(unit)
    points, names = [], {}
    for arm in report.arms:
        d = arm.difference
        if arm.device_seconds is None or d is None or arm.role != "arm":
            continue
        point = charts.Point(
            name=arm.arm,
            colour=shades[arm.arm],
            x=arm.device_seconds,
            y=scale * d.mean,
            low=None if d.low is None else scale * d.low,
            high=None if d.high is None else scale * d.high,
        )
        points.append(point)
        names[arm.arm] = shades[arm.arm]
    if len(points) < 2:
        return ""
    name = wording.unit_of_difference(unit)
    title = f"Difference to {report.baseline} against the cost of a run"
    x_name, y_name = "device seconds of a run", f"difference, {name}"
    svg = charts.scatter(points, x_name, y_name, title, from_zero=True)
    return legend(names) + chart(svg, title)


def single_runs(report: Report) -> str:
    """Every run: model, batch, samples seen, and its score with the noise of the samples."""
    task, shades = primary_task(report), colours_of(report)
    trained = any(run.model is not None for run in report.runs)
    rows = []
    for run in report.runs:
        settings = []
        if trained:
            for value in (run.model, run.batch_size, run.samples_seen):
                text = f"{value:,}" if isinstance(value, int) else escape(value or wording.DASH)
                settings.append(text)
        score = wording.percent(run.value, task.unit)
        if run.low is not None and run.high is not None:
            low, high = wording.percent(run.low, task.unit), wording.percent(run.high, task.unit)
            score += f" [{low}, {high}]"
        rows.append([chip(shades[run.arm], run.arm), wording.seed_name(run.seed), *settings, score])
    if not rows:
        return ""
    columns = ["model", "batch", "samples seen"] if trained else []
    unit = ", %" if task.unit == "share" else ""
    head = ["arm", "seed", *columns, f"{escape(task.metric)}{unit}"]
    caption = f"Runs on {task.task}; intervals are Wilson's 95 %, over the test samples alone"
    numbers = table(head, rows, (1, *range(3, len(head))), caption)
    return numbers if len(rows) <= RUNS_AT_ONCE else details(f"All {len(rows)} runs", numbers)
