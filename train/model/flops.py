"""Floating-point operations of training.

Matrix products count, 2mkn for [m, k] x [k, n]: patches, queries, keys, values, attention's two
(the whole square, causal or not, as in published profiles), its output, the MLP and the
projections. Norms, activations and the softmax, the loss and the optimizer do not count. Nor does
what is computed a second time (checkpointing, the second pass of micro-batches): these are the
operations that the result needs, so recomputing cannot raise an MFU. Backward is twice forward,
but for the patches: an image needs no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from train.model.architecture import ModelConfig
from train.model.lock import group_count, trained_blocks

Captions = Literal["padded", "groups", "packed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopCount:
    """Operations of forward and backward: of an image, and of a caption by its tokens."""

    image: float
    caption: float  # of any length
    token: float  # for each token of a caption
    square: float  # for each pair of tokens of a caption

    def sample(self, tokens: int) -> float:
        """One image and a caption of `tokens` tokens."""
        return self.image + self.caption + tokens * self.token + tokens * tokens * self.square

    def batch(self, length_B: Tensor, captions: Captions = "padded", groups: int = 1) -> float:
        """A batch of captions of these lengths.

        A padded caption costs as much as the longest of the batch, a grouped one as much as the
        longest of its group, a packed one what its own length costs.
        """
        if captions == "groups":
            parts = length_B.sort().values.tensor_split(groups)
            return sum(self.batch(group_B) for group_B in parts if len(group_B))
        if captions == "padded":
            return len(length_B) * self.sample(int(length_B.max()))
        length_B = length_B.double()
        fixed = len(length_B) * (self.image + self.caption)
        tokens, pairs = float(length_B.sum()), float(length_B.square().sum())
        return fixed + tokens * self.token + pairs * self.square


def training_flops(
    config: ModelConfig,
    *,
    whole: bool = False,
    trained: tuple[int | None, int | None] = (None, None),
) -> FlopCount:
    """Operations of training a model as it is computed here.

    The last block of a tower computes the pooled token alone, and patches that are left out are not
    computed. With `whole` all blocks compute all tokens, as in other trainers. trained: the last
    groups of layers of the image and caption towers that are trained (`lock.py`); None: all. Of
    the others only forward is computed.
    """
    kept = config.patches if whole else max(1, int(config.patches * (1 - config.drop_patch_rate)))
    width, first = config.vision_width, config.class_token_length
    patches = 2.0 * config.patches * config.num_channels * config.patch_size**2 * width
    pruned = not whole and not config.global_average_pool
    layers = config.vision_layers
    fixed, token, square = _trained_tower(width, config.vision_mlp, layers, pruned, trained[0])
    tokens = kept + first
    image = fixed + tokens * token + tokens * tokens * square
    image += _passes(trained[0]) * 2.0 * width * config.embed_dim
    is_whole = trained[0] is None or trained[0] >= group_count(layers)
    width, layers = config.text_width, config.text_layers
    fixed, token, square = _trained_tower(width, config.text_mlp, layers, not whole, trained[1])
    return FlopCount(
        image=image + (2 if is_whole else 1) * patches,
        caption=fixed + _passes(trained[1]) * 2.0 * width * config.embed_dim,
        token=token,
        square=square,
    )


def _passes(groups: int | None) -> int:
    """How often the product of a tower's projection is computed: forward, and for the gradients of
    its weights and of its input.
    """
    return 3 if groups is None else 1 + min(groups, 2)


def _trained_tower(
    width: int, mlp: int, layers: int, pruned: bool, groups: int | None
) -> tuple[float, float, float]:
    """Forward through all blocks, and backward, twice as much, through those that are trained."""
    forward = _tower(width, mlp, layers, pruned)
    blocks = trained_blocks(layers, groups)
    again = _tower(width, mlp, blocks, pruned) if blocks else (0.0, 0.0, 0.0)
    fixed, token, square = (one + 2 * other for one, other in zip(forward, again, strict=True))
    return fixed, token, square


def _tower(width: int, mlp: int, layers: int, pruned: bool) -> tuple[float, float, float]:
    """Forward through the blocks: of a sample, of each of its tokens, of each pair of these."""
    token, square = 2.0 * (4 * width * width + 2 * width * mlp), 4.0 * width
    if not pruned:
        return 0.0, layers * token, layers * square
    # The last block: query, output and MLP of the pooled token; of every token the key and value,
    # and its product with the one query.
    pooled = 2.0 * (2 * width * width + 2 * width * mlp)
    other = 4.0 * width * width + square
    return pooled, (layers - 1) * token + other, (layers - 1) * square
