"""`clipmill decide` and `mix`: verdicts on anyone's runs, and the best blend by them.

What they need is imported when they run, so that a help costs nothing of it.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal

from cyclopts import Parameter

from clipmill.commands.app import MORE, Json, Words, documented_by, make_app, print_json
from clipmill.manifests import console

FAILED_ON = 4  # the exit status of --fail-on
DECIDE = make_app(
    "decide",
    """
  clipmill decide examples/cifar10_120_runs.parquet
  clipmill decide runs.csv --baseline raw --effect 0.01 --page verdicts.html
  clipmill decide runs.xlsx --block learning_rate --svg intervals.svg --fail-on worse
  clipmill decide openclip_results.csv --pattern '(?P<arm>\\w+)_(?P<scale>[sml])_'

RESULTS are tables of CSV, Markdown, LaTeX or a spreadsheet, Parquet, JSON, or
folders of them: a row for each value, a column for each task, or a column for
each arm; exports of trackers and of evaluation programs. What became of each
column, row and cell is printed, and what cannot be known is asked in one line.
""",
    {
        0: "the verdicts are printed, also where nothing can be decided",
        FAILED_ON: "an arm has a verdict that --fail-on names",
    },
)
Column = Parameter(group=MORE)


@DECIDE.default
@documented_by("answers", "decide")
def decide_results(
    results: str, /, *more: str, baseline: str | None = None, task: str | None = None,
    metric: str | None = None, lower_is_better: Annotated[list[str] | None, Words] = None,
    higher_is_better: Annotated[list[str] | None, Words] = None,
    without: Annotated[list[str] | None, Words] = None,
    where: Annotated[list[str] | None, Words] = None, effect: float | None = None,
    equivalence: float = 0.0, noise: float | None = None, pattern: str | None = None,
    table: str | None = None, arm: Annotated[list[str] | None, Words, Column] = None,
    seed: Annotated[list[str] | None, Words, Column] = None,
    block: Annotated[list[str] | None, Words, Column] = None,
    task_column: Annotated[list[str] | None, Words, Column] = None,
    metric_column: Annotated[list[str] | None, Words, Column] = None,
    value: Annotated[list[str] | None, Words, Column] = None,
    scale: Annotated[str | None, Column] = None, last: Annotated[str | None, Column] = None,
    samples: Annotated[str | None, Column] = None, runs: str | None = None,
    spread: Literal["sd", "sem", "ci95"] | None = None,
    unit: Annotated[list[str] | None, Words, Column] = None, markdown: str | None = None,
    latex: str | None = None, csv: str | None = None, svg: str | None = None,
    fail_on: Annotated[list[str] | None, Words] = None, page: str | None = None,
    as_json: Json = False
) -> int:  # fmt: skip
    """
    Args:
        results: A file or a folder.
        where: COLUMN=VALUE of the rows that count; values of one column are alternatives.
        spread: What the spreads beside means are: the standard deviation of the runs, the standard
            error of the mean, or half of its 95 % interval.
        unit: METRIC=share, percent or none, where the values do not say it.
        markdown: Write the table and what is said below it here, for a pull request.
        latex: Write the table here, for a paper (booktabs).
        csv: Write a row for each arm and task here, with full precision.
        svg: Write the interval plot here.
        fail_on: worse, better, different or undecided: end with status 4 where an arm is so.
        page: Write the page here.
    """
    from clipmill.library import answers
    from clipmill.manifests import disk
    from clipmill.manifests.web_page import MARK, pages_beside
    from clipmill.verdict.decide.exports import check_words, failed
    from clipmill.verdict.tables.reader import VERDICTS

    if page is not None:
        disk.check_replaceable(page, MARK.encode(), "--page")
    if csv is not None:
        disk.check_replaceable(csv, VERDICTS, "--csv")
    sources = {os.path.realpath(path) for path in (results, *more)}
    for option, path in (("--markdown", markdown), ("--latex", latex), ("--svg", svg)):
        if path is not None and os.path.realpath(path) in sources:
            raise ValueError(f"{option} {path}: the results are read from it; name another file")
    check_words(fail_on or ())
    chosen: dict[str, list[object]] = {}
    for name, text in _pairs("--where", where):
        chosen.setdefault(name, []).append(text)
    verdict = answers.decide(
        results, *more, baseline=baseline, task=task, metric=metric,
        lower_is_better=lower_is_better, higher_is_better=higher_is_better, without=without,
        where=chosen, effect=effect, equivalence=equivalence, noise=noise, pattern=pattern,
        table=table, arm=arm, seed=seed, block=block, task_column=task_column,
        metric_column=metric_column, value=value, scale=scale, last=last, samples=samples,
        runs=runs, spread=spread, unit=dict(_pairs("--unit", unit))
    )  # fmt: skip
    console.show(*verdict.text.split("\n"))
    if page is not None:
        disk.write_bytes(page, verdict.to_html(pages_beside(page)).encode())
        console.show("", f"page: {page}")
    for path, write in (
        (markdown, verdict.to_markdown), (latex, verdict.to_latex), (csv, verdict.to_csv),
        (svg, verdict.to_svg)
    ):  # fmt: skip
        if path is not None:
            disk.write_bytes(path, write().encode())
            console.show("", f"written: {path}")
    arms = failed(verdict.decision, fail_on) if fail_on else []
    if arms:
        console.show("", f"--fail-on {' '.join(fail_on or ())}: {', '.join(arms)}")
    print_json(verdict.decision, as_json)
    return FAILED_ON if arms else 0


def _pairs(option: str, texts: list[str] | None) -> tuple[tuple[str, str], ...]:
    """NAME=VALUE words; the name may hold `=` as little as the value may."""
    pairs = []
    for text in texts or ():
        name, sign, value = text.rpartition("=") if option == "--unit" else text.partition("=")
        if not sign:
            raise ValueError(f"{option} {text!r} must be NAME=VALUE")
        pairs.append((name, value))
    return tuple(pairs)


# --- mix ------------------------------------------------------------------------------------------

MIX = make_app(
    "mix",
    """
  clipmill mix out/cifar10_mix --samples-seen 131072 --max-repeats 10 --to out/found
  clipmill mix ratios.csv metrics.csv --target arc_challenge_bpb --to out/found

RUNS is the folder of an ablation whose arms are mixtures of views (`mixtures`
in its manifest draws them), or Olmix's ratios.csv beside its metrics.csv: a
row for each run, a column for each source.
""",
    {0: "the blend is printed, also where the runs do not show that shares matter"},
)


@MIX.default
@documented_by("answers", "mix")
def mix(
    runs: str, metrics: str | None = None, /, *, target: Annotated[list[str] | None, Words] = None,
    lower_is_better: Annotated[list[str] | None, Words] = None,
    higher_is_better: Annotated[list[str] | None, Words] = None, samples_seen: str | None = None,
    max_repeats: float | None = None, rows: Annotated[list[str] | None, Words] = None,
    to: str | None = None, as_json: Json = False
) -> int:  # fmt: skip
    """Find the blend of sources that small runs on other blends predict to be best, with what it
    may be worse than the best one, and write it down with the ablation that would confirm it.

    Args:
        runs: The folder of an ablation, or the shares of each run.
        metrics: The metrics of each run, where RUNS is a table.
        samples_seen: Samples of the run that the blend is for.
        rows: Of tables: SOURCE=ROWS, what each source holds; tokens, where samples are tokens.
        to: The folder for the blend and its confirming ablation.
    """
    from clipmill.library import answers

    sizes: dict[str, int | str] = {}
    for word in rows or ():
        name, _, text = word.rpartition("=")
        sizes[name] = text
    blend = answers.mix(
        runs, metrics, target=target, lower_is_better=lower_is_better,
        higher_is_better=higher_is_better, samples_seen=samples_seen, max_repeats=max_repeats,
        rows=sizes
    )  # fmt: skip
    console.show(*blend.text.split("\n"))
    if to is not None:
        files = blend.write(to)
        console.show("", f"written: {', '.join(files)}")
    print_json(blend.choice, as_json)
    return 0
