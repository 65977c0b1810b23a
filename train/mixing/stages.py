"""The schedule of a blend: its weights, curriculum, caps and epochs, for a run of so many steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from manifests.schema import Blend, CurriculumStage
from train.mixing.schedule import NO_LIMIT, Schedule, Stage
from train.mixing.wheel import SourceRows
from train.rng import Ints


def blend_sources(blend: Blend, shard_rows: Mapping[str, Sequence[int] | Ints]) -> list[SourceRows]:
    """The views of a blend as sources, by name, with weights that are shares of the samples."""
    sources = []
    for name in sorted(blend.views):
        weight = _weight(blend, blend.views[name], shard_rows[name])
        sources.append(SourceRows(name=name, weight=weight, shard_rows=shard_rows[name]))
    return sources


def blend_schedule(
    blend: Blend, sources: Sequence[SourceRows], steps: int, batch_size: int
) -> Schedule:
    """Which source each position of a run belongs to.

    ValueError for a stage that begins after the run or before the stage before it, and where caps
    and epochs leave nothing to draw before the run ends.
    """
    stages = [Stage(start=0, weights=tuple(source.weight for source in sources))]
    for curriculum_stage in blend.curriculum:
        stages.append(_stage(blend, curriculum_stage, stages[-1], sources, steps, batch_size))
    schedule = Schedule(sources, stages, [_limit(blend, source) for source in sources])
    samples = steps * batch_size
    if schedule.end is not None and schedule.end < samples:
        whole = schedule.end // batch_size * batch_size
        raise ValueError(
            f"blend {blend.name!r}: after {schedule.end:,} samples every view that it draws has "
            f"reached its caps or epochs, and the run has {samples:,}; raise them, or leave one "
            "without" + (f", or set samples_seen={whole}" if whole else "")
        )
    return schedule


def _weight(blend: Blend, weight: float, shard_rows: Sequence[int] | Ints) -> float:
    if blend.weights == "samples":
        return weight
    return weight * int(np.asarray(shard_rows, np.int64).sum())


def _limit(blend: Blend, source: SourceRows) -> int:
    limit = min(blend.caps.get(source.name, NO_LIMIT), NO_LIMIT)
    epochs = blend.epochs.get(source.name)
    if epochs is None:
        return limit
    return min(limit, max(1, int(min(epochs * source.rows, float(NO_LIMIT)))))


def _stage(
    blend: Blend,
    stage: CurriculumStage,
    before: Stage,
    sources: Sequence[SourceRows],
    steps: int,
    batch_size: int,
) -> Stage:
    step = stage.step if stage.at is None else round(stage.at * steps)
    assert step is not None
    begins = f"step {step}" if stage.at is None else f"{stage.at} of the run (step {step})"
    if step >= steps:
        raise ValueError(
            f"blend {blend.name!r}: a stage of the curriculum begins at {begins}, and the run has "
            f"{steps} steps; begin it earlier, leave it out or raise samples_seen"
        )
    if step * batch_size <= before.start:
        raise ValueError(
            f"blend {blend.name!r}: a stage of the curriculum begins at {begins}, and the one "
            f"before it at step {before.start // batch_size}; each must begin later"
        )
    weights = []
    for source in sources:
        weights.append(_weight(blend, stage.views.get(source.name, 0), source.shard_rows))
    return Stage(start=step * batch_size, weights=tuple(weights))
