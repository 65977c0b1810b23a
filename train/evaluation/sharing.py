"""Batches shared over the ranks of a process group, and their results gathered in order.

Batch b is computed by rank b mod world. Results are the same bits for any number of ranks that
compute with the same number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from train.dist import Ranks, process_group
from train.task_data import batch_rows

Arrays = dict[str, np.ndarray]
ALONE = Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)


def on_rank_0(ranks: Ranks, do: Callable[[], None]) -> None:
    """`do` on rank 0, while the others wait. ValueError on every rank where it raised one."""
    error = None
    if ranks.rank == 0:
        try:
            do()
        except ValueError as raised:
            if ranks.world == 1:
                raise
            error = str(raised)
    _raise_anywhere(ranks, error)


def _raise_anywhere(ranks: Ranks, error: str | None) -> None:
    if ranks.world > 1:
        errors = [each for each in process_group.all_gather_json(error, ranks) if each is not None]
        if errors:
            raise ValueError(errors[0])


def in_batches(ranks: Ranks, count: int, compute: Callable[[slice], Arrays]) -> Arrays:
    """`compute(rows)` for every batch of `count` rows, joined in order, on every rank.

    A collective. ValueError on every rank where one raised it.
    """
    return gather(ranks, count, lambda batches: (compute(rows) for rows in batches))


def gather(
    ranks: Ranks, count: int, compute: Callable[[Sequence[slice]], Iterator[Arrays]]
) -> Arrays:
    """Like `in_batches`; `compute` gets all batches of this rank and yields a result for each."""
    batches = batch_rows(count)
    own: list[Arrays] = []
    error = None
    try:
        own = list(compute(batches[ranks.rank :: ranks.world]))
    except ValueError as raised:
        if ranks.world == 1:
            raise
        error = str(raised)
    _raise_anywhere(ranks, error)
    parts = {name: np.concatenate([batch[name] for batch in own]) for name in own[0]} if own else {}
    if ranks.world == 1:
        return parts
    kinds: dict[str, Any] = {}
    for name, values in parts.items():
        kinds[name] = [values.dtype.str, list(values.shape[1:])]
    of_rank_0 = process_group.all_gather_json(kinds, ranks)[0]  # rank 0 has the first batch
    joined = {}
    for name, (dtype, shape) in of_rank_0.items():
        part = parts.get(name, np.zeros((0, *shape), dtype))
        joined[name] = _join(ranks, batches, part)
    return joined


def _join(ranks: Ranks, batches: Sequence[slice], part: np.ndarray) -> np.ndarray:
    """The rows of all ranks in order; `part` holds those of this rank's batches."""
    rows_of_rank = []
    for rank in range(ranks.world):
        rows_of_rank.append(sum(rows.stop - rows.start for rows in batches[rank :: ranks.world]))
    row_bytes = part.itemsize * int(np.prod(part.shape[1:], dtype=np.int64))
    padded = torch.zeros(max(rows_of_rank) * row_bytes, dtype=torch.uint8)
    flat = torch.from_numpy(np.ascontiguousarray(part).reshape(-1).view(np.uint8).copy())
    padded[: len(flat)] = flat
    received = [torch.empty_like(padded) for _ in range(ranks.world)]
    dist.all_gather(received, padded)
    joined = np.empty((batches[-1].stop, *part.shape[1:]), part.dtype)
    for rank, data in enumerate(received):
        values = data[: rows_of_rank[rank] * row_bytes].numpy().view(part.dtype)
        values = values.reshape(-1, *part.shape[1:])
        start = 0
        for rows in batches[rank :: ranks.world]:
            length = rows.stop - rows.start
            joined[rows] = values[start : start + length]
            start += length
    return joined
