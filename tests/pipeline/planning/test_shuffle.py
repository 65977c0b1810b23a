"""The tickets of the shuffle: which rows are retried, and what a damaged part costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests import disk
from pipeline.executor.tickets import Ticket
from pipeline.planning import planner
from pipeline.planning.plan_files import read_plan, read_rounds, read_shard
from pipeline.planning.planner import add_retries, retried_keys, sort_pairs, write_plan
from pipeline.pool.lease import read_sidecar
from tests.support import audited
from tests.support.plans import planned


def transient_keys(pool: str, shards: range) -> list[str]:
    keys = []
    for shard in shards:
        rows = read_sidecar(pool, shard, ["key", "class"]).to_pylist()
        keys += [row["key"] for row in rows if row["class"] == "transient"]
    return keys


@pytest.mark.parametrize("rows_per_ticket", [500_000, 4])
def test_without_keys_all_transient_rows_are_retried_once(
    tmp_path: Path, rows_per_ticket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "ROWS_PER_TICKET", rows_per_ticket)
    pool = str(tmp_path)
    audited.write_pairs(pool, 60)
    shards = planned(pool, audited.RECIPE)
    for shard in shards[:-1]:
        audited.write_shard(pool, shard)
    expected = transient_keys(pool, range(len(shards) - 1))
    assert len(expected) > 3
    assert add_retries(pool, audited.RECIPE) == {}
    new = list(read_plan(pool))[len(shards) :]
    keys = [key for shard in new for key in read_shard(pool, shard.shard)[1]]
    assert sorted(map(str, keys)) == sorted(expected)
    before = sorted(path.name for path in (tmp_path / "plan").rglob("*.parquet"))
    assert add_retries(pool, audited.RECIPE) == {}, "nothing is left to retry"
    assert sorted(path.name for path in (tmp_path / "plan").rglob("*.parquet")) == before
    audited.write_shard(pool, shards[-1])
    late = transient_keys(pool, range(len(shards) - 1, len(shards)))
    assert late
    assert add_retries(pool, audited.RECIPE) == {}
    rounds = read_rounds(pool)
    assert [each.number for each in rounds] == [0, 1, 2]
    retried = retried_keys(rounds, 0, len(read_plan(pool))).tolist()
    assert retried == sorted(int(key) for key in [*expected, *late])
    assert retried_keys(rounds, 1, 1).tolist() == [k for k in retried if k // 10_000 == 1]


def test_a_part_with_fewer_rows_than_its_footer_said_is_named(tmp_path: Path) -> None:
    pool = str(tmp_path)
    audited.write_pairs(pool)
    config = {
        "pool": pool, "scratch": str(tmp_path / "s"), "job": "j", "extra_columns": {},
        "locked": False, "group_count": 1, "runs": 2, "fence": None,
    }  # fmt: skip
    work = sort_pairs(config)
    assert work(Ticket(id="a", group="a", payload={"number": 0, "ranges": [[0, 3, 9]]})) == {
        "rows": 6
    }
    with pytest.raises(AssertionError, match=r"part-00000\.parquet has 24 rows, not 99"):
        work(Ticket(id="b", group="b", payload={"number": 1, "ranges": [[0, 0, 99]]}))


def test_a_failing_ticket_leaves_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = str(tmp_path)
    audited.write_pairs(pool)
    publish = disk.publish

    def full(staged: str | Path, path: str | Path) -> None:
        if "run-" in str(path):
            raise OSError("no space left")
        publish(staged, path)

    monkeypatch.setattr(disk, "publish", full)
    failed = write_plan(pool, audited.RECIPE)
    assert list(failed) == ["sort-00000"]
    assert "no space left" in failed["sort-00000"]
    monkeypatch.undo()
    assert write_plan(pool, audited.RECIPE) == {}
    assert sum(read_plan(pool).rows) == 24
