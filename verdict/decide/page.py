"""A decision as text for a terminal and as one HTML page: the same words in both. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from clipmill.manifests.text import printable
from clipmill.manifests.web_page import colour, page_templates
from clipmill.verdict import wording
from clipmill.verdict.decide.verdicts import ArmScore, Decision
from clipmill.verdict.pages import charts
from clipmill.verdict.pages.page import TEMPLATES, Line, scale_of
from clipmill.verdict.stats.analysis import AVERAGE, mean_sd
from clipmill.verdict.stats.comparison import ALPHA, Comparison
from clipmill.verdict.tables.account import (
    account_of,
    account_texts,
    direction_text,
    is_guess,
    source_text,
    unit_text,
)
from clipmill.verdict.tables.roles import quoted

MOST_TASKS = 40  # of other tasks, in the terminal
MOST_ARMS = 60
MOST_SIGNALS = 5
MOST_SCALES = 40
MOST_OPEN = 20  # columns or metrics that the page shows unfolded
MOST_GUESSED = 3  # tasks that are named in an option; more of them by the name of all values
MOST_HEAD = 16  # cells of a baseline's name in the head of a table
ARMS_CAPTION = "Mean ± standard deviation over runs; intervals hold for all arms together"
LEGENDS = ("Bars are 95 % intervals.", "Circles are single runs, bars 95 % intervals.")
FROM_MEANS = "from means and SDs"  # of runs that the file does not have
BASELINE, NOT_COMPARED = "baseline", "not compared"  # stand for a verdict
WIDTH = 120  # cells of a line that goes to no terminal


def decision_lines(d: Decision, width: int = WIDTH) -> list[str]:
    """The decision for a terminal: arms, what can be seen, metrics, scales, how the file was read.

    Nothing in it acts on a terminal. width: the cells of a line; a longer name is not cut.
    """
    rows = arm_rows(d)
    table = [(title_of(d), runs_head(d), f"mean ± SD{unit_mark(d.result.unit)}", _head(d), "")]
    for arm, runs, score, row in rows[:MOST_ARMS]:
        words = (wording.difference(row), row.verdict) if row is not None else ("", "")
        table.append((arm, str(runs), score, *words))
    lines = wording.aligned(table, right=(1, 2), width=width)
    if len(rows) > MOST_ARMS:
        lines.append(f"and {len(rows) - MOST_ARMS} more, in --json and on the page")
    scales = wording.scale_texts(d.scales, MOST_SCALES, width)
    for part in (seen_texts(d), task_texts(d)[:MOST_TASKS], signal_texts(d, width), scales):
        lines += ["", *part] if part else []
    lines += ["", *(f"Not decided: {text}." for text in d.refusals)] if d.refusals else []
    account = account_of(d)  # how the file was read, and what else was chosen
    read = [*(account_texts(account) if account is not None else ()), *d.notes]
    lines += ["", "Read as:", *(f"  {text}" for text in read)] if read else []
    return [printable(line) for line in lines]


def render_decision(d: Decision, source: str, links: Mapping[str, str] | None = None) -> str:
    """The decision as a page. links: {file: title} of pages beside it."""
    templates = page_templates(
        TEMPLATES,
        MOST_OPEN=MOST_OPEN,
        direction_text=direction_text,
        forest=charts.forest,
        is_guess=is_guess,
        source_text=source_text,
        unit_text=unit_text,
        wording=wording,
    ).overlay(finalize=_escaped)
    lines, caption = arm_lines(d), ARMS_CAPTION
    if len(counts := {runs for _, runs, _, _ in arm_rows(d)}) == 1:  # once, not in each row
        lines = [replace(line, note="") for line in lines]
        caption = caption.replace("over runs", f"over {wording.runs_text(*counts)} of each arm")
    return templates.get_template("decided.html").render(
        d=d,
        account=account_of(d),
        links=links,
        source=source,
        title=title_of(d),
        headline=headline(d),
        difference_head=f"{_head(d, wording.unit_of_difference(d.result.unit))} [95 %]",
        score_unit=unit_mark(d.result.unit),
        lines=lines,
        lines_caption=caption,
        band=shown_band(d),
        seen=seen_texts(d),
        tasks=_other_tasks(d),
        signals=d.signals,
        signals_alike=signals_alike(d),
        scales=d.scales,
        legend=LEGENDS[d.means is None],
    )


def _head(d: Decision, unit: str = "") -> str:
    """The head of the differences. A long baseline is the first row, which is enough."""
    baseline = d.baseline if wording.cells(printable(d.baseline)) <= MOST_HEAD else "the first"
    return f"{unit} to {baseline}".lstrip()


def _escaped(value: object) -> object:
    """What a template writes: text of strangers with escapes for what would turn its direction."""
    return printable(value) if type(value) is str else value


def unit_mark(unit: str) -> str:
    """What the head of a column of scores ends with: `, %` of shares."""
    mark = "%" if unit == "share" else unit
    return f", {mark}" if mark else ""


def title_of(d: Decision) -> str:
    """The task and the metric of the headline, and its scale where there are several."""
    name = f"average of {len(d.tasks)} tasks" if d.task == AVERAGE else d.task
    parts = [name] if d.metric == "value" else [name, d.metric]
    parts += [d.scale] if d.scale else []
    parts += [f"over {d.over}"] if d.over else []
    return ", ".join([*parts, FROM_MEANS] if d.means is not None else parts)


def runs_head(d: Decision) -> str:
    """What is counted: blocks, where each holds one run of an arm, or runs."""
    return "blocks" if d.over else "runs"


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
    scope = ", ".join(filter(None, (title_of(d), wording.unit_of_difference(d.result.unit))))
    return f"{'; '.join(texts)}{more} ({scope})."


def arm_scores(d: Decision, task: str) -> dict[str, ArmScore]:
    """The scores of the arms that have one on a task, or on what decides."""
    if d.means is not None:
        return d.means.get(task, {})
    values = d.values if task == d.task else d.task_values.get(task, {})
    scores = {}
    for arm, runs in values.items():
        if runs:
            mean, sd = mean_sd(list(runs.values()))
            scores[arm] = ArmScore(n=len(runs), mean=mean, sd=sd)
    return scores


def arm_rows(d: Decision) -> list[tuple[str, int, str, Comparison | None]]:
    """(arm, runs, mean ± SD, its comparison) of the baseline and the arms."""
    compared = {row.arm: row for row in d.result.comparisons}
    scores, rows = arm_scores(d, d.task), []
    for arm in (d.baseline, *(arm for arm in d.arms if arm != d.baseline)):
        one, text = scores.get(arm), wording.DASH
        if one is not None:
            text = wording.mean_and_sd(one.mean, one.sd, d.result.unit)
        rows.append((arm, one.n if one else 0, text, compared.get(arm)))
    return rows


def seen_texts(d: Decision) -> list[str]:
    """What these runs can see, and what it takes to see more."""
    unit = d.result.unit
    seeds = [row.n for row in d.result.comparisons if row.n]
    word = "blocks" if d.over else "seeds" if d.paired else "runs"
    texts = guess_texts(d)
    texts += wording.power_texts(d.result, int(np.median(seeds)), word) if seeds else []
    if d.effect is not None and texts:
        needed = wording.seeds_text(d.seeds_for_effect, word)
        texts.append(f"{wording.in_points(d.effect, unit)} {needed}.")
    if d.sampling is not None:
        texts.append(
            f"The test samples alone leave ±{wording.in_points(d.sampling, unit)} to a "
            "difference of two runs; what is smaller is noise, what is larger may be."
        )
    return [*texts, *block_texts(d)]


def guess_texts(d: Decision) -> list[str]:
    """That arms are called higher or lower, where nobody says what is better, with the options."""
    deciding = (
        {d.task: d.metric} if d.task in d.tasks else {t: r.metric for t, r in d.tasks.items()}
    )
    guessed = [
        one.task if one.metric == "value" else one.metric
        for one in d.account.metrics
        if is_guess(one.direction_from) and deciding.get(one.task) == one.metric
    ]
    if not guessed or not d.result.comparisons:
        return []
    is_all = d.metric == "value" and len(guessed) == len(deciding)
    if is_all and (len(guessed) > MOST_GUESSED or guessed == ["task"]):
        guessed = ["value"]
    names = " ".join(map(quoted, dict.fromkeys(guessed)))
    return [
        f"The direction is a guess here, so arms are higher or lower, not better or worse: "
        f"--higher-is-better {names} or --lower-is-better {names} says it."
    ]


def block_texts(d: Decision) -> list[str]:
    """Whether the differences change with the block, and the arms whose order does."""
    both = d.interaction
    if both is None:
        return []
    changing = []
    for one in both.crossings:
        of_arm = both.differences[one.arm]
        low, high = (
            f"{wording.points(of_arm[block], d.result.unit)} at {d.blocks[block]}"
            for block in (one.lowest, one.highest)
        )
        noise = "beyond noise" if one.is_clear else "may be noise"
        changing.append(f"{one.arm} is {low} and {high} ({noise})")
    if both.p is None:
        first = (
            "Each arm has one run in a block, so what blocks do to the differences is a part of "
            "their noise, and the interval is for blocks like these."
        )
    elif both.p < ALPHA:
        first = (
            f"The differences depend on the block (p = {both.p:.2g}): the verdict is on their mean "
            "over these blocks."
        )
    else:
        first = f"The runs do not show that the differences depend on the block (p = {both.p:.2g})."
    order = f"The order changes with the block: {'; '.join(changing[:3])}."
    return [first, *([order] if changing else [])]


def task_texts(d: Decision) -> list[str]:
    """Where an arm differs on the other tasks; a count of those on which none does."""
    texts, silent = [], 0
    for name, rows in _other_tasks(d):
        found = [
            f"{row.arm} {wording.difference(row)} {row.verdict}" for row in rows if row.is_clear
        ]
        same = [row for row in rows if row.verdict == "nothing varies"]
        found += [f"{row.arm} {wording.difference(row)}" for row in same if row.difference]
        if found:
            texts.append(f"{name}: {'; '.join(found)}" + ", nothing varies" * bool(same))
        else:
            silent += not same
    if texts and silent:
        texts.append(f"on {silent} other tasks no arm is distinguishable from {d.baseline}")
    return texts


def _other_tasks(d: Decision) -> list[tuple[str, tuple[Comparison, ...]]]:
    others = [(task, result.comparisons) for task, result in d.tasks.items() if task != d.task]
    return [(task, rows) for task, rows in others if rows]


def signal_texts(d: Decision, width: int = WIDTH) -> list[str]:
    """The metrics that separate the arms best, and the one that does least."""
    if not d.signals:
        return []
    rows, shown = [], [*d.signals[:MOST_SIGNALS], *d.signals[MOST_SIGNALS:][-1:]]
    for one in shown:
        ratio = wording.DASH
        if one.ratio is not None:
            ratio = f"{one.ratio.value:.1f} [{one.ratio.low:.1f}, {one.ratio.high:.1f}]"
        equal = (
            f"equal arms {one.by_chance:.1f}; two single seeds agree on "
            f"{one.single_agreement:.0%} of the pairs"
        )
        rows.append((one.metric, ratio, equal))
    texts = ["Which metric separates the arms: largest difference ÷ noise of one run"]
    texts += wording.aligned(rows, right=(1,), indent=2, width=width)
    return [*texts, f"  {alike}"] if (alike := signals_alike(d)) else texts


def signals_alike(d: Decision) -> str:
    """How many metrics may separate the arms as well as the first one, by their intervals."""
    known = [one.ratio for one in d.signals if one.ratio is not None]
    count = sum(one.high >= known[0].low for one in known[1:]) if known else 0
    others = len(d.signals) - 1
    which = f"{count} of the other {others}" if others > 1 else "The other one"
    return f"{which} may be as good as the first." if count else ""


def arm_lines(d: Decision) -> list[Line]:
    """The baseline and the arms with what a picture needs of each: scores, differences, runs."""
    shades = {arm: colour(index) for index, arm in enumerate(d.arms)}
    lines = []
    for arm, runs, score, row in arm_rows(d):
        line = Line(
            name=arm,
            score=score,
            d=row,
            dots=_run_differences(d, row) if row is not None else (),
            shade=shades[arm],
            word=BASELINE if arm == d.baseline else NOT_COMPARED,
            note=wording.runs_text(runs),
        )
        lines.append(line)
    return lines


def _run_differences(d: Decision, row: Comparison) -> tuple[float, ...]:
    """Each run less the baseline's run of its seed; less the mean of the baseline's runs where the
    comparison is of no seed in common. () where the file has means of runs.
    """
    if d.means is not None:
        return ()
    values, of_baseline = d.values.get(row.arm, {}), d.values.get(row.baseline, {})
    if row.seeds:
        return tuple(values[seed] - of_baseline[seed] for seed in row.seeds)
    mean = float(np.mean(list(of_baseline.values())))
    return tuple(value - mean for value in values.values())


def shown_band(d: Decision) -> float:
    """The band of differences that count as equal, in the unit that is shown; 0: none."""
    widest = max((row.band for row in d.result.comparisons), default=0.0)
    return scale_of(d.result.unit) * widest
