"""Tickets over shards leave summaries and rows in partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from filters import FILTERS, instances_of
from filters.base import PoolFilter
from manifests import disk
from manifests.commits import read_commits
from manifests.schema import FilterSpec
from pipeline.executor import Ticket
from pipeline.pool_scores import plan_job, rows_to_partitions
from tests.support.small_pool import make_pool, rows
from tests.support.toy_pool_filters import Near, Often


def test_a_linked_filter_leaves_its_rows_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FILTERS, "near", Near)
    pool = make_pool(tmp_path, rows(20))
    commits = read_commits(pool)
    instance = instances_of([FilterSpec(name="near")])["near"]
    job = plan_job(commits, "near@1", instance, {"": ("caption",)}, None)
    payload = rows_to_partitions.unit_payload(job, commits, 0)
    assert payload == {"number": 0, "shards": [0, 1]}
    work = rows_to_partitions.route({"job": disk.to_plain(job)})
    assert work(Ticket(id="r", group="r", payload=payload)) == {"rows": 16}
    for name in (rows_to_partitions.ROUTED, rows_to_partitions.MEMBERS):
        table, ids = job.exchange(name, from_shards=True).read(0)
        assert table.column_names == ["uid", "caption"]
        assert len(np.unique(ids)) == table.num_rows == 16
        assert (ids >> np.uint64(32)).tolist() == [0] * 8 + [1] * 8


def test_a_state_is_there_for_filters_with_summaries_only() -> None:
    assert rows_to_partitions.has_summaries(Often())
    assert not rows_to_partitions.has_summaries(Near())


def test_an_error_of_a_filter_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*_: Any) -> None:
        raise KeyError("a\nb")

    monkeypatch.setitem(FILTERS, "often", Often)
    monkeypatch.setattr(Often, "judge", boom)
    pool = make_pool(tmp_path, rows(5))
    instance = instances_of([FilterSpec(name="often")])["often"]
    assert isinstance(instance.filter, PoolFilter)
    job = plan_job(read_commits(pool), "often@1", instance, {"": ("caption",)}, None)
    worker = rows_to_partitions.PoolWorker({"job": disk.to_plain(job)})
    with pytest.raises(ValueError, match=r"filter often: judge raised KeyError: 'a\\nb'"):
        worker.call("judge", None, None)
