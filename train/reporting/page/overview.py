"""The first screen: verdict, one line per arm, controls apart; then the folded explanations."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from manifests.web_page import chip, colour, details, paragraphs, verdict_word
from train.ablation import TaskComparison, TaskNoise, wording
from train.reporting.page import charts
from train.reporting.schema import ArmReport, Report, TaskReport


def colours_of(report: Report) -> dict[str, str]:
    """The colour of each arm, the same in every chart."""
    return {arm.arm: colour(index) for index, arm in enumerate(report.arms)}


def primary_task(report: Report) -> TaskReport:
    """The task that decides."""
    return next(task for task in report.tasks if task.task == report.primary)


def primary_noise(report: Report) -> TaskNoise | None:
    """The noise of the task that decides."""
    return next((one for one in report.noise if one.task == report.primary), None)


def first_screen(report: Report) -> str:
    """Verdict, arms, controls, gaps, and the explanations folded."""
    gaps = "".join(f'<li class="gap">{escape(gap)}</li>' for gap in report.gaps)
    listed = f"<ul>{gaps}</ul>" if gaps else ""
    controls = arm_lines(report, ("random", "a_a"))
    apart = f"<h3>Controls</h3>{controls}" if controls else ""
    task = primary_task(report)
    key = (
        f"{task.metric} on {task.task}: circles are single seeds, the bar is their mean, the "
        f"dashed line is the mean of {report.baseline}; differences with 95 % intervals."
    )
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
        + details("Noise: these runs and earlier ones", paragraphs(noise_texts(report)))
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
    """How much one run varies, from these runs and from the ledger."""
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
    if noise.prior is None:
        texts.append("No earlier ablation is counted in.")
    else:
        prior = wording.percent(noise.prior.variance**0.5, unit)
        texts.append(
            f"Earlier ablations with the same settings and task (the ledger) say {prior} {name}, "
            f"with the weight of {noise.prior.df:.3g} degrees of freedom. Both together give "
            f"{wording.percent(noise.sd, unit)} {name}, which the intervals use."
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
    first = (
        f"The smallest visible difference is {smallest} {name}: of ablations like this one, with "
        f"{len(report.seeds)} seeds, 80 % find such a true difference."
    )
    if power.seeds_for_half is None:
        return [first, f"No number of seeds would see {half} {name}: the test set is too small."]
    return [first, f"Half of it, {half} {name}, needs {power.seeds_for_half} seeds of each arm."]


def reading_texts(report: Report) -> list[str]:
    """The words and signs of the page."""
    trained = ""
    if report.samples_seen is not None:
        trained = f", at {report.samples_seen:,} samples seen per run"
    unit = primary_task(report).unit
    band = wording.percent(report.equivalence, unit)
    most, family = "", "for all arms together (Dunnett's test; Holm's for controls)"
    if report.rounds:
        most, family = "up to ", "for all arms and all rounds together (controls: Holm, one look)"
    return [
        f"Scores are mean ± standard deviation over {most}{len(report.seeds)} seeds{trained}.",
        "All runs together give one estimate of the noise of a run. Intervals are of 95 % and hold "
        f"{family}.",
        "Better and worse: the interval excludes 0. Practically equal: the difference is inside "
        f"±{band} {wording.unit_of_difference(unit)}, the grey zone of a chart, with 95 % "
        "confidence. Not distinguishable: these runs cannot tell.",
    ]
