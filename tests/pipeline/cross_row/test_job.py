"""How a job is divided, and what it reads of a shard."""

from __future__ import annotations

from pathlib import Path

import pytest

from filters import FILTERS, instances_of
from manifests import disk
from manifests.commits import read_commits
from manifests.schema import FilterSpec
from pipeline import cross_row
from tests.support.small_pool import make_pool, rows
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
