"""Values of rows become the columns of their shards, the default of those that took no part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from filters import FILTERS, instances_of
from manifests import disk
from manifests.commits import read_commits
from manifests.layout import PoolLayout, uids_checksum
from manifests.schema import FilterSpec
from pipeline.cross_row import VALUES, gather, plan_job
from pipeline.executor.tickets import Ticket
from pipeline.pool.lease import read_sidecar
from tests.support.small_pool import make_pool, rows
from tests.support.toy_pool_filters import Often


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
