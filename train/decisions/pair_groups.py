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

from manifests import disk
from manifests.layout import AblationLayout, PoolLayout
from manifests.records import ViewDocument, read_document
from manifests.schema import Ablation, Blend
from train.ablation.arms import Run, all_runs
from train.data.view_rows import open_masks, shard_files
from train.evaluation.metrics import METRICS, deciding_metric
from train.reporting.results import read_results
from train.stats.groups import (
    Estimate,
    FloatArray,
    LinearFit,
    changed_shares,
    fit_groups,
    parts_of_gain,
    spearman,
)
from train.stats.mixing import p_of_weights
from train.stats.model import AdditiveFit, fit_additive

JUDGES = 3  # one mixture of so many is held out
SURE = 0.05  # p of the test that the groups differ at all


@dataclass(frozen=True, slots=True, kw_only=True)
class PairGroup:
    """A group of training pairs: what a view of a pool keeps.

    name: POOL/VIEW. folder: of the pool. rule: the view's last rule as it is written. rows: kept.
    """

    name: str
    folder: str
    view: str
    rule: str
    rows: int


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
    values: dict[str, dict[int, float]]
    metric: str
    higher: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEffect:
    """What a group does to the metric, in its unit and direction.

    base, arm: its share of the samples of the baseline and of the arm. effect: the change when the
    baseline is trained without it; intervals hold for all groups together. gain: its part of what
    the arm gained on the baseline; share: that part over the whole, None where the arm has no clear
    gain.
    """

    group: PairGroup
    base: float
    arm: float
    effect: Estimate
    gain: Estimate
    share: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCheck:
    """An arm's gain on the baseline as the groups predict it, and as its own runs show it.

    outside: the share of its samples that is in no group. ratio: predicted over that of the arm
    that is explained, measured_ratio: the same of the runs; None for that arm and where there is no
    clear gain.
    """

    arm: str
    outside: float
    predicted: Estimate
    measured: Estimate | None
    ratio: Estimate | None
    measured_ratio: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Why an arm is better than the baseline, by groups of training pairs.

    p: of such values where no group differs from another. rank: Spearman's correlation of predicted
    and measured metric over the `judges` mixtures that were left out; ceiling: what the noise of
    their runs allows, NaN where it is not known.
    """

    arm: str
    baseline: str
    metric: str
    fitted: int
    seeds: int
    effects: tuple[GroupEffect, ...]
    arms: tuple[ArmCheck, ...]
    p: float
    judges: int
    rank: float
    ceiling: float

    @property
    def matters(self) -> bool:
        """Whether the runs show that groups differ at all."""
        return self.p < SURE


# --- reading --------------------------------------------------------------------------------------


def read_groups(ablation: Ablation, folder: str) -> tuple[PairGroup, ...]:
    """The groups of an ablation's folder. ValueError where it has no `mixtures`."""
    if ablation.mixtures is None:
        raise ValueError(
            f"{folder} is no ablation of mixtures; `clipmill why plan` writes one of groups"
        )
    groups = []
    for name in ablation.mixtures.sources:
        pool, _, view = name.partition("/")
        of_pool = ablation.pool_folder(folder, pool)
        path = PoolLayout(of_pool).view_json(view)
        if not disk.exists(path):
            raise ValueError(f"group {name} has no view ({path} is missing)")
        document = read_document(path, ViewDocument)
        rule = str(document.rules[-1].get("where", "")) if document.rules else ""
        group = PairGroup(name=name, folder=of_pool, view=view, rule=rule, rows=document.kept)
        groups.append(group)
    return tuple(groups)


def read_group_runs(folder: str, metric: str | None = None) -> GroupRuns:
    """The runs of an ablation's folder. metric: of its primary task, by default the deciding one.
    ValueError for a folder without results and for an unknown metric.
    """
    path = AblationLayout(folder).ablation_json
    if not disk.exists(path):
        raise ValueError(f"{folder} has no ablation.json; give the --out of `clipmill ablate`")
    ablation = disk.from_plain(Ablation, disk.read_json(path))
    groups = read_groups(ablation, folder)
    results = read_results(ablation, folder)
    (task,) = [task for task in ablation.evaluate if task.name == ablation.primary]
    metric = metric or deciding_metric(task)
    values: dict[str, dict[int, float]] = {}
    for arm, seeds in results.runs.items():
        values[arm] = {}
        for seed, tasks in seeds.items():
            measured = tasks.get(task.name, {})
            if metric not in measured:
                near = disk.did_you_mean(metric, sorted(measured))
                raise ValueError(f"{task.name} has no metric {metric!r}{near}")
            values[arm][int(seed)] = float(measured[metric])
    blends = {}
    for run in all_runs(ablation, folder):
        if isinstance(run, Run) and values.get(run.arm):
            blends.setdefault(run.arm, run.blend)
    assert ablation.mixtures is not None
    drawn = [name for name in ablation.mixtures.arms() if name in blends]
    return GroupRuns(
        ablation=ablation,
        groups=groups,
        mixtures=tuple(drawn),
        shares=group_shares(groups, blends),
        values={arm: values[arm] for arm in blends},
        metric=metric,
        higher=METRICS[metric].higher_is_better,
    )


def group_shares(groups: Sequence[PairGroup], blends: Mapping[str, Blend]) -> dict[str, FloatArray]:
    """Arm -> (G,) shares of its samples that each group has. ValueError where two groups have a row
    in common.
    """
    of_pools: dict[str, set[str]] = {group.folder: set() for group in groups}
    for blend in blends.values():
        for name in blend.views:
            pool, _, view = name.partition("/")
            of_pools.setdefault(blend.pools[pool], set()).add(view)
    counts: dict[tuple[str, str], FloatArray] = {}  # (folder, view) -> rows of each group and all
    for folder, views in of_pools.items():
        counts |= _count_rows(folder, groups, sorted(views))
    shares = {}
    for arm, blend in blends.items():
        total_G = np.zeros(len(groups) + 1)
        for name, weight in blend.views.items():
            pool, _, view = name.partition("/")
            rows_G = counts[blend.pools[pool], view]
            total_G += weight * (rows_G if blend.weights == "repeats" else rows_G / rows_G[-1])
        shares[arm] = total_G[:-1] / total_G[-1]
    return shares


def _count_rows(
    folder: str, groups: Sequence[PairGroup], views: Sequence[str]
) -> dict[tuple[str, str], FloatArray]:
    """The rows of some views of a pool: (G + 1,) those of each group, and all."""
    files = shard_files(folder)
    own = {number: group.view for number, group in enumerate(groups) if group.folder == folder}
    masks = {view: open_masks(files, view) for view in {*own.values(), *views}}
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


def explain_gain(runs: GroupRuns, arm: str) -> Attribution:
    """What the groups have of the gain of an arm on the baseline. ValueError for an arm that was
    not run, and for too few mixtures.
    """
    baseline = runs.ablation.baseline
    for name in (arm, baseline):
        if not runs.values.get(name):
            raise ValueError(
                f"arm {name!r} has no runs{disk.did_you_mean(name, list(runs.values))}"
            )
    noise = fit_additive(runs.values)
    level = dict(zip(noise.arms, noise.effects.tolist(), strict=True))
    shares_RG = np.array([runs.shares[name] for name in runs.mixtures])
    value_R = np.array([level[name] for name in runs.mixtures])
    fitted = len(runs.mixtures) - len(runs.mixtures) // JUDGES
    judge = fit_groups(shares_RG[:fitted], value_R[:fitted])
    held_out_R = value_R[fitted:]
    fit = fit_groups(shares_RG, value_R)
    inside = {name: shares.sum() for name, shares in runs.shares.items()}
    if not inside[baseline] or not inside[arm]:
        raise ValueError(f"no sample of {baseline!r} or of {arm!r} is in a group")
    base_G, arm_G = (runs.shares[name] / inside[name] for name in (baseline, arm))
    rows_G = np.array([float(group.rows) for group in runs.groups])
    parts_GG = parts_of_gain(base_G, arm_G)
    (gain,) = fit.estimates((arm_G - base_G)[None])
    effects = []
    for number, (effect, part) in enumerate(
        zip(fit.estimates(changed_shares(base_G, rows_G)), fit.estimates(parts_GG), strict=True)
    ):
        effects.append(
            GroupEffect(
                group=runs.groups[number],
                base=float(runs.shares[baseline][number]),
                arm=float(runs.shares[arm][number]),
                effect=effect,
                gain=part,
                share=fit.ratio(parts_GG[number], arm_G - base_G) if gain.is_clear else None,
            )
        )
    others = [name for name in runs.values if name not in (*runs.mixtures, baseline)]
    return Attribution(
        arm=arm,
        baseline=baseline,
        metric=runs.metric,
        fitted=len(runs.mixtures),
        seeds=len(runs.ablation.seeds),
        effects=tuple(effects),
        arms=tuple(
            _check(runs, name, arm, fit, noise)
            for name in sorted(others, key=lambda other: other != arm)
        ),
        p=p_of_weights(shares_RG, value_R),
        judges=len(held_out_R),
        rank=spearman(judge.at(shares_RG[fitted:]), held_out_R),
        ceiling=_ceiling(held_out_R, noise, len(runs.ablation.seeds)),
    )


def _check(runs: GroupRuns, name: str, arm: str, fit: LinearFit, noise: AdditiveFit) -> ArmCheck:
    baseline = runs.ablation.baseline
    inside = {each: float(runs.shares[each].sum()) for each in (name, arm, baseline)}
    share_G = {each: runs.shares[each] / inside[each] for each in inside}
    change_G, of_arm_G = (share_G[each] - share_G[baseline] for each in (name, arm))
    (predicted,) = fit.estimates(change_G[None])
    measured = measured_ratio = None
    if noise.variance is not None:
        covariance = noise.variance * noise.covariance
        of_runs = LinearFit(worth_G=noise.effects, covariance_GG=covariance, df=noise.df)
        unit = {each: np.array([other == each for other in noise.arms], float) for each in inside}
        own_A, of_arm_A = (unit[each] - unit[baseline] for each in (name, arm))
        (measured,) = of_runs.estimates(own_A[None])
        measured_ratio = of_runs.ratio(own_A, of_arm_A) if name != arm else None
    return ArmCheck(
        arm=name,
        outside=1 - inside[name],
        predicted=predicted,
        measured=measured,
        ratio=fit.ratio(change_G, of_arm_G) if name != arm else None,
        measured_ratio=measured_ratio,
    )


def _ceiling(value_R: FloatArray, noise: AdditiveFit, seeds: int) -> float:
    """The largest correlation that the noise of the runs leaves."""
    spread = float(np.var(value_R, ddof=1)) if len(value_R) > 1 else 0.0
    if noise.variance is None or not spread > 0:
        return math.nan
    return math.sqrt(max(0.0, 1 - noise.variance / seeds / spread))
