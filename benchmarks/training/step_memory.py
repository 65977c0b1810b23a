#!/usr/bin/env python3
"""The memory of a training step: what torch allocates on the CPU, and what the formula says.

example: python benchmarks/training/step_memory.py

Models, batches, micro-batches, checkpointing, precisions and captions. The profiler
records every allocation of the second step of a model of random weights.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

import torch

from clipmill.train.config import TrainConfig, configure, model_config
from clipmill.train.model.memory import StepMemory, step_memory
from tests.support.saved_tensors import Step, step_peak, step_shape_of

RESULT = ROOT / "benchmarks" / "results" / "step_memory.json"
# Model, samples, tokens of the longest caption, and other settings
CASES: list[tuple[str, int, int, dict[str, Any]]] = [
    ("test", 64, 16, {}),
    ("test", 1024, 16, {}),
    ("test", 1024, 16, {"loss_tile": 128}),
    ("micro", 16, 16, {}),
    ("micro", 128, 16, {}),
    ("micro", 128, 16, {"precision": "bf16"}),
    ("micro", 128, 16, {"recompute": "full"}),
    ("micro", 128, 16, {"recompute": "selective"}),
    ("micro", 128, 16, {"recompute": "every_2"}),
    ("micro", 128, 16, {"micro_batch": 16}),
    ("micro", 128, 16, {"micro_batch": 50, "recompute": "full"}),
    ("micro", 128, 16, {"captions": "packed"}),
    ("ViT-S-32", 8, 77, {}),
    ("ViT-S-32", 32, 77, {"precision": "bf16"}),
    ("ViT-S-32", 32, 77, {"recompute": "full", "precision": "bf16"}),
    ("ViT-S-32", 32, 77, {"micro_batch": 8}),
    ("ViT-S-16", 8, 77, {}),
    ("ViT-S-16", 8, 77, {"recompute": "selective"}),
    ("ViT-B-32", 4, 77, {}),
    ("ViT-B-32", 16, 77, {"precision": "bf16"}),
    ("ViT-B-32", 16, 77, {"recompute": "full"}),
    ("ViT-B-32", 16, 77, {"micro_batch": 4}),
    ("ViT-B-16", 4, 77, {}),
    ("ViT-L-14", 2, 77, {"recompute": "full"}),
]


def config_of(model: str, samples: int, changes: dict[str, Any]) -> TrainConfig:
    """The settings of a case."""
    base = {"precision": "fp32", "lanes": 1, "warmup": 0, "device": "cpu"}
    return configure(
        {**base, "model": model, "batch_size": samples, "samples_seen": 100 * samples, **changes}
    )


def lengths_of(config: TrainConfig, samples: int, longest: int) -> list[int]:
    """Tokens of the captions: all the same, or mixed where captions are not padded."""
    if config.captions == "padded":
        return [longest] * samples
    return [(5, 9, longest, 3)[row % 4] for row in range(samples)]


def formula(model: str, samples: int, longest: int, changes: dict[str, Any]) -> StepMemory:
    """The memory of a case by the formula that sizing, plans and runs use."""
    config = config_of(model, samples, changes)
    shape = step_shape_of(config, lengths_of(config, samples, longest))
    return step_memory(model_config(config), shape)


def measure(model: str, samples: int, longest: int, changes: dict[str, Any]) -> dict[str, Any]:
    """One case: the bytes that were allocated."""
    config = config_of(model, samples, changes)
    lasting, peak = step_peak(Step(config, lengths_of(config, samples, longest)))
    return {
        "model": model,
        "samples": samples,
        "longest": longest,
        "changes": changes,
        "measured_bytes": lasting + peak,
    }


def formulas(result: dict[str, Any]) -> list[StepMemory]:
    """The formula's memory of the cases of a result, in their order."""
    return [
        formula(row["model"], row["samples"], row["longest"], row["changes"])
        for row in result["cases"]
    ]


def ratios(result: dict[str, Any]) -> tuple[float, float]:
    """The smallest and the largest ratio of formula and measured bytes."""
    values = [
        memory.peak / row["measured_bytes"]
        for row, memory in zip(result["cases"], formulas(result), strict=True)
    ]
    return min(values), max(values)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    cases = []
    for case in CASES:
        cases.append(measure(*case))
        print(case, flush=True)
    result = {
        "command": "python benchmarks/training/step_memory.py",
        "date": datetime.date.today().isoformat(),
        "machine": {"kind": platform.machine(), "cores": os.cpu_count()},
        "torch": torch.__version__,
        "cases": cases,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print("formula / measured: {:.3f} to {:.3f}".format(*ratios(result)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
