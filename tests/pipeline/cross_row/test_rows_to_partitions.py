"""Tickets over shards leave summaries and rows in partitions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from filters import FILTERS, instances_of
from filters.base import PoolFilter
from filters.concepts import add_counts, count_entries, merge_counts
from manifests import disk
from manifests.commits import read_commits
from manifests.schema import FilterSpec
from pipeline import cross_row
from pipeline.cross_row import plan_job
from pipeline.executor.tickets import Ticket
from tests.support.small_pool import Row, jpeg, make_pool, rows
from tests.support.toy_pool_filters import Near, Often


def test_a_linked_filter_leaves_its_rows_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FILTERS, "near", Near)
    pool = make_pool(tmp_path, rows(20))
    commits = read_commits(pool)
    instance = instances_of([FilterSpec(name="near")])["near"]
    job = plan_job(commits, "near@1", instance, {"": ("caption",)}, None)
    payload = cross_row.unit_payload(job, commits, 0)
    assert payload == {"number": 0, "shards": [0, 1]}
    work = cross_row.route({"job": disk.to_plain(job)})
    assert work(Ticket(id="r", group="r", payload=payload)) == {"rows": 16}
    for name in (cross_row.ROUTED, cross_row.MEMBERS):
        table = job.from_shards(name).at(0)
        assert table.column_names == ["uid", "caption", cross_row.ID]
        ids = table[cross_row.ID].to_numpy()
        assert len(np.unique(ids)) == table.num_rows == 16
        assert (ids >> np.uint64(32)).tolist() == [0] * 8 + [1] * 8


class Counted(Often):
    """Each shard's summary counts the same 50,000 entries: 600 KB."""

    def summarise(self, rows: pa.Table) -> pa.Table:
        return count_entries(pa.array([range(50_000)], pa.list_(pa.int32())))

    def merge(self, summaries: pa.Table) -> pa.Table:
        return merge_counts(summaries)

    def combine(self, summaries: pa.Table) -> Any:
        return add_counts(summaries)


class Kept(Counted):
    """The same without a merge."""

    merge = PoolFilter.merge


def peak_of_summaries(pool: str, monkeypatch: pytest.MonkeyPatch, kind: Any) -> tuple[int, Any]:
    """(most bytes that Arrow held while shards were summarised and combined, the state)."""
    monkeypatch.setitem(FILTERS, "often", kind)
    commits = read_commits(pool)
    instance = instances_of([FilterSpec(name="often")])["often"]
    planned = plan_job(commits, f"{kind.__name__}@1", instance, {"": ("caption",)}, None)
    bounds = (0, 10, 20, 30)
    job_config = {"job": disk.to_plain(replace(planned, bounds=bounds))}
    summarise = cross_row.summarise(job_config)
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    try:
        for number in range(3):
            shards = commits.shards[bounds[number] : bounds[number + 1]].tolist()
            payload = {"number": number, "shards": shards}
            summarise(Ticket(id=str(number), group="s", payload=payload))
        cross_row.combine(job_config)(Ticket(id="c", group="c", payload={}))
    finally:
        pa.set_memory_pool(before)
    return counted.max_memory(), cross_row.PoolWorker(job_config).state


def test_summaries_of_many_shards_take_the_memory_of_a_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(tmp_path, [Row(caption="dog", image=jpeg(0))] * 30, per_shard=1)
    monkeypatch.setattr(cross_row, "SUMMARY_BYTES", 3_000_000)
    merged, state = peak_of_summaries(pool, monkeypatch, Counted)
    kept, expected = peak_of_summaries(pool, monkeypatch, Kept)
    assert state.tolist() == expected.tolist() == [30] * 50_000
    assert kept > 18_000_000
    assert merged < 12_000_000
