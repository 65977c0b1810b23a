"""A summary of a report as Markdown, at most 40 lines: for a pull request."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from train.ablation import wording
from train.reporting.page.overview import power_texts, primary_task
from train.reporting.schema import ArmReport, Report

MOST_LINES = 40
MOST_ARMS = 10  # rows of the table of arms, and of controls half of it
MOST_GAPS = 3
LOSSES = 3


def report_markdown(report: Report, written: datetime.date | None = None) -> str:
    """The verdict, a table of the arms, controls, the largest losses and what is missing."""
    lines = [
        f"## {_text(report.name)}",
        "",
        _text(report.question),
        "",
        f"**{_text(report.headline)}**",
    ]
    lines += ["", *_arms(report, ("baseline", "arm"), MOST_ARMS)]
    controls = _arms(report, ("random", "a_a"), MOST_ARMS // 2)
    if controls:
        lines += ["", "Controls:", "", *controls]
    ends = [_text(" ".join(power_texts(report))), _losses(report)]
    ends += [f"- {_text(gap)}" for gap in report.gaps[:MOST_GAPS]]
    if len(report.gaps) > MOST_GAPS:
        ends.append(f"- and {len(report.gaps) - MOST_GAPS} more gaps")
    ablation = report.provenance.facts.get("ablation", "")
    date = "" if written is None else f", written on {written:%Y-%m-%d}"
    ends.append(f"Ablation `{ablation}`{date}; `report.html` and `report.json` have the details.")
    lines += ["", *(line for line in ends if line)]
    assert len(lines) <= MOST_LINES
    return "\n".join(lines) + "\n"


def _arms(report: Report, roles: Sequence[str], most: int) -> list[str]:
    """A table of the arms of these roles; empty where there is none."""
    arms = [arm for arm in report.arms if arm.role in roles]
    if not arms:
        return []
    unit = primary_task(report).unit
    score = f"{_text(report.primary)}, %" if unit == "share" else _text(report.primary)
    name = f"{wording.unit_of_difference(unit)} to {_text(report.baseline)} [95 %]"
    lines = [f"| arm | seeds | {score} | {name} | verdict |", "| --- | ---: | ---: | ---: | --- |"]
    lines += [_row(report, arm, unit) for arm in arms[:most]]
    if len(arms) > most:
        lines.append(f"| and {len(arms) - most} more | | | | |")
    return lines


def _row(report: Report, arm: ArmReport, unit: str) -> str:
    metric, d = arm.metrics[report.primary], arm.difference
    difference, verdict = "", "baseline" if arm.role == "baseline" else wording.DASH
    if d is not None:
        difference, verdict = wording.interval(d.mean, d.low, d.high, unit), d.verdict
    score = wording.mean_and_sd(metric.mean, metric.sd, unit)
    cells = (_text(arm.arm), str(len(metric.values)), score, difference, verdict)
    return f"| {' | '.join(cells)} |"


def _losses(report: Report) -> str:
    """The tasks on which an arm is worse, the largest losses first."""
    losses = []
    for row in report.comparisons:
        if row.verdict == "worse" and row.task != report.primary:
            losses.append((-abs(row.difference), row))
    losses.sort(key=lambda item: item[0])
    texts = []
    for _, row in losses[:LOSSES]:
        difference = wording.interval(row.difference, row.low, row.high, row.unit)
        texts.append(f"{row.arm} on {row.task} {difference}")
    return f"Worse on other tasks: {_text('; '.join(texts))}." if texts else ""


def _text(text: str) -> str:
    """One line in which Markdown finds no table and no tag."""
    line = " ".join(text.split())
    return line.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
