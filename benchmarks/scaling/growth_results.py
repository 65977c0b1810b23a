"""Steps of benchmarks/growth.py that follow training: evaluation, report, and repair of a pool."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from benchmarks.scaling.growth_steps import Step, make_photos
from clipmill.manifests.layout import PoolLayout
from clipmill.pipeline.audit.repair import repair_pool
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.train.evaluation.tasks import (
    columns_in_batches,
    compact,
    ranks,
    summarise,
    with_best_temperature,
)
from clipmill.verdict.pages.page import render
from tests.support import reports

CLASSES, QUERIES, WIDTH = 100, 500, 256


def classify_samples(folder: Path, count: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(count, CLASSES)
    labels = torch.arange(count) % CLASSES
    columns = with_best_temperature(columns_in_batches(logits, labels))
    compact(columns, CLASSES), summarise(columns, CLASSES)


def rank_candidates(folder: Path, count: int) -> None:
    """A fixed number of queries; all pairs of queries and candidates are compared."""
    torch.manual_seed(0)
    matches = [(n, n) for n in range(QUERIES)]
    ranks(torch.randn(QUERIES, WIDTH), torch.randn(count, WIDTH), matches)


def report_page(folder: Path, count: int) -> None:
    """Every arm has a row, a comparison and five runs."""
    names = [f"arm_{number}" for number in range(count)]
    sample = reports.sample_report()
    added = tuple(reports.arm_report(name, "arm", 0.4) for name in names)
    compared = tuple(reports.comparison(name, "raw") for name in names)
    report = dataclasses.replace(
        reports.with_task(sample, comparisons=compared),
        arms=(*sample.arms, *added),
        runs=tuple(reports.run_row(name, seed, 0.3) for name in names for seed in range(5)),
    )
    assert names[-1] in render(report)


def lose_sidecar(folder: Path) -> None:
    shards = Path(PoolLayout(str(folder / "pool")).sidecar(0)).parent
    for path in shards.glob("*.parquet"):  # a sidecar that was made again has another name
        path.unlink()


def repair(folder: Path, count: int) -> None:
    """Every file is read; the sidecar of the only shard is made again from its tar."""
    repaired = repair_pool(PoolWriter(str(folder / "pool")))
    assert repaired.done, repaired
    assert not repaired.left, repaired


STEPS = {
    "repair": Step(
        stage="repair", what="images, a sidecar is lost", unit="images", base=1_000,
        prepare=make_photos, run=repair, reset=lose_sidecar,
    ),
    "classify": Step(
        stage="evaluate", what="samples, zero-shot columns", unit="samples", base=50_000,
        run=classify_samples,
    ),
    "retrieval": Step(
        stage="evaluate", what=f"captions of {QUERIES} images, ranks", unit="captions",
        base=20_000, run=rank_candidates,
    ),
    "report": Step(
        stage="report", what="arms of 5 seeds, the page", unit="arms", base=64, run=report_page,
    ),
}  # fmt: skip
