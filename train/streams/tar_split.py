"""Which tars a reader reads, and in which order. Pure functions of integers.

The tars of a source are permuted anew for each pass over them, and the passes follow one another in
one list without an end. Reader k of n reads the entries k, k + n, k + 2n, … of it. So every tar is
read equally often whatever the number of readers, and two readers never have the same tar at the
same place of the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from train.rng import derive_key, permutation

PASS = 9  # what a random number is for, see train/mixing/order.py
MOST_READERS = 4  # of a source on a rank: so many tars are open at a time


def readers_of_rank(tars: int, world: int, threads: int) -> int:
    """How many readers a rank has for a source of so many tars: 1 to MOST_READERS."""
    return max(1, min(MOST_READERS, threads, tars // world))


def tars_of_reader(
    tars: Sequence[str], reader: int, readers: int, seed: int
) -> Iterator[tuple[int, str]]:
    """(pass, tar) for a reader of `readers`, those of all ranks together; without an end."""
    assert 0 <= reader < readers <= len(tars)
    known, order = -1, permutation(0, 0)
    entry = reader
    while True:
        number, position = divmod(entry, len(tars))
        if number != known:
            known, order = number, permutation(derive_key(seed, PASS, number), len(tars))
        yield number, tars[int(order[position])]
        entry += readers
