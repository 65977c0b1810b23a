"""A token table that holds only the tokens of a run: the same training at less cost."""

from __future__ import annotations

import torch
from torch import Tensor

from train.model.blocks import Embedding
from train.model.towers import Text


class ReducedTokenTable:
    """The token table of a model, reduced while it trains to the tokens that the run reads.

    No other row ever has a gradient, so all that AdamW does to it is weight decay: after n steps
    it is its start times the product of (1 - lr x decay). The captions of the demo use a few
    hundred of 49,408 rows.
    """

    def __init__(self, text: Text, used: Tensor) -> None:
        """Reduce the table of `text` to the rows `used` (token numbers, rising)."""
        self.start = text.token_embedding.weight.detach()
        self.used = used.to(self.start.device)
        table = self.start[self.used].clone()
        text.token_embedding = Embedding.from_pretrained(table, freeze=False)
        # -1 is an error where it is ever looked up.
        row_of = torch.full((len(self.start),), -1, device=self.used.device)
        row_of[self.used] = torch.arange(len(self.used), device=self.used.device)
        text.row_of = row_of

    def full_table(self, text: Text, decay_factor: float) -> Tensor:
        """The table of all tokens; `decay_factor` is the product over the steps so far."""
        table = (self.start.double() * decay_factor).to(self.start.dtype)
        table[self.used] = text.token_embedding.weight.detach()
        return table

    def restore(self, text: Text, decay_factor: float) -> None:
        """Put the table of all tokens back into the tower."""
        table = self.full_table(text, decay_factor)
        text.token_embedding = Embedding.from_pretrained(table, freeze=False)
        text.row_of = None
