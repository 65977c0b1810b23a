"""Sections about the scores and the data of the arms. Each is HTML, or "" if there is nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from manifests.web_page import bars, chart, chip, colour, details, note, table, verdict_word
from train.ablation import wording
from train.reporting.page.overview import colours_of, primary_task
from train.reporting.schema import BaselineDifference, Example, Report, TaskRow

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


def arms_table(report: Report, roles: Sequence[str]) -> str:
    """One row per arm of these roles, on the primary task; "" where there is none."""
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
    against = f"{wording.unit_of_difference(unit)} to {escape(report.baseline)} [95 %]"
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
        against = f"{wording.unit_of_difference(task.unit)} to baseline [95 %]"
        head = ["arm", in_unit(task.metric, task.unit), against, "verdict"]
        chance = wording.percent(task.chance)
        size = f"{task.kind}, {task.samples:,} samples, chance {chance} %"
        numbers = table(head, rows, (1, 2), f"{task.task}: {size}")
        parts.append(f"<h3>{escape(task.task)}</h3>{numbers}")
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
        parts.append(f"<h3>{escape(funnel.title)}</h3>{chart(bars(steps, title), title)}")
        if funnel.reasons:
            ordered = sorted(funnel.reasons.items(), key=lambda item: -item[1])
            lost = [(name, float(count), f"{count:,}") for name, count in ordered]
            lost_bars = chart(bars(lost, "reasons", colour(2)), "reasons")
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
