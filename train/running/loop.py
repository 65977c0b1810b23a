"""Train a CLIP on a blend: `train(blend, config, out)` writes RUN/, resumes by itself, and repeats
to the bit.

A run is a function of its settings and the views' content. If it is killed at any step and started
again, it ends with the same weights bit for bit (on a CPU, in fp32, with the same number of
threads). run.json is written last: the run is finished.
"""

from __future__ import annotations

import contextlib
import logging
import math
import platform
import time
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

from manifests import console, disk
from manifests.documents import RunRecord, read_document
from manifests.run_layout import RunLayout
from manifests.schema import Blend
from train.capacity import resolve_micro_batch
from train.config import TrainConfig, model_config
from train.dist import checkpoint, process_group, sharded_checkpoint
from train.formats import model_files, open_clip_files
from train.running.identity import check_same_run, run_identity
from train.running.logbook import Logbook, peak_memory, progress_text
from train.running.mix import open_loader, plan_lines
from train.running.train_state import (
    SaveTimer,
    StopRequest,
    TrainState,
    damaged_samples,
    drawn_sources,
    prepare,
    save,
)
from train.running.train_step import LaunchedStep, StepNumbers, StepRunner
from train.running.until import Target, load_target
from train.step import GROUPS, Feed, decay_factor, learning_rate, matmul_precision

Resume = Literal["auto", "required", "never"]
logger = logging.getLogger(__name__)


def train(blend: Blend, config: TrainConfig, out: str, *, resume: Resume = "auto") -> RunRecord:
    """Train and write RUN/: blend.json, log.jsonl, checkpoints/, export/, and run.json at the end.

    Returns the record of run.json. A finished run is returned as it is. `auto` resumes from the
    newest checkpoint that is whole, or starts where there is none; `required` is ValueError where
    there is none; `never` removes what is there and starts. ValueError for settings and views that
    cannot be trained on, and for a folder that holds another run; nothing has been written then.
    NonFinite is raised before the optimizer step that would have spoilt the weights. After a stop
    signal a step is saved and SystemExit(75) is raised.
    """
    ranks = process_group.init_distributed(config.device)
    layout = RunLayout(out)
    state: TrainState | None = None
    try:
        ranks = process_group.build_mesh(ranks, config)
        loader = open_loader(
            blend,
            config,
            model_config(config),
            ranks.data_parallel.rank,
            ranks.dp,
            out=out,
            decides=ranks.rank == 0,
        )
        identity = run_identity(blend, config, loader)
        if resume == "never" and ranks.rank == 0:
            if config.init is not None:  # a source that is refused must not cost the old run
                model_files.initial_weights(config.init, model_config(config))
            disk.remove(layout.run_json)
            disk.remove(layout.log)
            for name in disk.list_names(layout.segments):
                disk.remove(disk.join(layout.segments, name))
            checkpoint.clear(out)
        process_group.barrier(ranks)
        if disk.exists(layout.run_json):
            record = read_document(layout.run_json, RunRecord)
            check_same_run(record.identity, identity, out)
            return record
        stop = StopRequest(ranks.rank)
        with console.on_stop_signal(stop), matmul_precision(config):
            started = time.perf_counter()
            config = resolve_micro_batch(config, ranks)
            state = prepare(config, out, ranks, loader, identity)
            if resume == "required":
                _require_checkpoint(state, blend)
            if ranks.rank == 0:
                for line in plan_lines(blend, loader.order.repeats(config.steps)):
                    logger.info("%s", line)
                disk.write_json(layout.blend_json, blend.document())
            target = load_target(state, blend)
            return _train(blend, state, stop, target, started)
    finally:
        if state is not None:
            state.saver.close()
        process_group.close(ranks)


def _require_checkpoint(state: TrainState, blend: Blend) -> None:
    """ValueError where a run that must be resumed begins at step 0."""
    if not state.loader.is_resumable:
        raise ValueError(
            f"blend {blend.name!r} streams tars, and such a run cannot be resumed; leave --resume "
            "out to start"
        )
    if state.first_step == 0:
        raise ValueError(
            f"{state.out} has no checkpoint to resume from; check --out, or leave --resume out to"
            " start"
        )


def _train(
    blend: Blend, state: TrainState, stop: StopRequest, target: Target | None, started: float
) -> RunRecord:
    """All steps, or those to the target, then export/ and run.json.

    `started`: time.perf_counter() before the state was prepared.
    """
    layout, ranks = RunLayout(state.out), state.ranks
    if ranks.rank == 0 and not state.loader.is_resumable:
        logger.warning(
            "this run cannot be resumed, since its tars are streams; a pool of the same tars "
            "(source: {kind: shards}) can"
        )
    ready = time.perf_counter()
    steps = _steps(state, stop, target)
    trained = time.perf_counter()
    if state.reduced_table is not None:
        factor = decay_factor(state.config, steps)
        state.reduced_table.restore(state.model.text, factor)
    process_group.barrier(ranks)
    damaged, sources = damaged_samples(state), drawn_sources(state, steps)
    with state.update.averaged():
        weights = sharded_checkpoint.gathered(state.model.state_dict(), ranks)
    if ranks.rank == 0:
        open_clip_files.save_export(state.model, layout.export, weights)
        record = RunRecord(
            blend=blend.document(),
            blend_hash=disk.content_hash(blend.document()),
            config=disk.to_plain(state.config),
            config_hash=disk.content_hash(state.config),
            identity=state.identity,
            seed=state.config.seed,
            world=ranks.world,
            device=_device_name(ranks.device),
            versions=_versions(),
            layout=ranks.layout,
            parameters=sum(parameter.numel() for parameter in state.model.parameters()),
            steps=steps,
            samples=steps * state.config.batch_size,
            resumed_at=state.first_step,
            sources=sources,
            resumable=state.loader.is_resumable,
            bad=damaged,
            samples_per_s=(steps - state.first_step) * state.config.batch_size / (trained - ready),
            peak_memory_bytes=peak_memory(ranks.device),
            seconds={
                "start": ready - started,
                "train": trained - ready,
                "whole": time.perf_counter() - started,
            },
            until=None if target is None else target.record,
        )
        disk.write_json(layout.run_json, record)
    process_group.barrier(ranks)
    return read_document(layout.run_json, RunRecord)


# --- the steps ------------------------------------------------------------------------------------


def _steps(state: TrainState, stop: StopRequest, target: Target | None) -> int:
    """Train to the last step, or to the target; the number of steps that the run then has."""
    config, first = state.config, state.first_step
    if target is not None and target.reached_after(first):
        return first
    timer = SaveTimer(config)
    batches = Feed(config, state.ranks.device).batches(state.loader.batches(first))
    with contextlib.closing(Records(state)) as records, contextlib.closing(batches):
        runner = StepRunner(state, stop, timer, records.finished)
        for step in records.bar:
            asked = time.perf_counter()
            ready = next(batches)
            runner.step(ready, time.perf_counter() - asked)
            done: int = step + 1
            last = done == config.steps
            if last or runner.stopping or runner.save_due or _due(state, target, done):
                runner.read()  # before the weights are written or evaluated
                last = (target is not None and target.reached(state, done)) or last
                if last or runner.stopping or runner.save_due or _checkpoint_due(config, done):
                    timer.saved(save(state, done))
                    runner.save_due = False
            if last or runner.stopping:
                state.saver.finish()
            if last:
                return done
            if runner.stopping:
                _exit_saved(done, state, stop)
    return config.steps


def _due(state: TrainState, target: Target | None, done: int) -> bool:
    """Whether the weights after `done` steps are written or evaluated, by the number of steps."""
    evaluates = target is not None and done % target.every == 0
    return evaluates or _checkpoint_due(state.config, done)


def _checkpoint_due(config: TrainConfig, done: int) -> bool:
    """Whether a checkpoint after `done` steps is due by the number of steps."""
    every = config.checkpoint_every
    return every != "auto" and every > 0 and done % every == 0


class Records:
    """log.jsonl and the progress bar of a run. `finished` is called with every step."""

    def __init__(self, state: TrainState) -> None:
        config, ranks, first = state.config, state.ranks, state.first_step
        self._state = state
        self._book = Logbook(
            state.out,
            config,
            state.model,
            ranks.device,
            state.loader.order.repeats,
            rank=ranks.rank,
            world=ranks.world,
            groups=GROUPS,
            first=first,
            kept=state.log_lines,
            log_to=config.log_to,
        )
        self.bar = tqdm(
            range(first, config.steps),
            initial=first,
            total=config.steps,
            unit="step",
            disable=None if ranks.rank == 0 else True,
        )

    def finished(self, launched: LaunchedStep, numbers: StepNumbers) -> None:
        """Count a step, and write its line if it has one."""
        state, config, done = self._state, self._state.config, launched.step + 1
        self._book.batch(launched.ready.batch.length_B, launched.waited)
        if done % config.log_every and done not in (1, config.steps):
            return
        norm, scale = numbers.grad_norm, numbers.logit_scale
        values: dict[str, float | None] = {
            "loss": numbers.loss,
            "accuracy": numbers.accuracy,
            "lr": learning_rate(config, launched.step),
            "grad_norm": norm if math.isfinite(norm) else None,  # fp16 skipped the step
            **state.update.log_values(),
            "logit_scale": float(state.model.logit_scale.detach()) if scale is None else scale,
        }
        text = progress_text(self._book.line(done, values))
        self.bar.set_postfix_str(text)
        if self.bar.disable and state.ranks.rank == 0:
            logger.info("step %d of %d: %s", done, config.steps, text)

    def close(self) -> None:
        """Close TensorBoard and W&B."""
        self._book.close()


def _exit_saved(step: int, state: TrainState, stop: StopRequest) -> None:
    reason = "a signal to another rank" if stop.number is None else console.signal_name(stop.number)
    logger.warning(
        "stopped by %s after step %d of %d; it is saved, and %s",
        reason,
        step,
        state.config.steps,
        "the same command resumes it"
        if state.loader.is_resumable
        else "cannot be resumed, since its tars are streams",
    )
    raise SystemExit(console.EXIT_SAVED)


# --- what is written ------------------------------------------------------------------------------


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} processor, {torch.get_num_threads()} threads"


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
