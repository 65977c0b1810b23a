"""Tickets of a pool filter: how a job is divided, and what each kind of ticket leaves."""

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
from manifests.layout import PoolLayout, uids_checksum
from manifests.schema import FilterSpec
from pipeline import cross_row
from pipeline import cross_row as values
from pipeline.cross_row import VALUES, gather, plan_job
from pipeline.executor.tickets import Ticket
from pipeline.pool.lease import read_sidecar
from tests.support.small_pool import Row, jpeg, make_pool, rows
from tests.support.toy_pool_filters import Near, Often

OFTEN = FilterSpec(name="often")


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILTERS, "often", Often)
    monkeypatch.setitem(FILTERS, "near", Near)


def planned(
    pool: str, columns: dict[str, tuple[str, ...]], name: str = "often"
) -> cross_row.PoolJob:
    instance = instances_of([FilterSpec(name=name)])[name]
    return cross_row.plan_job(read_commits(pool), f"{name}@1", instance, columns, None)


def test_tickets_and_partitions_follow_from_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(tmp_path, rows(40), per_shard=4)
    small = planned(pool, {"": ("caption",)})
    assert (small.partitions, small.bounds, small.units) == (1, (0, 10), 1)
    monkeypatch.setattr(cross_row, "PARTITION_BYTES", 2000)
    many = planned(pool, {"": ("caption",)})
    assert many.partitions > 1
    assert many.bounds[0] == 0
    assert many.bounds[-1] == 10
    assert list(many.bounds) == sorted(set(many.bounds))
    assert planned(pool, {"": ("caption",)}, "near").partitions > 2 * many.partitions
    assert disk.from_plain(cross_row.PoolJob, disk.to_plain(many)) == many
    assert many.identity() != small.identity()
    monkeypatch.setattr(cross_row, "MOST_PARTITIONS", 2)
    assert planned(pool, {"": ("caption",)}).partitions == 2


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


def uids(*numbers: int) -> pa.Array:
    return pa.array([f"{number:032x}" for number in numbers])


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(1, 2)], "links must return a table of uid_a and uid_b"),
        (pa.table({"a": [1]}), "links must return a table of uid_a and uid_b"),
        (
            pa.table({"uid_a": ["x"], "uid_b": ["y"]}),
            "links must return uids: a uid does not have 32 hex digits",
        ),
    ],
)
def test_links_that_are_none(pairs: object, message: str) -> None:
    class Worker:
        class instance:
            name = "near"

    with pytest.raises(ValueError, match=f"filter near: {message}"):
        values._linked(Worker(), pairs)  # type: ignore[arg-type]


def test_columns_of_two_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILTERS, "often", Often)
    pool = make_pool(tmp_path, rows(8), per_shard=5)
    commits = read_commits(pool)
    instance = instances_of([FilterSpec(name="many", kind="often")])["many"]
    job = plan_job(commits, "many@1", instance, {"": ("caption",)}, None)
    table = pa.table({"often": pa.array([7, None, 9]), "often_share": pa.array([0.5, 0.6, 0.7])})
    ids = np.array([1 << 32 | 2, 1, 0], np.uint64)
    job.exchange(VALUES).write(0, table, ids)
    work = gather({"job": disk.to_plain(job)})
    ticket = Ticket(id="g", group="g", payload={"number": 0, "shards": [0, 1]})
    assert work(ticket) == {"scored": {"many@1": 2}}
    path = PoolLayout(pool).score_part("many@1", 0)
    first = disk.read_parquet(path)
    # Rows 2 and 3 are stored and took no part: the default. Row 4 is not stored.
    assert first["many"].to_pylist() == [9, None, 0, 0, None]
    assert first["many_share"].to_pylist() == [0.7, 0.6, None, None, None]
    second = disk.read_parquet(PoolLayout(pool).score_part("many@1", 1))
    assert second["many"].to_pylist() == [0, 0, 7]
    metadata = disk.read_metadata(path)
    assert metadata["pool"] == commits.fingerprint
    assert metadata["uids"] == uids_checksum(read_sidecar(pool, 0)["uid"])
    assert (metadata["rows"], metadata["stored"], metadata["scored"]) == (5, 4, 1)
    with pytest.raises(FileNotFoundError):
        work(Ticket(id="g", group="g", payload={"number": 0, "shards": [0, 1, 2]}))
