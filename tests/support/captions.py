"""Captions of given lengths, as a batch of token numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LENGTHS = [4, 16, 3, 9, 9, 5, 12]


def captions(lengths: Sequence[int] = LENGTHS, context: int = 16, end: int = 49) -> Tensor:
    """BT, each caption's last token `end`, zeros behind it; the same for the same lengths."""
    tokens = torch.zeros((len(lengths), context), dtype=torch.int64)
    generator = torch.Generator().manual_seed(1)
    for row, length in enumerate(lengths):
        tokens[row, :length] = torch.randint(1, end, (length,), generator=generator)
        tokens[row, length - 1] = end
    return tokens
