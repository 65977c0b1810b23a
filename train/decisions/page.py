"""A decision as text for a terminal and as one HTML page: the same words in both. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from manifests.web_page import colour, page_templates
from train.ablation import wording
from train.decisions.verdicts import Decision
from train.reporting import charts
from train.reporting.page import TEMPLATES, Line, scale_of
from train.stats.analysis import AVERAGE, mean_sd
from train.stats.comparison import Comparison

MOST_TASKS = 40  # of other tasks, in the terminal
MOST_ARMS = 60
MOST_SIGNALS = 5
MOST_SCALES = 40


def decision_lines(d: Decision) -> list[str]:
    """The decision for a terminal: arms, what can be seen, metrics, scales, guesses."""
    unit = ", %" if d.result.unit == "share" else ""
    lines = [f"{title_of(d):<44}{'runs':>5}{f'mean ± SD{unit}':>18}   to {d.baseline}"]
    rows = arm_rows(d)
    for arm, runs, score, comparison in rows[:MOST_ARMS]:
        text = f"{arm:<44}{runs:>5}{score:>18}   "
        if comparison is not None:
            text += f"{wording.difference(comparison)}  {comparison.verdict}"
        lines.append(text.rstrip())
    if len(rows) > MOST_ARMS:
        lines.append(f"and {len(rows) - MOST_ARMS} more, in --json and on the page")
    scales = wording.scale_texts(d.scales, MOST_SCALES)
    for part in (seen_texts(d), task_texts(d)[:MOST_TASKS], signal_texts(d), scales):
        lines += ["", *part] if part else []
    lines += ["", *(f"Not decided: {text}." for text in d.refusals)] if d.refusals else []
    lines += ["", "Read as:", *(f"  {note}" for note in d.notes)] if d.notes else []
    return lines


def render_decision(d: Decision, source: str, links: Mapping[str, str] | None = None) -> str:
    """The decision as a page. links: {file: title} of pages beside it."""
    shades = {arm: colour(index) for index, arm in enumerate(d.arms)}
    templates = page_templates(TEMPLATES, wording=wording, forest=charts.forest)
    return templates.get_template("decided.html").render(
        d=d,
        links=links,
        source=source,
        title=title_of(d),
        headline=headline(d),
        unit=wording.unit_of_difference(d.result.unit),
        score_unit=", %" if d.result.unit == "share" else "",
        lines=[_line(d, shades, *row) for row in arm_rows(d)],
        band=scale_of(d.result.unit) * max((row.band for row in d.result.comparisons), default=0.0),
        seen=seen_texts(d),
        tasks=_other_tasks(d),
        signals=d.signals,
        signals_alike=signals_alike(d),
        scales=d.scales,
    )


def title_of(d: Decision) -> str:
    """The task and the metric of the headline, and its scale where there are several."""
    name = f"average of {len(d.tasks)} tasks" if d.task == AVERAGE else d.task
    parts = [name] if d.metric == "value" else [name, d.metric]
    return ", ".join([*parts, d.scale] if d.scale else parts)


def headline(d: Decision) -> str:
    """One sentence: which arms differ from the baseline."""
    clear = [row for row in d.result.comparisons if row.is_clear]
    if d.refusals and not d.result.comparisons:
        return f"{d.refusals[-1][0].upper()}{d.refusals[-1][1:]}."
    if not clear:
        return f"No arm is distinguishable from {d.baseline} on {title_of(d)}."
    clear.sort(key=lambda row: -abs(row.difference))
    texts = [
        f"{row.arm} is {row.verdict} than {d.baseline}: {wording.difference(row)}"
        for row in clear[:3]
    ]
    more = f"; and {len(clear) - 3} more differ" if len(clear) > 3 else ""
    return f"{'; '.join(texts)}{more} ({title_of(d)}, {wording.unit_of_difference(d.result.unit)})."


def arm_rows(d: Decision) -> list[tuple[str, int, str, Comparison | None]]:
    """(arm, runs, mean ± SD, its comparison) of the baseline and the arms."""
    compared = {row.arm: row for row in d.result.comparisons}
    rows = []
    for arm in (d.baseline, *(arm for arm in d.arms if arm != d.baseline)):
        runs = list(d.values.get(arm, {}).values())
        score = wording.mean_and_sd(*mean_sd(runs), d.result.unit) if runs else wording.DASH
        rows.append((arm, len(runs), score, compared.get(arm)))
    return rows


def seen_texts(d: Decision) -> list[str]:
    """What these runs can see, and what it takes to see more."""
    unit, name = d.result.unit, wording.unit_of_difference(d.result.unit)
    seeds = [row.n for row in d.result.comparisons if row.n]
    texts = wording.power_texts(d.result, int(np.median(seeds))) if seeds else []
    if d.effect is not None and texts:
        needed = wording.seeds_text(d.seeds_for_effect)
        texts.append(f"{wording.percent(d.effect, unit)} {name} {needed}.")
    if d.sampling is not None:
        texts.append(
            f"The test samples alone leave ±{wording.percent(d.sampling, unit)} {name} to a "
            "difference of two runs; what is smaller is noise, what is larger may be."
        )
    return texts


def task_texts(d: Decision) -> list[str]:
    """Where an arm differs on the other tasks; a count of those on which none does."""
    texts, silent = [], 0
    for name, rows in _other_tasks(d):
        found = [
            f"{row.arm} {wording.difference(row)} {row.verdict}" for row in rows if row.is_clear
        ]
        if found:
            texts.append(f"{name}: {'; '.join(found)}")
        else:
            silent += 1
    if texts and silent:
        texts.append(f"on {silent} other tasks no arm is distinguishable from {d.baseline}")
    return texts


def _other_tasks(d: Decision) -> list[tuple[str, tuple[Comparison, ...]]]:
    others = [(task, result.comparisons) for task, result in d.tasks.items() if task != d.task]
    return [(task, rows) for task, rows in others if rows]


def signal_texts(d: Decision) -> list[str]:
    """The metrics that separate the arms best, and the one that does least."""
    if not d.signals:
        return []
    texts = ["Which metric separates the arms: largest difference ÷ noise of one run"]
    shown = [*d.signals[:MOST_SIGNALS], *d.signals[MOST_SIGNALS:][-1:]]
    for one in shown:
        ratio = wording.DASH
        if one.ratio is not None:
            ratio = f"{one.ratio.value:.1f} [{one.ratio.low:.1f}, {one.ratio.high:.1f}]"
        texts.append(
            f"  {one.metric:<42}{ratio:>20}   equal arms {one.by_chance:.1f}; two single seeds "
            f"agree on {one.single_agreement:.0%} of the pairs"
        )
    return [*texts, f"  {alike}"] if (alike := signals_alike(d)) else texts


def signals_alike(d: Decision) -> str:
    """How many metrics may separate the arms as well as the first one, by their intervals."""
    known = [one.ratio for one in d.signals if one.ratio is not None]
    count = sum(one.high >= known[0].low for one in known[1:]) if known else 0
    return (
        f"{count} of the other {len(d.signals) - 1} may be as good as the first." if count else ""
    )


def _line(
    d: Decision, shades: dict[str, str], arm: str, runs: int, score: str, row: Comparison | None
) -> Line:
    values, of_baseline = d.values.get(arm, {}), d.values.get(d.baseline, {})
    return Line(
        name=arm,
        score=score,
        d=row,
        dots=tuple(values[seed] - of_baseline[seed] for seed in row.seeds) if row else (),
        shade=shades[arm],
        word="baseline" if arm == d.baseline else wording.DASH,
        note=f"{runs} run{'s' if runs != 1 else ''}",
    )
