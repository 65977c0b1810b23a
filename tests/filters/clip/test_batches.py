"""Batches keep the order of the rows; one that does not fit is halved, and the next ones too."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from filters.clip.model import run_batches


def test_a_batch_that_does_not_fit_is_halved_for_good() -> None:
    tried: list[int] = []

    def run(batch: Sequence[int]) -> list[int]:
        tried.append(len(batch))
        if len(batch) > 3:
            raise torch.cuda.OutOfMemoryError("no memory")
        return list(batch)

    limits: dict[str, int] = {}
    parts = run_batches(range(10), 8, limits, "rows", run)
    assert [row for part in parts for row in part] == list(range(10))
    assert tried == [8, 4, 2, 2, 2, 2, 2]
    assert limits == {"rows": 2}
    assert run_batches(range(0), 8, limits, "rows", run) == []


def test_one_row_that_does_not_fit_is_an_error() -> None:
    def run(batch: Sequence[int]) -> None:
        raise torch.cuda.OutOfMemoryError("no memory")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        run_batches(range(2), 1, {}, "rows", run)
