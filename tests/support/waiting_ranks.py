"""A rank that waits for what rank 0 does with files, where a step of training may take a second:
`python waiting_ranks.py LOCKED`, with torchrun's variables; another process trains in LOCKED.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import pytest
import torch

from clipmill.manifests import console
from clipmill.manifests.folder_lock import FolderInUse
from clipmill.train.evaluation.tasks import in_batches, on_rank_0
from clipmill.train.parallel import checkpoint, process_group
from clipmill.train.trainer import loop

SLOW_S = loop.LOCK_WAIT_S = 2.6


def meet():
    """Wait until both ranks are here: on a busy machine one imports all this seconds later."""
    ready = [Path(f"{sys.argv[1]}-ready-{rank}") for rank in range(2)]
    ready[int(os.environ["RANK"])].touch()
    while not all(path.exists() for path in ready):
        time.sleep(0.01)


def main():
    process_group.TIMEOUT = timedelta(seconds=2)
    meet()
    ranks = process_group.init_distributed("cpu")

    def work(*_):
        if ranks.rank == 0:
            time.sleep(SLOW_S)

    work()
    process_group.barrier(ranks)
    saving = checkpoint.Saver("unused", ranks)
    saving._under_way = True
    saving._start(work)
    saving.finish()
    checkpoint.latest = work  # rank 0 reads and hashes the newest one
    assert checkpoint.newest("unused", ranks) is None
    on_rank_0(ranks, work)
    in_batches(ranks, 2, lambda rows: work() or {"x": np.arange(rows.start, rows.stop)})
    with pytest.raises(FolderInUse), loop.locked_run(sys.argv[1], ranks):
        pass
    work()
    try:
        process_group.mean(torch.zeros(1), ranks)
    except RuntimeError:
        return 0
    return 0 if ranks.rank == 0 else 3  # rank 1 has waited in a step


if __name__ == "__main__":
    console.end_process(main)
