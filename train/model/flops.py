"""The floating-point operations that training takes, and what share of a device's peak they are (MFU).

Products of matrices count, 2mkn for [m, k] x [k, n]: patches, queries, keys, values, attention's two (the whole square,
causal or not, as published profiles have it), its output, the perceptron and the projections. Not counted are norms,
activations and the softmax, the loss, the optimizer, and whatever is computed a second time (checkpointing, the second
pass of micro-batches): these are the operations that the result needs, so that recomputing cannot raise an MFU.
Backward is twice forward, but for the patches: a picture needs no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from train.model.architecture import ModelConfig

Captions = Literal["padded", "groups", "packed"]
# Dense peaks in TFLOP/s from NVIDIA's datasheets: products of 16 bits that add up in 32, and of 32 bits. The first name
# that a device's contains counts, so longer names stand first.
PEAKS: dict[str, tuple[float, float]] = {
    "GB300": (2500, 80),
    "GB200": (2500, 80),
    "B300": (2250, 75),
    "B200": (2250, 75),
    "H200 NVL": (835, 60),
    "H200": (989.4, 66.9),
    "GH200": (989.4, 66.9),
    "H100 PCIe": (756, 51.2),
    "H100 NVL": (835, 60),
    "H100": (989.4, 66.9),
    "A100": (312, 19.5),
    "A40": (149.7, 37.4),
    "A30": (165, 10.3),
    "L40S": (362, 91.6),
    "L40": (181, 90.5),
    "L4": (121, 30.3),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopCount:
    """Operations of forward and backward: of a picture, and of a caption by its tokens and their square."""

    image: float
    caption: float  # of any length
    token: float
    square: float

    def sample(self, tokens: int) -> float:
        """One picture and a caption of so many tokens."""
        return self.image + self.caption + tokens * self.token + tokens * tokens * self.square

    def batch(self, length_B: Tensor, captions: Captions = "padded", groups: int = 1) -> float:
        """A batch of these captions: each computed as long as the longest of all, or of its group, or as it is."""
        if captions == "groups":
            parts = length_B.sort().values.tensor_split(groups)
            return sum(self.batch(part) for part in parts if len(part))
        if captions == "padded":
            return len(length_B) * self.sample(int(length_B.max()))
        length_B = length_B.double()
        fixed = len(length_B) * (self.image + self.caption)
        return (
            fixed
            + float(length_B.sum()) * self.token
            + float(length_B.square().sum()) * self.square
        )


def training_flops(config: ModelConfig, *, whole: bool = False) -> FlopCount:
    """What training a model takes as it is computed here: the last block of a tower ends with the pooled token alone,
    and patches that are left out are not computed. `whole`: all blocks compute all tokens, as in other trainers."""
    kept = config.patches if whole else max(1, int(config.patches * (1 - config.drop_patch_rate)))
    width, first = config.vision_width, config.class_token_length
    patches = 2.0 * config.patches * config.num_channels * config.patch_size**2 * width
    pruned = not whole and not config.global_average_pool
    fixed, token, square = _tower(width, config.vision_mlp, config.vision_layers, pruned)
    tokens = kept + first
    image = fixed + tokens * token + tokens * tokens * square + 2.0 * width * config.embed_dim
    width = config.text_width
    fixed, token, square = _tower(width, config.text_mlp, config.text_layers, not whole)
    return FlopCount(
        image=3 * image + 2 * patches,
        caption=3 * (fixed + 2.0 * width * config.embed_dim),
        token=3 * token,
        square=3 * square,
    )


def _tower(width: int, mlp: int, layers: int, pruned: bool) -> tuple[float, float, float]:
    """Forward through the blocks: of a sample, of each of its tokens, of each pair of these."""
    token, square = 2.0 * (4 * width * width + 2 * width * mlp), 4.0 * width
    if not pruned:
        return 0.0, layers * token, layers * square
    one = 2.0 * (
        2 * width * width + 2 * width * mlp
    )  # query, output and perceptron of the pooled token
    other = (
        4.0 * width * width + square
    )  # key and value of every token, and where the one query meets it
    return one, (layers - 1) * token + other, (layers - 1) * square


def peak_flops(device: str, precision: str = "bf16") -> float | None:
    """Operations a second of a device by its name; None where it is not known. tf32 has half of what 16 bits have."""
    found = next((values for name, values in PEAKS.items() if name in device), None)
    if found is None:
        return None
    return 1e12 * (
        found[1] if precision == "fp32" else found[0] / 2 if precision == "tf32" else found[0]
    )
