"""The report as one HTML page.

A report as one HTML page: charts, tables and sections. Pure: reads and writes no file.

Invariants:

* Nothing is asked for outside the page, all is escaped
  (`tests/train/reporting/page/test_document.py`).
* A section without data is absent.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from manifests.layout import random_view_name
from manifests.web_page import (
    bars,
    chart,
    chip,
    colour,
    details,
    html_page,
    legend,
    note,
    paragraphs,
    table,
    verdict_word,
)
from train.ablation import wording
from train.ablation.conclusions import TaskComparison, TaskNoise
from train.evaluation.metrics import chance_of
from train.reporting import charts
from train.reporting.schema import (
    ArmChanges,
    ArmReport,
    BaselineDifference,
    Categories,
    Disagreement,
    Example,
    Histogram,
    Report,
    Scaling,
    ScalingCurve,
    SeedValues,
    SignalRow,
    TaskReport,
    TaskRow,
)

# --------------------------------------------------------------------------------------------------
# The first screen: verdict, one line per arm, controls apart; then the folded explanations.


def colours_of(report: Report) -> dict[str, str]:
    """The colour of each arm, the same in every chart."""
    return {arm.arm: colour(index) for index, arm in enumerate(report.arms)}


def primary_task(report: Report) -> TaskReport:
    """The task that decides."""
    return next(task for task in report.tasks if task.task == report.primary)


def primary_noise(report: Report) -> TaskNoise | None:
    """The noise of the task that decides."""
    return next((one for one in report.noise if one.task == report.primary), None)


def _chance_text(report: Report) -> str:
    for one in report.ranges:
        if one.task == report.primary and one.chance is not None:
            return f" Chance gives {wording.in_unit(one.chance, one.unit)}."
    return ""


def level_of(report: Report) -> str:
    """The level of the intervals on the primary task: 95 %, higher after earlier looks."""
    looks = [row.looks for row in report.comparisons if row.task == report.primary]
    return wording.level(max(looks, default=1))


def first_screen(report: Report) -> str:
    """Verdict, arms, controls, gaps, and the explanations folded."""
    looks = (report.looks,) if report.looks else ()
    lines = (*looks, *report.gaps, *report.redesigns)
    gaps = "".join(f'<li class="gap">{escape(line)}</li>' for line in lines)
    listed = f"<ul>{gaps}</ul>" if gaps else ""
    controls = arm_lines(report, ("random", "a_a"))
    apart = f"<h3>Controls</h3>{controls}" if controls else ""
    task = primary_task(report)
    key = (
        f"{task.metric} on {task.task}: circles are single seeds, the bar is their mean, the "
        f"dashed line is the mean of {report.baseline}; differences with {level_of(report)} "
        f"intervals.{_chance_text(report)}"
    )
    if report.scorer is not None:
        key += f" {report.scorer.sentence}."
    return (
        f'<div class="verdict"><p>{escape(report.headline)}</p>{listed}</div>'
        f"{arm_lines(report, ('baseline', 'arm'))}{apart}"
        f'<p class="note">{escape(key)}</p>{explanations(report)}'
    )


def arm_lines(report: Report, roles: Sequence[str]) -> str:
    """One line per arm of these roles: name, seeds, mean, difference, verdict."""
    shown = [arm for arm in report.arms if arm.role in roles]
    if not shown:
        return ""
    values = []
    for arm in report.arms:
        values += list(arm.metrics[report.primary].values.values())
    axis = (min(values), max(values)) if values else (0.0, 1.0)
    shades = colours_of(report)
    lines = "".join(_arm_line(report, arm, shades[arm.arm], axis) for arm in shown)
    if "baseline" in roles and primary_task(report).chance:
        chance = wording.percent(primary_task(report).chance)
        lines += '<li><span class="arm note">chance</span><span></span><span class="mean note">'
        lines += f"{chance}</span></li>"
    return f'<ul class="arms">{lines}</ul>'


def _arm_line(report: Report, arm: ArmReport, shade: str, axis: tuple[float, float]) -> str:
    unit = primary_task(report).unit
    metric = arm.metrics[report.primary]
    baseline = next((one for one in report.arms if one.arm == report.baseline), arm)
    values = list(metric.values.values())
    texts = [wording.percent(value, unit) for value in values]
    title = f"{arm.arm}, single seeds: {', '.join(texts) or 'none finished'}"
    reference = baseline.metrics[report.primary].mean
    picture = charts.strip(values, shade, axis, reference, title)
    difference, word = "", ""
    if arm.role == "baseline":
        word = "baseline"
    if arm.difference is not None:
        d = arm.difference
        interval = wording.interval(d.mean, d.low, d.high, unit)
        difference = f"{interval} {wording.unit_of_difference(unit)}"
        word = verdict_word(d.verdict)
    if arm.missing:
        missing = escape(wording.without(arm.missing))
        word += f' <span class="gap">({missing})</span>'
    cells = (
        ("arm", chip(shade, arm.arm)),
        ("picture", picture),
        ("mean", wording.percent(metric.mean, unit)),
        ("difference", difference),
        ("word", word),
    )
    return "<li>" + "".join(f'<span class="{k}">{cell}</span>' for k, cell in cells) + "</li>"


# --- explanations --------------------------------------------------------------------------------


def explanations(report: Report) -> str:
    """Each comparison, both intervals, the noise and the power, in plain words and folded."""
    rows = [row for row in report.comparisons if row.task == report.primary]
    sentences = [row.sentence for row in rows]
    intervals = [interval_text(row) for row in (*rows, *report.average)]
    return (
        details("Each comparison in full", paragraphs(sentences))
        + details("Both intervals of each difference", paragraphs(intervals))
        + details(
            "Other metrics of the same predictions, over seeds and adjusted for their number",
            paragraphs([row.sentence for row in report.other_metrics]),
        )
        + details("Noise of one run", paragraphs(noise_texts(report)))
        + details("What these runs could have seen", paragraphs(power_texts(report)))
        + details("How to read this page", paragraphs(reading_texts(report)))
    )


def interval_text(row: TaskComparison) -> str:
    """The two intervals of a difference in plain words."""
    unit = wording.unit_of_difference(row.unit)
    text = (
        f"{row.arm} against {row.baseline} on {row.task}: "
        f"{wording.points(row.difference, row.unit)} {unit}."
    )
    if row.low_seeds is None:
        return f"{text} Nothing varies between these runs, so there is no interval."
    text += (
        " Other seeds on this same test set would give between "
        f"{wording.points(row.low_seeds, row.unit)} and {wording.points(row.high_seeds, row.unit)}."
    )
    if row.low_samples is None:
        text += " Values of single samples are not known, so no interval is over samples too."
    else:
        text += (
            " Other seeds and another test set of this size would give between "
            f"{wording.points(row.low_samples, row.unit)} and "
            f"{wording.points(row.high_samples, row.unit)}."
        )
        wider = "over seeds alone" if row.headline == "seeds" else "over seeds and samples"
        text += f" The headline is the wider one, {wider}."
    if row.low_tasks is not None:
        text += (
            " Over other tasks of this kind as well it would be between "
            f"{wording.points(row.low_tasks, row.unit)} and "
            f"{wording.points(row.high_tasks, row.unit)}."
        )
    return text


def noise_texts(report: Report) -> list[str]:
    """How much one run varies."""
    noise = primary_noise(report)
    if noise is None or noise.sd is None:
        return []
    unit = noise.unit
    name = "points" if unit == "share" else unit
    texts = []
    if noise.own_sd is not None:
        own = wording.percent(noise.own_sd, unit)
        texts.append(
            f"In these runs, one run of an arm differs from another by {own} {name} "
            "(standard deviation, estimated from all arms together with "
            f"{noise.own_df:g} degrees of freedom)."
        )
    if noise.floor_sd is not None:
        texts.append(
            f"The number of test samples alone leaves {wording.percent(noise.floor_sd, unit)} "
            f"{name}: no interval takes less than that."
        )
    return texts


def power_texts(report: Report) -> list[str]:
    """The smallest visible difference, and how many seeds would see half of it."""
    power, noise = report.power, primary_noise(report)
    if power is None or noise is None:
        return []
    unit, name = noise.unit, wording.unit_of_difference(noise.unit)
    smallest, half = wording.percent(power.smallest, unit), wording.percent(power.half, unit)
    first, of_it = (
        f"The smallest visible difference is {smallest} {name}: of ablations like this one, with "
        f"{len(report.seeds)} seeds, 80 % find such a true difference.",
        "Half of it, ",
    )
    if power.possible is not None and power.smallest > power.possible:
        most = wording.percent(power.possible, unit)
        first = (
            f"Nothing can be seen with {len(report.seeds)} seeds: no difference can be above "
            f"{most} {name}, and the noise hides all of them."
        )
        of_it = "Half of that, "
    if power.seeds_for_half is None:
        return [first, f"No number of seeds would see {half} {name}: the test set is too small."]
    return [first, f"{of_it}{half} {name}, needs {power.seeds_for_half} seeds of each arm."]


def reading_texts(report: Report) -> list[str]:
    """The words and signs of the page."""
    trained = ""
    if report.samples_seen is not None:
        trained = f", at {report.samples_seen:,} samples seen per run"
    unit = primary_task(report).unit
    most, family = "", "for all arms together (Dunnett's test; Holm's for controls)"
    if report.rounds:
        most, family = "up to ", "for all arms and all rounds together (controls: Holm, one look)"
    equal = "Practically equal: no band counts as equal here."
    if report.equivalence > 0:
        band = wording.percent(report.equivalence, unit)
        equal = (
            f"Practically equal: the difference is inside ±{band} "
            f"{wording.unit_of_difference(unit)}, the grey zone of a chart, with "
            f"{level_of(report)} confidence."
        )
    others = len(report.tasks) - 1
    over = ""
    if others:
        over = (
            f" Those of the other {others} task{'s' if others > 1 else ''} are a family of their "
            "own: they hold for all arms and all of these tasks together (Bonferroni)."
        )
    if others and not report.average:
        over += " There is no average: the metrics of the tasks differ in unit or direction."
    return [
        f"Scores are mean ± standard deviation over {most}{len(report.seeds)} seeds{trained}.",
        "All runs together give one estimate of the noise of a run. Intervals are of "
        f"{level_of(report)} and hold {family}.{over}",
        f"Better and worse: the interval excludes 0. {equal} Not distinguishable: these runs "
        "cannot tell.",
    ]


# --------------------------------------------------------------------------------------------------
# Sections about the data of the arms. Each is HTML, or "" if there is nothing to show.


OUTLINES = 7  # views in a histogram beside the stored rows; more cannot be told apart
ARMS_AT_ONCE = 12  # a wider matrix of overlaps is folded


def composition(report: Report) -> str:
    """How much of its data each arm draws, and how much of it the arms share."""
    if not any(arm.rows for arm in report.arms):
        return ""  # only predictions are known
    shades = colours_of(report)
    blends = report.contract.blends if report.contract is not None else {}
    rows = []
    for arm in report.arms:
        samples = wording.DASH if arm.drawn is None else f"{arm.drawn:,}"
        repeats = wording.DASH if arm.repeats is None else f"{arm.repeats:.2f}"
        cells = [chip(shades[arm.arm], arm.arm), escape(arm.view)]
        known = [f"{arm.rows:,}", wording.percent(arm.share)]
        cells += known if arm.rows else [wording.DASH, wording.DASH]
        cells += [samples, repeats]
        if blends:
            cells.append(f"<code>{escape(blends.get(arm.arm, wording.DASH))}</code>")
        rows.append(cells)
    head = ["arm", "view", "unique pairs", "% of stored", "samples drawn", "mean repeats"]
    head += ["blend"] if blends else []
    caption = "Data of each arm; of a random control the subset of its first seed"
    return table(head, rows, (2, 3, 4, 5), caption) + _overlap(report)


def _overlap(report: Report) -> str:
    """The matrix of Jaccard indices as shaded cells."""
    overlap = report.overlap
    if len(overlap.arms) < 2:
        return ""
    rows = []
    for name, shares in zip(overlap.arms, overlap.jaccard, strict=True):
        cells = []
        for share in shares:
            cells.append(
                f'<span class="heat" style="--share:{100 * share:.0f}%">{share:.2f}</span>'
            )
        rows.append([f'<span class="short">{escape(name)}</span>', *cells])
    head = ["", *(f'<span class="short">{escape(name)}</span>' for name in overlap.arms)]
    caption = "Jaccard index of the rows of every two arms: 1 the same rows, 0 none in common"
    matrix = table(head, rows, range(1, len(head)), caption, sortable=False)
    if len(overlap.arms) > ARMS_AT_ONCE:
        return details("Overlap of the arms (Jaccard)", matrix)
    return f"<h3>Overlap of the arms</h3>{matrix}"


def rules(report: Report) -> str:
    """What each rule of a view with several rules rejects, and what it alone rejects."""
    rows = []
    for view in report.rules:
        for rule, rejected, alone in view.rules:
            cells = [escape(f"{view.pool}/{view.view}"), escape(rule)]
            for count in (rejected, alone):
                if count is None:
                    cells += [wording.DASH, wording.DASH]
                else:
                    cells += [f"{count:,}", wording.percent(count / max(1, view.stored))]
            rows.append(cells)
    if not rows:
        return ""
    head = ["view", "rule", "rejects", "% of stored", "rejects alone", "% of stored"]
    text = (
        "Of all stored rows, whatever the other rules of the view do. A row that one rule alone "
        "rejects would be kept without that rule."
    )
    return table(head, rows, (2, 3, 4, 5), "The rules of each view, one by one") + note(text)


# --- distributions -------------------------------------------------------------------------------


def distributions(report: Report) -> str:
    """Scores, sizes, languages and hosts of the stored and the kept rows."""
    parts = [_divergences(report)]
    for number, histogram in enumerate(report.histograms):
        body = _histogram(report, histogram)
        title = f"{histogram.column} in {histogram.pool}"
        first = number == 0 or histogram.marks
        parts.append(f"<h3>{escape(title)}</h3>{body}" if first else details(title, body))
    for one in report.categories:
        parts.append(details(f"{one.column} in {one.pool}", _categories(one)))
    return "".join(parts)


def _sampled(rows: int | None) -> str:
    return "" if rows is None else note(f"Of {rows:,} rows in shards drawn at random.")


def _views_of(report: Report, counts: Mapping[str, object]) -> dict[str, str]:
    """{view: colour} of the views of a pool, those of arms before those of controls."""
    shades = colours_of(report)
    views: dict[str, str] = {}
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


def _histogram(report: Report, histogram: Histogram) -> str:
    views = _views_of(report, histogram.counts)
    shown = list(views)[:OUTLINES]
    names = {"stored": "var(--soft)", **{name: views[name] for name in shown}}
    counts = {name: histogram.counts[name] for name in names}
    marks = {name: value for name, value in histogram.marks.items() if name in names}
    title = f"{histogram.column} in {histogram.pool}"
    svg = charts.histogram(histogram.edges, counts, marks, names, title)
    more = len(histogram.counts) - len(counts)
    text = note(f"{more} more views are in the table of differences.") if more else ""
    return legend(names) + chart(svg, title) + text + _sampled(histogram.sampled_rows)


def _categories(one: Categories) -> str:
    totals = {name: max(1, sum(counts)) for name, counts in one.counts.items()}
    names = list(one.counts)[: OUTLINES + 1]
    rows = []
    for index, label in enumerate(one.labels):
        cells = [escape(label)]
        for name in names:
            cells.append(wording.percent(one.counts[name][index] / totals[name]))
        rows.append(cells)
    head = [escape(one.column), *(escape(name) for name in names)]
    caption = f"% of the rows; {one.values:,} different values among the stored rows"
    numbers = table(head, rows, range(1, len(head)), caption)
    return numbers + _sampled(one.sampled_rows)


def _divergences(report: Report) -> str:
    """One row per view: how far each of its distributions is from that of the stored rows."""
    columns: list[Histogram | Categories] = [*report.histograms, *report.categories]
    columns = [one for one in columns if one.divergence]
    views: dict[tuple[str, str], dict[str, str]] = {}
    for one in columns:
        for view, bits in one.divergence.items():
            views.setdefault((one.pool, view), {})[one.column] = f"{bits:.3f}"
    if not views:
        return ""
    names = list(dict.fromkeys(one.column for one in columns))
    rows = []
    for (pool, view), cells in views.items():
        texts = [cells.get(name, wording.DASH) for name in names]
        rows.append([escape(f"{pool}/{view}"), *texts])
    caption = "Difference of each view from the stored rows, in bits; 0 is the same distribution"
    text = (
        "Kullback-Leibler divergence of the rows that a view keeps from all stored rows, over the "
        "bins of the charts or the values below. A random subset shows what chance gives."
    )
    return table(["view", *map(escape, names)], rows, range(1, len(names) + 1), caption) + note(
        text
    )


# --- copies, safety ------------------------------------------------------------------------------


def duplicates(report: Report) -> str:
    """Images by their number of copies."""
    parts = []
    for one in report.duplicates:
        rows = []
        for view, groups in one.groups.items():
            name = "all stored rows" if view == "stored" else view
            rows.append([escape(name), *(f"{count:,}" for count in groups)])
        head = ["rows of", *(f"{escape(label)} times" for label in one.labels)]
        caption = f"Different images of {one.pool} by how often each is there, {one.key}"
        parts.append(table(head, rows, range(1, len(head)), caption) + _copies(one.sampled_rows))
    return "".join(parts)


def _copies(rows: int | None) -> str:
    if rows is None:
        return ""
    return note(f"Among {rows:,} rows in shards drawn at random; copies elsewhere are not seen.")


def safety(report: Report) -> str:
    """The share of rows that columns about people and harm mark."""
    parts = []
    for one in report.safety:
        rows = []
        for view, (marked, judged) in one.counts.items():
            name = "all stored rows" if view == "stored" else view
            share = wording.percent(marked / judged) if judged else wording.DASH
            rows.append([escape(name), f"{judged:,}", f"{marked:,}", share])
        caption = f"{one.column} in {one.pool}: {one.meaning}"
        head = ["rows of", "judged", "marked", "%"]
        parts.append(table(head, rows, (1, 2, 3), caption) + _sampled(one.sampled_rows))
    return "".join(parts)


# --- settings ------------------------------------------------------------------------------------


def contract(report: Report) -> str:
    """What all runs share and what differs: nothing but the data, as a rule."""
    contract = report.contract
    if contract is None:
        return ""
    main: list[list[str]] = []
    others: list[list[str]] = []
    for row in contract.rows:
        if row.value is not None:
            value = f"<code>{escape(row.value)}</code>"
        else:
            texts = [f"{escape(arm)}: {escape(text)}" for arm, text in row.by_arm.items()]
            value = f'<span class="gap">differs</span> {"; ".join(texts)}'
        (main if row.main else others).append([escape(row.setting), value])
    different = [row.setting for row in contract.rows if row.value is None]
    if different:
        text = f"All {contract.runs} runs share these settings but {', '.join(different)}."
    else:
        text = f"All {contract.runs} runs share every setting but the seeds"
        hash_text = f" (hash {contract.config_hash})" if contract.config_hash else ""
        text += f"{hash_text}: arms differ in their data alone."
    return f"<p>{escape(text)}</p>{table(['setting', 'value'], main, sortable=False)}" + details(
        f"{len(others)} more settings and versions",
        table(["setting", "value"], others, sortable=False) if others else "",
    )


def evaluation_overlap(report: Report) -> str:
    """Evaluation images that the pools store too."""
    rows = []
    for task in report.tasks:
        exact = report.evaluation_overlap.get(task.task, 0)
        near = report.near_evaluation_overlap.get(task.task)
        shown = "not checked" if near is None else f"{near:,}"
        rows.append([escape(task.task), f"{task.samples:,}", f"{exact:,}", shown])
    head = ["task", "samples", "byte-identical in a pool", "near duplicates by perceptual hash"]
    if not report.evaluation_overlap:
        return ""
    return table(head, rows, (1, 2, 3))


# --------------------------------------------------------------------------------------------------
# Sections about the runs: forests, what changed, share kept, curves, cost and single runs.
#
# Each is HTML, or "" where it has nothing to show.


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
    bands = {one.band for one in report.ranges}
    band = bands.pop() if len(bands) == 1 else 0.0  # one grey zone is of all tasks or of none
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
            svg = charts.forest(rows, 100 * band, title)
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
        cells = "".join(_evidence_figure(report, change, shown) for shown in with_image)
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


def _evidence_figure(report: Report, change: ArmChanges, shown: Disagreement) -> str:
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
    text = f"Whiskers are the {level_of(report)} intervals of the differences to {report.baseline}."
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
        parts.append(f"<h3>{title}</h3>{svg}")
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


# --------------------------------------------------------------------------------------------------
# Sections about the scores and the data of the arms. Each is HTML, or "" if there is nothing.


TASKS_AT_ONCE = 3  # tables of more tasks are folded, but for the one that decides
EXAMPLE_KINDS = (
    ("kept", "kept"),
    ("near", "nearest to the threshold"),
    ("rejected", "rejected"),
)


def difference_cells(difference: BaselineDifference | None, unit: str) -> list[str]:
    """The difference with its interval, and the verdict."""
    if difference is None:
        return [wording.DASH, wording.DASH]
    interval = wording.interval(difference.mean, difference.low, difference.high, unit)
    return [interval, verdict_word(difference.verdict)]


def in_unit(metric: str, unit: str) -> str:
    """The head of a column of scores."""
    return f"{escape(metric)}, %" if unit == "share" else escape(metric)


def arms_table(report: Report, roles: Sequence[str], *, chance: bool = False) -> str:
    """One row per arm of these roles, on the primary task; "" where there is none.

    chance: a last row with the score of random guesses.
    """
    shades, unit = colours_of(report), primary_task(report).unit
    with_data = any(arm.rows for arm in report.arms)
    rows = []
    for arm in report.arms:
        if arm.role not in roles:
            continue
        metric, d = arm.metrics[report.primary], arm.difference
        name = chip(shades[arm.arm], arm.arm)
        if arm.missing:
            missing = escape(wording.without(arm.missing))
            name += f' <span class="gap">({missing})</span>'
        row = [name, wording.mean_and_sd(metric.mean, metric.sd, unit)]
        row += [*difference_cells(d, unit), wording.DASH if d is None else f"{d.p_adjusted:.3g}"]
        if with_data:
            repeats = wording.DASH if arm.repeats is None else f"{arm.repeats:.1f}"
            row += [f"{arm.rows:,}", wording.percent(arm.share), repeats]
        rows.append(row)
    primary = primary_task(report)
    at_chance = chance_of(primary.metric, primary.chance)
    if rows and chance and at_chance:
        name = '<span class="note">chance</span>'
        rest = len(rows[0]) - 2
        rows.append([name, wording.percent(at_chance, unit), *[""] * rest])
    level = level_of(report)
    against = f"{wording.unit_of_difference(unit)} to {escape(report.baseline)} [{level}]"
    head = ["arm", in_unit(report.primary, unit), against, "verdict", "adjusted p"]
    if with_data:
        head += ["pairs", "% of stored", "repeats"]
    caption = f"Mean ± standard deviation over seeds on {report.primary}"
    return table(head, rows, (1, 2, 4, 5, 6, 7), caption) if rows else ""


def tasks(report: Report) -> str:
    """Every task, with the test on single samples folded."""
    shades = colours_of(report)
    parts = []
    for task in report.tasks:
        rows = []
        for row in task.rows:
            score = wording.mean_and_sd(row.mean, row.sd, task.unit)
            difference = difference_cells(row.difference, task.unit)
            rows.append([chip(shades[row.arm], row.arm), score, *difference])
        others = len(report.tasks) - 1
        over = f", {others} tasks together" if task.task != report.primary and others > 1 else ""
        name = wording.unit_of_difference(task.unit)
        against = f"{name} to baseline [{level_of(report)}{over}]"
        head = ["arm", in_unit(task.metric, task.unit), against, "verdict"]
        size = f"{task.kind}, {task.samples:,} samples"
        chance = chance_of(task.metric, task.chance)
        if chance is not None:
            size += f", chance {wording.in_unit(chance, task.unit)}"
        numbers = table(head, rows, (1, 2), f"{task.task}: {size}")
        is_first = task.task == report.primary or len(report.tasks) <= TASKS_AT_ONCE
        title = f"<h3>{escape(task.task)}</h3>{numbers}"
        parts.append(title if is_first else details(task.task, numbers))
    return "".join(parts) + _mcnemar(report)


def rounds(report: Report) -> str:
    """How many seeds each arm was run with, and why no more; "" where all have every seed."""
    if not report.rounds:
        return ""
    shades = colours_of(report)
    rows = []
    for one in report.rounds:
        seeds = f"{one.seeds} of {one.of}"
        rows.append([chip(shades[one.arm], one.arm), seeds, escape(one.reason)])
    text = (
        "An arm gets no more seeds when its comparison on the primary task is decided, or when the "
        "seeds left would hardly decide it. The intervals hold for all rounds together."
    )
    return table(["arm", "seeds", ""], rows, (1,)) + note(text)


def _mcnemar(report: Report) -> str:
    rows = []
    for task in report.tasks:
        tested = [row for row in task.rows if row.mcnemar is not None]
        rows += [_mcnemar_row(task.task, row) for row in tested]
    if not rows:
        return ""
    text = (
        "McNemar's p compares one pair of runs, of the first common seed, sample by sample. It "
        "contains the noise of the test set, but not the noise of the seeds. So it can be small "
        "where the arms are not distinguishable: these two models differ, other seeds may not."
    )
    head = ["task", "arm", "p"]
    return details("Two single models compared (McNemar)", note(text) + table(head, rows, (2,)))


def _mcnemar_row(task: str, row: TaskRow) -> list[str]:
    return [escape(task), escape(row.arm), f"{row.mcnemar:.2g}"]


def checks(report: Report) -> str:
    """Random subsets, A/A, and the null web: whatever was run."""
    parts = []
    lines = [f"<p>{escape(row.sentence)}</p>" for row in report.controls]
    if lines:
        title = "<h3>Against a random subset of the same size</h3>"
        parts.append(title + "".join(lines) + arms_table(report, ("random",)))
    if report.aa is not None:
        title = "<h3>A/A: the same data in another order</h3>"
        parts.append(f"{title}<p>{escape(report.aa.sentence)}</p>{arms_table(report, ('a_a',))}")
    if report.null_web is not None:
        null = report.null_web
        verdict = "".join(f"<p>{escape(line)}</p>" for line in null.verdict.splitlines())
        title = "<h3>The null web: the same comparison where no effect is planted</h3>"
        parts.append(f"{title}{verdict}{arms_table(null, ('baseline', 'arm'))}")
    return "".join(parts)


def funnels(report: Report) -> str:
    """What happened to the rows of each pool and view."""
    parts = []
    for funnel in report.funnels:
        first = max(1, funnel.steps[0][1])
        steps = []
        for name, count in funnel.steps:
            steps.append((name, float(count), f"{count:,} ({100 * count / first:.1f} %)"))
        title = f"{funnel.title}: rows left after each step"
        parts.append(f"<h3>{escape(funnel.title)}</h3>{bars(steps, title)}")
        if funnel.reasons:
            ordered = sorted(funnel.reasons.items(), key=lambda item: -item[1])
            lost = [(name, float(count), f"{count:,}") for name, count in ordered]
            lost_bars = bars(lost, "reasons", colour(2))
            total = sum(funnel.reasons.values())
            parts.append(details(f"The reasons of the {total:,} other rows", lost_bars))
    return "".join(parts)


def examples(report: Report) -> str:
    """Images that the views keep and reject."""
    parts = []
    for shown in report.gallery:
        kinds: Mapping[str, tuple[Example, ...]] = {
            "kept": shown.kept,
            "near": shown.near,
            "rejected": shown.rejected,
        }
        for kind, title in EXAMPLE_KINDS:
            if kinds[kind]:
                cells = "".join(_figure(example) for example in kinds[kind])
                heading = f"<h3>{escape(shown.view)}: {title}</h3>"
                parts.append(f"{heading}<div class='shots'>{cells}</div>")
    if not parts:
        return ""
    text = "Drawn at random with a fixed seed, not picked. The number is the row's CLIP score."
    return "".join(parts) + note(text)


def _figure(example: Example) -> str:
    score = "" if example.score is None else f"<b>{example.score:.3f}</b> "
    rule = ""
    if example.rule is not None:
        rule = f" <span class='note'>({escape(example.rule)})</span>"
    caption = escape(example.caption)
    return (
        f'<figure><img src="{escape(example.image)}" alt="{caption}">'
        f"<figcaption>{score}{caption}{rule}</figcaption></figure>"
    )


def settings(report: Report) -> str:
    """The arms, rules and training settings as YAML, folded."""
    parts = []
    for title, text in report.settings.items():
        parts.append(details(title, f"<pre>{escape(text)}</pre>"))
    return "".join(parts)


def provenance(report: Report) -> str:
    """Hashes and versions, and the files behind the numbers."""
    facts = []
    for name, value in report.provenance.facts.items():
        facts.append([escape(name), f"<code>{escape(str(value))}</code>"])
    files = []
    for name, digest in report.provenance.files:
        files.append([f"<code>{escape(name)}</code>", f"<code>{escape(digest)}</code>"])
    summary = f"{len(files)} files that these numbers come from, with their sha256"
    return table(["", ""], facts) + details(summary, table(["file", "sha256"], files))


# --------------------------------------------------------------------------------------------------
# Sections about metrics and scales: which metric tells arms apart, error against samples seen.


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
        "50 % is chance. The metric that decides is in bold"
    )
    text += "; it was fixed before the runs." if report.metrics_were_fixed else "."
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


# --------------------------------------------------------------------------------------------------
# A report as one HTML page: nothing from outside, readable without its script, from disk.


OPEN = {"Arms", "Share kept", "Controls", "Example images"}  # the other parts are folded


def render(report: Report, written: datetime.date | None = None) -> str:
    """The whole page. `written` is the date that it shows."""
    parts, links = [], []
    for number, (group, bodies) in enumerate(_groups(report).items(), start=1):
        shown = [_part(title, body) for title, body in bodies if body]
        if shown:
            links.append(f'<a href="#s{number}">{group}</a>')
            parts.append(f'<section id="s{number}"><h2>{group}</h2>{"".join(shown)}</section>')
    date = "" if written is None else note(f"Written on {written:%Y-%m-%d}.")
    return html_page(
        f"{report.name}: dataset ablation",
        f"<h1>{escape(report.name)}</h1><p class='lead'>{escape(report.question)}</p>"
        f'{first_screen(report)}<nav aria-label="Contents">{" ".join(links)}</nav>'
        f"{''.join(parts)}{date}",
    )


def _part(title: str, body: str) -> str:
    """A part of a group, folded unless it is one of OPEN."""
    if title in OPEN:
        return f"<h3>{escape(title)}</h3>{body}"
    return details(title, body, "part")


def _groups(report: Report) -> dict[str, list[tuple[str, str]]]:
    """Group -> (title, HTML or "") of its parts."""
    return {
        "Results": [
            (
                "Arms",
                arms_table(report, ("baseline", "arm"), chance=True) + arms_forest(report),
            ),
            ("Every task", task_forests(report) + tasks(report)),
            ("Seeds in rounds", rounds(report)),
            ("Share kept", share_kept(report)),
            ("What changed", changes(report)),
        ],
        "Checks": [
            ("Controls", checks(report)),
            ("What is equal", contract(report)),
            ("Signal and noise", signal_tables(report)),
            ("Evaluation images in the pools", evaluation_overlap(report)),
        ],
        "Runs": [
            ("Scaling", scaling(report)),
            ("Training curves", curves(report)),
            ("Cost", costs(report)),
            ("Single runs", single_runs(report)),
        ],
        "Data": [
            ("Data of the arms", composition(report)),
            ("Outcomes of the pairs", funnels(report)),
            ("Rules one by one", rules(report)),
            ("Scores, sizes, sources", distributions(report)),
            ("Example images", examples(report)),
            ("Copies of images", duplicates(report)),
            ("People and harm", safety(report)),
        ],
        "Provenance": [
            ("Rules and settings", settings(report)),
            ("Files and versions", provenance(report)),
        ],
    }
