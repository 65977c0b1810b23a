"""What can be known before anything is trained: settings, arms, the tasks' data, the pools."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from manifests import disk
from manifests.pool_layout import AblationLayout
from manifests.schema import Ablation
from train.ablation.arms import check_views, expand_runs
from train.ablation.given import given_runs
from train.config import configure, model_config
from train.data import Loader
from train.evaluation import (
    SharedImages,
    find_shared_images,
    overlap_lines,
    read_samples,
    refuse_identical,
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
    check_views(ablation, out)
    if runs:
        for task in ablation.evaluate:
            read_samples(task)


def _check_settings(key: str, changes: Mapping[str, Any]) -> None:
    """ValueError, with the key of the manifest, for settings that no run can have."""
    try:
        configure(changes)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def check_pools(ablation: Ablation, out: str) -> SharedImages | None:
    """What the pools show. ValueError for missing or stale views and for too few rows.

    ValueError too for evaluation images among the stored rows, unless their task allows them. All
    shared images are written to overlap.json and returned; None where nothing is trained.
    """
    runs = expand_runs(ablation, out)
    for run in {run.arm: run for run in runs}.values():
        Loader(run.blend, run.config, model_config(run.config))
    pools: set[str] = set()
    for run in runs:
        pools.update(run.blend.pools.values())
    if ablation.scorer:
        pools.add(ablation.pool_folder(out, ablation.scorer.view.partition("/")[0]))
    if not runs:
        return None
    shared = find_shared_images(sorted(pools), ablation.evaluate)
    path = AblationLayout(out).overlap_json
    disk.write_json(path, shared)
    refuse_identical(shared, ablation.evaluate, path)
    for line in overlap_lines(shared, ablation.evaluate, path):
        logger.info("%s", line)
    return shared
