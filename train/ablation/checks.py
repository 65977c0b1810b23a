"""What can be known before anything is trained: settings, arms, the tasks' data, the pools."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from manifests import disk
from manifests.pool_layout import PoolLayout
from manifests.run_layout import AblationLayout
from manifests.schema import Ablation
from train.ablation.arms import A_A, RANDOM_LIKE, Run, check_views, expand_runs, missing_views
from train.ablation.factors import arm_config
from train.ablation.given import given_runs
from train.ablation.models import check_models, model_runs, trained_on
from train.config import configure, model_config
from train.data import Loader
from train.evaluation import (
    DroppedRows,
    SharedImages,
    count_dropped,
    dropping,
    find_shared_images,
    overlap_lines,
    read_samples,
    refuse_identical,
    refuse_near,
    write_clean_random,
    write_clean_view,
)

logger = logging.getLogger(__name__)


def check_ablation(ablation: Ablation, out: str) -> None:
    """Everything that needs no pool. ValueError for settings, arms, views and the tasks' data."""
    if not ablation.equivalence > 0:
        raise ValueError(
            f"equivalence is {ablation.equivalence}; it must be above 0 "
            "(a share: 0.005 = 0.5 points)"
        )
    if ablation.train:
        _check_settings("train", ablation.train)
    if ablation.scorer:
        _check_settings("scorer.train", {**ablation.train, **ablation.scorer.train})
        if ablation.scorer.view.partition("/")[0] not in ablation.pools:
            raise ValueError(
                f"scorer.view is {ablation.scorer.view!r}; its pool must be of "
                f"{sorted(ablation.pools)}"
            )
    names = [task.name for task in ablation.evaluate]
    if len(set(names)) < len(names):
        raise ValueError(f"evaluate has two tasks of one name: {', '.join(names)}")
    runs = expand_runs(ablation, out, built=False)
    given_runs(ablation)
    check_models(ablation, out)
    check_views(ablation, out)
    _check_weights(ablation)
    if runs or model_runs(ablation, out):
        for task in ablation.evaluate:
            read_samples(task)


def _check_weights(ablation: Ablation) -> None:
    """ValueError for `evaluate_weights` that the training settings do not leave."""
    weights = ablation.evaluate_weights
    if not weights.suffix:
        return
    trained = [name for name, arm in ablation.arms.items() if arm.is_trained]
    if not trained:
        raise ValueError(
            "evaluate_weights is of runs that are trained; every arm has a model or predictions, "
            "which are evaluated as they are"
        )
    for name in trained:
        config = arm_config(ablation, name)
        if weights.ema and config.ema is None:
            raise ValueError(
                f"evaluate_weights is ema, but arm {name!r} keeps no moving average; "
                "set ema: 0.9999 in train"
            )
        every, count = config.checkpoint_every, weights.average_last
        if count is None:
            continue
        written = 1 if every == "auto" or every == 0 else -(-config.steps // every)
        if min(written, config.keep_checkpoints) < count:
            raise ValueError(
                f"evaluate_weights averages {count} checkpoints, but arm {name!r} writes {written} "
                f"and keeps {config.keep_checkpoints}; set checkpoint_every to at most "
                f"{max(1, config.steps // count)} and keep_checkpoints to at least {count} in train"
            )


def _check_settings(key: str, changes: Mapping[str, Any]) -> None:
    """ValueError, with the key of the manifest, for settings that no run can have."""
    try:
        configure(changes)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def check_pools(ablation: Ablation, out: str) -> SharedImages | None:
    """What the pools show. ValueError for missing or stale views and for too few rows.

    ValueError too for evaluation images among the stored rows, unless their task allows them. All
    shared images are written to overlap.json and returned; None where no pool is known. The pools
    of a model are known if it lies in the folder of a run.
    """
    drops = bool(dropping(ablation.evaluate))
    runs = expand_runs(ablation, out, clean=False)
    if not drops:
        _check_rows(runs)
    pools: set[str] = set()
    for run in runs:
        pools.update(run.blend.pools.values())
    others: set[str] = set()  # of which not only views of arms are trained on
    if ablation.scorer:
        others.add(ablation.pool_folder(out, ablation.scorer.view.partition("/")[0]))
    for model in model_runs(ablation, out):
        others.update(_known_pools(model.source))
    pools |= others
    if not pools:
        return None
    shared = find_shared_images(sorted(pools), ablation.evaluate)
    path = AblationLayout(out).overlap_json
    disk.write_json(path, shared)
    refuse_identical(shared, ablation.evaluate, path, pools - others)
    if drops:
        shared = dataclasses.replace(shared, dropped=_count_all(ablation, runs, shared))
        disk.write_json(path, shared)
        _write_clean_views(ablation, runs, shared)
        runs = expand_runs(ablation, out)
        _check_rows(runs)
        for line in dropped_lines(shared.dropped):
            logger.info("%s", line)
    refuse_near(shared, ablation.evaluate, _trained_views(runs))
    for line in overlap_lines(shared, ablation.evaluate, path):
        logger.info("%s", line)
    return shared


def _check_rows(runs: Sequence[Run]) -> None:
    """ValueError for views that are stale or have too few rows."""
    for run in {run.arm: run for run in runs}.values():
        Loader(run.blend, run.config, model_config(run.config))


def _write_clean_views(ablation: Ablation, runs: Sequence[Run], shared: SharedImages) -> None:
    """Write the clean view of every view of the runs, random subsets after what they are like."""
    tasks = ablation.evaluate
    ordinary = [run for run in runs if not run.arm.startswith(RANDOM_LIKE)]
    for pool, view in sorted(set(_trained_views(ordinary))):
        write_clean_view(pool, view, tasks, shared)
    for run in runs:
        if run.arm.startswith(RANDOM_LIKE):
            pool, view = ablation.arms[run.arm.removeprefix(RANDOM_LIKE)].split_view()
            draw = ablation.random_draw(run.seed)
            write_clean_random(run.blend.pools[pool], view, draw, tasks, shared)


def _count_all(
    ablation: Ablation, runs: Sequence[Run], shared: SharedImages
) -> tuple[DroppedRows, ...]:
    """What each arm is not trained on. A/A has the views of its arm, a random subset its size."""
    counts = []
    for run in {run.arm: run for run in runs}.values():
        if run.arm != A_A and not run.arm.startswith(RANDOM_LIKE):
            for pool, view in sorted(set(_trained_views([run]))):
                counts.append(count_dropped(run.arm, pool, view, ablation.evaluate, shared))
    return tuple(counts)


def planned_drops(ablation: Ablation, out: str) -> tuple[DroppedRows, ...] | None:
    """What each arm would not be trained on; None where the views are not built, or no task drops.

    ValueError for a pool without perceptual hashes.
    """
    if not dropping(ablation.evaluate):
        return None
    runs = expand_runs(ablation, out, built=False, clean=False)
    if any(missing_views(run.blend) for run in runs if not run.arm.startswith(RANDOM_LIKE)):
        return None
    pools = {pool for pool, _ in _trained_views(runs)}
    return _count_all(ablation, runs, find_shared_images(sorted(pools), ablation.evaluate))


def dropped_lines(dropped: Sequence[DroppedRows]) -> list[str]:
    """What was left out, one line for each view of an arm."""
    lines = []
    for each in dropped:
        lines.append(
            f"arm {each.arm}: {each.dropped:,} of {each.rows:,} rows of view {each.view} are "
            f"dropped: near copies of {each.images:,} evaluation images"
        )
    return lines


def _trained_views(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(pool, view) of what the runs are trained on."""
    views = []
    for run in runs:
        for name in run.blend.views:
            pool, _, view = name.partition("/")
            views.append((run.blend.pools[pool], view))
    return views


def _known_pools(source: str) -> list[str]:
    """The pools that a model was trained on, as far as they are known and still there."""
    record = trained_on(source)
    if record is None:
        logger.info("%s has no run.json: its training pools are not known or searched", source)
        return []
    pools = []
    for pool in disk.read_json(record)["blend"]["pools"].values():
        if disk.exists(PoolLayout(pool).shards):
            pools.append(pool)
        else:
            logger.warning("the pool %s is not there: it is not searched for the images", pool)
    return pools
