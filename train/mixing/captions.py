"""Which caption of a row a draw takes, where a blend draws from several text columns. Pure NumPy.

Of every `period` draws of a source, each column has its exact share; which of them it has is
random. So the columns of any prefix can be counted without going through it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from train.mixing.wheel import SourceRows, wheel_sequence, wheel_slots
from train.rng import Ints, derive_key, uniforms


class CaptionColumns:
    """The text columns of a source with their shares. ValueError for impossible shares."""

    def __init__(self, shares: Mapping[str, float], key: int) -> None:
        """key: of the source's random numbers."""
        self.names = tuple(sorted(shares))
        weighted = []
        for name in self.names:
            weighted.append(SourceRows(name=name, weight=shares[name], shard_rows=()))
        self._slots = np.array(wheel_slots(weighted))
        self._turn = wheel_sequence(self._slots.tolist())
        self._key = derive_key(key)

    def of_draws(self, draw: Ints) -> Ints:
        """(draws,) the number in `names` of the column that each draw takes."""
        turn, slot = np.divmod(draw, len(self._turn))
        turns, row = np.unique(turn, return_inverse=True)
        return self._turns(turns)[row, slot]

    def count(self, draws: int) -> dict[str, int]:
        """How many of the first so many draws take each column."""
        turns, rest = divmod(draws, len(self._turn))
        part = np.bincount(self._turns(np.array([turns]))[0, :rest], minlength=len(self.names))
        counts = (turns * self._slots + part).tolist()
        return dict(zip(self.names, counts, strict=True))

    def _turns(self, turns: Ints) -> Ints:
        """(turns, period) the column of each draw of some turns."""
        order = np.argsort(uniforms(self._key, turns, len(self._turn)), axis=1, kind="stable")
        columns: Ints = self._turn[order]
        return columns
