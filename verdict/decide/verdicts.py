"""What a table of results decides: arms against a baseline, metrics, and small scales. Pure."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from clipmill.manifests.arrays import Array, Integers
from clipmill.verdict.stats.analysis import (
    AVERAGE,
    Analysis,
    TaskResult,
    TaskScores,
    analyse,
    average_values,
    mean_sd,
)
from clipmill.verdict.stats.blocks import POOLING_P, Interaction, interaction, seed_effect
from clipmill.verdict.stats.model import Values
from clipmill.verdict.stats.scales import Column, ScaleDecision, ScaleTables
from clipmill.verdict.stats.signals import MetricSignal, metric_signals
from clipmill.verdict.tables.account import Account, MetricFacts, first_names, is_guess
from clipmill.verdict.tables.frames import pairs_of, refined
from clipmill.verdict.tables.metric_names import (
    HEADLINES,
    TIMES,
    deciding_words,
    is_average,
    is_bare_metric,
    is_error,
    is_known,
    is_sentence,
    is_top_k,
    name_facts,
    plain_name,
    task_stem,
)
from clipmill.verdict.tables.reader import Results
from clipmill.verdict.tables.roles import BASELINES, baseline_arm, quoted
from clipmill.verdict.tables.spreads import stand_ins

MOST_FACTS = 2000  # metrics of tasks whose direction and unit are printed
COSTS = re.compile(
    r"(^|_)(latency|memory|vram|ms|fps|throughput|per_s|per_sec|per_second|energy|watts|price|cost)(_|$)"
)
NO_RANK, MOST_HEADLINES = 99, 20  # the place of other names; how many are looked at
MOST_SIGNALS = 200  # metrics of tasks whose signal is estimated, and whose smaller scales are read
LARGEST, SMALLEST = 1e100, 1e-100  # whose squares a float holds
LEAST_BLOCKS = 3  # of one run of each arm, which are a sample of blocks
LEAST_PAIRS = 3  # of seeds that two arms share, where either has others too
MOST_CHECKED = 200  # runs of a column that may be an average
LEAST_SHARE = 0.1  # of right answers, up to 1, that are hardly percentages
MOST_TIMES = 50.0  # larger a task without a unit is than another one of one average
MOSTLY = 0.9  # of the rows, where a file may have mistakes
SIGNS = re.compile(r"[/:]+|\.+(?=[^\d.])")  # between the parts of a name, not in a number
MEAN_ALONE = re.compile(r"(average|avg|mean|overall)(_(scores?|accuracy|acc))?|score")
MEAN_WORDS = {"score", "scores"}  # which may stand in the name of any metric
LEAST_PERCENT = 1.5  # a value above it is no share
OTHER_SIZE = 1000.0  # so many times larger are values of one block than those of another one
OTHER_UNIT = 20.0  # so many times larger values are percentages beside shares
LEAST_ALIKE = 3  # different values of a task that another one repeats
LEAST_EQUAL = 16  # digits in which runs that repeat one another agree
MOST_DIGITS = 4  # of one value that count there, as a share of few samples has few levels
OTHER_SAMPLES = 1.1  # so many times more test samples are another test set
WIDE = 5.0  # so many times larger is a spread that decides how wide all intervals are
_names = partial(first_names, most=3)  # names in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a table. None: it is chosen, and said.

    task: the one that decides. metric: of every task; a column of a wide table is a task. lower,
    higher: metrics or tasks of which less or more is better. units: {metric or task: `share`,
    `percent` or `none`}. without: tasks that are left out. effect: the difference whose price is
    asked, in the unit of the values. band: differences inside ± it are practically equal; 0: none
    is. noise: a published standard deviation of one run, for scales with one run of each arm.
    """

    baseline: str | None = None
    task: str | None = None
    metric: str | None = None
    lower: tuple[str, ...] = ()
    higher: tuple[str, ...] = ()
    units: Mapping[str, str] | None = None
    without: tuple[str, ...] = ()
    effect: float | None = None
    band: float = 0.0
    noise: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmScore:
    """The mean of an arm's runs. n: how many they are, 0 where it is not known. sd: their standard
    deviation; None for one run, and where it is not known.
    """

    n: int
    mean: float
    sd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdicts on a table.

    task: what the headline is of, a task or the average. scale: the name of the largest scale,
    whose runs are compared. result: the comparisons on it. values: its runs, {arm: {run: value}}.
    means: {task: {arm: its score}} where the file has means of runs with their spreads, and so no
    `values`; None where it has runs.
    paired: runs of one seed belong together; else runs have no order. runs: names of runs that are
    no plain seeds. tasks: the results of every task. task_values: their runs. signals: which metric
    of which task separates the arms best. seeds_for_effect: of each arm; None where no number up to
    1,000 suffices, or nothing was asked or is known. effect: what was asked for. sampling: half of
    the 95 % interval that the test samples alone leave to a difference of two runs, where nothing
    else is known. over: of what the blocks are a sample where each holds one run of an arm,
    `8 values of 'lr', one run each`; "" elsewhere.
    blocks: the names of what crosses the arms. interaction: whether the differences change with the
    block. refusals: what cannot be decided, and why. notes: what was guessed. account: what became
    of every column, row and cell, and how each metric is read.
    """

    baseline: str
    arms: tuple[str, ...]
    task: str
    metric: str
    scale: str = ""
    result: TaskResult
    values: Values
    means: dict[str, dict[str, ArmScore]] | None = None
    paired: bool = True
    runs: dict[int, str] = field(default_factory=dict)
    tasks: dict[str, TaskResult]
    task_values: dict[str, Values]
    signals: tuple[MetricSignal, ...]
    scales: tuple[ScaleDecision, ...]
    effect: float | None
    seeds_for_effect: int | None
    sampling: float | None = None
    over: str = ""
    blocks: tuple[str, ...] = ()
    interaction: Interaction | None = None
    refusals: tuple[str, ...]
    notes: tuple[str, ...]
    account: Account


Key = tuple[str, str]  # task, metric


@dataclass(frozen=True)  # cached_property needs a __dict__
class _Table:
    """Measurements by task, metric and scale: the places of each group, and how runs are numbered.

    groups: {run: its group} of a layout that is not paired by seed; None where it is. blocks:
    {run: the name of its block}.
    """

    results: Results
    by_key: Mapping[Key, Mapping[float, Integers]]
    run_N: Integers
    groups: Mapping[int, int] | None
    blocks: Mapping[int, int]
    names: Mapping[int, str]

    @cached_property
    def error_name(self) -> str:
        """The first task or metric that is named as an error; "" where none is."""
        return min(filter(is_error, (name for key in self.by_key for name in key)), default="")

    def runs(self, key: Key, scale: float) -> Values:
        """{arm: {run: value}} of a metric at a scale."""
        places = self.by_key.get(key, {}).get(scale)
        runs: Values = {}
        if places is None:
            return runs
        r = self.results
        arms, numbers = r.arm_N[places].tolist(), self.run_N[places].tolist()
        for arm, run, value in zip(arms, numbers, r.value_N[places].tolist(), strict=True):
            runs.setdefault(r.arms[arm], {})[run] = value
        return runs


def decide(results: Results, question: Question) -> Decision:
    """The verdicts on the largest scale of a table, and how the smaller ones agree with it.

    ValueError for an unknown arm, task or metric, fewer than two arms, a metric that the table
    gives two directions, arms in percent beside arms in shares, or a band of several units.
    """
    notes, refusals = list(results.notes), list[str]()
    if results.one_arm:
        raise ValueError(results.one_arm)
    results, question = _metric_of(results, question, notes)
    if question.baseline is not None:
        own = baseline_arm(results.arms, question.baseline)
        question = replace(question, baseline=own or question.baseline)
    results = _without_repeated_runs(results, notes)
    _check_names(results, question)
    plain = _table(_with_spreads(results, notes), question)
    table = _of_means(plain, question, notes)
    from_means, results = table is not plain, table.results
    arms_out = _copies(results, question, notes)
    chosen = {
        task: metric for task, metric in _headline_metrics(table, question).items()
        if (task, metric) in table.by_key
    }  # fmt: skip
    if not chosen:
        raise ValueError("no row is left to compare")
    keys = dict.fromkeys([*chosen.items(), *list(plain.by_key)[:MOST_FACTS]])
    facts = {key: metric_facts(plain, key, question) for key in keys}
    facts |= _as_siblings(plain, facts)
    _check_one_unit(
        plain, facts, {task: name for task, name in chosen.items() if question.task in (None, task)}
    )
    largest = _largest_scale(table, chosen, arms_out, notes)
    if question.noise is not None and len(results.scales) < 2:
        raise ValueError(
            "--noise is for what smaller scales decide, and there is one scale: a verdict needs "
            "runs, or means with their spreads"
        )
    arms = _arms_at(table, chosen, largest, arms_out)
    baseline = _baseline(arms, question, notes)
    arms, apart = _on_one_test_set(results, arms, baseline, refusals, chosen, question)
    arms_out |= apart
    found = {arm for scale in results.scales for arm in _arms_at(table, chosen, scale, set())}
    if lacking := [arm for arm in results.arms if arm not in found]:
        refusals.append(f"{_names(lacking)} not compared: no value of what decides")
    in_blocks = table
    if results.blocks and _is_one_run_in_blocks(table, chosen, largest, arms, notes):
        table = _table(_over_blocks(results, notes), question)
    table = _layout(table, chosen, largest, baseline, arms, notes)
    tables = _scores(table, chosen, largest, facts, arms, question)
    of_file = _scores(plain, chosen, largest, facts, arms, question) if from_means else tables
    averages = _averages(of_file)
    if from_means:
        can_average = False
        refusals += _without_average(tables, averages, question)
    else:
        can_average = _can_average(tables, averages, results.named_tasks, question, notes, refusals)
    _check_band(tables, facts, chosen, question)
    over, analysed = _over(table, tables), tables
    bare = {task: _without_runs(scores) for task, scores in tables.items()}
    if over and len(results.blocks) < LEAST_BLOCKS:
        refusals.append(f"no verdict: of {over}, and what another block would show is not known")
        over, analysed = "", bare
    asked = [tables[question.task]] if question.task in tables else list(tables.values())
    few = _few_blocks(table, asked, baseline) if over else []
    if few:
        refusals.append(
            f"no verdict on {_names(few)}: fewer than {LEAST_BLOCKS} blocks in common with "
            f"{baseline}, one run each, and what another block would show is not known"
        )
        analysed = {
            task: replace(scores, values={a: v for a, v in scores.values.items() if a not in few})
            for task, scores in tables.items()
        }
    if over and (no_mean := _of_other_sizes(table, tables)):
        refusals.append(no_mean)
        over, analysed = "", bare
    are_means = results.are_means and not over
    analysed = bare if are_means else analysed
    singles = [] if from_means else averages  # columns of averages are analysed as any other
    analysis = _analysis(analysed, baseline, arms, question, table, singles, average=can_average)
    analysis = replace(
        analysis, tasks={task: _nothing_varies(one) for task, one in analysis.tasks.items()},
        average=analysis.average and _nothing_varies(analysis.average)
    )  # fmt: skip
    there = [task for task in analysis.tasks if tables[task].values.get(baseline)]
    there = there or list(analysis.tasks)
    if from_means and (of_averages := [task for task in there if task in averages]):
        there = of_averages
    first = there[0] if results.named_tasks else _first_that_varies(
        there, lambda task: [tables[task].values]
    )  # fmt: skip
    result = analysis.average or analysis.tasks[first]
    if question.task is not None:
        result = analysis.tasks[question.task]
    averaged = list(analysis.tasks) if result is analysis.average else [result.task]
    of_tasks = {task: tables[task] for task in averaged}
    values = average_values([scores.values for scores in of_tasks.values()])
    notes += _runs_without_a_task(of_tasks, values)
    metrics = {scores.metric for scores in of_tasks.values()}
    means = _arm_scores(plain, chosen, largest, tables)
    others = [arm for arm in arms if arm not in few]
    refusals += _refusals(values, result, baseline, others, of_tasks, are_means, results.missing,
                          (means or {}).get(result.task, {}))  # fmt: skip
    notes += _ties(table, chosen, largest, arms) if not from_means else []
    notes += _repeated_tasks(tables)
    samples = _samples_of_task(table, chosen, result)
    notes += _small_test_set(result, values, samples)
    notes += _wide_arm(values, table.groups is None)
    several = question.task is None and result is not analysis.average and len(analysis.tasks) > 1
    if several and result.comparisons:
        notes.append(
            f"the intervals hold for all {len(analysis.tasks)} tasks together, as none was chosen: "
            f"with --task {result.task!r} they are those of one"
        )
    noise, effect = analysis.noises[result.task], question.effect
    factors = {task: _factor(facts[task, chosen[task]]) for task in tables}
    if effect is not None:
        effect *= factors.get(result.task, max(factors.values()))
    both = None
    if results.blocks:
        of_blocks = values
        if table.results is not results:  # a run is a mean over blocks: here each block counts
            in_blocks = replace(
                in_blocks, groups=None if table.groups is None else in_blocks.blocks
            )
            cells = _scores(in_blocks, chosen, largest, facts, arms, question)
            of_blocks = average_values([cells[task].values for task in averaged])
        else:
            in_blocks = table
        both = interaction(of_blocks, in_blocks.blocks, baseline, in_blocks.groups)
    return Decision(
        baseline=baseline,
        arms=arms,
        task=result.task,
        metric=result.metric if len(metrics) == 1 else f"{len(metrics)} metrics",
        scale=results.scales[largest],
        result=result,
        values={} if from_means else values,
        means=means,
        paired=table.groups is None,
        runs=dict(table.names),
        tasks=analysis.tasks,
        task_values={} if from_means else {task: tables[task].values for task in analysis.tasks},
        signals=() if from_means else _signals(table, largest, facts, arms_out, question),
        scales=_scale_decisions(
            table, chosen, largest, facts, question, result.task, can_average, averages, arms_out
        ),
        effect=effect,
        seeds_for_effect=noise.seeds_for(effect) if noise and effect is not None else None,
        sampling=None if noise else _sampling(result, values, samples),
        over=over,
        blocks=results.blocks,
        interaction=both,
        refusals=tuple(refusals),
        notes=tuple(dict.fromkeys(notes)),
        account=replace(results.account, metrics=tuple(facts.values())),
    )


# --- what is compared -----------------------------------------------------------------------------


def _metric_of(results: Results, question: Question, notes: list[str]) -> tuple[Results, Question]:
    """The metric that is asked for, as the table has it: a column of values, a part of the names of
    several, or the name that its values lack.
    """
    metric = question.metric
    if metric is None or metric in results.metrics:
        return results, question
    if metric in results.tasks:
        return results, replace(question, metric=None, task=question.task or metric)
    for names, is_task in ((results.metrics, False), (results.tasks, True)):
        if not (kept := _ending_in(names, metric)):
            continue
        notes.append(f"metric: {metric!r} is that of {_names(kept)}")
        if not is_task and len(kept) > 1:
            return _with_parts(results, kept, metric), question
        if not is_task:
            return results, replace(question, metric=kept[0])
        if len(kept) == 1:
            return results, replace(question, metric=None, task=question.task or kept[0])
        return _parted(results, kept, metric), question
    if results.metrics == ("value",) and name_facts(metric).higher is not None:
        notes.append(f"metric: the values are {metric}, as --metric says")
        return replace(results, metrics=(metric,)), question
    return results, question


def _parted(results: Results, kept: Sequence[str], metric: str) -> Results:
    """The same with the names of some tasks as their rest and this metric."""
    places = np.array([task in kept for task in results.tasks])
    tasks = [_task_without(task, metric) if task in kept else task for task in results.tasks]
    if len(set(tasks)) < len(tasks):
        tasks = list(results.tasks)
    is_kept_N = places[results.task_N]
    return replace(
        results, tasks=tuple(tasks), metrics=(*results.metrics, metric),
        metric_N=np.where(is_kept_N, len(results.metrics), results.metric_N),
        shares=results.shares | ({metric} if results.shares & {*kept} else frozenset()),
    )  # fmt: skip


def _with_parts(results: Results, kept: Sequence[str], metric: str) -> Results:
    """The same with the rest of the names of some metrics in the names of the tasks."""
    rests = {name: _task_without(name, metric) for name in kept}
    places = np.array([name in rests for name in results.metrics])[results.metric_N]
    codes = np.where(places, results.metric_N, len(results.metrics))
    pairs, task_N = np.unique(np.stack([results.task_N, codes]), axis=1, return_inverse=True)
    tasks = []
    for task, code in pairs.T.tolist():
        name = results.tasks[task]
        rest = rests[results.metrics[code]] if code < len(results.metrics) else ""
        tasks.append(" ".join(filter(None, (name if name != "task" or not rest else "", rest))))
    if len(set(tasks)) < len(tasks):
        raise ValueError(f"--metric {metric} is a part of {_names(kept)}: name one of them")
    return replace(
        results, tasks=tuple(tasks), task_N=task_N.reshape(-1),
        metrics=(*results.metrics, metric),
        metric_N=np.where(places, len(results.metrics), results.metric_N)
    )  # fmt: skip


def _task_without(name: str, metric: str) -> str:
    """The name of a task without this metric; the whole where nothing else is left."""
    plain = plain_name(metric)
    rest = [part for part in _parts(name) if plain_name(part).removesuffix("_mean") != plain]
    if rest == _parts(name):  # it ends in several words
        words = name.split(" ")
        n = next(n for n in range(len(words)) if plain_name(" ".join(words[n:])) == plain)
        rest = [" ".join(words[:n])]
    return ("/" if SIGNS.search(name) else " ").join(rest) or name


def _parts(name: str) -> list[str]:
    """What stands between the signs of a name, or its words where it has none."""
    return SIGNS.split(name) if SIGNS.search(name) else name.split(" ")


def _ending_in(names: Sequence[str], metric: str) -> list[str]:
    """The names of which a metric is the first or the last part, those of the fewest parts: the
    whole before its slices. The last words after a blank are the last one of two parts.
    """
    plain, found = plain_name(metric), dict[str, int]()
    for name in names:
        parts, words = list(map(plain_name, _parts(name))), name.split(" ")
        if any(plain_name(" ".join(words[n:])) == plain for n in range(1, len(words))):
            found[name] = 2
        elif plain in (parts[0], parts[-1], parts[-1].removesuffix("_mean")):
            found[name] = len(parts)
    return [name for name, count in found.items() if count == min(found.values())]


def _check_names(results: Results, question: Question) -> None:
    """ValueError for a name that the table does not have."""
    tasks, metrics = set(results.tasks), set(results.metrics)
    told = [(name, "task", tasks) for name in (question.task, *question.without) if name]
    told += [(question.metric, "metric", metrics)] if question.metric else []
    for name in (*question.lower, *question.higher, *(question.units or {})):
        told.append((name, "metric or task", metrics | tasks))
    for name, what, there in told:
        if name not in there:
            if what == "metric" and there == {"value"}:
                there = tasks  # of values without a name
            message = f"there is no {what} {name!r} (of {', '.join(sorted(there)[:40])})"
            if name in results.arms:
                message += "; it is an arm: --where COLUMN=ARM … names those that are compared"
            raise ValueError(message)
    if question.task in question.without:
        raise ValueError(f"the task {question.task!r} decides and is left out")
    if both := set(question.lower) & set(question.higher):
        raise ValueError(f"{both.pop()!r} is told to be better both ways")


def _table(results: Results, question: Question) -> _Table:
    """The places of each task, metric and scale, without tasks that are left out."""
    r = results
    scales, scale_N = np.unique(r.scale_N, return_inverse=True)
    code_N = (r.task_N * len(r.metrics) + r.metric_N) * len(scales) + scale_N
    order = np.argsort(code_N, kind="stable")
    starts = np.flatnonzero(np.append(True, code_N[order][1:] != code_N[order][:-1]))
    groups: dict[Key, dict[float, Integers]] = {}
    parts = np.split(order, starts[1:])
    for places in sorted(parts, key=lambda part: int(part[0])):
        first = int(places[0])
        key = (r.tasks[r.task_N[first]], r.metrics[r.metric_N[first]])
        if key[0] not in question.without:
            groups.setdefault(key, {})[float(r.scale_N[first])] = places
    run_N, names = r.seed_N, dict(r.seeds)
    blocks: dict[int, int] = {}
    if r.blocks:
        pairs = np.stack([r.block_N, r.seed_N], axis=1)
        distinct, run_N = np.unique(pairs, axis=0, return_inverse=True)
        run_N = run_N.reshape(-1)
        for run, (block, seed) in enumerate(distinct.tolist()):
            blocks[run] = block
            own = r.seeds.get(seed, str(seed)) if r.paired else str(seed)
            names[run] = f"{r.blocks[block]}, {own}" if r.paired else r.blocks[block]
    layout = None
    if not r.paired:
        layout = dict(blocks) if blocks else dict.fromkeys(np.unique(run_N).tolist(), 0)
    return _Table(r, groups, run_N, layout, blocks, names)


def _of_means(table: _Table, question: Question, notes: list[str]) -> _Table:
    """The table with runs that stand for each mean: values of its mean and standard deviation, on
    which alone a one-way layout rests. Without metrics whose means have no spread, where others
    have one.
    """
    r = table.results
    if r.sd_N is None or r.runs_N is None:
        return table
    values, places, numbers = list[float](), list[int](), list[int]()
    for n, (value, sd, runs) in enumerate(zip(r.value_N, r.sd_N, r.runs_N, strict=True)):
        own = [float(value)] if math.isnan(sd) else stand_ins(float(value), float(sd), int(runs))
        values += own
        places += [n] * len(own)
        numbers += range(len(own))
    at = np.array(places, np.int64)
    runs = replace(r.taken(at), seed_N=np.array(numbers, np.int64), value_N=np.array(values))
    has_spread = {
        key: any(np.unique(r.arm_N[own[~np.isnan(r.sd_N[own])]]).size > 1 for own in of.values())
        for key, of in table.by_key.items()
    }
    left_out = [
        key for key, is_there in has_spread.items()
        if not is_there and question.task != key[0] and any(
            has for other, has in has_spread.items() if question.metric in (None, other[1])
        )
    ]  # fmt: skip
    if left_out:
        whole_out = {name for _, name in left_out} - {
            name for _, name in has_spread.keys() - {*left_out}
        }
        names = dict.fromkeys(
            name if name in whole_out and name != "value" else task for task, name in left_out
        )
        notes.append(f"left out: {first_names(list(names))}, whose means have no spread")
    whole = _table(runs, question)
    kept = {key: of for key, of in whole.by_key.items() if key not in left_out}
    return replace(whole, by_key=kept)


def _with_spreads(r: Results, notes: list[str]) -> Results:
    """The means without those of a block none of which has a spread, beside blocks that have."""
    if r.sd_N is None or r.runs_N is None or len(r.blocks) < 2:
        return r
    column_N = refined(r.task_N, r.metric_N)
    cell_N, there_N = column_N * len(r.blocks) + r.block_N, ~np.isnan(r.sd_N)
    bare_N = (np.bincount(cell_N, there_N)[cell_N] == 0) & (
        np.bincount(column_N, there_N)[column_N] > 0
    )
    if not bare_N.any():
        return r
    names = list(dict.fromkeys(r.blocks[block] for block in r.block_N[bare_N].tolist()))
    notes.append(f"left out: {first_names(names)}, whose means have no spread")
    return r.taken(np.flatnonzero(~bare_N))


def _arm_scores(
    plain: _Table, chosen: Mapping[str, str], scale: float, tables: Mapping[str, TaskScores]
) -> dict[str, dict[str, ArmScore]] | None:
    """{task: {arm: its score}} of means, those of an arm in several blocks as one; None of runs."""
    r, scores = plain.results, dict[str, dict[str, ArmScore]]()
    if r.runs_N is None:
        return None
    for task, of_task in tables.items():
        counts = Counter[str]()
        for n in plain.by_key[task, chosen[task]][scale].tolist():
            counts[r.arms[r.arm_N[n]]] += int(r.runs_N[n])
        scores[task] = {}
        for arm, runs in of_task.values.items():
            mean, sd = mean_sd(list(runs.values()))
            scores[task][arm] = ArmScore(n=counts[arm], mean=mean, sd=sd)
    return scores


def _on_one_test_set(
    results: Results,
    arms: tuple[str, ...],
    baseline: str,
    refusals: list[str],
    chosen: Mapping[str, str],
    question: Question,
) -> tuple[tuple[str, ...], set[str]]:
    """The arms without those that were scored on another split than the baseline, or on a part of
    its test samples, and these. ValueError where no arm was scored on its own.
    """
    own, apart = results.splits.get(baseline, ("", frozenset())), dict[str, str]()
    for arm in arms:
        column, values = results.splits.get(arm, own)
        if column == own[0] and values and own[1] and not values & own[1]:
            here, there = (", ".join(sorted(of)) for of in (values, own[1]))
            apart[arm] = f"{own[0]!r} is {here} there, and {there} for {baseline}"
    sizes = _on_other_samples(results, arms, baseline, chosen, question)
    kept = tuple(arm for arm in arms if arm not in {*apart, *sizes})
    for of, way in ((apart, f" (--arm {quoted(own[0])} compares it)"), (sizes, "")):
        for why in dict.fromkeys(of.values()):
            refusal = f"{_names([arm for arm in of if of[arm] == why])} not comparable: {why}"
            if len(kept) < 2:
                raise ValueError(refusal + way)
            refusals.append(refusal)
    return kept, {*apart, *sizes}


def _on_other_samples(
    results: Results,
    arms: tuple[str, ...],
    baseline: str,
    chosen: Mapping[str, str],
    question: Question,
) -> dict[str, str]:
    """{arm: why, and the way} of the arms that some task was tested with far fewer or more samples
    for than for the baseline, as by a limit on one of them.
    """
    r, apart = results, dict[str, str]()
    sizes: dict[tuple[int, int], set[int]] = defaultdict(set)
    metrics = np.array([r.metrics.index(chosen[t]) if t in chosen else -1 for t in r.tasks])
    known_N = (r.samples_N > 0) & (metrics[r.task_N] == r.metric_N)
    triples = np.stack([r.arm_N, r.task_N, r.samples_N])[:, known_N]
    for arm, task, size in np.unique(triples, axis=1).T.tolist():
        sizes[arm, task].add(size)
    wanted = [
        n for n, task in enumerate(r.tasks)
        if task in chosen and question.task in (None, task)
    ]  # fmt: skip
    for arm, task in itertools.product(arms, wanted):
        here, there = (sizes[r.arms.index(one), task] for one in (arm, baseline))
        if here and there and max(min(here) / max(there), min(there) / max(here)) > OTHER_SAMPLES:
            shown = [" or ".join(f"{size:,}" for size in sorted(of)[:2]) for of in (here, there)]
            why = f"{r.tasks[task]} is tested on {shown[0]} samples there, and on {shown[1]}"
            way = f" (--without {quoted(r.tasks[task])} leaves it out)" if len(r.tasks) > 1 else ""
            apart.setdefault(arm, f"{why} for {baseline}{way}")
    return apart


def _without_repeated_runs(results: Results, notes: list[str]) -> Results:
    """Each run once, where an arm has several and one repeats another one: equal in all of its
    values, with more digits than runs of other seeds agree in by chance. Such a seed had no effect,
    or the run was copied, and it says nothing of the noise.
    """
    r = results
    if r.runs_N is not None or r.are_means or not len(r.value_N):
        return r
    order = np.lexsort((r.metric_N, r.task_N, r.seed_N, r.block_N, r.scale_N, r.arm_N))
    keys = np.stack([r.arm_N, r.scale_N, r.block_N, r.seed_N])[:, order]
    starts = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
    alike: dict[tuple[object, ...], list[Integers]] = defaultdict(list)
    for places in np.split(order, starts[1:]):
        n = int(places[0])
        of = (int(r.arm_N[n]), float(r.scale_N[n]), int(r.block_N[n]))
        own = np.stack([r.task_N[places], r.metric_N[places], r.value_N[places]]).tobytes()
        lists = [] if r.per_sample is None else [r.per_sample[each] for each in places.tolist()]
        samples = b"".join(b"" if one is None else np.asarray(one).tobytes() for one in lists)
        alike[of, own, samples].append(places)
    left_out = list[Integers]()
    distinct = Counter(key[0] for key in alike)
    for key, same in alike.items():
        if len(same) < 2 or distinct[key[0]] < 2:
            continue  # without another run, nothing varies, which is said elsewhere
        digits = sum(min(MOST_DIGITS, _digits(one)) for one in set(r.value_N[same[0]].tolist()))
        if digits * (len(same) - 1) < LEAST_EQUAL:
            continue
        left_out += same[1:]
        n = int(same[0][0])
        seeds = [r.seeds.get(seed, seed) for seed in (int(r.seed_N[each[0]]) for each in same)]
        named = f"seeds {_names([*map(str, seeds)])} of" if r.paired else f"{len(same)} runs of"
        notes.append(
            f"{named} {r.arms[r.arm_N[n]]} have the same numbers everywhere, and count once: did "
            "the seed take effect?"
        )
    if not left_out:
        return r
    return r.taken(np.setdiff1d(np.arange(len(r.value_N)), np.concatenate(left_out)))


def _digits(number: float) -> int:
    """The significant digits of a number as it was written."""
    return len(re.sub(r"e.*|[^\d]", "", repr(number)).strip("0"))


def _copies(results: Results, question: Question, notes: list[str]) -> set[str]:
    """Arms that repeat another one: equal in all values per sample of all runs. Without such values
    nothing is a copy, and the baseline never is.
    """
    r = results
    if r.per_sample is None:
        return set()
    by_arm: dict[int, dict[tuple[int, ...], bytes]] = defaultdict(dict)
    lacking = set()
    for n, samples in enumerate(r.per_sample):
        arm = int(r.arm_N[n])
        if samples is None or len(samples) < 2:
            lacking.add(arm)
            continue
        key = (int(r.task_N[n]), int(r.metric_N[n]), int(r.seed_N[n]), int(r.block_N[n]),
               hash(float(r.scale_N[n])))  # fmt: skip
        by_arm[arm][key] = hashlib.blake2b(np.asarray(samples).tobytes()).digest()
    first: dict[frozenset[tuple[tuple[int, ...], bytes]], str] = {}
    copies = set()
    order = sorted(by_arm, key=lambda arm: r.arms[arm] != question.baseline and (
        plain_name(r.arms[arm]) not in BASELINES))  # fmt: skip
    for arm in order:
        if arm in lacking:
            continue
        original = first.setdefault(frozenset(by_arm[arm].items()), r.arms[arm])
        if original != r.arms[arm]:
            copies.add(r.arms[arm])
            notes.append(
                f"left out: {r.arms[arm]}, whose answers to every sample are those of {original}"
            )
    return copies


def _headline_metrics(table: _Table, question: Question) -> dict[str, str]:
    """One metric for each task: the metric asked for, or the likeliest headline."""
    metrics: dict[str, list[str]] = defaultdict(list)
    for task, metric in table.by_key:
        metrics[task].append(metric)
    chosen = {}
    for task, names in metrics.items():
        if question.metric is not None:
            chosen[task] = question.metric
            continue
        chosen[task] = _first_that_varies(
            names, lambda metric, task=task: [  # type: ignore[misc]
                table.runs((task, metric), scale) for scale in table.by_key[task, metric]]
        )  # fmt: skip
    return chosen


def _first_that_varies(names: Sequence[str], runs_of: Callable[[str], Sequence[Values]]) -> str:
    """The likeliest headline; of names that are none, one that differs between runs of an arm."""
    ordered = sorted(names, key=_headline_place)
    for name in ordered[:MOST_HEADLINES]:
        values = [own for runs in runs_of(name) for own in runs.values() if len(own) > 1]
        if _headline_place(name)[1] < NO_RANK or not values or any(map(_varies, values)):
            return name
    return ordered[0]


def _baseline(arms: Sequence[str], question: Question, notes: list[str]) -> str:
    if question.baseline is not None:
        if question.baseline not in arms:
            rest = f" and {len(arms) - 40} more" if len(arms) > 40 else ""
            shown = ", ".join(arms[:40]) + rest
            raise ValueError(f"there is no arm {question.baseline!r} (of {shown})")
        return question.baseline
    plain = {plain_name(arm): arm for arm in reversed(arms)}
    baseline = next((plain[name] for name in BASELINES if name in plain), None)
    if baseline is None:
        last = {name.split("_")[-1]: arm for name, arm in plain.items()}
        baseline = next((last[name] for name in BASELINES[:4] if name in last), arms[0])
    notes.append(f"baseline: {baseline}")
    return baseline


def _arms_at(
    table: _Table, chosen: Mapping[str, str], scale: float, without: set[str]
) -> tuple[str, ...]:
    """The arms of a scale, in the order of the file."""
    r = table.results
    first: dict[int, int] = {}
    for key in chosen.items():
        places = table.by_key.get(key, {}).get(scale)
        if places is None:
            continue
        arms, at = np.unique(r.arm_N[places], return_index=True)
        for arm, n in zip(arms.tolist(), places[at].tolist(), strict=True):
            first[arm] = min(first.get(arm, n), n)
    ordered = sorted(first, key=lambda arm: first[arm])
    return tuple(r.arms[arm] for arm in ordered if r.arms[arm] not in without)


def _largest_scale(
    table: _Table, chosen: Mapping[str, str], without: set[str], notes: list[str]
) -> float:
    """The largest scale of two arms or more; arms that it lacks are named."""
    r = table.results
    scales = sorted({scale for key in chosen.items() for scale in table.by_key.get(key, {})})
    arms = {scale: _arms_at(table, chosen, scale, without) for scale in scales}
    enough = [scale for scale in scales if len(arms[scale]) > 1]
    if not enough:
        names = list(dict.fromkeys(arm for of in arms.values() for arm in of))
        where = " at each scale" if len(names) > 1 else f", {names[0]}"
        raise ValueError(
            f"there is one arm{where}: a comparison needs two; name what tells arms apart with "
            f"--arm ({'; '.join(notes)})"
        )
    largest = max(enough)
    if larger := [r.scales[scale] for scale in scales if scale > largest]:
        notes.append(f"left out: scales with one arm, {', '.join(larger)}")
    others: dict[str, str] = {}
    for scale in scales:
        for arm in arms[scale]:
            if arm not in arms[largest]:
                others[arm] = r.scales[scale]
    if others:
        shown = first_names([f"{arm} (at {scale})" for arm, scale in others.items()])
        notes.append(f"not compared, at another scale than {r.scales[largest]}: {shown}")
    return largest


def _layout(
    table: _Table, chosen: Mapping[str, str], scale: float, baseline: str, arms: Sequence[str],
    notes: list[str],
) -> _Table:  # fmt: skip
    """The table, with no pairs where some arm has several runs but not two seeds of the baseline:
    such runs are not paired by seed.
    """
    if table.groups is not None:
        return table
    runs: dict[str, set[int]] = defaultdict(set)
    for key in chosen.items():
        for arm, own in table.runs(key, scale).items():
            runs[arm] |= set(own)
    of_baseline = runs.get(baseline, set())
    alone = []
    for arm in arms:
        both = len(runs[arm] & of_baseline)
        is_incomplete = both < max(len(runs[arm]), len(of_baseline))
        if len(runs[arm]) > 1 and (both < 2 or (both < LEAST_PAIRS and is_incomplete)):
            alone.append(arm)
    if not alone or len(of_baseline) < 2:
        return table
    notes.append(
        f"seed: {_names(alone)} has not {LEAST_PAIRS} seeds of {baseline}, so runs are not "
        "paired by seed"
    )
    layout = dict(table.blocks) or dict.fromkeys(np.unique(table.run_N).tolist(), 0)
    return replace(table, groups=layout)


def _is_one_run_in_blocks(
    table: _Table, chosen: Mapping[str, str], scale: float, arms: Sequence[str], notes: list[str]
) -> bool:
    """Whether the differences of arms follow the seeds through the blocks, in some task."""
    r = table.results
    if not r.paired:
        return False
    ps = []
    for key in chosen.items():
        cells: dict[str, dict[tuple[int, int], float]] = {arm: {} for arm in arms}
        places = table.by_key.get(key, {}).get(scale, np.zeros(0, np.int64))
        for n in places.tolist():
            if (arm := r.arms[r.arm_N[n]]) in cells:
                cells[arm][int(r.block_N[n]), int(r.seed_N[n])] = float(r.value_N[n])
        p = seed_effect({arm: own for arm, own in cells.items() if own})
        ps += [] if p is None else [p]
    if not ps:
        return False
    least = min(ps) * len(ps)
    is_one_run = least < POOLING_P
    what = (
        f"differences of arms follow the seed through the blocks (p = {least:.2g}), so a seed is "
        "one run, its mean over the blocks" if is_one_run else
        f"no difference follows a seed through the blocks (p = {min(1.0, least):.2g}), so each "
        "seed of a block is a run"
    )  # fmt: skip
    notes.append(f"seed: {what}")
    return is_one_run


def _over(table: _Table, tables: Mapping[str, TaskScores]) -> str:
    """What the blocks are, where none has two runs of an arm, so that blocks stand for runs."""
    places = table.blocks
    runs = [own for scores in tables.values() for own in scores.values.values()]
    if not places or any(len({places[run] for run in own}) < len(own) for own in runs):
        return ""
    names = " and ".join(map(repr, table.results.block_columns))
    return f"{len(table.results.blocks)} values of {names}, one run each"


def _few_blocks(table: _Table, asked: Sequence[TaskScores], baseline: str) -> list[str]:
    """Arms that share some blocks with the baseline, but in some task too few for a sample."""
    counts: dict[str, list[int]] = {}
    for scores in asked:
        blocks = {arm: {table.blocks[run] for run in own} for arm, own in scores.values.items()}
        for arm in blocks.keys() - {baseline}:
            counts.setdefault(arm, []).append(len(blocks[arm] & blocks.get(baseline, set())))
    return sorted(arm for arm, shared in counts.items() if 0 < min(shared) < LEAST_BLOCKS)


def _of_other_sizes(table: _Table, tables: Mapping[str, TaskScores]) -> str:
    """Why blocks of one run each have no mean: their values, without a unit, are of such different
    sizes that it would be that of the largest; "" where they are not.
    """
    for scores in tables.values():
        sizes: dict[int, list[float]] = {}
        for own in scores.values.values():
            for run, value in own.items():
                sizes.setdefault(table.blocks[run], []).append(abs(value))
        most = {block: max(own) for block, own in sizes.items() if len(own) > 1 and max(own) > 0}
        if scores.unit == "share" or not most or max(most.values()) < OTHER_SIZE * min(
            most.values()
        ):  # fmt: skip
            continue
        low, high = (end(most, key=lambda block: most[block]) for end in (min, max))
        names, columns = table.results.blocks, " ".join(map(quoted, table.results.block_columns))
        return (
            f"no verdict: values are up to {most[low]:.3g} in block {names[low]!r} and "
            f"{most[high]:.3g} in {names[high]!r}, so that a mean over blocks is that of the "
            f"largest; --task-column {columns} compares in each"
        )
    return ""


def _over_blocks(r: Results, notes: list[str]) -> Results:
    """One measurement for each arm, seed, task, metric and scale: the mean over the blocks. What
    lacks a block that others of its task and metric have is left out.
    """
    scale_N, place_N = (np.unique(each, return_inverse=True)[1] for each in (r.scale_N, r.seed_N))
    column_N = refined(refined(r.task_N, r.metric_N), scale_N)
    blocks_of_column = np.bincount(pairs_of(column_N, r.block_N)[0])
    key_N = refined(refined(column_N, r.arm_N), place_N)
    _, first, count = np.unique(key_N, return_index=True, return_counts=True)
    kept = np.flatnonzero(count == blocks_of_column[column_N[first]])
    if r.per_sample is not None:
        notes.append("values per sample are not used: a run is a mean over blocks")
    if lacking := len(first) - len(kept):
        notes.append(
            f"left out: {lacking} of {len(first)} means over the blocks, a block is missing"
        )
    at = first[kept]
    value_N = (np.bincount(key_N, r.value_N) / count)[kept]
    block_N = np.zeros(len(at), np.int64)
    return replace(r.taken(at), value_N=value_N, block_N=block_N, blocks=(), per_sample=None)


# --- directions and units -------------------------------------------------------------------------


def metric_facts(table: _Table, key: Key, question: Question) -> MetricFacts:
    """The direction and the unit of a metric of a task: from an option, from the file, by the name,
    or guessed. ValueError where the file gives it both directions.
    """
    (task, metric), results = key, table.results
    name = task if metric == "value" else metric
    name = "" if metric == "value" and results.named_tasks else name
    facts = name_facts("" if results.named_tasks and is_sentence(name) else name)
    if facts.higher is None and metric != "value" and not results.named_tasks:
        other = name_facts(task)
        facts = other if other.higher is not None and is_bare_metric(task) else facts
    places = np.concatenate(list(table.by_key[key].values()))
    stated = set(np.unique(results.higher_N[places]).tolist()) - {-1}
    if len(stated) > 1:
        raise ValueError(f"{task}, {metric}: the table gives it both directions")
    if metric in question.lower or task in question.lower:
        higher, source = False, "option"
    elif metric in question.higher or task in question.higher:
        higher, source = True, "option"
    elif stated:
        higher, source = bool(stated.pop()), "file"
    elif facts.higher is not None:
        higher, source = facts.higher, "name"
        if is_top_k(name) and table.error_name:
            source = f"guess: it may be an error, as {table.error_name}"
    else:
        higher, source = True, "guess"
    unit, unit_from = _unit(results, key, name, facts.unit, facts.bounded, places, question)
    return MetricFacts(
        task=task, metric=metric, higher_is_better=higher, direction_from=source, unit=unit,
        unit_from=unit_from
    )  # fmt: skip


def _unit(
    results: Results, key: Key, name: str, by_name: str, bounded: bool, places: Integers,
    question: Question,
) -> tuple[str, str]:  # fmt: skip
    """The unit and where it is from. A share whose values are above 1 is in percent."""
    told = question.units or {}
    if (asked := told.get(key[1], told.get(key[0]))) is not None:
        return ("" if asked == "none" else asked), "option"
    if key[0] in results.shares or key[1] in results.shares:
        return "share", "file"
    values = results.value_N[places]
    low, high = float(values.min()), float(values.max())
    if by_name == "share":
        if low < 0:
            return "", "values"
        if high <= 1.0 if bounded else float(np.median(values)) <= 1.0:
            return "share", "name"
        is_percent = high <= 100 and float(np.median(values)) > 1
        return ("percent", "values") if is_percent or not bounded else ("", "values")
    is_small = 0 <= low <= high <= 1 and float(np.median(values)) > LEAST_SHARE
    if by_name == "percent" and bounded and is_small and name_facts(name).higher:
        return "share", "guess: no value under the percent sign is above 1, --unit if it is"
    return by_name, "name" if by_name else "guess"


def _as_siblings(table: _Table, facts: Mapping[Key, MetricFacts]) -> dict[Key, MetricFacts]:
    """Columns without a unit beside one that is known to be in percent: where all lie between 1 and
    100 they have its unit, and its direction where their names say none.
    """
    r = table.results
    percent = [of for of in facts.values() if of.unit == "percent"]
    unknown = {key: of for key, of in facts.items() if not of.unit and of.unit_from == "guess"}
    known = {of.higher_is_better for of in facts.values() if of.direction_from != "guess"}
    is_open = r.named_tasks or len(percent) + len(unknown) < len(facts) or len(known) > 1
    if not percent or is_open or len({metric for _, metric in facts}) > 1:
        return {}
    values = np.concatenate([r.value_N[p] for key in facts for p in table.by_key[key].values()])
    if values.min() < 1 or values.max() > 100:
        return {}
    like, source = percent[0], f"guess: as {percent[0].task}, beside which it stands"
    return {
        key: replace(
            of, unit="percent", unit_from=source, higher_is_better=like.higher_is_better,
            direction_from=source if of.direction_from == "guess" else of.direction_from
        ) for key, of in unknown.items()
    }  # fmt: skip


def _check_one_unit(
    table: _Table, facts: Mapping[Key, MetricFacts], chosen: Mapping[str, str]
) -> None:
    """ValueError where all values of an arm are shares and those of another one percentages, in
    metrics that are compared and may be shares by their name.
    """
    groups: dict[str, list[Integers]] = defaultdict(list)
    for task, metric in chosen.items():
        own = name_facts(task if metric == "value" else metric)
        is_open = own.unit == "share" or (own.unit == "" and own.higher is None)
        if is_open and facts[task, metric].unit_from not in ("option", "file"):
            name = task if metric == "value" and own.unit else metric
            groups[name] += table.by_key[task, metric].values()
    r, wrong = table.results, dict[str, str]()
    for name, parts in groups.items():
        places = np.concatenate(parts)
        values, arms = r.value_N[places], r.arm_N[places]
        of_arms = {r.arms[arm]: values[arms == arm] for arm in np.unique(arms).tolist()}
        small = [arm for arm, own_N in of_arms.items() if own_N.max() <= 1 and own_N.any()]
        large = [arm for arm, own_N in of_arms.items() if (own_N > LEAST_PERCENT).mean() > 0.9]
        if not small or not large or values.min() < 0 or values.max() > 100:
            continue
        low, high = (np.concatenate([of_arms[arm] for arm in side]) for side in (small, large))
        others = np.concatenate([own_N for arm, own_N in of_arms.items() if arm not in small])
        is_apart = others.min() >= 3 * low.max()  # else those between are of one unit too
        if is_apart and np.median(high) >= OTHER_UNIT * np.median(low):
            wrong[name] = (
                f"{_names(small)} has values up to 1 (such as {low[0]:g}) and {_names(large)} "
                f"above (such as {high[0]:g})"
            )
    if wrong:
        shown = "; ".join(f"{name}: {what}" for name, what in wrong.items())
        units = " ".join(f"'{name}=percent'" for name in wrong)
        raise ValueError(
            f"{shown}: shares beside percentages are not compared; write one unit, or say --unit "
            f"{units} (or none) if they are one"
        )


def _factor(facts: MetricFacts) -> float:
    """What makes values of a file those of the scores: 0.01 for percentages."""
    return 0.01 if facts.unit == "percent" else 1.0


def _scores(
    table: _Table, chosen: Mapping[str, str], scale: float, facts: Mapping[Key, MetricFacts],
    arms: Sequence[str], question: Question,
) -> dict[str, TaskScores]:  # fmt: skip
    """The scores of every task."""
    scores = {}
    kept = set(arms)
    for task, metric in chosen.items():
        runs = table.runs((task, metric), scale)
        if not runs:
            continue
        of = facts[task, metric]
        factor = _factor(of)
        values = {
            arm: {run: value * factor for run, value in own.items()}
            for arm, own in runs.items() if arm in kept
        }  # fmt: skip
        numbers = [abs(value) for own in values.values() for value in own.values()]
        if max(numbers) > LARGEST or 0 < max(numbers) < SMALLEST:
            raise ValueError(
                f"{task if metric == 'value' else metric}: values as {max(numbers):.3g} cannot be "
                "compared; multiply the column by a power of ten"
            )
        unit = "share" if of.unit in ("share", "percent") else of.unit
        name = task if metric == "value" else metric
        scores[task] = TaskScores(
            values=values, samples=_samples_of(table, (task, metric), scale, values),
            band=question.band * factor,
            limit=1.0 if unit == "share" and name_facts(name).bounded else math.inf, metric=metric,
            unit=unit, higher_is_better=of.higher_is_better,
            is_guessed=is_guess(of.direction_from)
        )  # fmt: skip
    return scores


def _samples_of(
    table: _Table, key: Key, scale: float, values: Values
) -> dict[str, dict[int, tuple[Array]]]:
    """Values per sample, where the table has them. ValueError where they are not those of the
    value, or of other samples than those of another run.
    """
    r = table.results
    places = table.by_key[key][scale]
    samples: dict[str, dict[int, tuple[Array]]] = {}
    if r.per_sample is None:
        return samples
    sizes = set()
    for n in places.tolist():
        arm, run, one = r.arms[r.arm_N[n]], int(table.run_N[n]), r.per_sample[n]
        if arm not in values or one is None:
            continue
        samples.setdefault(arm, {})[run] = (one,)
        sizes.add(len(one))
        mean, value = float(np.mean(one)), values[arm][run]
        if len(one) < 2 or abs(mean - value) > 1e-5 * max(1.0, abs(value)):
            raise ValueError(
                f"{arm} seed {run} on {key[0]}: the mean of the {len(one)} values per sample is "
                f"{mean:.6g}, and the value {value:.6g}"
            )
    if len(sizes) > 1:
        raise ValueError(f"{key[0]}: runs have values of {min(sizes)} and {max(sizes)} samples")
    return samples


# --- averages and analysis ------------------------------------------------------------------------


def _averages(tables: Mapping[str, TaskScores]) -> list[str]:
    """Columns that are averages of others, by their name and by arithmetic."""
    open_ = [task for task in tables if not _is_bare(task, tables[task])]
    parts = {task: tables[task] for task in open_ if not is_average(task)}
    found = []
    for task in filter(is_average, tables if len(parts) > 1 else ()):
        words = deciding_words(task) - MEAN_WORDS
        alike = [own for one, own in parts.items() if deciding_words(one) - MEAN_WORDS == words]
        groups = [alike, [*parts.values()] * (task in open_)]  # `Average WER`: of this metric alone
        if any(_is_mean(task, tables[task], of) for of in groups if len(of) > 1):
            found.append(task)
    return found


def _is_mean(task: str, scores: TaskScores, parts: Sequence[TaskScores]) -> bool:
    """Whether the values of a column are, but for rounding, means of other columns that stand side
    by side. Under a name that says nothing else (`Average`), of columns of one unit and direction,
    they may lie between the least and the largest of these: weights are not known.
    """
    runs = [(arm, run) for arm, own in scores.values.items() for run in own][:MOST_CHECKED]
    own_R = np.array([scores.values[arm][run] for arm, run in runs])
    part_RP = np.array([
        [part.values.get(arm, {}).get(run, np.nan) for part in parts] for arm, run in runs
    ])  # fmt: skip
    there_RP = ~np.isnan(part_RP)
    rows_R = there_RP.any(axis=1)
    own_R, part_RP, there_RP = own_R[rows_R], part_RP[rows_R], there_RP[rows_R]
    if not len(own_R):
        return False
    digits = next((n for n in range(6) if np.allclose(own_R, own_R.round(n), atol=1e-9)), 6)
    near = 1.01 * max(10.0**-digits, 1e-6 * float(np.abs(own_R).max()))
    zero_R1 = np.zeros((len(own_R), 1))
    sum_RP, count_RP = (
        np.hstack([zero_R1, np.cumsum(each, axis=1)]) for each in (np.nan_to_num(part_RP), there_RP)
    )
    for size in range(2, len(parts) + 1):
        count_RW = np.maximum(count_RP[:, size:] - count_RP[:, :-size], 1)
        mean_RW = (sum_RP[:, size:] - sum_RP[:, :-size]) / count_RW
        if ((np.abs(mean_RW - own_R[:, None]) <= near).mean(axis=0) >= MOSTLY).any():
            return True
    is_alike = len({(part.unit, part.higher_is_better) for part in parts}) == 1
    is_inside = (np.nanmin(part_RP, axis=1) <= own_R) & (own_R <= np.nanmax(part_RP, axis=1))
    return is_alike and MEAN_ALONE.fullmatch(plain_name(task)) is not None and (
        float(is_inside.mean()) >= MOSTLY
    )  # fmt: skip


def _is_bare(task: str, scores: TaskScores) -> bool:
    """Whether a column is a metric alone, with no task in its name."""
    if scores.metric != "value":
        return False
    is_mean = MEAN_ALONE.fullmatch(plain_name(task)) is not None
    return is_bare_metric(task) and not is_mean


def _can_average(
    tables: Mapping[str, TaskScores], averages: Sequence[str], named: bool, question: Question,
    notes: list[str], refusals: list[str]
) -> bool:  # fmt: skip
    """Whether the tasks have one average, as an ablation's: of one unit and one direction, and not
    of several metrics of one test set. Why not is a refusal. named: the tasks are cells of a
    column, so that their names say nothing of a metric.
    """
    if averages:
        notes.append(f"not averaged again: {_names(averages)}")
    singles = {task: scores for task, scores in tables.items() if task not in averages}
    if len(singles) < 2:
        return False
    metrics = list(dict.fromkeys(scores.metric for scores in singles.values()))
    units = {scores.unit for scores in singles.values()}
    bare = [task for task, scores in singles.items() if _is_bare(task, scores)]
    stems = Counter(task_stem(task) for task, one in singles.items() if one.metric == "value")
    bare = bare or [task for task in singles if stems[task_stem(task)] > 1 and is_known(task)]
    words = {deciding_words(task) for task, one in singles.items() if one.metric == "value"}
    is_one_metric = named or len({each - {"score", "scores"} for each in words}) < 2
    if len({scores.higher_is_better for scores in singles.values()}) > 1:
        why = "metrics of both directions"
    elif len(units) > 1 or (units == {""} and len(metrics) > 1):
        why = "different units"
    elif bare and not named:
        why = f"metrics of one test set ({_names(bare)})"
    elif units == {""} and not is_one_metric:
        why = "names of different metrics"
    elif units == {""} and not _are_alike(singles):
        why = "values of different size"
    else:
        if len(metrics) > 1:
            notes.append(f"the average is of {len(metrics)} metrics, {_names(metrics)}")
        return True
    if question.task is None:
        refusals.append(
            f"no average over the {len(singles)} tasks: they have {why}; choose by --metric, "
            "--task or --without"
        )
    return False


def _are_alike(singles: Mapping[str, TaskScores]) -> bool:
    """Whether values without a unit could be of one: none is at most 1 where others are above."""
    most = []
    for scores in singles.values():
        values = [abs(value) for own in scores.values.values() for value in own.values()]
        most.append(max(values))
    return not (min(most) <= 1 < max(most)) and max(most) <= MOST_TIMES * max(min(most), 1e-300)


def _check_band(
    tables: Mapping[str, TaskScores], facts: Mapping[Key, MetricFacts], chosen: Mapping[str, str],
    question: Question,
) -> None:  # fmt: skip
    """ValueError for a band beside several units, where no task is chosen."""
    if not question.band or question.task is not None:
        return
    units = {facts[task, chosen[task]].unit for task in tables}
    if len(units) > 1:
        shown = ", ".join(
            f"{task}: {facts[task, chosen[task]].unit or 'no unit'}" for task in list(tables)[:4]
        )
        raise ValueError(
            f"--equivalence {question.band:g} is in one unit, and the tasks have several "
            f"({shown}): choose one with --task"
        )


def _without_average(
    tables: Mapping[str, TaskScores], averages: Sequence[str], question: Question
) -> list[str]:
    """Why means of several tasks have no average but one that stands in the file."""
    if len(tables) < 2 or averages or question.task is not None:
        return []
    return [
        f"no average over the {len(tables)} tasks: means of runs do not say how tasks vary "
        "together in a run; choose by --task"
    ]


def _headline_place(name: str) -> tuple[bool, int, bool, bool, bool]:
    """The place of a metric among those that could decide: of a test set before a training set, the
    likeliest headline, a time or a cost last, a metric whose name is known, a test set before the
    one that a run was chosen on.
    """
    plain = plain_name(name)
    words = set(re.split(r"[^a-z]+", name.lower()))
    ranks = [n for n, each in enumerate(HEADLINES) if re.search(rf"(^|_){each}$", plain)]
    is_early = bool({"train", "training", "baseline", "initial", "before", "pre"} & words)
    is_chosen_on = bool({"val", "valid", "validation", "dev"} & words)
    is_time = TIMES.search(plain) is not None or COSTS.search(plain) is not None
    return is_early, min(ranks, default=NO_RANK), is_time, not is_known(name), is_chosen_on


def _analysis(
    tables: Mapping[str, TaskScores], baseline: str, arms: Sequence[str], question: Question,
    table: _Table, averages: Sequence[str], *, average: bool
) -> Analysis:  # fmt: skip
    """`analyse` of an ablation on these tables; averages among the columns are averaged no more."""
    singles = {task: one for task, one in tables.items() if task not in averages} or dict(tables)
    if question.task is not None:
        singles[question.task] = tables[question.task]
    runs: dict[str, int] = defaultdict(int)
    for scores in tables.values():
        for arm, of_arm in scores.values.items():
            runs[arm] = max(runs[arm], len(of_arm))
    others = [arm for arm in arms if arm != baseline and runs[arm] > 1]
    if not others or runs[baseline] < 2:  # one run of each arm: nothing tells the noise
        singles = {task: _without_runs(scores) for task, scores in singles.items()}
    return analyse(
        singles, baseline, arms=others, band=max(scores.band or 0.0 for scores in singles.values()),
        primary=question.task, average=average and len(singles) > 1, groups=table.groups
    )  # fmt: skip


def _without_runs(scores: TaskScores) -> TaskScores:
    """The scores of a table that is not fitted."""
    return replace(scores, values={}, samples={})


# --- what cannot be decided -----------------------------------------------------------------------


def _thin(of_tasks: Mapping[str, TaskScores]) -> str:
    """The words of --without that leave tasks which have more runs in common; "" where no two arms
    then have two runs.
    """
    counts = {
        task: sum(map(len, scores.values.values())) for task, scores in of_tasks.items()
    }  # fmt: skip
    thin = [task for task, count in counts.items() if count < max(counts.values())]
    if not thin:
        return ""
    rest = [scores.values for task, scores in of_tasks.items() if task not in thin]
    runs = average_values(rest)
    own = average_values([scores.values for scores in of_tasks.values()])
    is_more = sum(map(len, runs.values())) > sum(map(len, own.values()))
    if not is_more or sum(len(each) > 1 for each in runs.values()) < 2:
        return ""
    shown = ", ".join(
        f"{task!r} has {counts[task]} of {max(counts.values())} runs" for task in thin[:3]
    )
    return f"{shown}: --without {' '.join(map(quoted, thin))} leaves the other {len(rest)}"


def _refusals(
    values: Values, result: TaskResult, baseline: str, arms: Sequence[str],
    of_tasks: Mapping[str, TaskScores], are_means: bool, missing: str,
    means: Mapping[str, ArmScore],
) -> list[str]:  # fmt: skip
    """missing: what must be told of means with spreads. means: of each arm, where it was told."""
    lacking = [arm for arm in arms if not values.get(arm)]
    thin = _thin(of_tasks)
    what = f"a task is missing (--without): {thin}" if thin else "a task is missing (--without)"
    what = what if len(of_tasks) > 1 else f"no value of {result.task}"
    refusals = [f"{_names(lacking)} not compared: {what}"] if lacking else []
    single = [arm for arm in arms if len(values.get(arm, {})) == 1]
    bare = [arm for arm in single if arm in means and means[arm].n != 1]
    if missing:
        why = (
            "the values are means with their spreads, each of which counts as one run: give "
            f"{missing}"
        )
    elif are_means:
        why = "the cells are means of runs, which count as one run each; give the runs"
    elif thin and len(values.get(baseline, {})) < 2:
        why = f"runs in common are too few, as {thin}"
    elif baseline in lacking:
        why = f"{baseline} has no run; choose a --baseline or --task"
    elif baseline in bare:
        why = f"the mean of {baseline} has no spread or number of runs"
    elif all(len(runs) < 2 for runs in values.values()):
        why = (
            "every arm has one run, so the noise between runs is not known; give two seeds or more"
        )
        if sum("/" in arm for arm in values) > 1:
            why += ", or --pattern '(?P<arm>…)(?P<seed>…)' where these paths hold arm and seed"
    elif len(values.get(baseline, {})) < 2:
        why = f"{baseline} has one run; choose a --baseline with two or more"
    else:
        why = ""
    if why:
        return [*refusals, f"no verdict: {why}"]
    if bare:
        refusals.append(f"no verdict on {_names(bare)}: no spread or number of runs of the mean")
    single = [arm for arm in single if arm not in bare]
    if single:
        refusals.append(
            f"no verdict on {_names(single)}: one run, and how much another would differ is not "
            "known"
        )
    if not any(_varies(own) for own in values.values()):
        refusals.append(
            "no verdict: nothing varies between the runs of an arm; were the seeds different?"
        )
    elif result.sd == 0:
        refusals.append(
            "no verdict: the differences to the baseline are the same in every seed, so their "
            "noise is not known"
        )
    compared = {baseline, *lacking, *single, *bare, *(row.arm for row in result.comparisons)}
    if few := [arm for arm in arms if arm not in compared]:
        refusals.append(
            f"{_names(few)} not compared with {baseline}: two runs are needed in common"
        )
    return refusals


def _runs_without_a_task(of_tasks: Mapping[str, TaskScores], values: Values) -> list[str]:
    """A note on the runs that an average leaves out, since a task of theirs is missing."""
    lacking = []
    for arm, kept in values.items():
        runs = {run for scores in of_tasks.values() for run in scores.values.get(arm, {})}
        if len(runs) > len(kept):
            lacking.append(f"{len(runs) - len(kept)} of {len(runs)} runs of {arm}")
    if not lacking:
        return []
    thin = _thin(of_tasks)
    way = f" ({thin})" if thin else ""
    return [f"left out: {_names(lacking)}, which lack a task of the average{way}"]


def _varies(runs: Mapping[int, float]) -> bool:
    return len(set(runs.values())) > 1


def _nothing_varies(result: TaskResult) -> TaskResult:
    """The result with the word `nothing varies` where no run differs, so that no noise is known."""
    rows = result.comparisons
    if any(row.low is not None for row in rows):
        return result
    silent = tuple(replace(row, verdict="nothing varies") for row in rows)
    return replace(result, comparisons=silent)


def _sampling(result: TaskResult, values: Values, samples: int) -> float | None:
    """1.96 standard errors of a difference of two shares on `samples` samples each."""
    means = [float(np.mean(list(runs.values()))) for runs in values.values() if runs]
    if result.unit != "share" or not samples or not means:
        return None
    p = float(np.mean(means))
    return 1.96 * math.sqrt(2 * p * (1 - p) / samples)


def _small_test_set(result: TaskResult, values: Values, samples: int) -> list[str]:
    """A note where the test samples alone leave more to a difference than the intervals over seeds,
    and no values per sample say how much the arms share.
    """
    widths = [
        (row.high - row.low) / 2 for row in result.comparisons
        if row.low is not None and row.high is not None and row.low_samples is None
    ]  # fmt: skip
    half = _sampling(result, values, samples)
    if not widths or half is None or half <= min(widths):
        return []
    return [
        f"the intervals are over seeds, on these {samples:,} test samples: other test samples "
        f"alone may move a difference by ±{100 * half:.1f} points, where the arms share none "
        "of their errors"
    ]


def _wide_arm(values: Values, paired: bool) -> list[str]:
    """A note on an arm whose spread is far above that of all others, and widens their intervals.

    paired: runs of one seed are compared, so what they share is no spread.
    """
    middle: dict[int, float] = {}
    if paired:
        of_run: dict[int, list[float]] = {}
        for own in values.values():
            for run, value in own.items():
                of_run.setdefault(run, []).append(value)
        middle = {run: float(np.median(several)) for run, several in of_run.items()}
    spreads = sorted(
        (float(np.std([value - middle.get(run, 0.0) for run, value in own.items()], ddof=1)), arm)
        for arm, own in values.items()
        if len(own) > 1
    )
    if len(spreads) < 3 or spreads[-1][0] < WIDE * spreads[-2][0] or not spreads[-2][0]:
        return []
    (second, _), (widest, arm) = spreads[-2:]
    return [
        f"runs of {arm} spread {widest / second:.0f} times as much as those of any other arm; the "
        "arms share one variance, so it widens all intervals: --where without its rows compares "
        "the others"
    ]


def _ties(table: _Table, chosen: Mapping[str, str], scale: float, arms: Sequence[str]) -> list[str]:
    """Notes on arms with equal values in every run and task, which are arms all the same."""
    if len(arms) > MOST_SIGNALS:
        return []
    values: dict[str, list[tuple[Key, int, float]]] = {arm: [] for arm in arms}
    for key in chosen.items():
        for arm, own in table.runs(key, scale).items():
            if arm in values:
                values[arm] += [(key, run, value) for run, value in own.items()]
    others = [key for key in list(table.by_key)[:MOST_SIGNALS] if key not in chosen.items()]
    first: dict[frozenset[tuple[Key, int, float]], str] = {}
    notes = []
    for arm, of_arm in values.items():
        original = first.setdefault(frozenset(of_arm), arm)
        if original == arm or len(of_arm) < 3:
            continue
        runs = (table.runs(key, scale) for key in others)
        if all(own.get(arm) == own.get(original) for own in runs):
            notes.append(f"{arm} has the same values as {original} in every run: is it a copy?")
    return notes[:5]


def _repeated_tasks(tables: Mapping[str, TaskScores]) -> list[str]:
    """Notes on tasks all of whose values are those of the same arms and runs on another task."""
    if len(tables) > MOST_SIGNALS:
        return []
    notes = []
    sizes = {task: sum(map(len, one.values.values())) for task, one in tables.items()}
    largest = sorted(tables, key=lambda task: -sizes[task])
    for n, task in enumerate(largest):
        own = {arm: runs for arm, runs in tables[task].values.items() if runs}
        numbers = {value for runs in own.values() for value in runs.values()}
        if len(numbers) < LEAST_ALIKE:
            continue
        of = next(
            (one for one in largest[:n]
             if all(tables[one].values.get(arm) == runs for arm, runs in own.items())), None
        )  # fmt: skip
        notes += [f"{task}: all its values are those of {of}: is it a copy?"] if of else []
    return notes[:5]


def _samples_of_task(table: _Table, chosen: Mapping[str, str], result: TaskResult) -> int:
    """The number of test samples of a task; 0 where it is not known."""
    scales = table.by_key.get((result.task, chosen.get(result.task, "")), {})
    return int(table.results.samples_N[scales[max(scales)][-1]]) if scales else 0


# --- which metric, which scale --------------------------------------------------------------------


def _signals(
    table: _Table, scale: float, facts: Mapping[Key, MetricFacts], without: set[str],
    question: Question,
) -> tuple[MetricSignal, ...]:  # fmt: skip
    """Signal to noise of the metrics of all tasks, where there are two or more."""
    keys = [key for key, of in table.by_key.items() if scale in of]
    tables, lower = {}, []
    several = len({metric for _, metric in keys}) > 1
    for key in keys[:MOST_SIGNALS]:
        task, metric = key
        name = f"{task}, {metric}" if several else task
        tables[name] = {
            arm: own for arm, own in table.runs(key, scale).items() if arm not in without
        }
        of = facts.get(key) or metric_facts(table, key, question)
        if not of.higher_is_better:
            lower.append(name)
    signals = metric_signals(tables, lower, paired=table.groups is None)
    return tuple(signals) if len(signals) > 1 else ()


def _scale_decisions(
    table: _Table, chosen: Mapping[str, str], large: float, facts: Mapping[Key, MetricFacts],
    question: Question, headline: str, can_average: bool, averages: Sequence[str], without: set[str]
) -> tuple[ScaleDecision, ...]:  # fmt: skip
    """All metrics of every task at every smaller scale, and the average over tasks where there is
    one, against the headline at the largest scale.
    """
    scales = sorted({scale for of in table.by_key.values() for scale in of if scale <= large})
    if len(scales) < 2:
        return ()
    singles = [(task, metric) for task, metric in chosen.items() if task not in averages]
    # A task that some scale lacks would make the average another one there
    singles = [key for key in singles if set(scales) <= table.by_key.get(key, {}).keys()]
    first = (headline, chosen.get(headline, ""))
    order = dict.fromkeys([first, (AVERAGE, ""), *chosen.items(), *table.by_key])
    columns: dict[Column, dict[float, Values]] = {}
    for key in [key for key in order if key in table.by_key][: MOST_SIGNALS + len(singles)]:
        columns[key] = {}
        for scale in table.by_key[key]:
            if scale <= large:
                runs = table.runs(key, scale)
                columns[key][scale] = {arm: own for arm, own in runs.items() if arm not in without}
    if can_average and len(singles) > 1:
        columns[AVERAGE, ""] = {
            scale: average_values([columns[key][scale] for key in singles]) for scale in scales
        }
    lower = {
        key for key in columns if key in table.by_key and not (
            facts.get(key) or metric_facts(table, key, question)
        ).higher_is_better
    }  # fmt: skip
    if lower.issuperset(singles):
        lower.add((AVERAGE, ""))
    kept = [column for column in order if column in columns][:MOST_SIGNALS]
    tables = ScaleTables(
        columns={column: columns[column] for column in kept}, lower=lower,
        names=table.results.scales, costs=table.results.costs, noise=question.noise,
        groups=table.groups
    )  # fmt: skip
    return tables.decisions(kept[0])
