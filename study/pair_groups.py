"""Groups of training pairs and what they are worth: the runs of an ablation on random halves of
the groups in, a table of effects out.

A group is a view of a pool; the groups are the sources of the ablation's `mixtures`. The last third
of the mixtures is left out of the fit and judges it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from clipmill.manifests import disk
from clipmill.manifests.arrays import FloatArray
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.metrics import METRICS, deciding_metric
from clipmill.manifests.records import ViewDocument, read_document
from clipmill.manifests.schema import Ablation, Blend
from clipmill.study.arms import Run, all_runs
from clipmill.study.results import Study
from clipmill.train.data.view_rows import open_pool
from clipmill.verdict.decide.blends import kept_settings
from clipmill.verdict.stats.groups import (
    RUNS_PER_GROUP,
    ArmCheck,
    Attribution,
    GroupEffect,
    LinearFit,
    changed_shares,
    fit_groups,
    parts_of_gain,
    spearman,
)
from clipmill.verdict.stats.groups import PairGroup as PairGroup
from clipmill.verdict.stats.mixing import p_of_weights
from clipmill.verdict.stats.model import AdditiveFit, Values, fit_additive

JUDGES = 3  # one mixture of so many is held out
CONFIRMING_SEEDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRuns:
    """The runs of an ablation on mixtures of G groups, and its other arms.

    shares: arm -> (G,) shares of its samples that each group has; the sum is below 1 where an arm
    has rows of no group. mixtures: the arms that are drawn, in their order. values: {arm: {seed:
    metric}}; higher: more of it is better.
    """

    ablation: Ablation
    groups: tuple[PairGroup, ...]
    mixtures: tuple[str, ...]
    shares: dict[str, FloatArray]
    values: Values
    metric: str
    unit: str


# --- reading --------------------------------------------------------------------------------------


def best_arm(study: Study) -> str:
    """The arm, no control and no mixture, with the best mean on the primary task. ValueError where
    none has runs.
    """
    ablation = study.ablation
    metric = deciding_metric(ablation.primary_task)
    sign = 1 if METRICS[metric].higher_is_better else -1
    means, asked = {}, ablation.asked_arms
    for arm, values in study.measurements.values(ablation.primary, metric).items():
        if arm in asked:
            means[arm] = sign * math.fsum(values.values()) / len(values)
    if not means:
        raise ValueError(f"no arm but the baseline {ablation.baseline!r} has runs")
    return max(means, key=lambda arm: means[arm])


def explain_study(study: Study, arm: str, confirmed: str | None = None) -> Attribution:
    """What the groups of a study of mixtures have of an arm's gain. confirmed: the folder of
    another one, see `explain_gain`.
    """
    groups = read_groups(study.ablation, study.folder)
    others = None
    if confirmed is not None:
        other = Study.open(confirmed)
        same = read_groups(other.ablation, confirmed, [group.name for group in groups])
        others = read_group_runs(other, same)
    return explain_gain(read_group_runs(study, groups), arm, others)


def read_groups(
    ablation: Ablation, folder: str, views: Sequence[str] = ()
) -> tuple[PairGroup, ...]:
    """The groups of an ablation's folder: some views of its pools, or the sources of its
    `mixtures`. ValueError where it has none, and for a view that is not there.
    """
    sources = views or (ablation.mixtures.sources if ablation.mixtures is not None else ())
    if not sources:
        raise ValueError(
            f"{folder} is no ablation of mixtures: name groups of pairs with --groups POOL/VIEW "
            "POOL/VIEW, or let `clipmill why plan` write an ablation of groups"
        )
    groups = []
    for name in sources:
        pool, _, view = name.partition("/")
        if pool not in ablation.pools:
            near = disk.did_you_mean(pool, list(ablation.pools))
            raise ValueError(f"group {name!r} is not POOL/VIEW with a pool of {folder}{near}")
        of_pool = ablation.pool_folder(folder, pool)
        path = PoolLayout(of_pool).view_json(view)
        if not disk.exists(path):
            raise ValueError(f"group {name} has no view ({path} is missing)")
        document = read_document(path, ViewDocument)
        rule = " AND ".join(rule.where or rule.name for rule in document.rules)
        group = PairGroup(name=name, folder=of_pool, view=view, rule=rule, rows=document.kept)
        groups.append(group)
    return tuple(groups)


def read_group_runs(study: Study, groups: Sequence[PairGroup]) -> GroupRuns:
    """The runs of a study by their shares of the groups, and the deciding metric of its primary
    task.
    """
    ablation = study.ablation
    metric = deciding_metric(ablation.primary_task)
    values = study.measurements.values(ablation.primary, metric)
    blends: dict[str, Blend] = {}
    for run in all_runs(ablation, study.folder):
        if isinstance(run, Run) and values.get(run.arm):
            blends.setdefault(run.arm, run.blend)
    drawn = ablation.mixtures.arms() if ablation.mixtures is not None else ()
    return GroupRuns(
        ablation=ablation,
        groups=tuple(groups),
        mixtures=tuple(name for name in drawn if name in blends),
        shares=group_shares(groups, blends),
        values={arm: values[arm] for arm in blends},
        metric=metric,
        unit=METRICS[metric].unit,
    )


def group_shares(groups: Sequence[PairGroup], blends: Mapping[str, Blend]) -> dict[str, FloatArray]:
    """Arm -> (G,) shares of its samples that each group has. ValueError where two groups have a row
    in common.
    """
    of_pools: dict[str, set[str]] = {group.folder: set() for group in groups}
    for blend in blends.values():
        for _, folder, view in blend.places():
            of_pools.setdefault(folder, set()).add(view)
    counts: dict[tuple[str, str], FloatArray] = {}  # (folder, view) -> rows of each group and all
    for folder, views in of_pools.items():
        counts |= _count_rows(folder, groups, sorted(views))
    shares = {}
    for arm, blend in blends.items():
        total_G = np.zeros(len(groups) + 1)
        for name, folder, view in blend.places():
            rows_G, weight = counts[folder, view], blend.views[name]
            total_G += weight * (rows_G if blend.weights == "repeats" else rows_G / rows_G[-1])
        shares[arm] = total_G[:-1] / total_G[-1]
    return shares


def _count_rows(
    folder: str, groups: Sequence[PairGroup], views: Sequence[str]
) -> dict[tuple[str, str], FloatArray]:
    """The rows of some views of a pool: (G + 1,) those of each group, and all."""
    pool = open_pool(folder)
    own = {number: group.view for number, group in enumerate(groups) if group.folder == folder}
    masks = {view: pool.view(view) for view in {*own.values(), *views}}
    counts = {view: np.zeros(len(groups) + 1) for view in views}
    for shard in range(len(next(iter(masks.values())).shards)):
        kept = {view: mask.kept_rows(shard) for view, mask in masks.items()}
        group_of_row = np.full(1 + max(int(rows.max(initial=0)) for rows in kept.values()), -1)
        for number, view in own.items():
            if (group_of_row[kept[view]] >= 0).any():
                raise ValueError(f"group {view!r} of {folder} has rows of another group")
            group_of_row[kept[view]] = number
        for view, count_G in counts.items():
            count_G += np.bincount(group_of_row[kept[view]] + 1, minlength=len(groups) + 1)[
                [*range(1, len(groups) + 1), 0]
            ]
    for count_G in counts.values():
        count_G[-1] = count_G.sum()
    return {(folder, view): count_G for view, count_G in counts.items()}


# --- what the runs say ----------------------------------------------------------------------------


def explain_gain(runs: GroupRuns, arm: str, confirmed: GroupRuns | None = None) -> Attribution:
    """What the groups have of the gain of an arm on the baseline.

    confirmed: runs of another ablation by the same groups, whose arms are checked in the place of
    those of the same name. ValueError for an arm that was not run, and for too few mixtures.
    """
    baseline = runs.ablation.baseline
    for name in (arm, baseline):
        if name not in runs.values:
            known = [each for each in runs.values if each not in runs.mixtures]
            raise ValueError(f"arm {name!r} has no runs{disk.did_you_mean(name, known)}")
    noise = fit_additive(runs.values)
    level = dict(zip(noise.arms, noise.effects.tolist(), strict=True))
    shares_RG = np.array([runs.shares[name] for name in runs.mixtures])
    value_R = np.array([level[name] for name in runs.mixtures])
    fit = fit_groups(shares_RG, value_R)
    fitted = len(value_R) - len(value_R) // JUDGES
    rank, held_out_R = None, value_R[fitted:]
    if fitted >= RUNS_PER_GROUP * len(runs.groups):
        judge = fit_groups(shares_RG[:fitted], value_R[:fitted])
        correlation = spearman(judge.at(shares_RG[fitted:]), held_out_R)
        rank = None if math.isnan(correlation) else correlation
    base_G, arm_G = (_inside(runs, name) for name in (baseline, arm))
    rows_G = np.array([float(group.rows) for group in runs.groups])
    parts_GG = parts_of_gain(base_G, arm_G)
    without = fit.estimates(changed_shares(base_G, rows_G))
    checks: dict[str, ArmCheck] = {}
    for each in (runs, confirmed) if confirmed is not None else (runs,):
        checks |= _checks(each, arm, fit)
    has_shares = arm not in checks or not checks[arm].differs or checks[arm].is_overshot
    effects = []
    for number, part in enumerate(fit.estimates(parts_GG)):
        share = fit.ratio(parts_GG[number], arm_G - base_G) if has_shares else None
        effects.append(
            GroupEffect(
                group=runs.groups[number],
                base=float(runs.shares[baseline][number]),
                arm=float(runs.shares[arm][number]),
                effect=without[number],
                gain=part,
                share=share,
            )
        )
    return Attribution(
        arm=arm,
        baseline=baseline,
        task=runs.ablation.primary,
        metric=runs.metric,
        unit=runs.unit,
        mixtures=len(runs.mixtures),
        seeds=len(runs.ablation.seeds),
        effects=tuple(sorted(effects, key=lambda one: -one.gain.value)),
        arms=tuple(sorted(checks.values(), key=lambda check: check.arm != arm)),
        p=p_of_weights(shares_RG, value_R),
        judges=len(held_out_R),
        rank=rank,
        ceiling=_ceiling(held_out_R, noise, len(runs.ablation.seeds)),
    )


def _inside(runs: GroupRuns, name: str) -> FloatArray:
    """The shares of an arm's samples that are in a group. ValueError where none is."""
    shares_G = runs.shares[name]
    if not shares_G.any():
        raise ValueError(f"no sample of arm {name!r} is in one of the groups")
    return np.asarray(shares_G / shares_G.sum())


def _checks(runs: GroupRuns, arm: str, fit: LinearFit) -> dict[str, ArmCheck]:
    """The arms of an ablation as the groups predict them and as its runs show them."""
    baseline, noise = runs.ablation.baseline, fit_additive(runs.values)
    units = dict(zip(noise.arms, np.eye(len(noise.arms)), strict=True))
    of_runs = None
    if noise.variance is not None:
        covariance = noise.variance * noise.covariance
        of_runs = LinearFit(worth_G=noise.effects, covariance_GG=covariance, df=noise.df)
    checks = {}
    for name in runs.values:
        if name == baseline or name in runs.mixtures or not runs.shares[name].any():
            continue
        change_G = _inside(runs, name) - _inside(runs, baseline)
        change_A = units[name] - units[baseline]
        (predicted,) = fit.estimates(change_G[None])
        ratio = measured_ratio = None
        if arm in units and name != arm:
            ratio = fit.ratio(change_G, _inside(runs, arm) - _inside(runs, baseline))
            if of_runs is not None:
                measured_ratio = of_runs.ratio(change_A, units[arm] - units[baseline])
        checks[name] = ArmCheck(
            arm=name,
            seeds=len(runs.values[name]),
            outside=1 - float(runs.shares[name].sum()),
            predicted=predicted,
            measured=None if of_runs is None else of_runs.estimates(change_A[None])[0],
            ratio=ratio,
            measured_ratio=measured_ratio,
        )
    return checks


def _ceiling(value_R: FloatArray, noise: AdditiveFit, seeds: int) -> float | None:
    """The largest correlation that the noise of the runs leaves."""
    spread = float(np.var(value_R, ddof=1)) if len(value_R) > 1 else 0.0
    if noise.variance is None or not spread > 0:
        return None
    return math.sqrt(max(0.0, 1 - noise.variance / seeds / spread))


# --- what to go on with ---------------------------------------------------------------------------


def confirming_ablation(answer: Attribution, ablation: Ablation) -> dict[str, object]:
    """The ablation that would confirm the group with the largest part of the gain: the groups of
    the baseline without it, or with it, against all of them, on fresh seeds.
    """
    first = max(answer.effects, key=lambda one: (abs(one.gain.value), abs(one.effect.value)))
    of_base = {one.group.name: 1.0 for one in answer.effects if one.base}
    changed = dict(of_base)
    if changed.pop(first.group.name, None) is None:
        changed[first.group.name] = 1.0
    name = f"{'without' if first.base else 'with'}_{first.group.view}"
    pools = {}
    for one in answer.effects:
        pools[one.group.name.split("/")[0]] = {"out": disk.absolute_path(one.group.folder)}
    seed = max(ablation.seeds) + 1
    return {
        "name": f"{ablation.name}_confirm",
        "question": f"Does {name} do what {ablation.name} predicts, on fresh seeds?",
        "pools": pools,
        "arms": {
            "all_groups": {"views": of_base, "weights": "repeats"},
            name: {"views": changed, "weights": "repeats"},
        },
        "baseline": "all_groups",
        "seeds": list(range(seed, seed + CONFIRMING_SEEDS)),
        **kept_settings(ablation),
    }
