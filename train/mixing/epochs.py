"""Where one epoch of a source ends and the next begins: no row twice within so many draws. Pure.

Both rules keep an epoch what it is: every row once.
"""

from __future__ import annotations

import numpy as np

from train.rng import Ints, uniforms


def exchanged_draws(last: Ints, first: Ints, apart: int) -> Ints:
    """(3 × apart,) which draw comes at each place in the beginning of an epoch.

    last: (apart,) the rows that the epoch before ended with. first: (3 × apart,) the rows that this
    one would begin with. A row among the first `apart` that is also in `last` changes places with
    one that comes later and is not. There are enough of these: 2 × apart, of which `apart` at most
    are in `last`. Then any `apart` draws in a row are different rows, over the border too.
    """
    assert len(last) == apart
    assert len(first) == 3 * apart
    repeated = np.isin(first, last)
    early = np.flatnonzero(repeated[:apart])
    later = apart + np.flatnonzero(~repeated[apart:])[: len(early)]
    draws = np.arange(len(first))
    draws[early], draws[later] = later, early
    return draws


def shuffled_apart(before: Ints, apart: int, key: int) -> Ints:
    """The rows of an epoch in a new order, after an epoch in the order `before`.

    At each place one of the rows is drawn that came at least `apart` draws ago: at place p those
    that were at most len(before) − apart places further on. So any `apart` draws in a row are
    different rows, over the border too. With `apart` near the number of rows little is left to
    chance.
    """
    rows = len(before)
    assert 0 < apart <= rows
    slack = rows - apart
    chances = uniforms(key, np.zeros(1, np.int64), rows)[0]
    waiting = before[: slack + 1].tolist()
    upcoming = iter(before[slack + 1 :].tolist())
    order = np.empty(rows, np.int64)
    for position in range(rows):
        k = int(chances[position] * len(waiting))
        order[position] = waiting[k]
        following = next(upcoming, None)
        if following is None:
            waiting[k] = waiting[-1]
            waiting.pop()
        else:
            waiting[k] = following
    return order
