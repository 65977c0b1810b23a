"""Rows of each group to shards, and shards to the files of the plan. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SLICES_PER_FILE = 16  # of a group that is too large for one file
SHARDS_PER_FILE = 256  # a reader of a file reads a footer that grows with them
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """The divisions of the order of all rows: a group, or a slice of a large group's order keys.

    `groups` (cells,) is the group of each; `slices` (groups,) is how many each group has.
    """

    groups: Integers
    slices: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """What one file of the plan holds: consecutive shards of a round, out of consecutive cells.

    The rows of the cells are sorted; the first `skip` of them belong to earlier files.
    """

    first_shard: int
    end_shard: int
    first_cell: int
    end_cell: int
    skip: int


def cells_of(group_rows: Integers, rows_per_file: int) -> Cells:
    """One cell a group; slices of about rows_per_file / SLICES_PER_FILE rows of the large ones."""
    large = group_rows > rows_per_file
    slices = np.where(large, -(-group_rows * SLICES_PER_FILE // rows_per_file), 1)
    return Cells(groups=np.repeat(np.arange(len(group_rows)), slices), slices=slices)


def slice_bounds(slices: int) -> npt.NDArray[np.uint64]:
    """The order keys, but the lowest, at which the slices of a group begin."""
    return np.array([(number << 64) // slices for number in range(1, slices)], np.uint64)


def shard_sizes(group_rows: Integers, rows_per_shard: int) -> tuple[Integers, Integers]:
    """(group, rows) of each shard: a shard is the next rows of one group, the last may be short."""
    counts = -(-group_rows // rows_per_shard)
    groups = np.repeat(np.arange(len(group_rows)), counts)
    sizes = np.full(len(groups), rows_per_shard, dtype=np.int64)
    last = np.cumsum(counts)[group_rows > 0] - 1
    remainders = group_rows - (counts - 1) * rows_per_shard
    sizes[last] = remainders[group_rows > 0]
    return groups, sizes


def file_parts(sizes: Integers, cell_rows: Integers, rows_per_file: int) -> list[FilePart]:
    """What each file of a plan holds: shards of at most `rows_per_file` rows, at least one shard.

    sizes: (shards,) rows of each shard. cell_rows: (cells,) rows of each cell, in all runs.
    """
    assert sizes.sum() == cell_rows.sum(), f"{sizes.sum()} rows in {cell_rows.sum()} of the cells"
    row_bounds = np.concatenate([[0], np.cumsum(sizes)])
    cell_bounds = np.concatenate([[0], np.cumsum(cell_rows)])
    parts = []
    first = 0
    while first < len(sizes):
        end = int(np.searchsorted(row_bounds, row_bounds[first] + rows_per_file, "right")) - 1
        end = min(max(end, first + 1), first + SHARDS_PER_FILE)
        cell = int(np.searchsorted(cell_bounds, row_bounds[first], "right")) - 1
        parts.append(
            FilePart(
                first_shard=first,
                end_shard=end,
                first_cell=cell,
                end_cell=int(np.searchsorted(cell_bounds, row_bounds[end], "left")),
                skip=int(row_bounds[first] - cell_bounds[cell]),
            )
        )
        first = end
    return parts
