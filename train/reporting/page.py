"""A report as one HTML page: no script, no font, no outside address; it opens from disk."""

from __future__ import annotations

import datetime
from html import escape

from train.ablation import wording
from train.reporting import charts, sections
from train.reporting.markup import STYLE, chart, details, note, verdict_word
from train.reporting.schema import ArmReport, Report

HEAD = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width,initial-scale=1">'
    '<link rel="icon" href="data:,">'
)


def render(report: Report, written: datetime.date | None = None) -> str:
    """The whole page. `written` is the date that it shows."""
    bodies = [
        ("Every task", sections.tasks(report)),
        ("Checks on the method", sections.checks(report)),
        ("Evaluation images in the pools", sections.evaluation_overlap(report)),
        ("Training curves", sections.curves(report)),
        ("Outcomes of the pairs", sections.funnels(report)),
        ("Scores", sections.histograms(report)),
        ("Example images", sections.examples(report)),
        ("Data of the arms", sections.composition(report)),
        ("Rules and settings", sections.settings(report)),
        ("Cost of each stage", sections.costs(report)),
        ("Provenance", sections.provenance(report)),
    ]
    shown = [(title, body) for title, body in bodies if body]
    links, parts = [], []
    for number, (title, body) in enumerate(shown, start=1):
        links.append(f'<a href="#s{number}">{escape(title)}</a>')
        parts.append(f'<section id="s{number}"><h2>{escape(title)}</h2>{body}</section>')
    date = "" if written is None else note(f"Written on {written:%Y-%m-%d}.")
    return (
        f"{HEAD}<title>{escape(report.name)}: dataset ablation</title><style>{STYLE}</style>"
        f"</head><body><main><h1>{escape(report.name)}</h1>"
        f"<p class='lead'>{escape(report.question)}</p>{_verdict(report)}"
        f"<nav>{' '.join(links)}</nav>{_comparison(report)}{''.join(parts)}{date}"
        "</main></body></html>\n"
    )


def _verdict(report: Report) -> str:
    """The headline, one line per arm, and what is missing."""
    lines = []
    for arm in report.arms:
        d = arm.difference
        if arm.role == "arm" and d is not None:
            difference = wording.interval(d.mean, d.low, d.high)
            lines.append(
                f"<li>{escape(arm.arm)}: {verdict_word(d.verdict)}, {difference} points</li>"
            )
    lines += [f'<li class="gap">{escape(gap)}</li>' for gap in report.gaps]
    folded = "".join(f"<p class='note'>{escape(line)}</p>" for line in _details(report))
    more = details("each comparison in full", folded) if folded else ""
    return (
        f'<div class="verdict"><p>{escape(report.headline)}</p><ul>{"".join(lines)}</ul></div>'
        f"{more}"
    )


def _details(report: Report) -> list[str]:
    on_primary = [row for row in report.comparisons if row.task == report.primary]
    return [row.sentence for row in on_primary]


def _comparison(report: Report) -> str:
    """The table of the arms and the forest plot."""
    rows = []
    for arm in report.arms:
        if arm.difference is not None and arm.role != "baseline":
            rows.append(_forest_row(report, arm))
    plot = ""
    if rows:
        title = f"Difference to {report.baseline} on {report.primary}, points"
        plot = chart(charts.forest(rows, 100 * report.equivalence, title))
    table = sections.arms_table(report, ("baseline", "arm"))
    return f"{table}{plot}{details('how to read this', note(_explanation(report)))}"


def _forest_row(report: Report, arm: ArmReport) -> charts.ForestRow:
    d = arm.difference
    assert d is not None
    baseline = next(one for one in report.arms if one.arm == report.baseline)
    seeds = arm.metrics[report.primary].values
    reference = baseline.metrics[report.primary].values
    dots = [100 * (value - reference[s]) for s, value in seeds.items() if s in reference]
    return charts.ForestRow(
        name=arm.arm,
        mean=100 * d.mean,
        low=None if d.low is None else 100 * d.low,
        high=None if d.high is None else 100 * d.high,
        colour=sections.colours_of(report)[arm.arm],
        dots=tuple(dots),
    )


def _explanation(report: Report) -> str:
    trained = ""
    if report.samples_seen is not None:
        trained = f", at {report.samples_seen:,} samples seen per run"
    noise = next((one for one in report.noise if one.task == report.primary), None)
    unit = "share" if noise is None else noise.unit
    band = wording.percent(report.equivalence, unit)
    text = (
        f"Scores are mean ± standard deviation over {len(report.seeds)} seeds{trained}. "
        "All runs together give one estimate of the noise of a run. Intervals are of 95 %, hold "
        "for all arms together (Dunnett's test; Holm's for controls), and count the noise of the "
        "seeds and of the test samples. Small circles are single seeds. Inside the grey band of "
        f"±{band}, arms count as practically equal."
    )
    if noise is None or noise.sd is None:
        return text
    text += f" One run varies by {wording.percent(noise.sd, unit)} (standard deviation)"
    if noise.prior is not None:
        text += (
            f"; earlier ablations, which vary by {wording.percent(noise.prior.variance**0.5, unit)}"
            ", are counted in"
        )
    if noise.floor_sd is not None:
        text += f"; the test samples alone leave {wording.percent(noise.floor_sd, unit)}"
    text += "."
    if noise.mde is not None:
        text += (
            " The smallest true difference that 80 % of such ablations would find is "
            f"{wording.percent(noise.mde, unit)}."
        )
    return text
