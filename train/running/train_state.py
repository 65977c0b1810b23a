"""What a run holds while it trains: built from the settings, restored from a checkpoint, saved to
one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manifests import console, disk
from manifests.documents import CheckpointRecord, DamagedSamples
from train.config import TrainConfig, model_config
from train.data import Batch, DamageCounts, DamagedSample, too_many_damaged
from train.dist import Ranks, Saver, checkpoint, parallelize, process_group, sharded_checkpoint
from train.formats import model_files, open_clip_files
from train.model import CLIP, ReducedTokenTable, lock_tower
from train.running.identity import check_same_run
from train.running.logbook import kept_lines
from train.running.mix import RunLoader
from train.step import Update, decay_factor, parameter_groups
from train.streams import sum_counts

TABLE_ROWS = 1_000_000  # a blend of more rows is not read through for the tokens that it uses
MOST_WAITING = 0.01  # share of the time that training may wait for automatic checkpoints
NO_DAMAGE = DamagedSamples(count=0, samples=())
logger = logging.getLogger(__name__)


class StopRequest:
    """Set by a stop signal: the run is saved after the step that is under way."""

    def __init__(self, rank: int) -> None:
        self.number: int | None = None
        self._rank = rank

    def __call__(self, number: int) -> None:
        """The signal handler. It uses os.write, because a logger may be interrupted in the middle
        of a line.
        """
        self.number = number
        if self._rank == 0:
            name = console.signal_name(number)
            text = f"\n{name}: saving after this step; a second one ends at once\n"
            with contextlib.suppress(OSError):  # the terminal may be gone
                os.write(2, text.encode())


class SaveTimer:
    """Says when the next checkpoint is due by time, where `checkpoint_every` is `auto`.

    Checkpoints that hold up training for long (a slow store) become rarer, so that it waits for
    them at most 1 % of the time. Rank 0's answer counts.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._automatic = config.checkpoint_every == "auto"
        self._shortest = self._interval = config.checkpoint_seconds
        self._saved = time.monotonic()

    def due(self) -> bool:
        """Whether the interval since the last checkpoint has passed."""
        return self._automatic and time.monotonic() - self._saved >= self._interval

    def saved(self, waited: float) -> None:
        """A checkpoint has been taken now; training waited `waited` seconds for it."""
        self._saved = time.monotonic()
        self._interval = max(self._shortest, waited / MOST_WAITING)


@dataclass(slots=True, kw_only=True)
class TrainState:
    """Everything that the training loop reads and changes."""

    config: TrainConfig
    out: str
    ranks: Ranks
    loader: RunLoader
    model: CLIP
    wrapped: nn.Module  # what forward is called on: DDP's module, or the model
    # Tokens that the blend contains; None where they were not looked for
    used_tokens: Tensor | None
    reduced_table: ReducedTokenTable | None
    update: Update
    saver: Saver
    identity: dict[str, Any]
    first_step: int = 0  # steps that the checkpoint had done
    damaged_before: DamagedSamples = NO_DAMAGE  # up to first_step
    damaged: int = 0  # damaged samples of all ranks since the run began
    damage: DamageCounts = field(default_factory=DamageCounts)  # of this rank, since first_step
    last_damaged: DamagedSample | None = None
    log_lines: tuple[str, ...] = ()  # lines of log.jsonl up to first_step


def prepare(
    config: TrainConfig, out: str, ranks: Ranks, loader: RunLoader, identity: dict[str, Any]
) -> TrainState:
    """Build model and optimizer, from the newest checkpoint of RUN or from `init`. A collective.

    ValueError where the checkpoint is another run's, or `init` is another architecture.
    """
    if ranks.rank == 0:
        checkpoint.clean(out)
    saved = sharded_checkpoint.newest(out, ranks)
    model = CLIP(model_config(config), config.seed, attention=config.attention)
    if saved is not None and not loader.is_resumable:
        raise ValueError(
            f"{out} has a checkpoint after step {saved.step}, but its blend streams tars, and such "
            "a run cannot be resumed; --restart trains it anew, another --out keeps the checkpoint"
        )
    if saved is not None:
        identity = check_same_run(saved.record.identity, identity, out)
        if ranks.rank == 0:  # a kill between a save and this would leave one more
            checkpoint.prune(out, saved.step, config.keep_checkpoints)
    elif config.init is not None:
        identity = {**identity, "initial_weights": load_initial_weights(model, config.init)}
        logger.info("weights from %s, sha256 %s", config.init, identity["initial_weights"][:12])
    used_tokens = tokens_of_blend(loader)
    parallelize(model, ranks, config)
    lock_towers(model, config)
    reduced_table = None
    if used_tokens is not None and _may_reduce(used_tokens, config, ranks):
        reduced_table = ReducedTokenTable(model.text, used_tokens)
    update = Update(model, config, masters=not ranks.fsdp)
    if ranks.rank == 0:
        for group in parameter_groups(model, config):
            logger.info("%s", group)
    state = TrainState(
        config=config,
        out=out,
        ranks=ranks,
        loader=loader,
        model=model,
        wrapped=process_group.apply_ddp(model, ranks),
        used_tokens=used_tokens,
        reduced_table=reduced_table,
        update=update,
        saver=Saver(out, ranks, config.keep_checkpoints),
        identity=identity,
    )
    if saved is not None:
        _restore(state, saved)
    return state


def load_initial_weights(model: CLIP, source: str) -> str:
    """Put the weights of a source into `model`, before it is sharded. Their sha256."""
    weights = model_files.initial_weights(source, model.config)
    model.load_state_dict({**model.state_dict(), **weights})  # a logit bias may be missing there
    return model_files.weights_sha256(weights)


def lock_towers(model: CLIP, config: TrainConfig) -> None:
    """Lock what the settings say. It follows tensor parallelism, which makes new parameters."""
    if config.lock_image:
        layers = model.config.vision_layers
        lock_tower(model.visual, layers, config.lock_image_unlocked_groups)
    if config.lock_text:
        lock_tower(model.text, model.config.text_layers, config.lock_text_unlocked_layers)


def _may_reduce(used_tokens: Tensor, config: TrainConfig, ranks: Ranks) -> bool:
    """Whether training on a reduced token table is worth it, and ends with the weights of the whole
    table.

    Unused rows must only decay: an average, 16-bit weights and skipped steps do something else to
    them. After `init` they are not those that the seed draws, so that a resumed run would have to
    read `init` again.
    """
    plain = config.ema is None and config.precision in ("fp32", "tf32", "bf16")
    small = len(used_tokens) <= model_config(config).vocab_size // 2
    return plain and small and ranks.mesh is None and config.init is None


def tokens_of_blend(loader: RunLoader) -> Tensor | None:
    """Every token of a small blend's kept rows and 0, the padding (int64, rising); None for a large
    blend, and where the rows are not known yet.
    """
    if loader.is_live or not loader.is_resumable:
        return None
    if sum(int(view.shard_rows.sum()) for view in loader.views) > TABLE_ROWS:
        return None
    tokens = [np.zeros(1, np.uint16)]
    for view in loader.views:
        tokens += [view.shard(number).used_tokens() for number in range(len(view.shards))]
    return torch.from_numpy(np.unique(np.concatenate(tokens)).astype(np.int64))


def _restore(state: TrainState, saved: checkpoint.Checkpoint) -> None:
    sharded_checkpoint.restore(saved, state.model, state.update, state.used_tokens, state.ranks)
    state.first_step = saved.step
    state.log_lines = tuple(kept_lines(state.out, saved.step))
    if saved.record.bad is not None:
        state.damaged_before = saved.record.bad
        state.damaged = saved.record.bad.count
    logger.info("resumed after step %d of %d", saved.step, state.config.steps)


def save(state: TrainState, step: int) -> float:
    """Begin to write the checkpoint of `step`. The seconds that training waited. A collective."""
    record = CheckpointRecord(
        step=step,
        identity=state.identity,
        order=state.loader.order.fingerprint(),
        config_hash=disk.content_hash(state.config),
        sha256={},
        bad=damaged_samples(state),
    )
    weights: dict[str, Tensor] = {}
    if state.ranks.mesh is not None:
        weights = state.model.state_dict()
    elif state.ranks.rank == 0:
        weights = open_clip_files.to_open_clip(state.model)
        if state.reduced_table is not None:
            factor = decay_factor(state.config, step)
            table = state.reduced_table.full_table(state.model.text, factor)
            weights["token_embedding.weight"] = table
    return state.saver.save(weights, state.update.state(), record)


def count_damage(state: TrainState, batch: Batch, mean_damaged: float) -> None:
    """Count what was damaged in a batch: on this rank, and as the mean over the ranks."""
    # Ranks of a tensor-parallel group read the same samples: the sum is over dp ranks.
    state.damaged += round(mean_damaged * state.ranks.dp)
    state.damage.add(len(batch.length_B), batch.damaged_samples)
    if batch.damaged_samples:
        state.last_damaged = batch.damaged_samples[-1]


def damaged_samples(state: TrainState) -> DamagedSamples:
    """Damaged samples of all ranks, with those before every resume. A collective."""
    ranks = state.ranks
    parts = [DamageCounts.from_plain({**disk.to_plain(state.damaged_before), "drawn": 0})]
    every_rank = process_group.all_gather_json(state.damage.to_plain(), ranks)
    # Ranks of a tensor-parallel group read the same samples.
    parts += [DamageCounts.from_plain(plain) for plain in every_rank[:: ranks.tp]]
    total = DamageCounts.merge(parts)
    return DamagedSamples(count=total.count, samples=tuple(disk.to_plain(total.samples)))


def drawn_sources(state: TrainState, steps: int) -> dict[str, dict[str, Any]]:
    """What the run drew from each source; of streams, what all ranks read. A collective."""
    sources = state.loader.sources(steps)
    if state.loader.is_resumable:
        return sources
    every_rank = process_group.all_gather_json(sources, state.ranks)[:: state.ranks.tp]
    for name, source in sources.items():
        source |= sum_counts([of_rank[name] for of_rank in every_rank])
    return sources


def refuse_damage(state: TrainState, step: int) -> None:
    """ValueError where too many samples up to and including `step` are damaged. A collective.

    `state.damaged` is the count of all ranks; one sample at least is of this start of the run. The
    message names the last of them, so it is the same for any number of ranks.
    """
    drawn = (step + 1) * state.config.batch_size
    if not too_many_damaged(state.damaged, drawn):
        return
    state.saver.finish()
    own = disk.to_plain(state.last_damaged)
    gathered = process_group.all_gather_json(own, state.ranks)
    samples = [DamagedSample(**plain) for plain in gathered if plain is not None]
    last = max(samples, key=lambda sample: (sample.step, sample.position))
    raise ValueError(
        f"{state.damaged} of {drawn:,} samples cannot be used, more than 1 in 1,000; the last is "
        f"key {last.key} of shard {last.shard} of {last.source}: {last.reason}; "
        f"{state.loader.remedy(last.source)}"
    )
