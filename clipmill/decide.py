"""`clipmill decide`: verdicts on the results of anyone's runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from clipmill.app import MORE, Json, Words, make_app, print_json
from manifests import disk, reader
from manifests.web_page import MARK, pages_beside
from train.decisions.page import decision_lines, render_decision
from train.decisions.tables import ROLES, Columns, read_results
from train.decisions.verdicts import Question, decide

DECIDE = make_app(
    "decide",
    """
  clipmill decide examples/cifar10_120_runs.parquet
  clipmill decide runs.csv --baseline raw --effect 0.01 --page verdicts.html
  clipmill decide openclip_results.csv --pattern '(?P<arm>\\w+)_(?P<scale>[sml])_'

RESULTS are CSV, TSV, Parquet, JSON or JSON lines, or folders of them: a row for each value, or a
column for each task; CLIP_benchmark, lm-eval, DataComp, exports of W&B, Olmix. Which column is what
is guessed, and the guesses are printed.
""",
    {0: "the verdicts are printed, also where nothing can be decided"},
)
Column = Parameter(group=MORE)


@DECIDE.default
def decide_results(
    results: str,
    /,
    *more: str,
    baseline: str | None = None,
    task: str | None = None,
    metric: str | None = None,
    lower_is_better: Annotated[list[str] | None, Words] = None,
    without: Annotated[list[str] | None, Words] = None,
    where: Annotated[list[str] | None, Words] = None,
    effect: float | None = None,
    equivalence: float = 0.0,
    pattern: str | None = None,
    arm: Annotated[list[str] | None, Words, Column] = None,
    seed: Annotated[str | None, Column] = None,
    task_column: Annotated[str | None, Column] = None,
    metric_column: Annotated[str | None, Column] = None,
    value: Annotated[str | None, Column] = None,
    scale: Annotated[str | None, Column] = None,
    samples: Annotated[str | None, Column] = None,
    page: str | None = None,
    as_json: Json = False,
) -> int:
    """Compare the arms of a table of results with its baseline: intervals that hold for all arms
    together, the smallest visible difference, what more would cost, and plain refusals.

    Args:
        results: A file or a folder.
        more: Further ones.
        baseline: The arm to compare with (default: one named raw, baseline …, or the first).
        task: The task that decides (default: the average, or the only task).
        metric: The metric of every task.
        lower_is_better: Metrics or tasks of which less is better, beside those named loss, error …
        without: Tasks to leave out.
        where: COLUMN=VALUE of the rows that count; values of one column are alternatives.
        effect: How many seeds this difference needs, in the unit of the values.
        equivalence: Differences inside ± this are practically equal.
        pattern: A regular expression with groups arm, arm2, seed, scale, task on the arms' names.
        arm: The columns that name an arm together.
        seed: The column of the seed.
        task_column: The column of the task.
        metric_column: The column of the metric.
        value: The column of the value.
        scale: The column of the scale, such as samples seen.
        samples: The column of the number of test samples.
        page: Write the page here.
    """
    one = (seed, task_column, metric_column, value, scale, samples)
    told = [tuple(arm or ()), *((name,) if name else () for name in one)]
    names = {role: columns for role, columns in zip(ROLES, told, strict=False) if columns}
    if page is not None:
        disk.check_replaceable(page, MARK.encode(), "--page")
    if wrong := [text for text in where or () if "=" not in text]:
        raise ValueError(f"--where {wrong[0]!r} must be COLUMN=VALUE")
    chosen = tuple(text.partition("=")[::2] for text in where or ())
    question = Question(
        baseline=baseline,
        task=task,
        metric=metric,
        lower=tuple(lower_is_better or ()),
        without=tuple(without or ()),
        effect=effect,
        band=equivalence,
    )
    paths = [str(reader.shipped(path)) for path in (results, *more)]
    decision = decide(
        read_results(paths, Columns(names=names, where=chosen, pattern=pattern)), question
    )
    print("\n".join(decision_lines(decision)))
    if page is not None:
        text = render_decision(decision, Path(results).name, pages_beside(page))
        disk.write_bytes(page, text.encode())
        print(f"\npage: {page}")
    print_json(decision, as_json)
    return 0
