"""Train a CLIP on a blend: `train(blend, config, out)` writes RUN/, resumes by itself, and repeats to the bit.

A run is a function of its settings and the views' content. Killed at any step and started again, it ends with the same
weights bit for bit (on a processor, in 32 bits, with as many threads); run.json comes last and says that it is whole.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import platform
import signal
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from manifests import disk
from manifests.schema import Blend
from train.config import TrainConfig, model_config
from train.data import Batch, Loader, normalise
from train.dist import Ranks, checkpoint, parallelize, process_group, sharded_checkpoint
from train.formats import open_clip_files
from train.identity import check_same_run, run_identity
from train.logbook import Logbook, kept_lines, peak_memory, said
from train.model import (
    CLIP,
    GroupedCaptions,
    PackedCaptions,
    ReducedTokenTable,
    group_by_length,
    pack_captions,
    to_device,
)
from train.step import (
    Update,
    accumulate,
    contrastive,
    decay_factor,
    learning_rate,
    matmul_precision,
    parameter_groups,
    precision_context,
)

STOPPED = 75  # exit status after SIGTERM: saved, start again to go on
TABLE_ROWS = (
    1_000_000  # a blend of at most so many rows is read through for the tokens that it uses
)
GROUPS = 4  # of captions by length, where these are not packed
logger = logging.getLogger(__name__)


class NonFinite(RuntimeError):
    """A loss or gradient that is no number. No weight was touched; RUN/nonfinite-RANK.json says where it was met."""


@dataclass(slots=True, kw_only=True)
class TrainState:
    """What a run holds while it trains."""

    config: TrainConfig
    out: str
    ranks: Ranks
    loader: Loader
    model: CLIP
    wrapped: nn.Module
    used: Tensor | None  # the tokens that the run reads, where they have been looked for
    tokens: ReducedTokenTable | None
    update: Update
    saver: sharded_checkpoint.Saver | None  # of a sharded run
    identity: dict[str, Any]
    log: list[str]  # lines of log.jsonl that a run that goes on keeps
    stop: threading.Event  # set by SIGTERM


def train(blend: Blend, config: TrainConfig, out: str, *, resume: bool = True) -> dict[str, Any]:
    """Train and write RUN/ (log.jsonl, checkpoints/, export/, then run.json, which is returned).

    A run that is whole already is returned as it is; with `resume=False` it is trained anew. ValueError for settings
    and views that cannot be trained on, and for a folder that holds another run. NonFinite stops before the step that
    would have spoilt the weights. After SIGTERM the next step is saved and SystemExit(75) raised.
    """
    ranks = process_group.init_distributed(config.device)
    try:
        ranks = process_group.build_mesh(ranks, config)
        loader = Loader(blend, config, model_config(config), ranks.data_parallel.rank, ranks.dp)
        identity = run_identity(blend, config, loader)
        if not resume and ranks.rank == 0:
            disk.remove(disk.join(out, "run.json"))
            disk.remove(disk.join(out, "log.jsonl"))
            checkpoint.clear(out)
        process_group.barrier(ranks)
        if disk.exists(disk.join(out, "run.json")):
            done: dict[str, Any] = disk.read_json(disk.join(out, "run.json"))
            check_same_run(done["identity"], identity, out)
            return done
        with _on_sigterm() as stop, matmul_precision(config):
            return _train(blend, config, out, ranks, loader, identity, stop)
    finally:
        process_group.close(ranks)


def _train(
    blend: Blend,
    config: TrainConfig,
    out: str,
    ranks: Ranks,
    loader: Loader,
    identity: dict[str, Any],
    stop: threading.Event,
) -> dict[str, Any]:
    began = time.perf_counter()
    state = _prepare(config, out, ranks, loader, identity, stop)
    first = _resume(state)
    ready = time.perf_counter()
    _steps(state, first)
    trained = time.perf_counter()
    if state.tokens is not None:
        state.tokens.restore(state.model.text, decay_factor(config, config.steps))
    process_group.barrier(ranks)
    samples = (config.steps - first) * config.batch_size
    done = {
        "blend": disk.to_plain(blend),
        "blend_hash": disk.content_hash(blend),
        "config": disk.to_plain(config),
        "config_hash": disk.content_hash(config),
        "identity": identity,
        "seed": config.seed,
        "world": ranks.world,
        "device": _device_name(ranks.device),
        "versions": _versions(),
        "layout": {name: getattr(ranks, name) for name in ("dp_replicate", "dp_shard", "tp")},
        "parameters": sum(p.numel() for p in state.model.parameters()),
        "steps": config.steps,
        "samples": config.steps * config.batch_size,
        "resumed_at": first,
        "sources": loader.sources(),
        "bad": {"count": loader.damage.count, "samples": disk.to_plain(loader.damage.samples)},
        "samples_per_s": samples / (trained - ready),
        "peak_memory_bytes": peak_memory(ranks.device),
    }
    with state.update.averaged():
        weights = sharded_checkpoint.gathered(state.model.state_dict(), ranks)
    if ranks.rank == 0:
        open_clip_files.save_export(state.model, disk.join(out, "export"), weights)
        whole = time.perf_counter() - began
        done["seconds"] = {"start": ready - began, "train": trained - ready, "whole": whole}
        disk.write_json(disk.join(out, "run.json"), done)
    process_group.barrier(ranks)
    finished: dict[str, Any] = disk.read_json(disk.join(out, "run.json"))
    return finished


# --- the steps -----------------------------------------------------------------------------------------------------


def _steps(state: TrainState, first: int) -> None:
    config = state.config
    steps = range(first, config.steps)
    book = Logbook(
        state.out,
        config,
        state.model,
        state.ranks.device,
        state.loader.order.repeats,
        rank=state.ranks.rank,
        world=state.ranks.world,
        groups=GROUPS,
        first=first,
        kept=state.log,
        log_to=config.log_to,
    )
    bar = tqdm(
        steps,
        initial=first,
        total=config.steps,
        unit="step",
        disable=None if state.ranks.rank == 0 else True,
    )
    with (
        contextlib.closing(book),
        contextlib.closing(cast("Generator[Batch]", state.loader.batches(first))) as batches,
    ):
        for step in bar:
            asked = time.perf_counter()
            batch = next(batches)
            book.batch(batch.length_B, time.perf_counter() - asked)
            lr = learning_rate(config, step)
            loss, accuracy, norm, stop = _step(state, batch, lr)
            done = step + 1
            if done % config.log_every == 0 or done in (1, config.steps):
                numbers: dict[str, float | None] = {"loss": loss, "accuracy": accuracy, "lr": lr}
                numbers["grad_norm"] = (
                    norm if math.isfinite(norm) else None
                )  # of a step that fp16 skipped
                words = said(book.line(done, {**numbers, **state.update.log_values()}))
                bar.set_postfix_str(words)
                if bar.disable and state.ranks.rank == 0:
                    logger.info("step %d of %d: %s", done, config.steps, words)
            due = config.checkpoint_every > 0 and done % config.checkpoint_every == 0
            if due or stop or done == config.steps:
                _save(state, done)
            if state.saver is not None and (stop or done == config.steps):
                state.saver.finish()
            if stop and done < config.steps:
                logger.warning(
                    "stopped by SIGTERM after step %d of %d; it is saved", done, config.steps
                )
                raise SystemExit(STOPPED)


def _step(state: TrainState, batch: Batch, lr: float) -> tuple[float, float, float, bool]:
    """One optimizer step: the loss, the batch's accuracy, the norm of the gradients and whether to stop."""
    config, device = state.config, state.ranks.device
    tokens_BT = batch.tokens_BT[:, : int(batch.length_B.max())]
    first = state.ranks.data_parallel.rank * len(
        tokens_BT
    )  # of this rank's rows in the global batch

    def take(rows: slice) -> tuple[Tensor, Tensor | PackedCaptions | GroupedCaptions]:
        state.model.reseed(
            config.seed, batch.step, torch.arange(first + rows.start, first + rows.stop)
        )
        image_BHWC = batch.image_BHWC[rows].to(device, non_blocking=True)
        image_BCHW = normalise(
            image_BHWC, state.model.config.image_mean, state.model.config.image_std
        )
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
    found = accumulate.backward(
        state.wrapped,
        take,
        len(tokens_BT),
        loss_of,
        micro_batch=config.micro_batch,
        precision=lambda: precision_context(config, device),
        loss_scale=state.update.loss_scale(),
    )
    norm = state.update.grad_norm()
    stop = torch.full((), float(state.stop.is_set()), device=device)  # a fill: nothing is copied
    values = process_group.mean(
        torch.stack([found.loss.float(), found.accuracy, norm.float(), stop]), state.ranks
    )
    overflow = math.isfinite(values[0]) and not math.isfinite(values[2]) and state.update.may_skip()
    if not overflow and not (math.isfinite(values[0]) and math.isfinite(values[2])):
        _refuse(state, batch, values, {"image": found.image_bE, "text": found.text_bE})
    if overflow:
        state.update.skip()
    else:
        state.update.step(batch.step, lr, norm)
    return values[0], values[1], values[2], values[3] > 0


def _captions(
    config: TrainConfig, tokens_BT: Tensor, length_B: Tensor
) -> Tensor | PackedCaptions | GroupedCaptions:
    if config.captions == "packed":
        return pack_captions(tokens_BT, length_B)
    return (
        group_by_length(tokens_BT, GROUPS, length_B) if config.captions == "groups" else tokens_BT
    )


def _refuse(
    state: TrainState, batch: Batch, values: list[float], features: dict[str, Tensor]
) -> None:
    """Write down where a number ended that is none, and raise NonFinite, on every rank. Nothing has been stepped."""
    tensors: list[str] = []
    rows: set[int] = set()
    for tower, feature_bE in features.items():
        found = (~torch.isfinite(feature_bE).all(dim=1)).nonzero().flatten().tolist()
        tensors += [f"{tower} features"] if found else []
        rows |= set(found)
    grads = [
        (name, sharded_checkpoint.local(p.grad))
        for name, p in state.model.named_parameters()
        if p.grad is not None
    ]
    tensors += [f"gradient of {name}" for name, grad in grads if not torch.isfinite(grad).all()]
    keys = [batch.keys[r] for r in sorted(rows)] or list(batch.keys)
    shards = sorted({key[:-4] for key in keys})  # POOL/VIEW:SHARD
    step, rank = batch.step + 1, state.ranks.rank
    about = {
        "step": step,
        "rank": rank,
        "loss": str(values[0]),
        "grad_norm": str(values[2]),
        "tensors": tensors,
    }
    disk.write_json(
        disk.join(state.out, f"nonfinite-{rank}.json"), {**about, "shards": shards, "keys": keys}
    )
    # Features are a rank's own; the loss and the gradients have passed what one of them holds on to all.
    first = next(
        (k for k, bad in enumerate(process_group.all_gather_int(len(rows), state.ranks)) if bad),
        rank,
    )
    where = f"first in {(tensors or ['?'])[0]} on rank {rank}"
    where += f"; {len(keys)} samples, the first is {keys[0]} of shard {shards[0]}"
    if state.saver is not None:
        state.saver.finish()
    raise NonFinite(
        f"step {step}: the loss is {values[0]} and the gradients' norm {values[2]};"
        f" {where if first == rank else f'first on rank {first}'}. Nothing was stepped;"
        f" see {disk.join(state.out, f'nonfinite-{first}.json')}"
    )


# --- start and resume ----------------------------------------------------------------------------------------------


def _prepare(
    config: TrainConfig,
    out: str,
    ranks: Ranks,
    loader: Loader,
    identity: dict[str, Any],
    stop: threading.Event,
) -> TrainState:
    saver = None if ranks.mesh is None else sharded_checkpoint.Saver(out, ranks)
    model = CLIP(model_config(config), config.seed, attention=config.attention)
    found = used_tokens(loader)
    used = None if found is None else torch.from_numpy(found)
    # An average, 16-bit weights and steps that are skipped make something else of unused rows than plain decay.
    plain = (
        config.ema is None and config.precision in ("fp32", "tf32", "bf16") and ranks.mesh is None
    )
    narrow = used is not None and plain and len(used) <= model.config.vocab_size // 2
    parallelize(model, ranks, config)
    tokens = ReducedTokenTable(model.text, used) if used is not None and narrow else None
    update = Update(model, config, masters=not ranks.fsdp)
    for group in parameter_groups(model, config) if ranks.rank == 0 else ():
        logger.info("%s", group)
    return TrainState(
        config=config,
        out=out,
        ranks=ranks,
        loader=loader,
        model=model,
        wrapped=process_group.apply_ddp(model, ranks),
        used=used,
        tokens=tokens,
        update=update,
        saver=saver,
        identity=identity,
        log=[],
        stop=stop,
    )


def used_tokens(loader: Loader) -> np.ndarray | None:
    """Every token of a small blend's kept rows and 0, the padding; None where it is too large to be read through."""
    if sum(sum(view.shard_rows) for view in loader.views) > TABLE_ROWS:
        return None
    found = [
        np.unique(view.shard(number).tokens)
        for view in loader.views
        for number in range(len(view.shards))
    ]
    return np.unique(np.concatenate([np.zeros(1, np.uint16), *found])).astype(np.int64)


def _resume(state: TrainState) -> int:
    """Put the newest whole checkpoint back; the number of steps it had done (0 where there is none)."""
    if state.ranks.rank == 0:
        checkpoint.clean(state.out)
    found = sharded_checkpoint.newest(state.out, state.ranks)
    if found is None:
        return 0
    check_same_run(found.state["identity"], state.identity, state.out)
    sharded_checkpoint.restore(found, state.model, state.update, state.used, state.ranks)
    state.log = kept_lines(state.out, found.step)
    logger.info("resumed after step %d of %d", found.step, state.config.steps)
    return found.step


def _save(state: TrainState, step: int) -> None:
    """Write the checkpoint of `step`: from rank 0 while the others wait, or in shards beside the training."""
    about = {
        "identity": state.identity,
        "order": state.loader.order.fingerprint(),
        "config_hash": disk.content_hash(state.config),
    }
    if state.saver is not None:
        state.saver.save(step, state.model.state_dict(), state.update.state(), about)
        return
    if state.ranks.rank == 0:
        weights = open_clip_files.to_open_clip(state.model)
        if state.tokens is not None:
            table = state.tokens.full_table(state.model.text, decay_factor(state.config, step))
            weights["token_embedding.weight"] = table.cpu()
        checkpoint.save(state.out, step, weights, state.update.state(), about)
    process_group.barrier(state.ranks)


@contextlib.contextmanager
def _on_sigterm() -> Iterator[threading.Event]:
    """An event that SIGTERM sets while the block runs. Only a main thread may ask for that; others never stop."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


# --- what is written -----------------------------------------------------------------------------------------------


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
