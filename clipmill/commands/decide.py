"""`clipmill decide` and `mix`: verdicts on anyone's runs, and the best blend by them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from clipmill.commands.app import MORE, Json, Words, make_app, print_json
from clipmill.manifests import console, disk, reader
from clipmill.manifests.web_page import MARK, pages_beside
from clipmill.verdict.decide.blends import (
    choose_blend,
    swarm_of_study,
    swarm_of_tables,
    write_blend,
)
from clipmill.verdict.decide.exports import (
    check_words,
    failed,
    to_csv,
    to_latex,
    to_markdown,
    to_svg,
)
from clipmill.verdict.decide.page import decision_lines, render_decision
from clipmill.verdict.decide.verdicts import Question, decide
from clipmill.verdict.stats.mixing import BlendChoice
from clipmill.verdict.tables.reader import ENDINGS, read_results
from clipmill.verdict.tables.roles import Columns

FAILED_ON = 4  # the exit status of --fail-on
DECIDE = make_app(
    "decide",
    """
  clipmill decide examples/cifar10_120_runs.parquet
  clipmill decide runs.csv --baseline raw --effect 0.01 --page verdicts.html
  clipmill decide runs.xlsx --block learning_rate --svg intervals.svg --fail-on worse
  clipmill decide openclip_results.csv --pattern '(?P<arm>\\w+)_(?P<scale>[sml])_'

RESULTS are tables of CSV, Markdown, LaTeX or a spreadsheet, Parquet, JSON, or folders of them: a
row for each value, a column for each task, or a column for each arm; exports of trackers and of
evaluation programs. What became of each column, row and cell is printed, and what cannot be known
is asked in one line.
""",
    {
        0: "the verdicts are printed, also where nothing can be decided",
        FAILED_ON: "an arm has a verdict that --fail-on names",
    },
)
Column = Parameter(group=MORE)


@DECIDE.default
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
    """Compare the arms of a table of results with its baseline: intervals that hold for all arms
    together, the smallest visible difference, what more would cost, and plain refusals.

    Args:
        results: A file or a folder.
        more: Further ones.
        baseline: The arm to compare with (default: one named raw, baseline …, or the first).
        task: The task that decides (default: the average, or the only task).
        metric: The metric of every task.
        lower_is_better: Metrics or tasks of which less is better, where names do not say it.
        higher_is_better: Metrics or tasks of which more is better.
        without: Tasks to leave out.
        where: COLUMN=VALUE of the rows that count; values of one column are alternatives.
        effect: How many seeds this difference needs, in the unit of the values.
        equivalence: Differences inside ± this are practically equal.
        noise: The standard deviation of one run, as published, for arms with one run.
        pattern: A regular expression with groups arm, arm2, seed, scale, task on the arms' names.
        table: Which table or sheet of a file that has several: a number or a name.
        arm: The columns that name an arm together; `columns`: each column of numbers is an arm;
            `file`: each file is one.
        seed: The columns that tell the runs of an arm apart.
        block: The columns that cross the arms, such as a learning rate: pairs are inside of a
        block.
        task_column: The columns that name the task together.
        metric_column: The column of the metric.
        value: The columns of the values.
        scale: The column of the scale, such as samples seen: compares at each value.
        last: The column of steps or epochs: the last row of each run counts.
        samples: The column of the number of test samples.
        runs: Of how many runs each mean is, where rows are means with a spread: a number, or the
            column that counts them.
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
    is_count = runs is not None and re.fullmatch(r"-?[\d.]+", runs) is not None
    if is_count and (runs is None or not runs.isdigit() or int(runs) < 2):
        raise ValueError(f"--runs is {runs}; a mean with a spread is of 2 runs or more")
    told = {
        "arm": arm, "seed": seed, "block": block, "task": task_column, "metric": metric_column,
        "value": value, "scale": scale and [scale], "step": last and [last],
        "test_size": samples and [samples], "runs": None if is_count else runs and [runs],
    }  # fmt: skip
    names = {role: tuple(columns) for role, columns in told.items() if columns}
    if page is not None:
        disk.check_replaceable(page, MARK.encode(), "--page")
    check_words(fail_on or ())
    if noise is not None and not 0 < noise < math.inf:
        raise ValueError(f"--noise is {noise}; it must be a standard deviation above 0")
    if not equivalence >= 0:
        raise ValueError(f"--equivalence is {equivalence}; it must be at least 0")
    units = dict(_pairs("--unit", unit))
    for name, word in units.items():
        if word not in ("share", "percent", "none"):
            raise ValueError(f"--unit {name}={word}: the unit is share, percent or none")
    question = Question(
        baseline=baseline, task=task, metric=metric, lower=tuple(lower_is_better or ()),
        higher=tuple(higher_is_better or ()), units=units, without=tuple(without or ()),
        effect=effect, band=equivalence, noise=noise
    )  # fmt: skip
    paths = [str(reader.shipped(path)) for path in (results, *more)]
    columns = Columns(
        names=names, where=_pairs("--where", where), pattern=pattern, table=table,
        baseline=baseline, named=tuple(name for name in (metric, task) if name),
        runs=int(runs) if runs and is_count else 0, spread=spread or ""
    )  # fmt: skip
    decision, plain = None, Columns(baseline=baseline, named=columns.named)
    if columns == plain and len(paths) == 1 and disk.is_folder(paths[0]):
        from clipmill.study.results import decide_study

        decision = decide_study(paths[0], question)
    if decision is None:
        decision = decide(read_results(paths, columns), question)
    console.show(*decision_lines(decision))
    if page is not None:
        text = render_decision(decision, Path(results).name, pages_beside(page))
        disk.write_bytes(page, text.encode())
        console.show("", f"page: {page}")
    for path, write in ((markdown, to_markdown), (latex, to_latex), (csv, to_csv), (svg, to_svg)):
        if path is not None:
            disk.write_bytes(path, write(decision).encode())
            console.show("", f"written: {path}")
    arms = failed(decision, fail_on) if fail_on else []
    if arms:
        console.show("", f"--fail-on {' '.join(fail_on or ())}: {', '.join(arms)}")
    print_json(decision, as_json)
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

RUNS is the folder of an ablation whose arms are mixtures of views (`mixtures` in its manifest draws
them), or Olmix's ratios.csv beside its metrics.csv: a row for each run, a column for each source.
""",
    {0: "the blend is printed, also where the runs do not show that shares matter"},
)


@MIX.default
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
        target: The metric of the ablation's primary task; of tables, metrics whose mean counts
            (default: its deciding metric; all of them).
        lower_is_better: Of tables: metrics of which less is better, beside those named loss, bpb …
        higher_is_better: Of tables: metrics of which more is better.
        samples_seen: Samples of the run that the blend is for.
        max_repeats: No source is repeated more often than this in that run.
        rows: Of tables: SOURCE=ROWS, what each source holds; tokens, where samples are tokens.
        to: The folder for the blend and its confirming ablation.
    """
    samples = None if samples_seen is None else _rows("--samples-seen", samples_seen)
    if max_repeats is not None and not max_repeats > 0:
        raise ValueError(f"--max-repeats is {max_repeats:g}; it must be above 0")
    if metrics is None:
        if lower_is_better or higher_is_better or rows:
            raise ValueError(
                "--lower-is-better, --higher-is-better and --rows are for tables; an ablation "
                "knows them"
            )
        if Path(runs).suffix in ENDINGS and not disk.is_folder(runs):
            raise ValueError(f"{runs} needs a second table beside it, with the metrics of its runs")
        if len(target or ()) > 1:
            raise ValueError("--target names one metric of an ablation's primary task")
        from clipmill.study.results import Study

        study = Study.open(runs)
        swarm = swarm_of_study(
            study.ablation, study.measurements, runs, target[0] if target else None
        )
    else:
        sizes = {}
        for word in rows or ():
            name, _, text = word.rpartition("=")
            sizes[name] = _rows(f"--rows {word}", text)
        swarm = swarm_of_tables(
            runs, metrics, targets=target or (), lower=lower_is_better or (),
            higher=higher_is_better or (), rows=sizes or None
        )  # fmt: skip
    choice = choose_blend(swarm, samples, max_repeats)
    console.show(*blend_lines(choice))
    if to is not None:
        files = write_blend(choice, swarm, runs, disk.output_folder(to, "--to"))
        console.show("", f"written: {', '.join(disk.join(to, name) for name in files)}")
    print_json(choice, as_json)
    return 0


def _rows(option: str, text: str) -> int:
    number = reader.with_numbers(text, int)
    if not str(number).isdigit() or not int(number):
        raise ValueError(f"{option} is {text!r}; it must be a whole number above 0, like 128k")
    return int(number)


def regret_line(choice: BlendChoice) -> str:
    """How far another average of the mixtures may be from the found one, and where that holds."""
    if choice.regret is None or choice.regret_high is None:
        return (
            "How much better another blend may be is not said: so few runs cannot test the law. "
            "Run more mixtures, or some of them with several seeds."
        )
    return (
        f"The best average of mixtures that were run may be better than the found one: by "
        f"{choice.regret:.2g} in the mean, with 95 % by {choice.regret_high:.2g} at most, if the "
        "law holds but for pairs of sources that need or spoil each other and for the curve of "
        "each source."
    )


def blend_lines(choice: BlendChoice) -> list[str]:
    """A blend for a terminal."""
    width = max(len(name) for name in (*choice.sources, *choice.others, *choice.measured))
    lines = [f"{choice.runs} runs of {choice.mixtures} mixtures; {', '.join(choice.targets)}", ""]
    for n, (name, share) in enumerate(zip(choice.sources, choice.shares, strict=True)):
        repeats = f"  {choice.repeats[n]:8.2f} times" if choice.repeats else ""
        lines.append(f"{name:<{width}}  {share:7.1%}{repeats}")
    lines.append("")
    predicted = {"found": choice.found, **choice.others}
    for name in dict.fromkeys([*predicted, *choice.measured]):
        value, own = predicted.get(name), choice.measured.get(name)
        text = f"{'no mixture' if value is None else f'{value:.4g} predicted':<18}"
        lines.append(
            f"{name:<{width}}  {text}{'' if own is None else f'  {own:.4g} measured'}".rstrip()
        )
    lines.append("")
    if choice.same_as:
        lines.append(f"The found blend is that of {' and '.join(choice.same_as)}.")
    lines += [*choice.advice, regret_line(choice)]
    lines.append(
        f"Correlation of mixtures that a law had not seen with its prediction: {choice.skill:.2f}"
    )
    lines += ["", "Read as:", *(f"  {note}" for note in choice.notes)] if choice.notes else []
    return lines
