"""Blocks crossed with arms: whether a difference to the baseline depends on the block. Pure.

A block is a second factor beside the arm, such as the learning rate or the size of the model. The
verdict over all blocks is that of `analyse`, with a run number for each (block, seed); for each
seed alone where `seed_effect` finds that a seed is one run in all blocks; or with the blocks as
`groups` where no seed pairs the runs. This module says which, and whether that one verdict tells
enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from clipmill.verdict.stats.comparison import ALPHA
from clipmill.verdict.stats.model import RunGroups, Values, fit_additive, group_of, pair_layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """An arm whose difference to the baseline is below 0 in one block and above 0 in another one.

    lowest, highest: the blocks of the smallest and of the largest t. p: adjusted for the arms and
    blocks; None where nothing is known of the noise.
    """

    arm: str
    lowest: int
    highest: int
    p: float | None

    @property
    def is_clear(self) -> bool:
        """Both signs are beyond the noise of runs."""
        return self.p is not None and self.p < ALPHA


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """How arms and blocks go together.

    p: of the F test of arm × block against the residual inside of the blocks; None where each arm
    has one run in a block, or nothing varies. differences: {arm: {block: arm − baseline}}, of the
    blocks in which the two can be compared. crossings: arms whose differences have both signs.
    """

    p: float | None
    differences: dict[str, dict[int, float]]
    crossings: tuple[Crossing, ...]


POOLING_P = 0.25
"""Above this p a random effect is left out of an analysis of variance and its degrees of freedom
are those of the residual: Bancroft, Annals of Mathematical Statistics 15 (1944); 0.25 is the usual
level, since a true effect that is left out makes intervals too narrow.
"""


def seed_effect(values: Mapping[str, Mapping[tuple[int, int], float]]) -> float | None:
    """Whether the differences of arms follow the seed through the blocks: p of the F test of
    arm × seed against arm × seed × block; None where too few cells are there for a test.

    values: {arm: {(block, seed): value}}. Of the seeds that all arms have in all blocks. 0.0 where
    a difference is the same in all blocks.
    """
    from scipy.stats import f as fisher

    blocks = sorted({block for own in values.values() for block, _ in own})
    pairs = [own.keys() for own in values.values()]
    seeds = sorted({seed for own in values.values() for _, seed in own})
    seeds = [seed for seed in seeds if all((b, seed) in own for own in pairs for b in blocks)]
    if min(len(values), len(blocks), len(seeds)) < 2:
        return None
    cells = [[[own[b, s] for s in seeds] for b in blocks] for own in values.values()]
    rest_ABS = np.array(cells, np.float64)
    rest_ABS -= rest_ABS.mean(axis=2, keepdims=True)
    rest_ABS -= rest_ABS.mean(axis=0, keepdims=True)
    mean_AS = rest_ABS.mean(axis=1)
    between = len(blocks) * float(np.square(mean_AS).sum())
    within = float(np.square(rest_ABS - mean_AS[:, None]).sum())
    df = (len(values) - 1) * (len(seeds) - 1)
    if within <= 1e-12 * between:
        return 0.0 if between > 0 else None
    return float(fisher.sf(between / within * (len(blocks) - 1), df, df * (len(blocks) - 1)))


def interaction(
    values: Values,
    block_of: Mapping[int, int],
    baseline: str,
    groups: RunGroups | None = None,
) -> Interaction | None:
    """The arms' differences to the baseline in each block; None for fewer than two blocks.

    values: {arm: {run: value}}. block_of: the block of every run number. groups: as in `analyse`;
    None: a run number is one seed of one block, so that runs of one number are paired; `block_of`
    itself: the runs of a block are not paired.

    The F test compares arm + group in all runs with arm + group in each block alone. A difference
    changes its sign beyond noise if one block is above 0 and another one below 0, each by a t test
    of the shared residual. If no true difference is below 0, B − 1 of B blocks at most can have the
    wrong sign while the one with the right sign is seen, so that the larger of the two one-sided p
    times B − 1 is a p value; it is also multiplied by the number of arms (Bonferroni).

    ValueError for a run without a block or a group that lies in two blocks.
    """
    from scipy.stats import f as fisher
    from scipy.stats import t as student

    parts: dict[int, Values] = {}
    block_of_group: dict[int, int] = {}
    for arm, of_arm in values.items():
        for run, value in of_arm.items():
            if run not in block_of:
                raise ValueError(f"run {run} of {arm} is in no block; every run needs one")
            block, group = block_of[run], group_of(run, groups)
            if block_of_group.setdefault(group, block) != block:
                raise ValueError(f"group {group} has runs of two blocks; a group lies in one")
            parts.setdefault(block, {}).setdefault(arm, {})[run] = value
    if len(parts) < 2:
        return None
    fits = {block: fit_additive(part, groups) for block, part in sorted(parts.items())}
    together = fit_additive(values, groups)
    df = sum(fit.df for fit in fits.values())
    square = math.fsum((fit.variance or 0.0) * fit.df for fit in fits.values())
    more, more_df = (together.variance or 0.0) * together.df - square, together.df - df
    p = None
    if square > 0 and more_df > 0:
        p = float(fisher.sf(max(0.0, more) / more_df / (square / df), more_df, df))
    differences: dict[str, dict[int, float]] = {}
    t_values: dict[str, dict[int, float]] = {}  # without the standard deviation of a run
    for block, fit in fits.items():
        of_baseline = parts[block].get(baseline, {})
        for arm, of_arm in parts[block].items():
            if arm == baseline or not pair_layout(of_arm, of_baseline, groups).groups:
                continue
            difference = fit.estimate(arm, baseline)
            differences.setdefault(arm, {})[block] = difference
            scale = math.sqrt(fit.factor(arm, baseline))
            t_values.setdefault(arm, {})[block] = difference / scale
    crossings = []
    arms = sum(len(of_arm) > 1 for of_arm in t_values.values())
    for arm, of_arm in t_values.items():
        lowest, highest = min(of_arm, key=of_arm.__getitem__), max(of_arm, key=of_arm.__getitem__)
        nearer = min(-of_arm[lowest], of_arm[highest])
        if nearer > 0:
            tail = float(student.sf(nearer / math.sqrt(square / df), df)) if square > 0 else None
            adjusted = None if tail is None else min(1.0, tail * arms * (len(of_arm) - 1))
            crossings.append(Crossing(arm=arm, lowest=lowest, highest=highest, p=adjusted))
    return Interaction(p=p, differences=differences, crossings=tuple(crossings))
