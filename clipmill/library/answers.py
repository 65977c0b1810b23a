"""Verdicts and blends as objects: tables in memory or paths in, text, tables and pictures out.

`clipmill decide` and `clipmill mix` print what these functions return.
"""

from __future__ import annotations

import abc
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipmill.manifests import disk, reader
from clipmill.manifests.layout import PoolLayout
from clipmill.verdict.decide import verdicts
from clipmill.verdict.decide.blends import (
    Swarm,
    blend_lines,
    choose_blend,
    swarm_of_study,
    swarm_of_tables,
    write_blend,
)
from clipmill.verdict.decide.exports import (
    COLUMNS,
    Strip,
    drawing,
    export_rows,
    latex,
    markdown,
    to_csv,
    to_latex,
    to_markdown,
    to_svg,
)
from clipmill.verdict.decide.page import decision_lines, render_decision
from clipmill.verdict.pages import charts
from clipmill.verdict.stats.mixing import BlendChoice
from clipmill.verdict.tables.account import Account
from clipmill.verdict.tables.forms import frame_of_table
from clipmill.verdict.tables.reader import ENDINGS, Source, read_results, source_name
from clipmill.verdict.tables.roles import Options

if TYPE_CHECKING:
    import pyarrow as pa

Names = str | Sequence[str] | None  # one name or several
SPREADS = ("sd", "sem", "ci95")
NUMBERS = {"runs": "int64", "mean": "float64", "sd": "float64", "difference": "float64",
           "low": "float64", "high": "float64", "p_adjusted": "float64"}  # fmt: skip


class Answer(abc.ABC):
    """What a question about runs is answered with: its text is what the command prints, and a
    notebook shows its picture.
    """

    @property
    @abc.abstractmethod
    def text(self) -> str:
        """What the command prints."""

    @property
    @abc.abstractmethod
    def table(self) -> pa.Table:
        """The numbers, with full precision."""

    @property
    @abc.abstractmethod
    def account(self) -> object:
        """How the data was read, and what of it does not count."""

    @abc.abstractmethod
    def to_markdown(self) -> str:
        """For a pull request."""

    @abc.abstractmethod
    def to_latex(self) -> str:
        """For a paper; the table needs the package booktabs."""

    @abc.abstractmethod
    def to_svg(self) -> str:
        """The picture, as one file that needs nothing outside of itself."""

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The document that `--json` ends with."""

    def to_json(self) -> str:
        """The line that `--json` ends with."""
        return json.dumps(self.to_dict(), default=str, sort_keys=True)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """What a notebook shows: the picture, and the text below it."""
        return (
            f"{self.to_svg()}<details><summary>as text, and how the data was read</summary>"
            f"<pre>{escape(self.text)}</pre></details>"
        )


# --- decide ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Verdict(Answer):
    """The verdicts on the arms of a table of results. decision: all that is known of them. source:
    what the table is called.
    """

    decision: verdicts.Decision
    source: str

    @property
    def text(self) -> str:
        return "\n".join(decision_lines(self.decision))

    @property
    def table(self) -> pa.Table:
        """A row for each arm and task, the deciding task first; null: not known. Values and
        differences of the unit `share` are 0 to 1.
        """
        import pyarrow as pa

        schema = pa.schema([(name, NUMBERS.get(name, "string")) for name in COLUMNS])
        rows = export_rows(self.decision)
        records = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        return pa.Table.from_pylist(records, schema=schema)

    @property
    def account(self) -> Account:
        """What became of every column, row and cell."""
        return self.decision.account

    def to_markdown(self) -> str:
        return to_markdown(self.decision)

    def to_latex(self) -> str:
        return to_latex(self.decision)

    def to_csv(self) -> str:
        """The rows of `table` as CSV."""
        return to_csv(self.decision)

    def to_svg(self) -> str:
        return to_svg(self.decision)

    def to_html(self, links: Mapping[str, str] | None = None) -> str:
        """The page of `--page`. links: {file: title} of pages beside it."""
        return render_decision(self.decision, self.source, links)

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, object] = disk.to_plain(self.decision)
        return plain


def decide(
    data: object, /, *more: object, baseline: str | None = None, task: str | None = None,
    metric: str | None = None, lower_is_better: Names = None, higher_is_better: Names = None,
    without: Names = None, where: Mapping[str, object] | None = None, effect: float | None = None,
    equivalence: float = 0.0, noise: float | None = None, pattern: str | None = None,
    table: str | int | None = None, arm: Names = None, seed: Names = None, block: Names = None,
    task_column: Names = None, metric_column: Names = None, value: Names = None,
    scale: str | None = None, last: str | None = None, samples: str | None = None,
    runs: int | str | None = None, spread: str | None = None, unit: Mapping[str, str] | None = None
) -> Verdict:  # fmt: skip
    """Compare the arms of a table of results with its baseline: intervals that hold for all arms
    together, the smallest visible difference, what more would cost, and plain refusals.

    Args:
        data: A DataFrame of pandas or Polars, an Arrow table, a list of dicts, a document of JSON,
            or the path of a file or a folder.
        more: Further ones.
        baseline: The arm to compare with (default: one named raw, baseline …, or the first).
        task: The task that decides (default: the average, or the only task).
        metric: The metric of every task.
        lower_is_better: Metrics or tasks of which less is better, where names do not say it.
        higher_is_better: Metrics or tasks of which more is better.
        without: Tasks to leave out.
        where: {column: value} of the rows that count; several values in a list are alternatives.
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
        spread: What the spreads beside means are: `sd` of the runs, `sem`, or half of a `ci95`.
        unit: {metric: share, percent or none}, where the values do not say it.

    Raises:
        ValueError: The data is no table of results, an option does not fit it, or a question is
            open; in one line, as the command prints it.
    """
    if noise is not None and not 0 < noise < math.inf:
        raise ValueError(f"--noise is {noise}; it must be a standard deviation above 0")
    if not equivalence >= 0:
        raise ValueError(f"--equivalence is {equivalence}; it must be at least 0")
    for name, word in (unit or {}).items():
        if word not in ("share", "percent", "none"):
            raise ValueError(f"--unit {name}={word}: the unit is share, percent or none")
    count = str(runs) if runs is not None and re.fullmatch(r"-?[\d.]+", str(runs)) else ""
    if count and (not count.isdigit() or int(count) < 2):
        raise ValueError(f"--runs is {runs}; a mean with a spread is of 2 runs or more")
    if spread not in (None, *SPREADS):
        raise ValueError(f"--spread is {spread!r}; it must be {', '.join(SPREADS)}")
    told = {
        "arm": arm, "seed": seed, "block": block, "task": task_column, "metric": metric_column,
        "value": value, "scale": scale, "step": last, "test_size": samples,
        "runs": None if count else runs,
    }  # fmt: skip
    pairs = []
    for column, values in (where or {}).items():
        alternatives = values if isinstance(values, list | tuple) else [values]
        pairs += [(column, str(each)) for each in alternatives]
    columns = Options(
        names={role: _names(str(own) if isinstance(own, int) else own)
               for role, own in told.items() if own},
        where=tuple(pairs),
        pattern=pattern,
        table=None if table is None else str(table),
        baseline=baseline,
        named=tuple(name for name in (metric, task) if name),
        runs=int(count or 0),
        spread=spread or "",
    )  # fmt: skip
    question = verdicts.Question(
        baseline=baseline, task=task, metric=metric, lower=_names(lower_is_better),
        higher=_names(higher_is_better), units=dict(unit or {}), without=_names(without),
        effect=effect, band=equivalence, noise=noise
    )  # fmt: skip
    sources = [_source(each) for each in (data, *more)]
    decision, plain = None, Options(baseline=baseline, named=columns.named)
    folder = sources[0] if len(sources) == 1 and isinstance(sources[0], str) else ""
    if folder and columns == plain and disk.is_folder(folder):  # a study answers as its report
        from clipmill.study.results import decide_study

        decision = decide_study(folder, question)
    if decision is None:
        decision = verdicts.decide(read_results(sources, columns), question)
    return Verdict(decision, source_name(sources[0]))


def _source(data: object) -> Source:
    """A path, of what is shipped too, or a table that is read. ValueError for a pool: its JSON and
    Parquet files would be read as results."""
    if not isinstance(data, str | os.PathLike):
        return frame_of_table(data)
    path = str(reader.shipped(os.fspath(data)))
    if disk.is_folder(path) and disk.exists(PoolLayout(path).pool_json):
        raise ValueError(
            f"{path} is a pool, which has no results: train arms on its views with `clipmill "
            "ablate`, and give the folder of that ablation; `clipmill audit` says what it holds"
        )
    return path


def _names(names: Names) -> tuple[str, ...]:
    if isinstance(names, bool):
        raise ValueError(f"{names} is no name: give names, as in higher_is_better=['accuracy']")
    return (names,) if isinstance(names, str) else tuple(names or ())


# --- mix ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class BlendAnswer(Answer):
    """The blend that small runs predict to be best. choice: all that is known of it. swarm: the
    runs. folder: of their ablation; "" of tables.
    """

    choice: BlendChoice
    swarm: Swarm
    folder: str

    @property
    def text(self) -> str:
        return "\n".join(blend_lines(self.choice))

    @property
    def table(self) -> pa.Table:
        """A row for each source: its share, and how often its rows are repeated (null: unknown)."""
        import pyarrow as pa

        choice = self.choice
        repeats = choice.repeats or [None] * len(choice.sources)
        columns = {"source": choice.sources, "share": choice.shares, "repeats": repeats}
        schema = pa.schema([("source", "string"), ("share", "float64"), ("repeats", "float64")])
        return pa.table({name: list(cells) for name, cells in columns.items()}, schema=schema)

    @property
    def account(self) -> tuple[str, ...]:
        """How the runs were read, and which of them do not count."""
        return self.choice.notes

    def to_markdown(self) -> str:
        return markdown(self._title, self._rows(), (1, 2), self.choice.advice)

    def to_latex(self) -> str:
        return latex(self._title, self._rows(), "lrr", (), self.choice.advice)

    def to_svg(self) -> str:
        strips = []
        for source, share in zip(self.choice.sources, self.choice.shares, strict=True):
            row = charts.ForestRow(mean=100 * share, low=0.0, high=100 * share, colour="")
            strips.append(Strip(name=source, numbers=f"{share:.1%}", row=row))
        unit = "share of the samples, %"
        return drawing(self._title, self._title, strips, unit, self.choice.advice, "{:g}".format)

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, object] = disk.to_plain(self.choice)
        return plain

    def write(self, folder: str | os.PathLike[str]) -> list[str]:
        """Leave the recommended blend and the ablation that would confirm it in a folder; the paths
        of the files.
        """
        out = disk.output_folder(os.fspath(folder), "--to")
        files = write_blend(self.choice, self.swarm, self.folder, out)
        return [disk.join(os.fspath(folder), name) for name in files]

    @property
    def _title(self) -> str:
        return f"The blend for {', '.join(self.choice.targets)}, from {self.choice.runs} runs"

    def _rows(self) -> list[tuple[str, str, str]]:
        rows = [("source", "share", "repeats")]
        for row in self.table.to_pylist():
            repeats = "" if row["repeats"] is None else f"{row['repeats']:.2f}"
            rows.append((row["source"], f"{row['share']:.1%}", repeats))
        return rows


def mix(
    runs: object, metrics: object = None, /, *, target: Names = None, lower_is_better: Names = None,
    higher_is_better: Names = None, samples_seen: int | str | None = None,
    max_repeats: float | None = None, rows: Mapping[str, int | str] | None = None
) -> BlendAnswer:  # fmt: skip
    """Find the blend of sources that small runs on other blends predict to be best, with what it
    may be worse than the best one. Its `write` leaves the ablation that would confirm it.

    Args:
        runs: The folder of an ablation, or a table of the shares of each run.
        metrics: A table of the metrics of each run, where `runs` is a table.
        target: The metric of the ablation's primary task; of tables, metrics whose mean counts
            (default: its deciding metric; all of them).
        lower_is_better: Of tables: metrics of which less is better, beside those named loss, bpb …
        higher_is_better: Of tables: metrics of which more is better.
        samples_seen: Samples of the run that the blend is for, such as 128k.
        max_repeats: No source is repeated more often than this in that run.
        rows: Of tables: {source: rows}, what each holds; tokens, where samples are tokens.

    Raises:
        ValueError: In one line, as the command prints it.
    """
    samples = None if samples_seen is None else _count("--samples-seen", samples_seen)
    if max_repeats is not None and not max_repeats > 0:
        raise ValueError(f"--max-repeats is {max_repeats:g}; it must be above 0")
    targets, folder = _names(target), ""
    if metrics is None:
        if lower_is_better or higher_is_better or rows:
            raise ValueError(
                "--lower-is-better, --higher-is-better and --rows are for tables; an ablation "
                "knows them"
            )
        if not isinstance(runs, str | os.PathLike):
            raise ValueError("a table of shares needs a second one, with the metrics of its runs")
        folder = os.fspath(runs)
        if Path(folder).suffix in ENDINGS and not disk.is_folder(folder):
            raise ValueError(
                f"{folder} needs a second table beside it, with the metrics of its runs"
            )
        if len(targets) > 1:
            raise ValueError("--target names one metric of an ablation's primary task")
        from clipmill.study.results import Study

        study, own = Study.open(folder), targets[0] if targets else None
        swarm = swarm_of_study(study.ablation, study.measurements, folder, own)
    else:
        sizes = {}
        for name, size in (rows or {}).items():
            sizes[name] = _count(f"--rows {name}={size}", size)
        shares, values = (
            os.fspath(each) if isinstance(each, str | os.PathLike) else frame_of_table(each)
            for each in (runs, metrics)
        )
        swarm = swarm_of_tables(
            shares, values, targets=targets, lower=_names(lower_is_better),
            higher=_names(higher_is_better), rows=sizes or None
        )  # fmt: skip
    return BlendAnswer(choose_blend(swarm, samples, max_repeats), swarm, folder)


def _count(option: str, text: int | str) -> int:
    number = reader.with_numbers(str(text), int)
    if not str(number).isdigit() or not int(number):
        raise ValueError(f"{option} is {str(text)!r}; it must be a whole number above 0, like 128k")
    return int(number)
