"""Training until a target: a run is evaluated every N steps and stops when it is good enough.

What is evaluated are the weights that would be exported, on the device of training. RUN/until/ has
the newest predictions and target.json with every evaluation. With sharded models (dp_shard or tp
above 1) rank 0 evaluates alone; the others wait, at most the time-out of the process group.
"""

from __future__ import annotations

import dataclasses
import logging
import time

from torch import Tensor

from manifests import disk, reader
from manifests.documents import TargetEvaluation, TargetRecord, read_document
from manifests.run_layout import RunLayout
from manifests.schema import Blend, TaskSpec
from train.dist import process_group, sharded_checkpoint
from train.evaluation import (
    METRICS,
    deciding_metric,
    evaluate,
    find_shared_images,
    on_rank_0,
    read_samples,
    refuse_identical,
)
from train.model import CLIP
from train.running.train_state import TrainState
from train.step import decay_factor

TABLE = "text.token_embedding.weight"
logger = logging.getLogger(__name__)


class Target:
    """The target of a run, and the evaluations so far."""

    def __init__(self, task: TaskSpec, record: TargetRecord, layout: RunLayout, every: int) -> None:
        self.task, self.record, self.every = task, record, every
        self._layout = layout
        before = record.evaluations[-1].seconds if record.evaluations else 0.0
        self._before, self._started, self._evaluating = before, time.perf_counter(), 0.0

    def reached_after(self, step: int) -> bool:
        """Whether an earlier start reached the target at `step`."""
        return self.record.reached is not None and self.record.reached.step == step

    def reached(self, state: TrainState, done: int) -> bool:
        """Evaluate if it is time to after `done` steps. Whether the target is reached.

        A collective. ValueError for features that are not finite.
        """
        if done % self.every and done != state.config.steps:
            return False
        began = time.perf_counter()
        value = self._evaluate(state, done)
        seconds = self._before + began - self._started - self._evaluating
        self._evaluating += time.perf_counter() - began
        evaluation = TargetEvaluation(
            step=done, samples=done * state.config.batch_size, seconds=seconds, value=value
        )
        better = METRICS[self.record.metric].higher_is_better
        target = self.record.target
        is_reached = value >= target if better else value <= target
        self.record = dataclasses.replace(
            self.record,
            evaluations=(*self.record.evaluations, evaluation),
            reached=evaluation if is_reached else None,
        )
        if state.ranks.rank == 0:
            disk.write_json(self._layout.target_json, self.record)
            text = f"step {done}: {self.record.metric} {value:.4f} on {self.task.name}"
            logger.info("%s, target %s%s", text, target, ": reached" if is_reached else "")
        return is_reached

    def _evaluate(self, state: TrainState, done: int) -> float:
        ranks, config = state.ranks, state.config
        weights = full_weights(state, done)
        values: list[float] = []

        def measure() -> None:
            model = CLIP(state.model.config)
            model.load_state_dict(weights)
            metrics = evaluate(
                model,
                [self.task],
                self._layout.until,
                tokenizer=config.tokenizer,
                device=ranks.device,
                **({} if ranks.mesh is not None else {"ranks": ranks}),
            )
            values.append(metrics[self.task.name][self.record.metric])

        if ranks.mesh is None:
            measure()
        else:
            on_rank_0(ranks, measure)
        # The ranks must not decide differently by the last bit of a device.
        value: float = process_group.all_gather_json(values[0] if values else None, ranks)[0]
        return value


def full_weights(state: TrainState, done: int) -> dict[str, Tensor]:
    """The weights that an export after `done` steps has, as copies.

    A sharded model is whole on rank 0 only. A collective.
    """
    with state.update.averaged():
        if state.ranks.mesh is not None:
            weights = sharded_checkpoint.gathered(state.model.state_dict(), state.ranks)
        else:
            weights = {k: v.detach().clone() for k, v in state.model.state_dict().items()}
    if state.reduced_table is not None:
        factor = decay_factor(state.config, done)
        weights[TABLE] = state.reduced_table.full_table(state.model.text, factor)
    return weights


def load_target(state: TrainState, blend: Blend) -> Target | None:
    """The target of a run's settings; None where it has none. A collective.

    ValueError for a task that cannot be read, a metric that it does not have, and images that are
    stored rows of a pool.
    """
    config, layout = state.config, RunLayout(state.out)
    if config.until_task is None or config.until_accuracy is None:
        return None
    task = reader.read_manifest(config.until_task, TaskSpec)
    read_samples(task)
    record = TargetRecord(
        task=task.name,
        metric=deciding_metric(task),
        target=config.until_accuracy,
        evaluations=(),
    )

    def refuse_shared() -> None:
        shared = find_shared_images(sorted(blend.pools.values()), [task])
        path = disk.join(layout.until, "overlap.json")
        disk.write_json(path, shared)
        refuse_identical(shared, [task], path)

    on_rank_0(state.ranks, refuse_shared)
    if state.first_step > 0 and disk.exists(layout.target_json):
        saved = read_document(layout.target_json, TargetRecord)
        kept = tuple(each for each in saved.evaluations if each.step <= state.first_step)
        reached = saved.reached if saved.reached in kept else None
        record = dataclasses.replace(record, evaluations=kept, reached=reached)
    return Target(task, record, layout, config.until_every)
