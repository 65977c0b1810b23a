#!/usr/bin/env python3
"""What rounded products do to the contrastive loss, beside the noise of features in bf16.

example:
  python benchmarks/studies/loss_precision.py

Features are drawn: unit vectors whose pairs have a cosine of about 0.3 and all others one of about
0.15. ROWS rows of a rank are compared with the whole batch, as over several ranks. The operands of
every product, forward and backward, are rounded; sums are fp32. The reference is fp64. The last
line of each size has exact products of features with the noise that a bf16 forward pass has, which
is measured first (ViT-S-32 as initialised). The result goes to
benchmarks/results/loss_precision.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peers.rows import machine_kind
from clipmill.manifests import disk
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP

RESULT = ROOT / "benchmarks" / "results" / "loss_precision.json"
ROWS = 256
SIZES = ((4096, 512), (4096, 1024), (32_768, 512), (32_768, 1024))  # batch, channels
SCALES = (14.3, 100.0)  # of the logits: as initialised, and the largest
Rounding = Callable[[Tensor], Tensor]


def to_tf32(x: Tensor) -> Tensor:
    """fp32 numbers with 10 bits of mantissa, the nearest."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def to_tf32_truncated(x: Tensor) -> Tensor:
    """fp32 numbers with 10 bits of mantissa, the next one towards 0."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def to_bf16(x: Tensor) -> Tensor:
    """fp32 numbers with 7 bits of mantissa, the nearest."""
    return x.bfloat16().float()


ROUNDINGS: dict[str, Rounding] = {
    "fp32": lambda x: x,
    "tf32": to_tf32,
    "tf32, truncated": to_tf32_truncated,
    "bf16": to_bf16,
}


def loss_and_gradients(
    x_bE: Tensor, y_BE: Tensor, scale: float, rounding: Rounding
) -> tuple[float, Tensor, Tensor]:
    """Cross-entropy of x's rows against y, and the gradients to both; row i belongs to column i."""
    x, y, own = rounding(x_bE.contiguous()), rounding(y_BE), torch.arange(len(x_bE))
    logits_bB = scale * (x @ y.T)
    log_sum_b = logits_bB.logsumexp(dim=1)
    loss = float((log_sum_b - logits_bB[own, own]).mean())
    weight_bB = logits_bB.sub_(log_sum_b[:, None]).exp_()
    weight_bB[own, own] -= 1
    weight_bB = rounding(weight_bB)
    factor = scale / len(x)
    return loss, factor * (weight_bB @ y), factor * (weight_bB.T @ x)


def features(batch: int, width: int) -> tuple[Tensor, Tensor]:
    """Images and texts, unit vectors: a common direction, a direction of each pair, and noise."""
    generator = torch.Generator().manual_seed(batch + width)
    common_E, pair_BE = (torch.randn(n, width, generator=generator) for n in (1, batch))
    both = []
    for _ in range(2):
        noise_BE = torch.randn(batch, width, generator=generator)
        both.append(F.normalize(0.39 * common_E + 0.39 * pair_BE + 0.84 * noise_BE, dim=-1))
    return both[0], both[1]


def noise_of_features() -> float:
    """The relative difference of features in bf16 to those in fp32: of a model's forward pass."""
    generator = torch.Generator().manual_seed(0)
    model = CLIP(MODELS["ViT-S-32"]).eval()
    image_BCHW = torch.randn(8, 3, 224, 224, generator=generator)
    tokens_BT = torch.randint(1, 49_406, (8, 77), generator=generator)
    tokens_BT[:, 20] = 49_407
    both = []
    for enabled in (False, True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            both.append(torch.cat(model(image_BCHW, tokens_BT)[:2]).float())
    return float((both[1] - both[0]).norm() / both[0].norm())


def errors(batch: int, width: int, scale: float, noise: float) -> list[dict[str, Any]]:
    """The relative errors of the loss and its gradients, a row for each rounding and the noise."""
    image_BE, text_BE = features(batch, width)
    image_bE = image_BE[:ROWS]
    exact = loss_and_gradients(image_bE.double(), text_BE.double(), scale, ROUNDINGS["fp32"])
    results = {}
    for name, rounding in ROUNDINGS.items():
        results[name] = loss_and_gradients(image_bE, text_BE, scale, rounding)
    noisy = []
    for x in (image_bE, text_BE):
        noisy.append(F.normalize(x + noise * width**-0.5 * torch.randn_like(x), dim=-1))
    results["features in bf16"] = loss_and_gradients(noisy[0], noisy[1], scale, ROUNDINGS["fp32"])
    rows = []
    for name, (loss, *gradients) in results.items():
        relative = [
            float((actual.double() - wanted).norm() / wanted.norm())
            for actual, wanted in zip(gradients, exact[1:], strict=True)
        ]
        rows.append(
            {
                "batch": batch,
                "width": width,
                "scale": scale,
                "products": name,
                "loss": exact[0],
                "loss_error": abs(loss - exact[0]) / exact[0],
                "image_gradient_error": relative[0],
                "text_gradient_error": relative[1],
            }
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    torch.manual_seed(0)
    noise, rows = noise_of_features(), []
    print(f"features in bf16: {noise:.2e}")
    for batch, width in SIZES:
        for scale in SCALES:
            for row in errors(batch, width, scale, noise):
                rows.append(row)
                numbers = [f"{value:.1e}" for key, value in row.items() if key.endswith("error")]
                print(batch, width, scale, row["products"], *numbers, flush=True)
    machine = {**machine_kind(), "torch": torch.__version__.split("+")[0]}
    document = {
        "command": "python benchmarks/studies/loss_precision.py",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        "feature_noise": noise,
        "rows": rows,
    }
    disk.write_json(str(RESULT), document)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
