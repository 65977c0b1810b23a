"""A report as text for a terminal."""

from __future__ import annotations

from train.ablation import wording
from train.reporting.schema import Report, TaskReport, TaskRow


def report_lines(report: Report) -> list[str]:
    """Funnels, one table per task, the null web, and the verdict."""
    lines = []
    for funnel in report.funnels:
        steps = " > ".join(f"{name} {count:,}" for name, count in funnel.steps)
        lines.append(f"{funnel.title}: {steps}")
        if funnel.reasons:
            lost = sorted(funnel.reasons.items(), key=lambda item: -item[1])
            reasons = ", ".join(f"{name} {count:,}" for name, count in lost)
            lines.append(f"{funnel.title}, not kept: {reasons}")
    for task in report.tasks:
        lines += ["", *task_table(report, task)]
    if report.null_web is not None:
        null = report.null_web
        lines += ["", f"{null.name}: {null.question}", *task_table(null, null.tasks[0])]
        lines.append(null.verdict)
    return [*lines, "", *report.verdict.splitlines()]


def task_table(report: Report, task: TaskReport) -> list[str]:
    """One line per arm: pairs, repeats, mean ± SD, and the difference to the baseline.

    Without pairs and repeats where only predictions are known.
    """
    head = f"{task.task}, {task.metric}"
    data = f"{'pairs':>8}{'repeats':>9}" if _with_data(report) else ""
    unit = ", %" if task.unit == "share" else ""
    lines = [f"{head:<30}{data}{f'mean ± SD{unit}':>16}   to {report.baseline}"]
    for row in task.rows:
        lines.append(_row(report, task, row))
    return lines


def _with_data(report: Report) -> bool:
    return any(arm.rows for arm in report.arms)


def _row(report: Report, task: TaskReport, row: TaskRow) -> str:
    arm = next(arm for arm in report.arms if arm.arm == row.arm)
    data = ""
    if _with_data(report):
        repeats = wording.DASH if arm.repeats is None else f"{arm.repeats:.1f}"
        rows = f"{arm.rows:,}" if arm.rows else wording.DASH
        data = f"{rows:>8}{repeats:>9}"
    text = f"{row.arm:<30}{data}{wording.mean_and_sd(row.mean, row.sd, task.unit):>16}   "
    if row.difference is not None:
        d = row.difference
        text += f"{wording.interval(d.mean, d.low, d.high, task.unit)}  {d.verdict}"
    if arm.missing:
        text += f"  ({wording.without(arm.missing)})"
    return text.rstrip()
