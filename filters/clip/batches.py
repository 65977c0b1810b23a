"""Rows through a model in batches that fit in the memory of a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


def run_batches(
    rows: Sequence[Any],
    batch_size: int,
    limits: dict[str, int],
    what: str,
    run: Callable[[Sequence[Any]], T],
) -> list[T]:
    """What `run` gives for each batch, in the order of the rows.

    A batch that does not fit in the memory of the GPU is halved until it fits, and later batches
    are no larger: `limits[what]` keeps the size.
    """
    import torch

    results: list[T] = []
    start = 0
    while start < len(rows):
        batch = rows[start : start + min(batch_size, limits.get(what, batch_size))]
        try:
            results.append(run(batch))
        except torch.cuda.OutOfMemoryError:
            if len(batch) == 1:
                raise
            limits[what] = len(batch) // 2
            logger.warning(
                "out of GPU memory with %d rows; batches of %s have %d rows from now on",
                len(batch),
                what,
                limits[what],
            )
        else:
            start += len(batch)
            continue
        torch.cuda.empty_cache()  # here the error no longer holds the tensors of the batch
    return results
