from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.trainer.cells import planned_cells, refuse_cell
from benchmarks.trainer.options import BenchOptions
from train.config import TrainConfig, configure

CPU = torch.device("cpu")


def given(**changes: Any) -> BenchOptions:
    return BenchOptions(**{"mode": "train", "models": ("test",), "ranks": (1, 2, 3), **changes})


def test_weak_scaling_keeps_the_batch_and_strong_scaling_the_step() -> None:
    planned = list(planned_cells(given(batches=(7,), global_batches=(10,))))
    sizes = [(cell.scaling, cell.ranks, cell.batch, cell.global_batch) for cell in planned]
    assert sizes == [
        ("weak", 1, 7, 7),
        ("weak", 2, 7, 14),
        ("weak", 3, 7, 21),
        ("strong", 1, 10, 10),
        ("strong", 2, 5, 10),
        ("strong", 3, 0, 10),
    ]


def config(**changes: Any) -> TrainConfig:
    return configure({"model": "test", "batch_size": 64, "lanes": 1, "samples_seen": 640,
                      "warmup": 0, "precision": "fp32", **changes})  # fmt: skip


def test_ranks_that_this_machine_cannot_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.trainer.cells.usable_cores", lambda: 4)
    refuse_cell(config(), 16, CPU)
    with pytest.raises(ValueError, match="64 ranks are more than 4 for each of this machine's 4"):
        refuse_cell(config(), 64, CPU)
    with pytest.raises(ValueError, match="dp_shard 2 x tp 1 = 2 does not divide 3 ranks"):
        refuse_cell(config(dp_shard=2), 3, CPU)
    with pytest.raises(ValueError, match="a step of 10,000,000 samples a rank at once needs"):
        refuse_cell(config(batch_size=10_000_000, samples_seen=10_000_000), 1, CPU)
    refuse_cell(config(batch_size=10_000_000, samples_seen=10_000_000), 1, CPU, trains=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="2 ranks need as many GPUs; here are 1"):
        refuse_cell(config(), 2, torch.device("cuda"))
