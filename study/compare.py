"""Two ablations of the same question, and reports as text and Markdown."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from clipmill.manifests.web_page import colour, page_templates
from clipmill.train.config import configure
from clipmill.verdict import wording
from clipmill.verdict.pages import charts
from clipmill.verdict.pages.page import (
    TEMPLATES,
    difference_point,
    level_of,
    scale_of,
)
from clipmill.verdict.pages.schema import ArmReport, Report
from clipmill.verdict.stats.analysis import TaskResult
from clipmill.verdict.stats.comparison import Comparison
from clipmill.verdict.stats.scales import ScaleAgreement, scale_agreement

HASH_DIGITS = 12  # of a hash in a message

# --------------------------------------------------------------------------------------------------
# Two ablations of the same question: the same arms side by side, and what changed.


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedArm:
    """An arm in two ablations: its difference to the baseline in each, on the primary task.

    change: second difference minus first. low, high: its 95 % interval, with the half-widths of
    both headline intervals added in squares, as the runs are independent; the test set is the same,
    so it is wide rather than narrow. None where a difference has no interval.
    """

    arm: str
    first: Comparison
    second: Comparison
    change: float
    low: float | None
    high: float | None

    @property
    def beyond_noise(self) -> bool:
        """The interval of the change excludes 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    @property
    def other_verdict(self) -> bool:
        """The two ablations say different words."""
        return self.first.verdict != self.second.verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportComparison:
    """Two ablations. only_first, only_second: arms that the other one does not have.

    differs: what else the two have different, one line each. without_hash: those of the two whose
    test set has no hash, so that the content of both test sets could not be compared. agreement:
    pairs of arms that both order alike; None for fewer than two arms.
    """

    first: str
    second: str
    baseline: str
    task: str
    metric: str
    unit: str
    arms: tuple[ComparedArm, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    differs: tuple[str, ...]
    without_hash: tuple[str, ...]
    agreement: ScaleAgreement | None


def compare_reports(first: Report, second: Report) -> ReportComparison:
    """The arms that both have, on the primary task. ValueError where they are not comparable."""
    _check_comparable(first, second)
    of_first, of_second = _differences(first), _differences(second)
    arms = []
    for arm, one in of_first.items():
        if arm in of_second:
            arms.append(_compared(arm, one, of_second[arm]))
    if not arms:
        raise ValueError(
            f"{first.ablation.name!r} and {second.ablation.name!r} have no arm in common that both "
            f"compared with {first.baseline!r}: {', '.join(of_first) or 'none'} in the one, "
            f"{', '.join(of_second) or 'none'} in the other"
        )
    task = first.primary
    return ReportComparison(
        first=first.ablation.name,
        second=second.ablation.name,
        baseline=first.baseline,
        task=task.task,
        metric=task.metric,
        unit=task.unit,
        arms=tuple(arms),
        only_first=tuple(arm for arm in of_first if arm not in of_second),
        only_second=tuple(arm for arm in of_second if arm not in of_first),
        differs=_differs(first, second),
        without_hash=tuple(
            report.ablation.name for report in (first, second) if task.task not in report.test_data
        ),
        agreement=scale_agreement(*_by_arm("", arms)),  # the baseline takes part
    )


def _check_comparable(first: Report, second: Report) -> None:
    """ValueError for another baseline, task, metric or test set. The content of test sets is
    compared by its hash, where both have one.
    """
    one, other = first.primary, second.primary
    for name, left, right in (
        ("baseline", first.baseline, second.baseline),
        ("primary task", one.task, other.task),
        ("kind of task", _kind(first), _kind(second)),
        ("metric", one.metric, other.metric),
        ("number of test samples", one.samples, other.samples),
        ("number of classes, by its chance", one.chance, other.chance),
    ):
        if left != right:
            raise ValueError(
                f"{first.ablation.name!r} and {second.ablation.name!r} are not comparable: the "
                f"{name} is {left!r} in the one and {right!r} in the other"
            )
    hashes = [report.test_data.get(one.task) for report in (first, second)]
    if None not in hashes and hashes[0] != hashes[1]:
        short, other_short = (str(text)[:HASH_DIGITS] for text in hashes)
        raise ValueError(
            f"{first.ablation.name!r} and {second.ablation.name!r} are not comparable: the test "
            f"set of {one.task!r} has the hash {short} in the one and {other_short} in the other"
        )


def _kind(report: Report) -> str:
    return next(t.kind for t in report.ablation.evaluate if t.name == report.ablation.primary)


def _differences(report: Report) -> dict[str, Comparison]:
    arms = {}
    for arm in report.arms:
        d = report.difference(arm.arm)
        if d is not None and arm.role != "baseline":
            arms[arm.arm] = d
    return arms


def _compared(arm: str, first: Comparison, second: Comparison) -> ComparedArm:
    change = second.difference - first.difference
    low = high = None
    halves = []
    for one in (first, second):
        if one.low is not None and one.high is not None:
            halves.append((one.high - one.low) / 2)
    if len(halves) == 2:
        half = math.hypot(*halves)
        low, high = change - half, change + half
    return ComparedArm(arm=arm, first=first, second=second, change=change, low=low, high=high)


def _by_arm(
    baseline: str, arms: Sequence[ComparedArm]
) -> tuple[dict[str, float], dict[str, float]]:
    """The differences of both ablations by arm, with 0 of the baseline."""
    first = {baseline: 0.0, **{arm.arm: arm.first.difference for arm in arms}}
    return first, {baseline: 0.0, **{arm.arm: arm.second.difference for arm in arms}}


def _differs(first: Report, second: Report) -> tuple[str, ...]:
    left, right = _size(first), _size(second)
    different = [name for name in left if left[name] != right[name]]
    return tuple(f"{name}: {_fact(left[name])} and {_fact(right[name])}" for name in different)


def _size(report: Report) -> dict[str, object]:
    models = {run.model for run in report.runs if run.model is not None}
    return {
        "samples seen per run": report.samples_seen,
        "learning rate": configure(report.ablation.train).lr if report.ablation.train else None,
        "seeds": len(report.ablation.seeds),
        "model": ", ".join(sorted(models)),
        "rows of the baseline": sum(a.rows for a in report.arms if a.arm == report.baseline),
    }


def _fact(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value or "unknown")


# --- as text and as a page ------------------------------------------------------------------------


def summary(comparison: ReportComparison) -> list[str]:
    """What changed between the two, one sentence each."""
    c = comparison
    unit = wording.unit_of_difference(c.unit)
    changed = [arm for arm in c.arms if arm.other_verdict]
    beyond = [arm for arm in c.arms if arm.beyond_noise]
    texts = [f"{arm.arm} ({arm.first.verdict}, then {arm.second.verdict})" for arm in changed]
    lines = [f"Other verdict: {', '.join(texts)}." if texts else "Every verdict is the same."]
    texts = [f"{arm.arm} by {comparison_cells(arm, c.unit)[2]} {unit}" for arm in beyond]
    noise = "No difference changed by more than its noise."
    lines.append(f"Changed beyond noise: {', '.join(texts)}." if texts else noise)
    if alike := c.agreement:
        text = f"Pairs of arms ordered alike: {alike.alike} of {alike.pairs}"
        if (alike.share.low, alike.share.high) != (0.0, 1.0):
            text += f" ({alike.share.low:.0%} to {alike.share.high:.0%}, leaving out each arm)"
        lines.append(f"{text}.")
    lines += [f"The two differ in {line}." for line in c.differs]
    if c.without_hash:
        names = " and ".join(dict.fromkeys(c.without_hash))
        lines.append(
            f"Whether {c.task} has the same content in both could not be compared: no hash "
            f"of it is known of {names}."
        )
    for name, only in ((c.first, c.only_first), (c.second, c.only_second)):
        if only:
            lines.append(f"Only in {name}: {', '.join(only)}.")
    return lines


def comparison_lines(comparison: ReportComparison) -> list[str]:
    """The comparison as text for a terminal."""
    c = comparison
    columns = f"{c.first[:24]:>24}{c.second[:24]:>26}{'change':>26}"
    lines = [f"{c.task}, {c.metric}, to {c.baseline}", f"{'':<24}{columns}"]
    for arm in c.arms:
        cells = comparison_cells(arm, c.unit)
        mark = "  beyond noise" if arm.beyond_noise else ""
        text = f"{arm.arm:<24}{cells[0]:>24}{cells[1]:>26}{cells[2]:>26}{mark}"
        lines.append(f"{text}  {arm.first.verdict} / {arm.second.verdict}")
    return [*lines, "", *summary(c)]


def comparison_cells(arm: ComparedArm, unit: str) -> tuple[str, str, str]:
    """The difference of an arm in both, and its change, in words."""
    change = wording.interval(arm.change, arm.low, arm.high, unit)
    return wording.difference(arm.first), wording.difference(arm.second), change


def render_comparison(comparison: ReportComparison, links: Mapping[str, str] | None = None) -> str:
    """The comparison as a page: a table, and a scatter of the two differences of each arm. links:
    {file: title} of pages beside it."""
    c = comparison
    shades = {arm.arm: colour(index) for index, arm in enumerate(c.arms, start=1)}
    scale, unit = scale_of(c.unit), wording.unit_of_difference(c.unit)
    points = []
    for arm in c.arms:
        x = scale * arm.first.difference
        points.append(difference_point(arm.arm, shades[arm.arm], x, arm.second, scale))
    title = f"Difference to {c.baseline} in {c.first} (across) and in {c.second} (up), {unit}"
    ranks_title = f"Rank of each arm in {c.first} (across) and in {c.second} (up); 1 is the best"
    templates = page_templates(TEMPLATES, wording=wording)
    return templates.get_template("compared.html").render(
        c=c,
        links=links,
        unit=unit,
        summary=summary(c),
        rows=[(arm, comparison_cells(arm, c.unit)) for arm in c.arms],
        shades=shades,
        chart_title=title,
        svg=charts.scatter(points, c.first, c.second, title),
        ranks_title=ranks_title,
        ranks=_ranks(c, {c.baseline: colour(0), **shades}, ranks_title),
    )


def _ranks(c: ReportComparison, shades: dict[str, str], title: str) -> str:
    """The rank of each arm and the baseline in both ablations; "" for fewer than three."""
    first, second = _by_arm(c.baseline, c.arms)
    if len(first) < 3:
        return ""
    points = []
    for name in first:
        x = 1 + sum(other > first[name] for other in first.values())
        y = 1 + sum(other > second[name] for other in second.values())
        points.append(charts.Point(name=f"{name}: {x}, then {y}", colour=shades[name], x=x, y=y))
    return charts.scatter(points, f"rank in {c.first}", f"rank in {c.second}", title, level=None)


# --------------------------------------------------------------------------------------------------
# A summary of a report as Markdown, at most 40 lines: for a pull request.


LOSSES = 3
MARK = "`report.html` and `report.json` have the details."  # every summary ends with it


def report_markdown(report: Report, written: datetime.date | None = None) -> str:
    """The verdict, a table of the arms, controls, the largest losses and what is missing."""
    primary, losses = report.ablation.primary, []
    for row in report.results.comparisons:
        if row.verdict == "worse" and row.task != primary:
            losses.append(row)
    losses.sort(key=lambda row: -abs(row.difference))
    templates = page_templates(TEMPLATES, wording=wording, level_of=level_of)
    templates.filters["line"] = _line
    text = templates.get_template("report.md").render(
        r=report,
        power=" ".join(wording.power_texts(report.primary, len(report.ablation.seeds))),
        losses=losses[:LOSSES],
        written="" if written is None else f"{written:%Y-%m-%d}",
        mark=MARK,
    )
    return f"{text}\n"


def _line(text: str) -> Markup:
    """One line in which Markdown finds no table and no tag."""
    line = " ".join(text.split())
    line = line.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return Markup(line.replace("*", "\\*"))


# --------------------------------------------------------------------------------------------------
# A report as text for a terminal.


def report_lines(report: Report) -> list[str]:
    """Funnels, one table per task, the null web, what is missing, and the verdict."""
    lines = []
    for funnel in report.funnels:
        steps = " > ".join(f"{name} {count:,}" for name, count in funnel.steps)
        lines.append(f"{funnel.title}: {steps}")
        if funnel.reasons:
            lost = sorted(funnel.reasons.items(), key=lambda item: -item[1])
            reasons = ", ".join(f"{name} {count:,}" for name, count in lost)
            lines.append(f"{funnel.title}, not kept: {reasons}")
    for task in report.ablation.evaluate:
        lines += ["", *task_table(report, report.results.tasks[task.name])]
    if report.null_web is not None:
        null = report.null_web
        asked = f"{null.ablation.name}: {null.ablation.question}"
        lines += ["", asked, *task_table(null, null.primary), *null.results.verdict.splitlines()]
    return [*lines, "", *report.gaps, *report.redesigns, *report.results.verdict.splitlines()]


def task_table(report: Report, task: TaskResult) -> list[str]:
    """One line per arm: pairs, repeats, mean ± SD, and the difference to the baseline.

    Without pairs and repeats where only predictions are known.
    """
    head = f"{task.task}, {task.metric}"
    data = f"{'pairs':>8}{'repeats':>9}" if _with_data(report) else ""
    unit = ", %" if task.unit == "share" else ""
    lines = [f"{head:<30}{data}{f'mean ± SD{unit}':>16}   to {report.baseline}"]
    lines += [_text_row(report, task, arm) for arm in report.arms]
    return lines


def _with_data(report: Report) -> bool:
    return any(arm.rows for arm in report.arms)


def _text_row(report: Report, task: TaskResult, arm: ArmReport) -> str:
    of_arm, data = arm.metrics[task.task], ""
    if _with_data(report):
        repeats = wording.DASH if arm.repeats is None else f"{arm.repeats:.1f}"
        rows = f"{arm.rows:,}" if arm.rows else wording.DASH
        data = f"{rows:>8}{repeats:>9}"
    text = f"{arm.arm:<30}{data}{wording.mean_and_sd(of_arm.mean, of_arm.sd, task.unit):>16}   "
    d = report.difference(arm.arm, task.task)
    if d is not None and arm.role != "a_a":
        text += f"{wording.difference(d)}  {d.verdict}"
    if arm.missing:
        text += f"  ({wording.without(arm.missing)})"
    return text.rstrip()
