"""Train a CLIP on a blend: `train(blend, config, out)` writes RUN/, resumes by itself, and repeats
to the bit.

A run is a function of its settings and the views' content. If it is killed at any step and started
again, it ends with the same weights bit for bit (on a CPU, in fp32, with the same number of
threads). run.json is written last: the run is finished.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import platform
import time
from collections.abc import Generator
from typing import cast

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from manifests import console, disk
from manifests.documents import RunRecord, read_document
from manifests.run_layout import RunLayout
from manifests.schema import Blend
from train.capacity import resolve_micro_batch
from train.config import TrainConfig, model_config
from train.data import Batch, Loader, normalise
from train.dist import checkpoint, process_group, sharded_checkpoint
from train.formats import model_files, open_clip_files
from train.identity import check_same_run, run_identity
from train.logbook import Logbook, peak_memory, progress_text
from train.model import GroupedCaptions, PackedCaptions, group_by_length, pack_captions, to_device
from train.nonfinite import report_nonfinite
from train.step import (
    accumulate,
    contrastive,
    decay_factor,
    learning_rate,
    matmul_precision,
    precision_context,
)
from train.train_state import (
    StopRequest,
    TrainState,
    damaged_samples,
    prepare,
    refuse_damage,
    save,
)
from train.until import Target, load_target

GROUPS = 4  # buckets of caption lengths, where captions are grouped
logger = logging.getLogger(__name__)


def train(blend: Blend, config: TrainConfig, out: str, *, resume: bool = True) -> RunRecord:
    """Train and write RUN/: blend.json, log.jsonl, checkpoints/, export/, and run.json at the end.

    Returns the record of run.json. A finished run is returned as it is; with `resume=False` it is
    trained anew. ValueError for settings and views that cannot be trained on, and for a folder that
    holds another run; nothing has been written then. NonFinite is raised before the optimizer step
    that would have spoilt the weights. After SIGTERM or SIGINT the current step is saved and
    SystemExit(75) is raised.
    """
    ranks = process_group.init_distributed(config.device)
    layout = RunLayout(out)
    try:
        ranks = process_group.build_mesh(ranks, config)
        loader = Loader(blend, config, model_config(config), ranks.data_parallel.rank, ranks.dp)
        identity = run_identity(blend, config, loader)
        if not resume and ranks.rank == 0:
            if config.init is not None:  # a source that is refused must not cost the old run
                model_files.initial_weights(config.init, model_config(config))
            disk.remove(layout.run_json)
            disk.remove(layout.log)
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
            if ranks.rank == 0:
                disk.write_json(layout.blend_json, blend)
            target = load_target(state, blend)
            return _train(blend, state, stop, target, started)
    finally:
        process_group.close(ranks)


def _train(
    blend: Blend, state: TrainState, stop: StopRequest, target: Target | None, started: float
) -> RunRecord:
    """All steps, or those to the target, then export/ and run.json.

    `started`: time.perf_counter() before the state was prepared.
    """
    layout, ranks = RunLayout(state.out), state.ranks
    ready = time.perf_counter()
    steps = _steps(state, stop, target)
    trained = time.perf_counter()
    if state.reduced_table is not None:
        factor = decay_factor(state.config, steps)
        state.reduced_table.restore(state.model.text, factor)
    process_group.barrier(ranks)
    damaged = damaged_samples(state)
    with state.update.averaged():
        weights = sharded_checkpoint.gathered(state.model.state_dict(), ranks)
    if ranks.rank == 0:
        open_clip_files.save_export(state.model, layout.export, weights)
        record = RunRecord(
            blend=disk.to_plain(blend),
            blend_hash=disk.content_hash(blend),
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
            sources=state.loader.sources(steps),
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
    config, ranks, first = state.config, state.ranks, state.first_step
    if target is not None and target.reached_after(first):
        return first
    book = Logbook(
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
    bar = tqdm(
        range(first, config.steps),
        initial=first,
        total=config.steps,
        unit="step",
        disable=None if ranks.rank == 0 else True,
    )
    with (
        contextlib.closing(book),
        contextlib.closing(cast("Generator[Batch]", state.loader.batches(first))) as batches,
    ):
        for step in bar:
            asked = time.perf_counter()
            batch = next(batches)
            book.batch(batch.length_B, time.perf_counter() - asked)
            loss, accuracy, norm, stopping = _step(state, batch, stop)
            done: int = step + 1
            if done % config.log_every == 0 or done in (1, config.steps):
                values: dict[str, float | None] = {
                    "loss": loss,
                    "accuracy": accuracy,
                    "lr": learning_rate(config, step),
                    "grad_norm": norm if math.isfinite(norm) else None,  # fp16 skipped the step
                }
                text = progress_text(book.line(done, {**values, **state.update.log_values()}))
                bar.set_postfix_str(text)
                if bar.disable and ranks.rank == 0:
                    logger.info("step %d of %d: %s", done, config.steps, text)
            reached = target is not None and target.reached(state, done)
            last = reached or done == config.steps
            due = config.checkpoint_every > 0 and done % config.checkpoint_every == 0
            if due or stopping or last:
                save(state, done)
            if state.saver is not None and (stopping or last):
                state.saver.finish()
            if last:
                return done
            if stopping:
                _exit_saved(done, config.steps, stop)
    return config.steps


def _exit_saved(step: int, steps: int, stop: StopRequest) -> None:
    reason = "a signal to another rank" if stop.number is None else console.signal_name(stop.number)
    logger.warning(
        "stopped by %s after step %d of %d; it is saved, and the same command resumes it",
        reason,
        step,
        steps,
    )
    raise SystemExit(console.EXIT_SAVED)


def _step(state: TrainState, batch: Batch, stop: StopRequest) -> tuple[float, float, float, bool]:
    """One optimizer step: the loss, the batch's accuracy, the norm of the gradients, and whether a
    rank shall stop.
    """
    config, device, model = state.config, state.ranks.device, state.model
    assert config.micro_batch != "auto"
    tokens_BT = batch.tokens_BT[:, : int(batch.length_B.max())]
    first_row = state.ranks.data_parallel.rank * len(tokens_BT)  # of this rank, in the global batch

    def rows_on_device(rows: slice) -> tuple[Tensor, Tensor | PackedCaptions | GroupedCaptions]:
        positions = torch.arange(first_row + rows.start, first_row + rows.stop)
        model.reseed(config.seed, batch.step, positions)
        image_BHWC = batch.image_BHWC[rows].to(device, non_blocking=True)
        image_BCHW = normalise(image_BHWC, model.config.image_mean, model.config.image_std)
        tokens = _captions(config, tokens_BT[rows], batch.length_B[rows])
        return image_BCHW, to_device(tokens, device)

    loss_of = functools.partial(
        contrastive,
        config.loss,
        data_parallel=state.ranks.data_parallel,
        local_loss=config.local_loss,
        gather_with_grad=config.gather_with_grad,
        tile=config.loss_tile,
    )
    result = accumulate.backward(
        state.wrapped,
        rows_on_device,
        len(tokens_BT),
        loss_of,
        micro_batch=config.micro_batch,
        precision=lambda: precision_context(config, device),
        loss_scale=state.update.loss_scale(),
    )
    norm = state.update.grad_norm()
    # torch.full fills on the device: nothing is copied from the host.
    stopping = torch.full((), float(stop.number is not None), device=device)
    damaged = torch.full((), float(batch.damaged), device=device)
    values = torch.stack([result.loss.float(), result.accuracy, norm.float(), stopping, damaged])
    loss, accuracy, mean_norm, any_stopping, mean_damaged = process_group.mean(values, state.ranks)
    # Ranks of a tensor-parallel group read the same samples: the sum is over dp ranks.
    state.damaged += round(mean_damaged * state.ranks.dp)
    if mean_damaged > 0:
        refuse_damage(state, batch.step)
    finite = math.isfinite(loss) and math.isfinite(mean_norm)
    if finite:
        state.update.step(batch.step, learning_rate(config, batch.step), norm)
    elif math.isfinite(loss) and state.update.may_skip():
        state.update.skip()
    else:
        features = {"image": result.image_bE, "text": result.text_bE}
        error = report_nonfinite(state.out, state.ranks, model, batch, loss, mean_norm, features)
        if state.saver is not None:
            state.saver.finish()
        raise error
    return loss, accuracy, mean_norm, any_stopping > 0


def _captions(
    config: TrainConfig, tokens_BT: Tensor, length_B: Tensor
) -> Tensor | PackedCaptions | GroupedCaptions:
    if config.captions == "packed":
        return pack_captions(tokens_BT, length_B)
    if config.captions == "groups":
        return group_by_length(tokens_BT, GROUPS, length_B)
    return tokens_BT


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
