from __future__ import annotations

from typing import Any

from benchmarks.trainer.cells import planned_cells
from benchmarks.trainer.options import BenchOptions
from train.config import TrainConfig, configure


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
