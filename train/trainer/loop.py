"""Train a CLIP on a blend: state, steps, checkpoints, the loop."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from clipmill.manifests import console, disk, waits
from clipmill.manifests.folder_lock import FolderInUse, locked_folder
from clipmill.manifests.layout import RunLayout
from clipmill.manifests.records import (
    CheckpointRecord,
    DamagedSamples,
    RunIdentity,
    RunRecord,
    read_document,
)
from clipmill.manifests.schema import Blend
from clipmill.train.config import TrainConfig, model_config, trained_groups
from clipmill.train.data.blends import plan_lines
from clipmill.train.data.damage import DamageCounts, DamagedSample, sum_damage, too_many_damaged
from clipmill.train.data.loader import RunBatch, RunLoader
from clipmill.train.data.tar_streams import sum_counts
from clipmill.train.formats import model_files, open_clip_files
from clipmill.train.identity import check_same_run, run_identity
from clipmill.train.model.clip import CLIP, ReducedTokenTable, lock_tower
from clipmill.train.model.open_clip_model import AnyModel, OpenClipModel, build_model
from clipmill.train.parallel import checkpoint, process_group
from clipmill.train.parallel.checkpoint import Saver
from clipmill.train.parallel.parallelism import parallelize
from clipmill.train.parallel.process_group import Ranks
from clipmill.train.sizing.device_fit import resolve_micro_batch
from clipmill.train.step import accumulate
from clipmill.train.step.feed import Captions, Feed, ReadyBatch
from clipmill.train.step.loss import contrastive
from clipmill.train.step.update import (
    Update,
    decay_factor,
    learning_rate,
    matmul_precision,
    parameter_groups,
    precision_context,
)
from clipmill.train.trainer.logbook import Logbook, kept_lines, peak_memory, progress_text
from clipmill.train.trainer.watch import BATCH, LATER_S, SAVE, STEP, Watch
from clipmill.train.transforms import normalise

# --------------------------------------------------------------------------------------------------
# A loss or gradient that is NaN or infinite: a report of where it appeared, and the error that
# ends the run.


class NonFinite(RuntimeError):
    """A loss or gradient is NaN or infinite. The optimizer was not stepped; RUN/nonfinite-RANK.json
    has the details.
    """


def report_nonfinite(
    out: str,
    ranks: Ranks,
    model: AnyModel,
    batch: RunBatch,
    loss: float,
    grad_norm: float,
    features: Mapping[str, Tensor],
) -> NonFinite:
    """Write RUN/nonfinite-RANK.json on every rank; the error to raise. A collective: every rank
    calls it.

    `features` has the image and text features (BE) of this rank's rows, by tower.
    """
    layout, step = RunLayout(out), batch.step + 1
    damaged_rows, tensors = _nonfinite_features(features)
    tensors += _nonfinite_gradients(model)
    keys = [batch.keys[row] for row in sorted(damaged_rows)] or list(batch.keys)
    # A key is POOL/VIEW:SHARD and four digits of the row
    shards = sorted({key[:-4] for key in keys})
    report: dict[str, object] = {
        "step": step,
        "rank": ranks.rank,
        "loss": str(loss),
        "grad_norm": str(grad_norm),
        "tensors": tensors,
        "shards": shards,
        "keys": keys,
    }
    disk.write_json(layout.nonfinite_json(ranks.rank), report)
    # Loss and gradients are all-reduced, so one rank's NaN reaches all. Features are not: they name
    # the rank.
    source_rank = ranks.rank
    for rank, count in enumerate(process_group.all_gather_int(len(damaged_rows), ranks)):
        if count:
            source_rank = rank
            break
    where = f"first on rank {source_rank}"
    if source_rank == ranks.rank:
        where = f"first in {(tensors or ['?'])[0]} on rank {ranks.rank}"
        where += f"; {len(keys)} samples, the first is {keys[0]} of shard {shards[0]}"
    return NonFinite(
        f"step {step}: the loss is {loss} and the gradients' norm {grad_norm}; {where}."
        f" The optimizer was not stepped; see {layout.nonfinite_json(source_rank)}"
    )


def _nonfinite_features(features: Mapping[str, Tensor]) -> tuple[set[int], list[str]]:
    """Rows with a non-finite feature, and the towers that they are in."""
    rows: set[int] = set()
    tensors: list[str] = []
    for tower, feature_bE in features.items():
        tower_rows = (~torch.isfinite(feature_bE).all(dim=1)).nonzero().flatten().tolist()
        if tower_rows:
            tensors.append(f"{tower} features")
            rows |= set(tower_rows)
    return rows, tensors


def _nonfinite_gradients(model: AnyModel) -> list[str]:
    tensors = []
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        if not torch.isfinite(checkpoint.local(parameter.grad)).all():
            tensors.append(f"gradient of {name}")
    return tensors


# --------------------------------------------------------------------------------------------------
# What a run holds while it trains: built from the settings, restored from a checkpoint, saved to
# one.


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
    model: AnyModel
    wrapped: nn.Module  # what forward is called on: DDP's module, or the model
    # Tokens that the blend contains; None where they were not looked for
    used_tokens: Tensor | None
    reduced_table: ReducedTokenTable | None
    update: Update
    saver: Saver
    identity: RunIdentity
    first_step: int = 0  # steps that the checkpoint had done
    damaged_before: DamagedSamples = NO_DAMAGE  # up to first_step
    damaged: int = 0  # damaged samples of all ranks since the run began
    damage: DamageCounts = field(default_factory=DamageCounts)  # of this rank, since first_step
    last_damaged: DamagedSample | None = None
    log_lines: tuple[str, ...] = ()  # lines of log.jsonl up to first_step


def prepare(
    config: TrainConfig, out: str, ranks: Ranks, loader: RunLoader, identity: RunIdentity
) -> TrainState:
    """Build model and optimizer, from the newest checkpoint of RUN or from `init`. A collective.

    ValueError where the checkpoint is another run's, or `init` is another architecture.
    """
    if ranks.rank == 0:
        checkpoint.clean(out)
    saved = checkpoint.newest(out, ranks)
    model = build_model(model_config(config), config.seed, attention=config.attention)
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
    used_tokens = None
    if isinstance(model, OpenClipModel):
        lock_towers(model, config)  # it replaces BatchNorm, before anything is laid out
    else:
        used_tokens = tokens_of_blend(loader)
    # Ranks read weights and tokens at their own pace; NCCL would wait 10 minutes for the slowest.
    process_group.barrier(ranks)
    parallelize(model, ranks, config)
    reduced_table = None
    if isinstance(model, CLIP):
        lock_towers(model, config)
        if used_tokens is not None and _may_reduce(used_tokens, config, ranks):
            reduced_table = ReducedTokenTable(model.text, used_tokens)
    update = Update(model, config)
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
    process_group.barrier(ranks)  # the same of checkpoints
    return state


def load_initial_weights(model: AnyModel, source: str) -> str:
    """Put the weights of a source into `model`, before it is sharded. Their sha256."""
    weights = model_files.initial_weights(source, model.config)
    model.load_state_dict({**model.state_dict(), **weights})  # a logit bias may be missing there
    return model_files.weights_sha256(weights)


def lock_towers(model: AnyModel, config: TrainConfig) -> None:
    """Lock what the settings say. It follows tensor parallelism, which makes new parameters."""
    if isinstance(model, OpenClipModel):
        model.lock(*trained_groups(config))
        return
    if config.lock_image:
        layers = model.config.vision_layers
        lock_tower(model.visual, layers, config.lock_image_unlocked_groups)
    if config.lock_text:
        lock_tower(model.text, model.config.text_layers, config.lock_text_unlocked_layers)


def _may_reduce(used_tokens: Tensor, config: TrainConfig, ranks: Ranks) -> bool:
    """Whether training on a reduced token table is worth it, and ends with the weights of the whole
    table.

    Unused rows must only decay, and skipped steps do something else to them. After `init` they are
    not those that the seed draws, so that a resumed run would have to read `init` again.
    """
    plain = config.precision != "fp16"
    small = len(used_tokens) <= model_config(config).vocab_size // 2
    return plain and small and ranks.mesh is None and config.init is None


def tokens_of_blend(loader: RunLoader) -> Tensor | None:
    """Every token of a small blend's kept rows and 0, the padding (int64, rising); None for a large
    blend, and where the rows are not known yet.
    """
    if not loader.views:
        return None
    if sum(int(view.shard_rows.sum()) for view in loader.views) > TABLE_ROWS:
        return None
    tokens = [np.zeros(1, np.uint16)]
    for view in loader.views:
        tokens += [view.shard(number).used_tokens() for number in range(len(view.shards))]
    return torch.from_numpy(np.unique(np.concatenate(tokens)).astype(np.int64))


def _restore(state: TrainState, saved: checkpoint.Checkpoint) -> None:
    checkpoint.restore(saved, state.model, state.update, state.used_tokens, state.ranks)
    state.first_step = saved.step
    state.log_lines = tuple(kept_lines(state.out, saved.step))
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
        if state.reduced_table is not None and isinstance(state.model, CLIP):
            factor = decay_factor(state.config, step)
            table = state.reduced_table.full_table(state.model.text, factor)
            weights["token_embedding.weight"] = table
    return state.saver.save(weights, state.update.state(), record)


def count_damage(state: TrainState, batch: RunBatch, mean_damaged: float) -> None:
    """Count what was damaged in a batch: on this rank, and as the mean over the ranks."""
    # Ranks of a tensor-parallel group read the same samples: the sum is over dp ranks.
    state.damaged += round(mean_damaged * state.ranks.dp)
    state.damage.add(batch.damaged_samples)
    if batch.damaged_samples:
        state.last_damaged = batch.damaged_samples[-1]


def damaged_samples(state: TrainState) -> DamagedSamples:
    """Damaged samples of all ranks, with those before every resume. A collective."""
    every_rank = process_group.all_gather_json(disk.to_plain(state.damage), state.ranks)
    # Ranks of a tensor-parallel group read the same samples.
    of_groups = every_rank[:: state.ranks.tp]
    total = sum_damage([disk.to_plain(state.damaged_before), *of_groups])
    return DamagedSamples(count=total["count"], samples=tuple(total["samples"]))


def drawn_sources(state: TrainState, steps: int) -> dict[str, dict[str, object]]:
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
        f"{state.loader.route.remedy(last.source)}"
    )


# --------------------------------------------------------------------------------------------------
# One step of a run: gradients, the check that they are finite, the new weights.
#
# The numbers of a step (loss, norm, whether a rank shall stop) are means over the ranks, on the
# device. On a CPU they are read before the weights are changed. On a GPU the host would wait for
# the device there, so they are read one step late: the optimizer skips a step that is not finite
# by a flag on the device, and the run ends when the host has read that step's numbers. By then
# one more step has been computed and thrown away, and no weight has changed.


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNumbers:
    """The means over the ranks of what a step has computed, in host memory."""

    loss: float
    accuracy: float
    grad_norm: float
    stopping: float  # share of the ranks that were asked to stop
    save_due: float  # above 0 where rank 0 finds that it is time for a checkpoint
    damaged: float  # samples of a rank that could not be used
    logit_scale: float | None = None  # after the step, where it was read with the others

    @property
    def finite(self) -> bool:
        """Whether loss and gradients are."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass(slots=True, kw_only=True, eq=False)
class LaunchedStep:
    """A step whose gradients are computed, or on a GPU: will be."""

    ready: ReadyBatch
    waited: float  # seconds that training waited for the batch
    features: dict[str, Tensor]  # BE of this rank, by tower
    norm: Tensor
    means: Tensor  # all numbers but the logit scale
    numbers: Tensor | None = None  # all numbers, on their way to the host
    arrived: torch.cuda.Event | None = None

    @property
    def step(self) -> int:
        """The number of the step, from 0."""
        return self.ready.batch.step


class StepRunner:
    """Makes the steps of a run. `finished` is called with each step, in their order, and with its
    numbers, once these are read; the weights are then those after that step or after a later one.
    """

    def __init__(
        self,
        state: TrainState,
        stop: StopRequest,
        timer: SaveTimer,
        finished: Callable[[LaunchedStep, StepNumbers], None],
    ) -> None:
        self.state, self.late = state, reads_late(state)
        self.stopping = self.save_due = False
        self._stop, self._timer, self._finished = stop, timer, finished
        self._unread: LaunchedStep | None = None

    def step(self, ready: ReadyBatch, waited: float) -> None:
        """Gradients of a batch, then the step of the optimizer.

        NonFinite and ValueError (too many damaged samples) are of this step, or where numbers are
        read late of the one before; the weights are then those before that step.
        """
        launched = self._launch(ready, waited)
        if self.late:
            self.read()
            self._update_unread(launched)
            self._unread = launched
        else:
            self._read_and_update(launched)

    def read(self) -> None:
        """Read the numbers of the last step if that has not been done."""
        launched, self._unread = self._unread, None
        if launched is None:
            return
        assert launched.numbers is not None
        if launched.arrived is not None:
            launched.arrived.synchronize()
        numbers = _numbers_of(launched.numbers)
        self._count(launched, numbers)
        if not numbers.finite:
            self._raise_nonfinite(launched, numbers)
        self._finished(launched, numbers)

    def _launch(self, ready: ReadyBatch, waited: float) -> LaunchedStep:
        ready.begin()
        result = _backward(self.state, ready)
        device, update = self.state.ranks.device, self.state.update
        norm = update.grad_norm()
        flags = (
            float(self._stop.number is not None),
            float(self._timer.due()),
            float(ready.batch.damaged),
        )
        # torch.full fills on the device: nothing is copied from the host.
        flags_on_device = [torch.full((), flag, device=device) for flag in flags]
        values = [result.loss.float(), result.accuracy, norm.float(), *flags_on_device]
        return LaunchedStep(
            ready=ready,
            waited=waited,
            features={"image": result.image_bE.detach(), "text": result.text_bE.detach()},
            norm=norm,
            means=process_group.mean(torch.stack(values), self.state.ranks),
        )

    def _read_and_update(self, launched: LaunchedStep) -> None:
        """Change the weights once the host knows that the gradients are finite."""
        state = self.state
        numbers = _numbers_of(launched.means)
        self._count(launched, numbers)
        if numbers.finite:
            rate = learning_rate(state.config, launched.step)
            state.update.step(rate, launched.norm)
        elif math.isfinite(numbers.loss) and state.update.may_skip():
            state.update.skip()
        else:
            self._raise_nonfinite(launched, numbers)
        self._finished(launched, numbers)

    def _update_unread(self, launched: LaunchedStep) -> None:
        """Change the weights unless the device finds a number that is not finite."""
        state = self.state
        skip = (~torch.isfinite(launched.means[:3]).all()).float()
        rate = learning_rate(state.config, launched.step)
        state.update.step(rate, launched.norm, skip)
        scale = state.model.logit_scale.detach().to(launched.means)
        numbers = torch.cat([launched.means, scale.reshape(1)])
        if numbers.is_cuda:
            on_host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            launched.numbers = on_host.copy_(numbers, non_blocking=True)
            launched.arrived = torch.cuda.Event()
            launched.arrived.record(torch.cuda.current_stream(numbers.device))
        else:
            launched.numbers = numbers

    def _count(self, launched: LaunchedStep, numbers: StepNumbers) -> None:
        """Take over what the ranks agreed on. ValueError for too many damaged samples."""
        self.stopping = self.stopping or numbers.stopping > 0
        self.save_due = self.save_due or numbers.save_due > 0
        count_damage(self.state, launched.ready.batch, numbers.damaged)
        if numbers.damaged > 0:
            refuse_damage(self.state, launched.step)

    def _raise_nonfinite(self, launched: LaunchedStep, numbers: StepNumbers) -> None:
        """Raise NonFinite with the report of the step. A collective."""
        state = self.state
        if self.late:
            # The gradients are those of the next step by now. The weights have not changed, so this
            # step can be computed again.
            state.model.zero_grad(set_to_none=True)
            result = _backward(state, launched.ready)
            launched.features = {"image": result.image_bE, "text": result.text_bE}
        error = report_nonfinite(
            state.out,
            state.ranks,
            state.model,
            launched.ready.batch,
            numbers.loss,
            numbers.grad_norm,
            launched.features,
        )
        state.saver.finish()
        raise error


def _numbers_of(values: Tensor) -> StepNumbers:
    names = (field.name for field in dataclasses.fields(StepNumbers))
    return StepNumbers(**dict(zip(names, values.tolist(), strict=False)))


def reads_late(state: TrainState) -> bool:
    """Whether the numbers of a step are read one step late."""
    return state.ranks.device.type == "cuda" and state.update.skips_on_device


def _backward(state: TrainState, ready: ReadyBatch) -> accumulate.BackwardResult:
    """Forward and backward of a batch: the gradients of this rank are in the parameters."""
    config, device, model = state.config, state.ranks.device, state.model
    assert config.micro_batch != "auto"
    first_row = state.ranks.data_parallel.rank * len(ready)  # of this rank, in the global batch
    mean, std = model.config.image_mean, model.config.image_std

    def prepare(image_BHWC: Tensor) -> Tensor:
        return normalise(image_BHWC, mean, std)

    def model_inputs(rows: slice) -> tuple[Tensor, Captions]:
        start, end = first_row + rows.start, first_row + rows.stop
        place = device if isinstance(model, CLIP) else "cpu"
        model.reseed(config.seed, ready.batch.step, torch.arange(start, end, device=place))
        return ready.inputs(rows, prepare)

    loss_of = functools.partial(
        contrastive,
        config.loss,
        data_parallel=state.ranks.data_parallel,
        tile=config.loss_tile,
    )
    return accumulate.backward(
        state.wrapped,
        model_inputs,
        len(ready),
        loss_of,
        micro_batch=config.micro_batch,
        precision=lambda: precision_context(config, device),
        loss_scale=state.update.loss_scale(),
    )


# --------------------------------------------------------------------------------------------------
# Train a CLIP on a blend: `train(blend, config, out)` writes RUN/, resumes by itself, and repeats
# to the bit.
#
# A run is a function of its settings and the views' content. If it is killed at any step and
# started again, it ends with the same weights bit for bit (on a CPU, in fp32, with the same
# number of threads). run.json is written last: the run is finished.


PREDICTIONS = re.compile(r"eval(-average-\d+)?")  # folders, see RunLayout
Resume = Literal["auto", "required", "never"]
# For a process that is about to end: the one before, of a run that is started again.
LOCK_WAIT_S = 5.0


def train(blend: Blend, config: TrainConfig, out: str, *, resume: Resume = "auto") -> RunRecord:
    """Train and write RUN/: blend.json, log.jsonl, checkpoints/, export/, and run.json at the end.

    Returns the record of run.json. A finished run is returned as it is; one whose weights are gone
    is exported again from its newest checkpoint. `auto` resumes from the newest checkpoint that is
    whole, or starts where there is none; `required` is ValueError where there is none; `never`
    removes what is there and starts. ValueError for settings and views that cannot be trained on,
    and for a folder that holds another run; nothing has been written then.
    FolderInUse where another process trains in it. NonFinite is raised before the optimizer step
    that would have spoilt the weights. After a stop signal a step is saved and SystemExit(75) is
    raised.
    """
    timeout = timedelta(seconds=config.hang_seconds + LATER_S)
    ranks = process_group.init_distributed(config.device, timeout)
    watch = Watch(ranks, config.hang_seconds)
    try:
        with waits.watched(watch.look), locked_run(out, ranks):
            return _prepare_and_train(blend, config, out, ranks, resume, watch)
    finally:
        process_group.close(ranks)


@contextlib.contextmanager
def locked_run(out: str, ranks: Ranks) -> Iterator[None]:
    """Rank 0 holds the lock of RUN while the block runs. FolderInUse on every rank where another
    run holds it. A collective.
    """
    with contextlib.ExitStack() as held:
        refused = None
        if ranks.rank == 0:
            lock = locked_folder(RunLayout(out).lock, "clipmill train", wait_s=LOCK_WAIT_S)
            try:
                held.enter_context(lock)
            except FolderInUse as error:
                refused = str(error)
        refused = process_group.all_gather_json(refused, ranks)[0]
        if refused is not None:
            raise FolderInUse(refused)
        yield


def _prepare_and_train(
    blend: Blend, config: TrainConfig, out: str, ranks: Ranks, resume: Resume, watch: Watch
) -> RunRecord:
    """`train` in a folder that no other process writes to."""
    layout = RunLayout(out)
    state: TrainState | None = None
    is_exported = True
    try:
        ranks = process_group.build_mesh(ranks, config)
        loader = RunLoader(
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
                _refuse_itself(config.init, out)
                model_files.initial_weights(config.init, model_config(config))
            _remove_run(out)
        process_group.barrier(ranks)
        if disk.exists(layout.run_json):
            record = read_document(layout.run_json, RunRecord)
            check_same_run(record.identity, identity, out, record)
            files = [disk.join(layout.export, name) for name in record.export]
            if all(map(disk.exists, files)):
                return record
            is_exported = False
            logger.warning("%s lacks its weights: they are written again", out)
        stop = StopRequest(ranks.rank)
        watch.stop_signal = lambda: stop.number
        with console.on_stop_signal(stop), matmul_precision(config):
            started = time.perf_counter()
            config = resolve_micro_batch(config, ranks)
            state = prepare(config, out, ranks, loader, identity)
            if not is_exported and state.first_step == 0:
                raise ValueError(
                    f"{out} is finished, but its weights ({layout.export}) and its checkpoints are "
                    "gone: copy one of them back, or start again with --restart"
                )
            if resume == "required":
                _require_checkpoint(state, blend)
            if ranks.rank == 0:
                for line in plan_lines(blend, loader.order.repeats(config.steps)):
                    logger.info("%s", line)
                disk.write_json(layout.blend_json, blend.document())
            return _train(blend, state, stop, started, watch)
    finally:
        if state is not None:
            state.saver.close()


def _remove_run(out: str) -> None:
    """Remove what a run left: its record, log, segments, checkpoints, and its weights with the
    predictions of them.
    """
    layout = RunLayout(out)
    disk.remove(layout.run_json)
    disk.remove(layout.log)
    predictions = [name for name in disk.list_names(out) if PREDICTIONS.fullmatch(name)]
    folders = [disk.join(out, name) for name in predictions]
    folders += [layout.segments, layout.export]
    for folder in folders:
        for name in disk.list_names(folder):
            disk.remove(disk.join(folder, name))
    checkpoint.clear(out)


def _refuse_itself(init: str, out: str) -> None:
    """ValueError where a run that is removed is its own initial weights."""
    folder = init.removeprefix(model_files.LOCAL_DIR).rstrip("/")
    if folder in (out.rstrip("/"), RunLayout(out).export):
        raise ValueError(
            f"init is {init}, the run itself, which --restart removes; copy its export to another "
            "folder first, or choose another --out"
        )


def _require_checkpoint(state: TrainState, blend: Blend) -> None:
    """ValueError where a run that must be resumed begins at step 0."""
    if not state.loader.is_resumable:
        raise ValueError(
            f"blend {blend.name!r} streams tars, and such a run cannot be resumed; leave --resume "
            "out to start"
        )
    if state.first_step == 0:
        whole = "whole " if checkpoint.saved_steps(state.out) else ""
        raise ValueError(
            f"{state.out} has no {whole}checkpoint to resume from; check --out, or leave --resume"
            " out to start"
        )


def _train(
    blend: Blend, state: TrainState, stop: StopRequest, started: float, watch: Watch
) -> RunRecord:
    """All steps, then export/ and run.json.

    `started`: time.perf_counter() before the state was prepared.
    """
    layout, ranks = RunLayout(state.out), state.ranks
    if ranks.rank == 0 and not state.loader.is_resumable:
        logger.warning(
            "this run cannot be resumed, since its tars are streams; a pool of the same tars "
            "(source: {kind: shards}) can"
        )
    ready = time.perf_counter()
    steps = _steps(state, stop, watch)
    trained = time.perf_counter()
    if state.reduced_table is not None and isinstance(state.model, CLIP):
        factor = decay_factor(state.config, steps)
        state.reduced_table.restore(state.model.text, factor)
    process_group.barrier(ranks)
    damaged, sources = damaged_samples(state), drawn_sources(state, steps)
    weights = checkpoint.gathered(state.model.state_dict(), ranks)
    if ranks.rank == 0:
        export = open_clip_files.save_export(state.model, layout.export, weights)
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
            export=export,
        )
        disk.write_json(layout.run_json, record, sealed=True)
    process_group.barrier(ranks)
    return read_document(layout.run_json, RunRecord)


# --- the steps ------------------------------------------------------------------------------------


def _steps(state: TrainState, stop: StopRequest, watch: Watch) -> int:
    """Train to the last step; the number of steps that the run then has."""
    config, first = state.config, state.first_step
    timer = SaveTimer(config)
    batches = Feed(config, state.ranks.device).batches(state.loader.batches(first))
    with contextlib.closing(Records(state)) as records, contextlib.closing(batches), watch:
        runner = StepRunner(state, stop, timer, records.finished)
        for step in records.bar:
            watch.begin(BATCH, step)
            asked = time.perf_counter()
            ready = next(batches)
            watch.begin(STEP, step)
            runner.step(ready, time.perf_counter() - asked)
            done: int = step + 1
            last = done == config.steps
            if last or runner.stopping or runner.save_due or _checkpoint_due(config, done):
                runner.read()  # before the weights are written
                watch.begin(SAVE, step)
                timer.saved(save(state, done))
                runner.save_due = False
            if last or runner.stopping:
                state.saver.finish()
            if last:
                return done
            if runner.stopping:
                _exit_saved(done, state, stop)
    return config.steps


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
            first=first,
            kept=state.log_lines,
            log_to=config.log_to,
        )
        is_shown = False if console.in_notebook() else None  # None: where stderr is a terminal
        self.bar = tqdm(
            range(first, config.steps),
            initial=first,
            total=config.steps,
            unit="step",
            disable=is_shown if ranks.rank == 0 else True,
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
        if done == config.steps:  # tqdm would count it when it is asked for the next one
            self.bar.n = done
            self.bar.close()

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
