"""What groups of training pairs are worth by the gradients of the baseline's runs, with no run
more: a folder of an ablation in, a table of groups out, and how well it ranks the runs that exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from clipmill.manifests import disk
from clipmill.manifests.arrays import FloatArray
from clipmill.manifests.layout import RunLayout
from clipmill.manifests.metrics import METRICS, deciding_metric
from clipmill.manifests.schema import Blend
from clipmill.study.arms import Run, all_runs
from clipmill.study.influence import group_influence
from clipmill.study.pair_groups import PairGroup, group_shares, read_groups
from clipmill.study.results import Study
from clipmill.verdict.names import primary_task
from clipmill.verdict.stats.groups import Estimate, parts_of_gain, spearman
from clipmill.verdict.stats.model import Values, fit_additive

METRIC = "logprob"  # of the right class: the metric that is differentiated
FEWEST = 5  # arms whose order says something
DRAWS = 2000  # of the bootstrap over arms


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGradient:
    """A group by the gradients.

    base, arm: its share of the samples of the baseline and of the arm. influence: of a pair of it
    in the place of a mean one, where the mean size over all pairs is 1. part: its
    share of what the gradients say the arm gained; None where that is not clearly other than 0.
    loss: the mean of its pairs, of which `pairs` were drawn.
    """

    group: PairGroup
    base: float
    arm: float
    influence: Estimate
    part: Estimate | None
    loss: float
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAgreement:
    """How well the arms that were run are ranked: Spearman's correlation of predicted and measured
    metric, with an interval from a bootstrap over the arms.

    by_loss: the prediction that a group is worth the less, the higher the mean loss of its pairs:
    that knows nothing of the task.
    """

    metric: str
    by_gradients: Estimate
    by_loss: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientAnswer:
    """Why an arm differs from the baseline, by the gradients of the baseline's runs.

    gain: predicted, in the unit of the influences; None where the arm has the baseline's shares of
    the groups, which leaves nothing to attribute. judges: for log-probability and the metric that
    decides, over `others`, the arms beside the baseline that were run; none for fewer than FEWEST.
    outside: the shares of the samples of baseline and arm that are in no group.
    """

    arm: str
    baseline: str
    task: str
    runs: int
    groups: tuple[GroupGradient, ...]
    gain: Estimate | None
    others: int
    judges: tuple[RankAgreement, ...]
    outside: tuple[float, float]


def explain_by_gradients(
    study: Study,
    arm: str,
    views: Sequence[str],
    *,
    pairs: int,
    device: torch.device,
) -> GradientAnswer:
    """What the groups have of the gain of an arm on the baseline.

    views: the groups, as POOL/VIEW; none: the sources of the ablation's `mixtures`. pairs: drawn
    for each run. ValueError for an arm that is not trained, for groups that have a row in common,
    and where no run of the baseline has finished.
    """
    ablation, folder = study.ablation, study.folder
    runs = [run for run in all_runs(ablation, folder) if isinstance(run, Run)]
    blends = {run.arm: run.blend for run in runs}
    for name in (arm, ablation.baseline):
        if name not in blends:
            hint = disk.did_you_mean(name, list(blends))
            if name in ablation.arms:
                hint = f", and nothing says what it saw: try `clipmill why {folder} {name}`"
            raise ValueError(f"arm {name!r} is not trained by this ablation{hint}")
    groups = read_groups(ablation, folder, views)
    finished = [
        run.out
        for run in runs
        if run.arm == ablation.baseline and disk.exists(RunLayout(run.out).run_json)
    ]
    if not finished:
        raise ValueError(f"no run of the baseline {ablation.baseline!r} has finished in {folder}")
    whole = group_shares(groups, blends)
    inside = {
        name: shares_G / shares_G.sum() for name, shares_G in whole.items() if shares_G.sum() > 0
    }
    for name in (arm, ablation.baseline):
        if name not in inside:
            raise ValueError(f"no sample of {name!r} is in a group; name others with --groups")
    task = primary_task(ablation)
    blend = Blend(
        name="groups",
        pools={group.name.partition("/")[0]: group.folder for group in groups},
        views={group.name: 1.0 for group in groups},
        weights="repeats",
    )
    fit, loss_G, drawn_G = group_influence(finished, blend, task, pairs=pairs, device=device)
    base_G, arm_G = inside[ablation.baseline], inside[arm]
    change_G = arm_G - base_G
    gain = fit.estimates(change_G[None])[0] if np.abs(change_G).max() > 1e-9 else None
    parts_GG = parts_of_gain(base_G, arm_G)
    mean_GG = np.eye(len(groups)) - base_G  # each group in the place of the baseline's mean pair
    rows = []
    for number, influence in enumerate(fit.estimates(mean_GG)):
        clear = gain is not None and gain.is_clear
        rows.append(
            GroupGradient(
                group=groups[number],
                base=float(whole[ablation.baseline][number]),
                arm=float(whole[arm][number]),
                influence=influence,
                part=fit.ratio(parts_GG[number], change_G) if clear else None,
                loss=float(loss_G[number]),
                pairs=int(drawn_G[number]),
            )
        )
    with_runs = dict.fromkeys(name for name, _ in study.measurements.runs)
    others = [name for name in with_runs if name in inside and name != ablation.baseline]
    judges: list[RankAgreement] = []
    for metric in dict.fromkeys((METRIC, deciding_metric(task))):
        if len(others) >= FEWEST:
            of_all = study.measurements.values(task.name, metric)
            values = {name: of_all[name] for name in others}
            judges.append(_rank_agreement(metric, values, inside, fit.worth_G, -loss_G))
    return GradientAnswer(
        arm=arm,
        baseline=ablation.baseline,
        task=task.name,
        runs=len(finished),
        groups=tuple(rows),
        gain=gain,
        others=len(others),
        judges=tuple(judges),
        outside=(float(1 - whole[ablation.baseline].sum()), float(1 - whole[arm].sum())),
    )


def _rank_agreement(
    metric: str,
    values: Values,
    shares: Mapping[str, FloatArray],
    *worths: FloatArray,
) -> RankAgreement:
    level = fit_additive(values)
    measured_N = level.effects if METRICS[metric].higher_is_better else -level.effects
    shares_NG = np.array([shares[arm] for arm in level.arms])
    drawn = np.random.default_rng(0).integers(0, len(measured_N), (DRAWS, len(measured_N)))
    ranks = []
    for worth_G in worths:
        predicted_N = shares_NG @ worth_G
        again = [spearman(predicted_N[each], measured_N[each]) for each in drawn]
        low, high = np.nanquantile(again, [0.025, 0.975]).tolist()
        ranks.append(Estimate(value=spearman(predicted_N, measured_N), low=low, high=high))
    return RankAgreement(metric=metric, by_gradients=ranks[0], by_loss=ranks[1])
