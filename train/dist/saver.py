"""Checkpoints that are written while training continues, for every layout and every store.

`save` copies weights and optimizer state to host memory and returns; threads write the copies. Of a
whole model rank 0 writes all. Of a sharded model every rank writes and hashes its own part, on a
local or shared disk into the folder of the checkpoint, for a store (`s3://…`) into a folder of its
own first. The checkpoint is published when all ranks have written; until then the one before is the
newest. One save is under way at a time.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from manifests import disk
from manifests.documents import CheckpointRecord
from manifests.run_layout import RunLayout
from train.dist import checkpoint, process_group, sharded_checkpoint
from train.dist.checkpoint import Moments
from train.dist.process_group import Ranks

logger = logging.getLogger(__name__)


class Saver:
    """Writes the checkpoints of a run in the background. Every rank of the run has one."""

    def __init__(self, run: str, ranks: Ranks, keep: int = checkpoint.KEEP) -> None:
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
                self._start(checkpoint.save, self.run, *copies, record, self.keep)
        else:
            record = dataclasses.replace(record, layout=self.ranks.layout)
            folder = self._shard_folder(record.step)
            written = sharded_checkpoint.begin_write(folder, weights, optimizer, self.ranks)
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
            try:
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
            names = sharded_checkpoint.own_files(folder, self.ranks)
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
            checkpoint.publish(self.run, target, record, self.keep)

    def _upload(self, paths: list[str], target: str) -> None:
        if self.ranks.rank == 0:  # of a damaged checkpoint of this step, before the run came back
            disk.remove(disk.join(target, checkpoint.STATE_FILE))
        for path in paths:
            disk.publish(path, disk.join(target, Path(path).name))


def host_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in host memory, of which nothing is shared with the tensors."""
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}
