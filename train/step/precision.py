"""Precision of a step: autocast, tf32, and the loss scale of fp16.

Precisions: fp32; tf32 (matrix products with 10 bits of mantissa); bf16 and fp16 (autocast over fp32
weights, fp16 with a scaled loss); bf16_o2 (NVIDIA's O2: weights and gradients of 16 bits, and fp32
masters that the optimizer steps).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from train.config import TrainConfig

# Steps in a row that fp16 may skip. A gradient that still overflows with 2^-20 of the loss scale is
# infinite by itself.
OVERFLOWS = 20


def precision_context(config: TrainConfig, device: torch.device) -> torch.autocast:
    """The autocast around a forward pass."""
    half = torch.float16 if config.precision == "fp16" else torch.bfloat16
    enabled = config.precision not in ("fp32", "tf32")
    # Selective recomputation counts operations; autocast's cache would skip casts of the second
    # group of captions.
    cache = config.recompute != "selective"
    return torch.autocast(device.type, half, enabled=enabled, cache_enabled=cache)


@contextlib.contextmanager
def matmul_precision(config: TrainConfig) -> Iterator[None]:
    """Products of fp32 matrices in tf32 while the block runs, where the settings say so."""
    if config.precision != "tf32":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(slots=True, kw_only=True)
class Scaler:
    """The factor on the loss that keeps small gradients above fp16's smallest number.

    The rule is that of torch's GradScaler: the factor halves where a gradient overflowed, whose
    step is skipped, and doubles after 2,000 good steps. An overflow shows in the norm of all
    gradients, which is equal on all ranks; GradScaler would look at a rank's part of a DTensor.
    """

    scale: float = 65536.0
    good: int = 0  # steps without overflow since the factor changed
    skipped: int = 0  # steps of the run
    in_a_row: int = 0  # skipped steps since the last good one

    def record(self, finite: bool) -> None:
        """Count a step and adapt the factor."""
        if not finite:
            self.scale, self.good = self.scale / 2, 0
            self.skipped, self.in_a_row = self.skipped + 1, self.in_a_row + 1
            return
        self.good, self.in_a_row = self.good + 1, 0
        if self.good == 2000:
            self.scale, self.good = self.scale * 2, 0
