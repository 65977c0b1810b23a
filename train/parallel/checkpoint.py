"""Checkpoints of a run, whole and sharded: saved in a thread, verified, averaged."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import logging
import os
import pickle
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from clipmill.manifests import disk, waits
from clipmill.manifests.layout import RunLayout
from clipmill.manifests.records import CheckpointRecord, RunIdentity, read_document
from clipmill.train.config import TrainConfig, model_config
from clipmill.train.formats import model_files
from clipmill.train.formats.model_files import load_model
from clipmill.train.formats.open_clip_files import from_open_clip
from clipmill.train.model.architecture import ModelConfig, OpenClipConfig
from clipmill.train.model.clip import CLIP
from clipmill.train.model.open_clip_model import AnyModel, OpenClipModel, build_model
from clipmill.train.parallel import process_group
from clipmill.train.parallel.process_group import ALONE, Ranks
from clipmill.train.step.update import Update

# --------------------------------------------------------------------------------------------------
# Checkpoints of a run: RUN/checkpoints/step-N/{model.safetensors, optimizer.pt, state.json}.
#
# The ranks of a sharded model write shard-K-….safetensors instead (see `sharded_checkpoint`); any
# run reads both. state.json is written last and holds the sha256 of the other files. On a local
# disk the folder has another name until it is complete, then it is renamed; elsewhere state.json
# is the commit. Every checkpoint is read back and compared with its hashes before older ones are
# removed. Loading checks the hashes and falls back to the checkpoint before.
#
# Only tensors are unpickled (`weights_only`). There is no random state to keep: images, crops and
# their order are functions of the step, and training draws from no generator.


WRITING = "the writing of a checkpoint"
KEEP = 2  # checkpoints, unless a run says otherwise
MODEL_FILE, OPTIMIZER_FILE, STATE_FILE = "model.safetensors", "optimizer.pt", "state.json"
logger = logging.getLogger(__name__)

Moments = Mapping[str, Mapping[str, Tensor]]  # parameter -> name of the moment -> tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint. No tensor of a sharded one has been read."""

    folder: str
    model: dict[str, Tensor]
    optimizer: dict[str, dict[str, Tensor]]
    record: CheckpointRecord

    @property
    def step(self) -> int:
        """Optimizer steps that the run had done."""
        return self.record.step

    @property
    def sharded(self) -> bool:
        """Whether it was written in shards."""
        return self.record.layout is not None


def save(
    run: str,
    model: Mapping[str, Tensor],
    optimizer: Moments,
    record: CheckpointRecord,
    keep: int = KEEP,
) -> str:
    """Write and check a checkpoint, then remove all but the last `keep`. Returns its folder.

    The hashes of the record are filled in. OSError where it cannot be read back as it was written.
    """
    folder = RunLayout(run).checkpoint(record.step)
    target = folder if disk.is_url(folder) else unfinished(run, record.step)
    buffer = io.BytesIO()
    torch.save({name: dict(parts) for name, parts in optimizer.items()}, buffer)
    contiguous = {name: value.contiguous() for name, value in model.items()}
    files = {MODEL_FILE: safetensors.torch.save(contiguous), OPTIMIZER_FILE: buffer.getvalue()}
    hashes = {}
    if target == folder:  # a store: what a damaged checkpoint of this step left is none from here
        disk.remove(disk.join(folder, STATE_FILE))
    for name, data in files.items():
        disk.write_bytes(disk.join(target, name), data)
        hashes[name] = hashlib.sha256(data).hexdigest()
    return publish(run, target, dataclasses.replace(record, sha256=hashes), keep)


def unfinished(run: str, step: int) -> str:
    """A folder of this process for a checkpoint that is being written."""
    return disk.join(run, "checkpoints", f".step-{step}.partial.{os.getpid()}")


def publish(run: str, source: str, record: CheckpointRecord, keep: int = KEEP) -> str:
    """Write state.json beside the files in `source`, make that the checkpoint, check it, remove
    older ones.

    OSError where a file that is read back does not have the sha256 of the record; older checkpoints
    then stay.
    """
    step = record.step
    folder = RunLayout(run).checkpoint(step)
    disk.write_json(disk.join(source, STATE_FILE), record, sealed=True)
    if source != folder:
        target = disk.local_path(folder)
        if target.exists():  # left by an earlier try, damaged or from before a fall-back
            shutil.rmtree(target)
        os.replace(disk.local_path(source), target)
        _sync_folder(target.parent)
    try:
        _check(folder)
    except ValueError as error:
        raise OSError(f"{folder} was written and reads back differently: {error}") from error
    prune(run, step, keep)
    for other in saved_steps(run):
        if other > step:  # it is damaged: the run came back to before it
            _remove(RunLayout(run).checkpoint(other))
    return folder


def prune(run: str, step: int, keep: int = KEEP) -> None:
    """Remove all but the last `keep` checkpoints up to `step`, which is whole."""
    earlier = [other for other in saved_steps(run) if other <= step]
    for other in earlier[:-keep]:
        _remove(RunLayout(run).checkpoint(other))


def latest(run: str) -> Checkpoint | None:
    """The newest complete checkpoint; None without one. Damaged ones are named in the log."""
    for step in reversed(saved_steps(run)):
        folder = RunLayout(run).checkpoint(step)
        try:
            return read(folder)
        except (ValueError, KeyError, OSError, pickle.UnpicklingError) as error:
            reason = " ".join(str(error).split())[:200]
            logger.warning("%s is damaged and is not used: %s", folder, reason)
    return None


def at(run: str, step: int) -> Checkpoint:
    """The checkpoint of `step`, which another rank has checked; shards are not hashed again."""
    folder = RunLayout(run).checkpoint(step)
    record = read_document(disk.join(folder, STATE_FILE), CheckpointRecord)
    if record.layout is None:
        return read(folder)
    return Checkpoint(folder=folder, model={}, optimizer={}, record=record)


def read(folder: str) -> Checkpoint:
    """A checkpoint whose hashes are right; ValueError where one is not."""
    record, data = _check(folder)
    if record.layout is not None:
        return Checkpoint(folder=folder, model={}, optimizer={}, record=record)
    optimizer = torch.load(io.BytesIO(data[OPTIMIZER_FILE]), map_location="cpu", weights_only=True)
    model = safetensors.torch.load(data[MODEL_FILE])
    return Checkpoint(folder=folder, model=model, optimizer=optimizer, record=record)


def clear(run: str) -> None:
    """Remove every checkpoint of a run, and what a killed save left."""
    for step in saved_steps(run):
        _remove(RunLayout(run).checkpoint(step))
    clean(run)


def clean(run: str) -> None:
    """Remove what a killed save and any other write of a killed run left in its folders."""
    if disk.is_url(run):
        return
    layout = RunLayout(run)
    for path in disk.local_path(layout.checkpoints).glob(".step-*.partial.*"):
        shutil.rmtree(path)
    for folder in (run, layout.export):
        for path in disk.local_path(folder).glob(".*.partial.*"):
            if path.is_file():
                path.unlink(missing_ok=True)


def _check(folder: str) -> tuple[CheckpointRecord, dict[str, bytes]]:
    """state.json and the bytes of its files ({} for shards). ValueError where a hash differs, and
    where it is of another step than its folder."""
    record = read_document(disk.join(folder, STATE_FILE), CheckpointRecord)
    if folder.rpartition("-")[2] != str(record.step):
        raise ValueError(f"{STATE_FILE} is of step {record.step}")
    data = {}
    for name, expected in record.sha256.items():
        if record.layout is not None:
            actual = _file_sha256(disk.join(folder, name))
        else:
            data[name] = disk.read_bytes(disk.join(folder, name))
            actual = hashlib.sha256(data[name]).hexdigest()
        if actual != expected:
            raise ValueError(f"{name} does not have the sha256 that {STATE_FILE} names")
    return record, data


def _file_sha256(path: str) -> str:
    """sha256 of a file or an object, read in pieces."""
    if not disk.is_url(path):
        return disk.file_sha256(path)
    with disk.open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def saved_steps(run: str) -> list[int]:
    """Steps of the folders that are there, rising."""
    names = disk.list_names(RunLayout(run).checkpoints)
    numbers = [name.removeprefix("step-") for name in names if name.startswith("step-")]
    return sorted(int(number) for number in numbers if number.isdigit())


def _remove(folder: str) -> None:
    disk.remove(disk.join(folder, STATE_FILE))  # without it the folder is no checkpoint
    for name in disk.list_names(folder):
        disk.remove(disk.join(folder, name))
    if not disk.is_url(folder):
        shutil.rmtree(disk.local_path(folder))


def _sync_folder(path: Path) -> None:
    """Make a rename last through a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --------------------------------------------------------------------------------------------------
# Sharded checkpoints, and any checkpoint into any layout.
#
# Every rank writes its part of weights and moments as shard-K-….safetensors,
# by torch.distributed.checkpoint with its safetensors format: tensors under our names, each with
# its offset in the whole tensor in the file's header, nothing pickled, so that one process reads
# it without a process group. `saver` publishes them.
#
# Keys are model/NAME and optimizer/NAME/PART.


TABLE = "text.token_embedding.weight"


# --- writing --------------------------------------------------------------------------------------


def begin_write(
    folder: str, weights: Mapping[str, Tensor], optimizer: Moments, ranks: Ranks
) -> Any:
    """Begin to write this rank's part into a local folder: a future of torch's.

    Training may change the tensors once this has returned. A collective.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import async_save

    tensors = {f"model/{name}": value for name, value in weights.items()}
    for name, parts in optimizer.items():
        tensors |= {f"optimizer/{name}/{part}": value for part, value in parts.items()}
    copies = {}
    for key, value in tensors.items():
        on_cpu = value.device.type == "cpu"  # async_save copies what is on a GPU
        copies[key] = value.detach().clone() if on_cpu else value.detach()
    return async_save(
        copies,
        storage_writer=HuggingFaceStorageWriter(
            str(disk.local_path(folder)), save_distributed=True
        ),
        process_group=ranks.checkpoint_group,
        no_dist=ranks.world == 1,
    )


def own_files(folder: str, ranks: Ranks) -> list[str]:
    """The names of the shards that this rank wrote into `folder`."""
    prefix = f"shard-{ranks.rank + 1:05d}-"
    return [name for name in disk.list_names(folder) if name.startswith(prefix)]


# --- reading --------------------------------------------------------------------------------------


def newest(run: str, ranks: Ranks) -> Checkpoint | None:
    """The newest complete checkpoint, the same on every rank; rank 0 checks it. A collective."""
    if ranks.world == 1:
        return latest(run)
    own = latest(run) if ranks.rank == 0 else None
    step = process_group.all_gather_int(0 if own is None else own.step, ranks)[0]
    if step == 0:
        return None
    return at(run, step) if own is None else own


def restore(
    saved: Checkpoint, model: AnyModel, update: Update, used_tokens: Tensor | None, ranks: Ranks
) -> None:
    """Put weights and optimizer state back, from any layout into that of `model`.

    `used_tokens` are the tokens that the run reads: the token table may have been, or may now be,
    reduced to them.
    """
    parameters = dict(model.named_parameters())
    if saved.sharded:
        weights, moments = read_sharded(saved.folder, parameters, ranks)
    else:
        weights, moments = from_open_clip(saved.model, model.config), saved.optimizer
    # A locked parameter has no moments.
    moments = {name: dict(moments.get(name, {})) for name in {**parameters, **moments}}
    if isinstance(model, CLIP):
        if len(weights[TABLE]) != len(parameters[TABLE]):
            weights[TABLE] = weights[TABLE][used_tokens]
        _fit_table(moments[TABLE], len(parameters[TABLE]), used_tokens)
    for name, parameter in parameters.items():
        weights[name] = _in_layout_of(parameter, weights[name])
        for part, value in moments[name].items():
            moments[name][part] = _in_layout_of(parameter, value)
    model.load_state_dict(weights)
    update.restore(moments)


def read_sharded(
    folder: str, parameters: Mapping[str, nn.Parameter], ranks: Ranks
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Weights and optimizer state of a folder of shards, each in the layout of the parameter that
    it belongs to.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with _local_shards(folder) as local_folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that this is one process
        tensors = _empty_tensors(HuggingFaceStorageReader(local_folder), parameters)
        load(
            tensors,
            storage_reader=HuggingFaceStorageReader(local_folder),
            process_group=ranks.checkpoint_group,
            no_dist=ranks.world == 1,
        )
    weights: dict[str, Tensor] = {}
    moments: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, name, *part = key.split("/")
        if kind == "model":
            weights[name] = value
        else:
            moments.setdefault(name, {})[part[0]] = value
    return weights, moments


@contextlib.contextmanager
def _local_shards(folder: str) -> Iterator[str]:
    """A local folder with the shards of a checkpoint: its own, or one that they are copied to."""
    if not disk.is_url(folder):
        yield str(disk.local_path(folder))
        return
    record = read_document(disk.join(folder, STATE_FILE), CheckpointRecord)
    with disk.scratch_folder("clipmill-shards-") as local_folder:

        def copy(name: str) -> None:
            Path(local_folder, name).write_bytes(disk.read_bytes(disk.join(folder, name)))

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(copy, record.sha256))
        yield str(local_folder)


def _empty_tensors(source: Any, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """What is read from `source`, each tensor in the layout of its parameter."""
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    tensors: dict[str, Tensor] = {}
    for key, entry in source.read_metadata().state_dict_metadata.items():
        assert not isinstance(entry, BytesStorageMetadata)  # a safetensors file has tensors only
        parameter, dtype = parameters.get(key.split("/")[1]), entry.properties.dtype
        if parameter is not None and parameter.shape == entry.size:
            tensors[key] = torch.empty_like(parameter.detach(), dtype=dtype)
        else:
            tensors[key] = torch.empty(entry.size, dtype=dtype)
    return tensors


def _fit_table(parts: dict[str, Tensor], rows: int, used_tokens: Tensor | None) -> None:
    """Moments of a token table, for a table of `rows` rows. A row that no token used never had a
    gradient: it is 0.
    """
    for part, value in parts.items():
        if value.ndim != 2 or len(value) == rows:
            continue
        assert used_tokens is not None
        if len(used_tokens) == rows:
            parts[part] = value[used_tokens]
        else:
            full = value.new_zeros((rows, value.shape[1]))
            parts[part] = full.index_copy(0, used_tokens, value)


def _in_layout_of(parameter: Tensor, whole: Tensor) -> Tensor:
    """This rank's part of a whole tensor that has the shape of a DTensor `parameter`; other tensors
    as they are.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if not isinstance(parameter, DTensor) or isinstance(whole, DTensor):
        return whole
    if whole.shape != parameter.shape:
        return whole
    mesh, placements = parameter.device_mesh, parameter.placements
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
    slices = tuple(slice(first, first + size) for first, size in zip(offset, shape, strict=True))
    part = whole[slices].to(parameter.to_local().device).contiguous().clone()
    return DTensor.from_local(
        part,
        mesh,
        placements,
        shape=parameter.shape,
        stride=parameter.stride(),
        run_check=False,
    )


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; a plain tensor as it is."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def gathered(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Whole tensors in rank 0's host memory, one after the other; {} on the other ranks. A
    collective.
    """
    # On a mesh of several dimensions it logs for every tensor that gathering takes two operations.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    whole_tensors = {}
    for name, tensor in tensors.items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if ranks.rank == 0:
            whole_tensors[name] = whole.detach().to("cpu", copy=True)
    return whole_tensors


# --------------------------------------------------------------------------------------------------
# Models from the checkpoints of a run: the mean of the last ones.
#
# The run may still be going on. Both kinds of checkpoints are read, whole and sharded.


def load_weights(source: str, average_last: int | None = None) -> tuple[AnyModel, str]:
    """The model of a run, a folder or open_clip:NAME/TAG: the mean of a run's last checkpoints, so
    many, or what it exported; and which weights they are, in words.

    ValueError for a source without such weights.
    """
    folder = source.removeprefix("local-dir:")
    if average_last is not None:
        model, steps = mean_of_last(folder, average_last)
        return model, f"the mean of the weights after steps {', '.join(map(str, steps))}"
    run = RunLayout(folder)
    unfinished = disk.exists(run.export) and not disk.exists(run.run_json)
    return load_model(run.export if unfinished else source), "the exported weights"


def hashes_of(source: str, average_last: int | None = None) -> dict[str, str]:
    """sha256 of what these weights are read from: exported files, or the last checkpoints.

    ValueError for a source or a checkpoint that is gone.
    """
    if average_last is None:
        return model_files.source_files(source, alone=False)
    folder = source.removeprefix("local-dir:")
    steps = saved_steps(folder)[-average_last:]
    if not steps:
        raise ValueError(f"{folder} has no checkpoints")
    hashes = {}
    for step in steps:
        state = disk.join(RunLayout(folder).checkpoint(step), STATE_FILE)
        hashes[f"step-{step}"] = disk.sha256_of(state)
    return hashes


def mean_of_last(run: str, count: int) -> tuple[AnyModel, tuple[int, ...]]:
    """A model with the mean of the weights of the last `count` checkpoints, and their steps.

    The sum is made in fp32, oldest first. ValueError for fewer checkpoints, for a damaged one,
    for those of different runs, and for a model whose running statistics are no mean of others.
    """
    if count < 1:
        raise ValueError(f"the number of checkpoints to average is {count}; it must be at least 1")
    steps = saved_steps(run)
    if len(steps) < count:
        raise ValueError(
            f"{run} has {len(steps)} checkpoints, not {count}; a run keeps the last two unless it "
            "is trained with --set checkpoint_every=N keep_checkpoints=K"
        )
    model: AnyModel | None = None
    identity: RunIdentity | None = None
    total: dict[str, Tensor] = {}
    for step in steps[-count:]:
        saved = _read(run, step)
        identity = identity or saved.record.identity
        if saved.record.identity != identity:
            raise ValueError(f"{saved.folder} is of another run than the checkpoint before it")
        model = model or _model_of(saved)
        if isinstance(model, OpenClipModel) and model.norms():
            raise ValueError(
                f"{run}: {model.config.name} has BatchNorm, and averaged weights have the running "
                "statistics of none of them; take the weights of one step"
            )
        for name, value in _weights(saved, model).items():
            total[name] = total[name].add_(value) if name in total else value.clone()
    assert model is not None
    model.load_state_dict({name: value / count for name, value in total.items()})
    return model, tuple(steps[-count:])


def _read(run: str, step: int) -> Checkpoint:
    """ValueError where the sha256 of a file is not the one that was written down."""
    try:
        return read(RunLayout(run).checkpoint(step))
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{RunLayout(run).checkpoint(step)} is damaged: {reason}") from error


def _model_of(saved: Checkpoint) -> AnyModel:
    if described := saved.record.identity.get("model"):
        kind: object = OpenClipConfig if "settings" in described else ModelConfig
        return build_model(disk.from_plain(kind, described))
    known = {**disk.to_plain(TrainConfig()), **saved.record.identity["config"]}
    config: TrainConfig = disk.from_plain(TrainConfig, known)
    return build_model(model_config(config))


def _weights(saved: Checkpoint, model: AnyModel) -> dict[str, Tensor]:
    """fp32 weights by our names."""
    if saved.sharded:
        weights, _ = read_sharded(saved.folder, dict(model.named_parameters()), ALONE)
    else:
        weights = from_open_clip(saved.model, model.config)
    return {name: value.float() for name, value in weights.items()}


# --------------------------------------------------------------------------------------------------
# Checkpoints that are written while training continues, for every layout and every store.
#
# `save` copies weights and optimizer state to host memory and returns; threads write the copies.
# Of a whole model rank 0 writes all. Of a sharded model every rank writes and hashes its own
# part, on a local or shared disk into the folder of the checkpoint, for a store (`s3://…`) into a
# folder of its own first. The checkpoint is published when all ranks have written; until then the
# one before is the newest. One save is under way at a time.


class Saver:
    """Writes the checkpoints of a run in the background. Every rank of the run has one."""

    def __init__(self, run: str, ranks: Ranks, keep: int = KEEP) -> None:
        self.run, self.ranks, self.keep = run, ranks, keep
        self._thread: threading.Thread | None = None
        self._under_way = False
        self._error: BaseException | None = None

    def save(
        self, weights: Mapping[str, Tensor], optimizer: Moments, record: CheckpointRecord
    ) -> float:
        """Begin to write a checkpoint. It waits for the one before, and for a copy in host memory.

        The hashes of the record are filled in, and its layout. Of a whole model only rank 0's
        tensors are read. Returns the seconds that training waited. OSError where the save before
        failed. A collective.
        """
        began = time.perf_counter()
        self.finish()
        self._under_way = True
        if self.ranks.mesh is None:
            if self.ranks.rank == 0:
                copies = host_copies(weights), {k: host_copies(v) for k, v in optimizer.items()}
                self._start(save, self.run, *copies, record, self.keep)
        else:
            record = dataclasses.replace(record, layout=self.ranks.layout)
            folder = self._shard_folder(record.step)
            written = begin_write(folder, weights, optimizer, self.ranks)
            self._start(self._publish_shards, written, folder, record)
        waited = time.perf_counter() - began
        if self.ranks.rank == 0:
            logger.info("step %d is being saved; training waited %.2f s", record.step, waited)
        return waited

    def finish(self) -> None:
        """Wait until the save under way is complete, on every rank. OSError where it failed."""
        if not self._under_way:
            return
        if self._thread is not None:
            self._thread.join()
        self._thread, self._under_way = None, False
        failed = process_group.all_gather_int(int(self._error is not None), self.ranks)
        error, self._error = self._error, None
        if error is not None:
            raise error
        if any(failed):
            rank = failed.index(1)
            raise OSError(f"rank {rank} could not save the checkpoint; its own message says why")

    def close(self) -> None:
        """Let a save of this rank alone end, where the run has failed; its error is logged.

        A save of several ranks may wait for one that is gone.
        """
        if self._thread is None or self.ranks.mesh is not None:
            return
        self._thread.join()
        if self._error is not None:
            logger.error("the checkpoint could not be saved: %s", self._error)

    def _start(self, write: Any, *arguments: Any) -> None:
        def run() -> None:
            # Of several ranks that write, one may wait for another: their parts have names instead.
            alone = self.ranks.mesh is None
            try:
                with waits.doing(WRITING) if alone else contextlib.nullcontext():
                    write(*arguments)
            except BaseException as error:  # raised by `finish`, in the thread that trains
                self._error = error

        self._thread = threading.Thread(target=run, name="checkpoint")
        self._thread.start()

    def _shard_folder(self, step: int) -> str:
        """An empty local folder for the shards of this rank: one for all ranks, or on a store each
        rank its own. A collective.
        """
        if disk.is_url(self.run):
            return tempfile.mkdtemp(prefix=f"clipmill-step-{step}-")
        folder = disk.join(RunLayout(self.run).checkpoints, f".step-{step}.partial.shards")
        if self.ranks.rank == 0:
            shutil.rmtree(disk.local_path(folder), ignore_errors=True)
            disk.local_path(folder).mkdir(parents=True)
        process_group.barrier(self.ranks)
        return folder

    def _publish_shards(self, written: Any, folder: str, record: CheckpointRecord) -> None:
        """Hash this rank's shards; once all ranks have, rank 0 publishes the checkpoint."""
        target, error, hashes = folder, None, {}
        try:
            written.result()
            names = own_files(folder, self.ranks)
            paths = [disk.join(folder, name) for name in names]
            with ThreadPoolExecutor(4) as threads:
                hashes = dict(zip(names, threads.map(disk.file_sha256, paths), strict=True))
            if disk.is_url(self.run):
                target = RunLayout(self.run).checkpoint(record.step)
                self._upload(paths, target)
        except BaseException as raised:
            error = raised
        finally:
            if disk.is_url(self.run):
                shutil.rmtree(folder, ignore_errors=True)
        # Every rank takes part, also one that failed: the others must not wait for it.
        every = process_group.all_gather_json(
            None if error is not None else hashes, self.ranks, self.ranks.checkpoint_group
        )
        if error is not None:
            raise error
        if None in every:
            raise OSError(f"rank {every.index(None)} could not write its part of the checkpoint")
        if self.ranks.rank == 0:
            complete: dict[str, str] = {}
            for of_rank in every:
                complete |= of_rank
            record = dataclasses.replace(record, sha256=complete)
            publish(self.run, target, record, self.keep)

    def _upload(self, paths: list[str], target: str) -> None:
        with waits.doing(WRITING):
            if self.ranks.rank == 0:  # a damaged checkpoint of this step, of before it came back
                disk.remove(disk.join(target, STATE_FILE))
            for path in paths:
                disk.publish(path, disk.join(target, Path(path).name))


def host_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in host memory, of which nothing is shared with the tensors."""
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}
