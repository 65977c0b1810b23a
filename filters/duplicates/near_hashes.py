"""Groups of near hashes, exactly, at a cost that many near copies of one image do not square."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from filters.duplicates.components import Components, Numbers
from manifests.hamming import BLOCK, Hashes, blocks_of, distances, near_pieces, sorted_by

Labels = NDArray[np.int64]

# Rows with 16 equal bits are a crowd if they are so many, and so many times the mean.
CROWD, CROWD_FACTOR = 64, 4
KEY = sum(1 << bit for bit in range(0, BLOCK, 2))
SMALLEST_STAR = 16  # rows near a pivot; with fewer the rows of its key are compared with all others
TRIES = 3  # pivots in a row with smaller stars before a crowd is left as it is
PIECE = 1 << 12  # rows of a star that are compared at a time, with FRINGE rows
FRINGE = 128


def near_labels(hashes: Hashes, radius: int) -> Labels:
    """(rows,) the first row of the group of each row: rows within `radius` are of one group, and so
    is what they connect.

    Crowds of near rows are taken out first: all rows within the radius of a pivot are of its group,
    whatever lies between them, and only rows within twice the radius of the pivot can be near one
    of them. All other pairs are searched, except those that are known to be of one group.
    """
    components = Components(len(hashes))
    is_left = np.ones(len(hashes), np.bool_)
    if radius and len(hashes) > CROWD:
        for block in blocks_of(hashes):
            _take_out_crowds(hashes, block, radius, components, is_left)
    rows = np.flatnonzero(is_left)

    def wanted(i: Numbers, j: Numbers) -> NDArray[np.bool_]:
        labels = components.known
        unknown: NDArray[np.bool_] = labels[rows[i]] != labels[rows[j]]
        return unknown

    for i, j in near_pieces(hashes[rows], radius, wanted):
        components.add(rows[i], rows[j])
    return components.labels()


def _take_out_crowds(
    hashes: Hashes,
    block: NDArray[np.uint32],
    radius: int,
    components: Components,
    is_left: NDArray[np.bool_],
) -> None:
    """Connect the rows of crowds that share 16 bits of a block: (rows,) 32 bits of each hash."""
    rows = np.flatnonzero(is_left)
    if not len(rows):
        return
    index, keys = sorted_by(block[rows], KEY)
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    sizes = np.diff(starts, append=len(keys))
    for bucket in np.flatnonzero(sizes > CROWD + CROWD_FACTOR * len(rows) / 2**16).tolist():
        members = rows[np.sort(index[starts[bucket] : starts[bucket] + sizes[bucket]])]
        misses = 0
        while misses < TRIES:
            members = members[is_left[members]]
            if len(members) - misses <= CROWD:
                break
            if not _take_out_star(hashes, int(members[misses]), radius, components, is_left):
                misses += 1


def _take_out_star(
    hashes: Hashes,
    pivot: int,
    radius: int,
    components: Components,
    is_left: NDArray[np.bool_],
) -> bool:
    """Connect all rows that are left and within the radius of the pivot, and every row near one of
    them. False if they are too few; then nothing is done.
    """
    left = np.flatnonzero(is_left)
    distance = distances(hashes[left], hashes[pivot][None])
    star = left[distance <= radius]
    if len(star) < SMALLEST_STAR:
        return False
    components.add(np.full(len(star), pivot), star)
    is_left[star] = False
    fringe = left[(distance > radius) & (distance <= 2 * radius)]
    for start in range(0, len(fringe), FRINGE):
        some = fringe[start : start + FRINGE]
        near = np.zeros(len(some), np.bool_)
        for first in range(0, len(star), PIECE):
            part = hashes[star[first : first + PIECE]]
            waiting = np.flatnonzero(~near)
            bits = distances(hashes[some[waiting]][:, None], part[None])
            near[waiting] = (bits <= radius).any(axis=1)
            if near.all():
                break
        components.add(np.full(int(near.sum()), pivot), some[near])
    return True
