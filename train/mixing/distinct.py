"""No two rows of one number in a batch: draws that would collide change places. Pure NumPy.

The rule works on a block of batches, so it needs no state, and any rank gets the same result. A
block is the same whatever step a run starts from.
"""

from __future__ import annotations

import numpy as np

from train.rng import Ints

NEAR = 16  # draws on either side that are tried first: they come from the same lane


def put_apart(source: Ints, numbers: Ints, batch_size: int) -> tuple[Ints, int | None]:
    """Exchange draws of a block of batches until no batch holds a number twice.

    source, numbers: (steps × batch_size,) of the draw at each position. Sources that cannot
    collide have numbers below 0. A draw whose number is already in its batch changes places with
    a draw of the same source: the next one that fits, in a later batch if there is one.

    Returns the draw that comes at each position, and None or the position of a draw for which no
    other fits.
    """
    block = _Block(source, numbers, batch_size)
    return block.draw, block.exchange_all()


class _Block:
    """The draws of a block of batches while they are put apart."""

    def __init__(self, source: Ints, numbers: Ints, batch_size: int) -> None:
        self._batch_size, self._steps = batch_size, len(source) // batch_size
        self._source = source
        self.draw = np.arange(len(source))  # the draw that comes at each position
        self._code = np.full(len(source), -1)
        checked = np.flatnonzero(numbers >= 0)
        different, self._code[checked] = np.unique(numbers[checked], return_inverse=True)
        cell = checked // batch_size * len(different) + self._code[checked]
        counts = np.bincount(cell, minlength=self._steps * len(different))
        # How often each number is in each batch.
        self._count = counts.reshape(self._steps, len(different)).astype(np.int32)

    def exchange_all(self) -> int | None:
        """None, or the position of a draw for which no other fits."""
        for batch in range(self._steps):
            here = slice(batch * self._batch_size, (batch + 1) * self._batch_size)
            for code in np.flatnonzero(self._count[batch] > 1):
                holders = here.start + np.flatnonzero(self._code[here] == code)
                for position in holders[::-1].tolist():
                    if self._count[batch, code] > 1:
                        self._move(position, batch)
                if self._count[batch, code] > 1:
                    return int(holders[-1])
        return None

    def _move(self, position: int, batch: int) -> bool:
        """Exchange the draw of a position; False where no other draw fits."""
        same = np.flatnonzero(self._source == self._source[position])
        first, last = np.searchsorted(
            same, [batch * self._batch_size, (batch + 1) * self._batch_size]
        )
        for later in range(batch + 1, self._steps):
            target = position + (later - batch) * self._batch_size
            middle = int(np.searchsorted(same, target))
            near = same[max(last, middle - NEAR) : middle + NEAR]
            if self._exchange(position, batch, near):
                return True
        return self._exchange(position, batch, same[last:]) or self._exchange(
            position, batch, same[:first][::-1]
        )

    def _exchange(self, position: int, batch: int, candidates: Ints) -> bool:
        """Exchange with the first candidate that brings no collision, here or there."""
        code = self._code[position]
        there = candidates // self._batch_size
        fits = (self._count[batch, self._code[candidates]] == 0) & (self._count[there, code] == 0)
        chosen = np.flatnonzero(fits)
        if not len(chosen):
            return False
        other = int(candidates[chosen[0]])
        other_batch, other_code = other // self._batch_size, self._code[other]
        self._count[batch, code] -= 1
        self._count[batch, other_code] += 1
        self._count[other_batch, other_code] -= 1
        self._count[other_batch, code] += 1
        pair, reverse = [position, other], [other, position]
        self._code[pair], self.draw[pair] = self._code[reverse], self.draw[reverse]
        return True
