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
from typing import Literal

import numpy as np

from manifests.schema import Ablation, Stop
from train.ablation.arms import A_A, RANDOM_LIKE, evaluated_runs
from train.ablation.runner import Engine, Outcome, run_all, warm_children
from train.stats import (
    LedgerEntry,
    SampleNoise,
    SequentialComparison,
    SequentialPlan,
    Spending,
    decide_study,
    sample_noise,
)

RunKey = tuple[str, int]  # arm, seed
Values = Mapping[str, Mapping[int, float]]
Samples = tuple[np.ndarray, ...] | None
End = Literal["decided", "hopeless", "out of seeds"]
LEAST_SEEDS = 2
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
    stopped; empty until the study is complete.
    """

    asked: tuple[RunKey, ...]
    complete: bool
    seeds: dict[str, int]
    looks: dict[str, Look]
    ends: dict[str, End]


def sequential_plan(
    ablation: Ablation, floor_sd: float = 0.0, prior: LedgerEntry | None = None
) -> SequentialPlan:
    """What the manifest and the ledger fix before the first round."""
    assert ablation.stop is not None
    spending, hopeless = SAVE[ablation.stop.save]
    return SequentialPlan(
        maximum=len(ablation.seeds),
        minimum=ablation.stop.at_least,
        band=ablation.equivalence,
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
) -> Study:
    """All rounds up to the first that lacks a run.

    read: the score of a run. failed: runs that ended without a result; the rounds go on without
    them. prior: the noise of earlier ablations on the primary task. An arm that is decided or given
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
                return Study(asked=tuple(asked), complete=False, seeds=seeds, looks=looks, ends={})
        final = last == len(ablation.seeds)
        looks |= _look(ablation, scores, waiting, prior)
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
    return Study(asked=tuple(asked), complete=True, seeds=seeds, looks=looks, ends=ends)


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
) -> dict[str, Look]:
    """The looks at the arms that wait; without those that have fewer than two common seeds."""
    values: dict[str, dict[int, float]] = {}
    samples: dict[str, dict[int, Samples]] = {}
    for arm, runs in scores.items():
        values[arm] = {seed: score.value for seed, score in runs.items()}
        samples[arm] = {seed: score.samples for seed, score in runs.items()}
    table = table_of(ablation, values, samples, prior)
    comparisons = look_at(ablation, table)
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
    ablation: Ablation, table: Table, alpha: float = 0.05, *, drawing: bool = True
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
) -> list[Outcome]:
    """Run round after round until no further one is needed. The outcomes of the trained runs.

    read: the score of a run that is finished and not stale. prior: as in `replay`.
    The children are kept from round to round: a start costs seconds of imports.
    """
    outcomes: dict[RunKey, Outcome] = {}
    failed: set[RunKey] = set()
    runs = evaluated_runs(ablation, out)
    with warm_children(runs, ablation.jobs, out) as children:
        while True:
            study = replay(ablation, read, failed, prior)
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
