"""A worker of a pass: mistakes of filters end the shard with one line, bad rows cost a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from clipmill.filters import FILTERS, WorkerSpec, instances_of
from clipmill.filters.base import Batch, Columns, Filter
from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import FilterSpec
from clipmill.pipeline.executor.tickets import Ticket
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.progress.state import Measure
from clipmill.pipeline.scoring.scorer import score
from clipmill.pipeline.scoring.worker import ScoredSet, ScoreJob, ScoreWorker
from tests.support.bundles import scores_of
from tests.support.small_pool import Row, make_pool, rows

WIDTH = 512


@dataclass(kw_only=True)
class Faulty(Filter):
    """A filter with one mistake."""

    name: ClassVar[str] = "faulty"
    adds: ClassVar[dict[str, pa.DataType]] = {"faulty": pa.int32()}
    mistake: str = ""

    def score(self, batch: Batch) -> Columns:
        count = len(batch.captions)
        if self.mistake == "length":
            return {"faulty": [1] * (count + 1)}
        if self.mistake == "type":
            return {"faulty": ["x"] * count}
        if self.mistake == "column":
            return {"fault": [1] * count}
        if self.mistake == "raise":
            raise RuntimeError("two\nlines")
        one_bad: list[Any] = ["x" if caption == "bad" else 1 for caption in batch.captions]
        return {"faulty": one_bad}


@dataclass(kw_only=True)
class Wide(Filter):
    """A column of lists whose width is an option."""

    name: ClassVar[str] = "wide"
    adds: ClassVar[dict[str, pa.DataType]] = {"wide": pa.list_(pa.float16())}
    width: int = WIDTH

    def columns(self) -> dict[str, pa.DataType]:
        return {"wide": pa.list_(pa.float16(), self.width)}

    def score(self, batch: Batch) -> Columns:
        return {"wide": np.ones((len(batch.captions), self.width), np.float16)}


@dataclass(kw_only=True)
class BatchSize(Filter):
    """How many rows came at a time."""

    name: ClassVar[str] = "batch_size"
    needs: ClassVar[frozenset[str]] = frozenset({"caption"})
    adds: ClassVar[dict[str, pa.DataType]] = {"batch_size": pa.int32()}

    def score(self, batch: Batch) -> Columns:
        return {"batch_size": [len(batch.captions)] * len(batch.captions)}


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILTERS, "faulty", Faulty)
    monkeypatch.setitem(FILTERS, "wide", Wide)
    monkeypatch.setitem(FILTERS, "batch_size", BatchSize)


def test_a_filter_without_images_gets_all_rows_of_a_shard_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clipmill.pipeline.scoring.worker.CHUNK", 2)
    pool = make_pool(tmp_path, [Row(caption="x") for _ in range(7)])
    specs = [FilterSpec(name="batch_size"), FilterSpec(name="picture")]
    report = score(PoolWriter(pool), specs, engine="inline")
    name, of_images = report["sets"]
    values = scores_of(pool, name, 0)["batch_size"].to_pylist()
    assert values == [7] * 7
    assert report["sets"][of_images]["scored"] == 7


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("length", "filter faulty gave 9 values of faulty for 8 rows"),
        ("type", "filter faulty: the values of faulty are not of type int32: "),
        ("column", "filter faulty must give the columns faulty; it gave fault"),
        ("raise", "filter faulty raised for each of 8 rows: RuntimeError: two lines"),
    ],
)
def test_a_mistake_ends_the_shard_with_one_line(tmp_path: Path, mistake: str, message: str) -> None:
    pool = make_pool(tmp_path, [Row(caption="x") for _ in range(8)])
    spec = FilterSpec(name="faulty", options={"mistake": mistake})
    report = score(PoolWriter(pool), [spec], engine="inline")
    assert message in report["failed"]["00000"]
    assert "\n" not in report["failed"]["00000"]
    assert list(report["sets"].values()) == [{}]


def test_a_row_with_a_value_of_another_type_costs_one_value(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, [Row(caption="bad" if i == 3 else "x") for i in range(9)])
    report = score(PoolWriter(pool), [FilterSpec(name="faulty")], engine="inline")
    ((name, state),) = report["sets"].items()
    values = scores_of(pool, name, 0)["faulty"].to_pylist()
    assert values == [1, 1, 1, None, 1, 1, 1, 1, 1]
    assert state["scored"] == 8


def test_lists_keep_the_size_that_the_options_give_them(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(10))
    instance = instances_of([FilterSpec(name="wide", options={"width": 4})])["wide"]
    sets = {name: ScoredSet(filter=WorkerSpec.of(instance)) for name in ("wide@1", "wide@2")}
    worker = ScoreWorker(ScoreJob(out=PoolWriter(pool), sets=sets))

    result = worker(Ticket(id="00000", group="0", payload=tuple(sets)))
    assert result == Measure(rows=8, stored=8), "a row that two filters score is one row"
    table = disk.read_parquet(PoolLayout(pool).score_part("wide@1", 0))
    assert table.schema.field("wide").type == pa.list_(pa.float16(), 4)
    assert table["wide"].to_pylist()[4] is None
    assert table["wide"].to_pylist()[0] == [1, 1, 1, 1]
