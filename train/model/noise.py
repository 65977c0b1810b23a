"""Random numbers of patch dropout, stochastic depth and dropout as functions of their position.

A number depends on the run's seed, the step, the block, the sample's row in the global batch, the
token and the channel. So a recomputed block, the second pass of an accumulated batch, another
micro-batch size, other ranks or packed captions meet the same numbers, and no generator has a state
to keep. They are made where the activations lie, by SplitMix64's mixing in 64-bit integers that
wrap.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_STEP = 0x9E3779B97F4A7C15 - (1 << 64)  # SplitMix64's constants, with a sign
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))
# More tokens than any sample has: token t of sample r has the number r x TOKENS + t.
TOKENS = 1 << 16
# What a number is for: patches, embeddings, attention weights, and the two branches of a block.
PATCHES, EMBEDDED, ATTENTION, MIXED, MIXED_PATH, ADDED, ADDED_PATH = range(7)


class Noise(NamedTuple):
    """What decides the random numbers of a tower.

    `key` has no dimensions. `row` is the sample's row in the global batch and `token` the token's
    number, both of the shape of the activations without channels (`row` may have 1 for the tokens).
    """

    key: Tensor
    row: Tensor
    token: Tensor

    def of_block(self, depth: int) -> Noise:
        """The noise of block `depth`, unrelated to that of any other block."""
        return self._replace(key=_mixed(self.key + _wrapped((depth + 1) * 0x8CB92BA72F3D8DD7)))

    def at(self, *index: Tensor | slice | int) -> Noise:
        """The noise of the tokens at `index`."""
        row = self.row.expand_as(self.token)
        return Noise(self.key, row[index], self.token[index])


def noise_of(key: Tensor, row_B: Tensor, tokens: int) -> Noise:
    """The noise of activations BTC."""
    row_B1 = row_B[:, None]
    return Noise(key, row_B1, row_B1 * TOKENS + torch.arange(tokens, device=row_B.device))


def uniform(key: Tensor, kind: int, index: Tensor) -> Tensor:
    """Numbers in [0, 1), float32: each a function of `key`, `kind` and its index."""
    z = _mixed(key + _wrapped(kind * 0x632BE59BD9B4E019)) + (index + 1) * _STEP
    return ((_mixed(z) >> 40) & 0xFFFFFF).float() * 2.0**-24


def _wrapped(number: int) -> int:
    """An integer as a signed 64-bit integer holds it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _mixed(z: Tensor) -> Tensor:
    for shift, factor in _ROUNDS:
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def dropout(x: Tensor, rate: float, noise: Noise, kind: int) -> Tensor:
    """x (…C) with a share `rate` of its values set to 0; the others are scaled to keep the mean."""
    channels = torch.arange(x.shape[-1], device=x.device)
    keep = uniform(noise.key, kind, noise.token[..., None] * x.shape[-1] + channels) >= rate
    return x * (keep.to(x.dtype) / (1 - rate))


def drop_path(x: Tensor, rate: float, noise: Noise, kind: int) -> Tensor:
    """x (…C), 0 for a share `rate` of the samples; the others are scaled to keep the mean."""
    keep = uniform(noise.key, kind, noise.row) >= rate
    return x * (keep.to(x.dtype) / (1 - rate))[..., None]


def kept_patches(row_B: Tensor, key: Tensor, patches: int, rate: float) -> Tensor:
    """Numbers of the patches that stay, (B, kept), rising: patches x (1 - rate), at least 1."""
    count = max(1, int(patches * (1 - rate)))
    number_BT = row_B[:, None] * TOKENS + torch.arange(patches, device=row_B.device)
    return uniform(key, PATCHES, number_BT).topk(count, dim=1).indices.sort(dim=1).values
