from __future__ import annotations

import argparse

import pytest

from benchmarks.trainer import training
from benchmarks.trainer.options import BenchOptions

NONE = argparse.Namespace(threads=0)


@pytest.fixture
def given(tiny_pool: str) -> BenchOptions:
    return BenchOptions(
        mode="loader",
        models=("test",),
        batches=(8, 4),
        iterations=2,
        repeats=2,
        warmup=1,
        data=f"{tiny_pool}/all",
    )


def test_every_batch_is_a_cell_and_the_parts_add_up(given: BenchOptions) -> None:
    cells = list(training.loader_cells(given, NONE))
    assert [cell.batch for cell in cells] == [8, 4]
    for cell in cells:
        figures = {name: value or 0.0 for name, value in cell.figures.items()}
        samples = 4 * cell.batch
        assert (figures["samples"], figures["damaged"], figures["threads"]) == (samples, 0, 0)
        assert figures["samples_per_s"] == pytest.approx(samples / figures["wall_s"])
        assert len(cell.rates) == 2
        stages = sum(figures[f"{stage}_ms"] for stage in (*training.STAGES, "other"))
        assert stages >= 1000 * figures["cpu_s"] / samples - 1e-6
