"""Seeds in rounds: which runs an ablation with `stop` needs, and what its rounds have decided.

`replay` starts at the first round whenever it is called and looks at the finished runs alone. So an
ablation that was killed continues as it would have, and a finished one needs no run. The noise of
earlier ablations is a prior that is fixed before the first round and kept in ledger.json.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from manifests.schema import Ablation, Stop
from train.ablation.arms import A_A, RANDOM_LIKE, evaluated_runs
from train.stats.analysis import Analysis, TaskAnalysis, TaskScores
from train.stats.comparison import Comparison, Headline, Verdict
from train.stats.model import LedgerEntry, SampleNoise, fit_prior, sample_noise
from train.stats.sequential import SequentialComparison, SequentialPlan, Spending, decide_study

if TYPE_CHECKING:
    from train.ablation.runner import Engine, Outcome

RunKey = tuple[str, int]  # arm, seed
Values = Mapping[str, Mapping[int, float]]
Samples = tuple[np.ndarray, ...] | None
End = Literal["decided", "hopeless", "out of seeds"]
# Differences up to this are practically equal where the manifest states no equivalence: half a
# point, but at most a part of the room between the baseline and the ends of the metric.
DEFAULT_BAND = 0.005
LEAST_SEEDS = 2
ALPHA = 0.05
# What `stop.save` stands for: how the error is spent, and the chance to be decided below which an
# arm is given up.
SAVE: dict[str, tuple[Spending, float]] = {
    "runs": ("hwang-shih-decani", 0.20),
    "power": ("obrien-fleming", 0.10),
}
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A finished run on the primary task: the deciding metric, and its values per sample if it is
    a mean over samples.
    """

    value: float
    samples: Samples = None


ReadScore = Callable[[str, int], Score | None]  # None: the run is not finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The results of one task at a look.

    values: {arm: {seed: value}}. order: the seeds with a value of the baseline, in the order of
    the rounds. floor_sd: SD of one run that the samples leave at least. drawing_sd: by arm, the SD
    that another test set adds to its difference to the baseline.
    """

    values: Values
    order: tuple[int, ...]
    floor_sd: float
    drawing_sd: dict[str, float]
    prior: LedgerEntry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The last look at an arm: what was concluded, from which table."""

    comparison: SequentialComparison
    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The state of an ablation in rounds.

    asked: the runs that it has needed so far, with their controls, in the order of the rounds.
    complete: no further round is needed, and the arms' runs are there. seeds: by arm, how many
    seeds it was asked for. looks: by arm; an arm without two seeds has none. ends: by arm, why it
    stopped; empty until the study is complete. alpha: the error of all rounds together.
    """

    asked: tuple[RunKey, ...]
    complete: bool
    seeds: dict[str, int]
    looks: dict[str, Look]
    ends: dict[str, End]
    alpha: float = ALPHA


def band_of_rounds(ablation: Ablation) -> float:
    """The equivalence band of the rounds, which is fixed before the first score is known."""
    return DEFAULT_BAND if ablation.equivalence is None else ablation.equivalence


def sequential_plan(
    ablation: Ablation, floor_sd: float = 0.0, prior: LedgerEntry | None = None
) -> SequentialPlan:
    """What the manifest and the ledger fix before the first round."""
    assert ablation.stop is not None
    spending, hopeless = SAVE[ablation.stop.save]
    return SequentialPlan(
        maximum=len(ablation.seeds),
        minimum=ablation.stop.at_least,
        band=band_of_rounds(ablation),
        smallest=ablation.stop.smallest,
        floor_sd=floor_sd,
        spending=spending,
        hopeless=hopeless,
        prior=prior,
    )


def replay(
    ablation: Ablation,
    read: ReadScore,
    failed: Collection[RunKey] = (),
    prior: LedgerEntry | None = None,
    alpha: float = ALPHA,
) -> Study:
    """All rounds up to the first that lacks a run.

    read: the score of a run. failed: runs that ended without a result; the rounds go on without
    them. prior: the noise of earlier ablations on the primary task. alpha: the error of all
    rounds together. An arm that is decided or given
    up stays so, whatever later rounds would say of it.
    """
    assert ablation.stop is not None
    waiting = _compared(ablation)
    seeds = dict.fromkeys(ablation.arms, 0)
    scores: dict[str, dict[int, Score]] = {arm: {} for arm in ablation.arms}
    asked: list[RunKey] = []
    looks: dict[str, Look] = {}
    ends: dict[str, End] = {}
    for last in range(ablation.stop.at_least, len(ablation.seeds) + 1):
        first = 0 if last == ablation.stop.at_least else last - 1
        arms = (ablation.baseline, *waiting)
        keys = [(arm, seed) for seed in ablation.seeds[first:last] for arm in arms]
        seeds |= dict.fromkeys(arms, last)
        asked += _with_controls(ablation, keys)
        for arm, seed in keys:
            score = None if (arm, seed) in failed else read(arm, seed)
            if score is not None:
                scores[arm][seed] = score
            elif (arm, seed) not in failed:
                return Study(
                    asked=tuple(asked),
                    complete=False,
                    seeds=seeds,
                    looks=looks,
                    ends={},
                    alpha=alpha,
                )
        final = last == len(ablation.seeds)
        looks |= _look(ablation, scores, waiting, prior, alpha)
        for arm in list(waiting):
            state = looks[arm].comparison.state if arm in looks else "open"
            if state in ("better", "worse", "practically equal"):
                ends[arm] = "decided"
            elif final:
                ends[arm] = "out of seeds"
            elif state == "hopeless":
                ends[arm] = "hopeless"
            if arm in ends:
                waiting.remove(arm)
        if not waiting:
            break
    return Study(
        asked=tuple(asked), complete=True, seeds=seeds, looks=looks, ends=ends, alpha=alpha
    )


def _compared(ablation: Ablation) -> list[str]:
    return [arm for arm in ablation.arms if arm != ablation.baseline]


def _with_controls(ablation: Ablation, keys: Sequence[RunKey]) -> list[RunKey]:
    """The runs with those of their random subsets and A/A arms."""
    rows = []
    for arm, seed in keys:
        rows.append((arm, seed))
        if arm in ablation.controls.random_like:
            rows.append((RANDOM_LIKE + arm, seed))
        if arm == ablation.controls.a_a:
            rows.append((A_A, seed))
    return rows


def _look(
    ablation: Ablation,
    scores: Mapping[str, Mapping[int, Score]],
    waiting: Sequence[str],
    prior: LedgerEntry | None,
    alpha: float,
) -> dict[str, Look]:
    """The looks at the arms that wait; without those that have fewer than two common seeds."""
    values: dict[str, dict[int, float]] = {}
    samples: dict[str, dict[int, Samples]] = {}
    for arm, runs in scores.items():
        values[arm] = {seed: score.value for seed, score in runs.items()}
        samples[arm] = {seed: score.samples for seed, score in runs.items()}
    table = table_of(ablation, values, samples, prior)
    comparisons = look_at(ablation, table, alpha)
    looks = {}
    for arm in waiting:
        if arm in comparisons:
            looks[arm] = Look(comparison=comparisons[arm], table=table)
    return looks


# --- tables and intervals -------------------------------------------------------------------------


def table_of(
    ablation: Ablation,
    values: Values,
    samples: Mapping[str, Mapping[int, Samples]] | None,
    prior: LedgerEntry | None = None,
) -> Table:
    """The table of a task, without controls and without seeds that the baseline lacks."""
    order = tuple(seed for seed in ablation.seeds if seed in values[ablation.baseline])
    rows: dict[str, dict[int, float]] = {}
    for arm in ablation.arms:
        rows[arm] = {seed: values[arm][seed] for seed in order if seed in values[arm]}
    noises = {}
    for arm in _compared(ablation):
        noise = _noise_of(rows, samples, arm, ablation.baseline)
        if noise is not None:
            noises[arm] = noise
    floor = float(np.mean([one.floor for one in noises.values()])) / 2 if noises else 0.0
    return Table(
        values=rows,
        order=order,
        floor_sd=math.sqrt(floor),
        drawing_sd={arm: math.sqrt(noise.drawing) for arm, noise in noises.items()},
        prior=prior,
    )


def _noise_of(
    values: Values,
    samples: Mapping[str, Mapping[int, Samples]] | None,
    arm: str,
    baseline: str,
) -> SampleNoise | None:
    """What the samples add to a difference; None where a common seed has no values per sample."""
    seeds = [seed for seed in values[arm] if seed in values[baseline]]
    if samples is None or len(seeds) < LEAST_SEEDS:
        return None
    runs: list[dict[int, tuple[np.ndarray, ...]]] = []
    for name in (arm, baseline):
        of_arm = {}
        for seed in seeds:
            groups = samples[name].get(seed)
            if groups is None:
                return None
            of_arm[seed] = groups
        runs.append(of_arm)
    return sample_noise(runs[0], runs[1])


def look_at(
    ablation: Ablation, table: Table, alpha: float = ALPHA, *, drawing: bool = True
) -> dict[str, SequentialComparison]:
    """By arm, the comparison with the baseline; an arm that no round could look at is left out.

    `drawing`: the interval is over seeds and samples, otherwise over seeds on this test set.
    """
    plan = replace(sequential_plan(ablation, table.floor_sd, table.prior), alpha=alpha)
    if len(table.order) < plan.minimum or len(table.values) < 2:
        return {}  # nothing to look at yet, or only a baseline
    decision = decide_study(
        table.values,
        ablation.baseline,
        plan,
        table.order,
        table.drawing_sd if drawing else None,
    )
    return {one.arm: one for one in decision.comparisons if one.difference is not None}


def expected_runs(
    ablation: Ablation, run_sd: float, effect: float = 0.0, studies: int = 100
) -> float:
    """The mean number of runs, controls included, of simulated studies in which every arm differs
    from the baseline by `effect`; `run_sd` is the SD of one run's residual. Both are shares.
    """
    generator = np.random.default_rng(20221016)
    arms, total = list(ablation.arms), 0
    shift = [0.0 if arm == ablation.baseline else effect for arm in arms]
    for _ in range(studies):
        noise = run_sd * generator.standard_normal((len(arms), len(ablation.seeds)))
        values = noise + np.array(shift)[:, None]

        def read(arm: str, seed: int, values: np.ndarray = values) -> Score:
            return Score(value=float(values[arms.index(arm), ablation.seeds.index(seed)]))

        total += len(replay(ablation, read).asked)
    return total / studies


# --- running them ---------------------------------------------------------------------------------


def run_rounds(
    ablation: Ablation,
    out: str,
    engine: Engine,
    read: ReadScore,
    prior: LedgerEntry | None = None,
    alpha: float = ALPHA,
) -> list[Outcome]:
    """Run round after round until no further one is needed. The outcomes of the trained runs.

    read: the score of a run that is finished and not stale. prior, alpha: as in `replay`.
    The children are kept from round to round: a start costs seconds of imports.
    """
    from train.ablation.runner import run_all, warm_children

    outcomes: dict[RunKey, Outcome] = {}
    failed: set[RunKey] = set()
    runs = evaluated_runs(ablation, out)
    with warm_children(runs, ablation.jobs, out) as children:
        while True:
            study = replay(ablation, read, failed, prior, alpha)
            needed = [key for key in study.asked if key not in failed]
            _log(study, ablation.stop)
            for outcome in run_all(ablation, out, engine, needed, children):
                outcomes.setdefault((outcome.run.arm, outcome.run.seed), outcome)
            if study.complete:
                return list(outcomes.values())
            failed |= {key for key, outcome in outcomes.items() if outcome.metrics is None}
            failed |= {key for key in needed if key[0] in ablation.arms and read(*key) is None}


def _log(study: Study, stop: Stop | None) -> None:
    assert stop is not None
    if study.complete:
        logger.info("all rounds are done")
        return
    seeds = max(study.seeds.values())
    arms = ", ".join(arm for arm, of_arm in study.seeds.items() if of_arm == seeds)
    logger.info("round %d: up to %d seeds of %s", 1 + seeds - stop.at_least, seeds, arms)


# --------------------------------------------------------------------------------------------------
# The comparisons of an ablation in rounds: intervals that hold after every round, in words. Pure.
#
# Every task has its own table, but all share the rounds: intervals that hold for all rounds
# together hold whatever made the ablation stop.


P_LEVELS = (0.01, 0.001)  # below ALPHA, at which a p value is stated


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRounds:
    """How many of the seeds an arm was run with, and why it stopped (None for the baseline)."""

    arm: str
    seeds: int
    of: int
    end: End | None
    reason: str

    @property
    def sentence(self) -> str:
        return f"{self.arm}: {self.seeds} of {self.of} seeds; {self.reason}."


def analysis_in_rounds(
    ablation: Ablation,
    analysis: Analysis,
    scores: Mapping[str, TaskScores],
    study: Study,
    ledger: Mapping[str, Sequence[LedgerEntry]] | None = None,
) -> Analysis:
    """The analysis with the intervals and verdicts of the rounds; controls and A/A stay.

    The smallest visible difference is that of a fixed number of seeds, so it is left out. Of the
    primary task an arm has its last look; the other tasks hold together, at the error of the study
    divided by their number. ValueError for scores without a task of the analysis.
    """
    tables = {}
    for task in analysis.tasks:
        if task not in scores:
            raise ValueError(f"there are no scores of task {task!r}")
        prior = fit_prior((ledger or {}).get(task, ()))
        tables[task] = table_of(ablation, scores[task].values, _groups(scores[task]), prior)
    tasks = {}
    for task, of_task in analysis.tasks.items():
        alpha = study.alpha
        if task != ablation.primary:
            alpha /= len(tables) - 1
        looks = study.looks if task == ablation.primary else _looks(ablation, tables[task], alpha)
        tasks[task] = _in_rounds(ablation, of_task, looks, alpha, scores[task].limit)
    average = analysis.average
    if average is not None:
        table = _average_table(ablation, list(tables.values()))
        looks, limit = _looks(ablation, table, study.alpha), scores[ablation.primary].limit
        average = _in_rounds(ablation, average, looks, study.alpha, limit)
    return Analysis(tasks=tasks, average=average)


def _groups(scores: TaskScores) -> dict[str, dict[int, tuple[np.ndarray, ...] | None]] | None:
    """The values per sample as groups."""
    if scores.samples is None:
        return None
    rows: dict[str, dict[int, tuple[np.ndarray, ...] | None]] = {}
    for arm, runs in scores.samples.items():
        rows[arm] = {}
        for seed, groups in runs.items():
            if isinstance(groups, np.ndarray):
                rows[arm][seed] = (groups,)
            else:
                rows[arm][seed] = None if groups is None else tuple(groups)
    return rows


def _looks(ablation: Ablation, table: Table, alpha: float) -> dict[str, Look]:
    looks = {}
    for arm, comparison in look_at(ablation, table, alpha).items():
        looks[arm] = Look(comparison=comparison, table=table)
    return looks


def _average_table(ablation: Ablation, tables: list[Table]) -> Table:
    """The means over tasks of the runs that have a value in every task."""
    values: dict[str, dict[int, float]] = {}
    for arm in ablation.arms:
        seeds = set(tables[0].values[arm])
        for table in tables[1:]:
            seeds &= set(table.values[arm])
        values[arm] = {}
        for seed in sorted(seeds):
            values[arm][seed] = float(np.mean([table.values[arm][seed] for table in tables]))
    drawing = {}
    for arm in ablation.arms:
        # Another task has other samples, so the variances add up.
        if all(arm in table.drawing_sd for table in tables):
            parts = [table.drawing_sd[arm] for table in tables]
            drawing[arm] = math.hypot(*parts) / len(tables)
    return replace(
        table_of(ablation, values, None),
        floor_sd=math.hypot(*(table.floor_sd for table in tables)) / len(tables),
        drawing_sd=drawing,
    )


def _in_rounds(
    ablation: Ablation,
    of_task: TaskAnalysis,
    looks: Mapping[str, Look],
    alpha: float,
    limit: float,
) -> TaskAnalysis:
    rows = []
    for one in of_task.comparisons:
        if one.arm in looks:
            rows.append(_comparison(ablation, one, looks[one.arm], alpha, limit))
    return replace(of_task, comparisons=tuple(rows), power=None)


def _comparison(
    ablation: Ablation, fixed: Comparison, look: Look, alpha: float, limit: float
) -> Comparison:
    """The comparison with what the rounds say in place of what a fixed number of seeds says.

    `limit`: no interval goes beyond it.
    """
    one, table = look.comparison, look.table
    assert one.difference is not None
    assert one.residual_sd is not None
    over_seeds = look_at(ablation, table, alpha, drawing=False)[one.arm]
    with_samples = one.arm in table.drawing_sd and one.low is not None
    seeds = tuple(sorted(seed for seed in table.values[one.arm] if seed in table.order))
    p = _p(ablation, look, alpha)
    low, high = _within(one.low, limit), _within(one.high, limit)
    headline: Headline = "seeds and samples" if one.low != over_seeds.low else "seeds"
    return replace(
        fixed,
        seeds=seeds,
        n=len(seeds),
        difference=one.difference,
        sd=one.residual_sd * math.sqrt(2),
        df=one.df,
        headline=None if one.low is None else headline,
        low=low,
        high=high,
        low90=low,
        high90=high,
        low_seeds=_within(over_seeds.low, limit),
        high_seeds=_within(over_seeds.high, limit),
        low_samples=low if with_samples else None,
        high_samples=high if with_samples else None,
        low_tasks=None,
        high_tasks=None,
        p=p,
        p_adjusted=p,
        adjustment="sequential",
        p_equal=None,
        verdict=_verdict(one, fixed.band),
    )


def _within(end: float | None, limit: float) -> float | None:
    return None if end is None else max(-limit, min(limit, end))


def _verdict(one: SequentialComparison, band: float) -> Verdict:
    """Equal only inside the band that the metric leaves, which may be smaller than the rounds'."""
    if one.state == "better" or one.state == "worse":
        return one.state
    if one.state != "practically equal" or one.low is None or one.high is None:
        return "not distinguishable"
    return "practically equal" if max(-one.low, one.high) < band else "not distinguishable"


def _excludes_zero(one: SequentialComparison) -> bool:
    return one.low is not None and one.high is not None and not one.low <= 0 <= one.high


def _p(ablation: Ablation, look: Look, alpha: float) -> float:
    """The smallest of a few levels at which the interval of the look excludes 0; 1 for none.

    alpha: that of the look, which is ALPHA over what p is adjusted for.
    """
    if not _excludes_zero(look.comparison):
        return 1.0
    p = ALPHA
    for level in P_LEVELS:
        at_level = look_at(ablation, look.table, level * alpha / ALPHA)
        if not _excludes_zero(at_level[look.comparison.arm]):
            break
        p = level
    return p


# --- in words -------------------------------------------------------------------------------------


def arm_rounds(
    ablation: Ablation, study: Study, comparisons: Sequence[Comparison]
) -> tuple[ArmRounds, ...]:
    """One row per arm, the baseline first. comparisons: of the arms on the primary task."""
    verdicts = {one.arm: one.verdict for one in comparisons}
    rows = []
    total = len(ablation.seeds)
    for arm in dict.fromkeys([ablation.baseline, *ablation.arms]):
        seeds, end = study.seeds[arm], study.ends.get(arm)
        if arm == ablation.baseline:
            reason = "the baseline, as many as any other arm"
        elif end == "decided":
            reason = f"decided: {verdicts[arm]}"
        elif end == "hopeless":
            reason = f"given up, as {total - seeds} more would hardly have decided it"
        else:
            reason = "not decided"
        rows.append(ArmRounds(arm=arm, seeds=seeds, of=total, end=end, reason=reason))
    return tuple(rows)


def rounds_note(ablation: Ablation) -> str:
    """What the intervals of an ablation in rounds hold for, in plain words."""
    text = (
        "Seeds were run in rounds until the comparisons were decided: the intervals hold for all "
        "arms and all rounds together."
    )
    if ablation.controls.random_like or ablation.controls.a_a:
        text += " Those of the controls and of A/A do not count the rounds."
    return text
