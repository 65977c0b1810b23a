"""The files of one shard: what a ticket of the stage verify reports."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from manifests.layout import PoolLayout
from pipeline.audit.integrity import Damage, ShardChecker, read_record
from pipeline.executor.tickets import Ticket
from pipeline.pool.lease import read_commit_record, read_sidecar
from pipeline.pool.shard_writer import replace_shard
from tests.support import audited


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(audited.make(tmp_path_factory.mktemp("audited") / "pool"))


@pytest.fixture
def pool(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "pool"))


def check(pool: Path, **payload: Any) -> dict[str, Any]:
    checker = ShardChecker({"pool": str(pool), "sets": {}})
    payload = {"scores": {}, "views": {}, **payload}
    return checker(Ticket(id="x", group="0", payload=payload))


def test_a_whole_shard_has_its_record_and_no_damage(pool: Path) -> None:
    result = check(pool, shard=1)
    record = read_commit_record(str(pool), 1)
    assert record is not None
    assert result == {
        "damages": [],
        "record": record.to_plain(),
        "sidecar": True,
    }
    assert check(pool, part="part-00000.parquet") == {"damages": [], "sidecar": True}


def test_a_replaced_shard_is_checked_by_the_names_of_its_record(pool: Path) -> None:
    replace_shard(str(pool), 1, read_sidecar(str(pool), 1), fence=None)
    assert check(pool, shard=1)["damages"] == []
    (pool / "shards/00001.r1.parquet").write_bytes(b"")
    [damage] = check(pool, shard=1)["damages"]
    assert damage["kind"] == "sidecar"
    assert damage["line"].startswith("shards/00001.r1.parquet: damaged")


def test_a_missing_record_and_a_missing_sidecar_leave_nothing_to_compare(pool: Path) -> None:
    (pool / "shards/00000.parquet").unlink()
    result = check(pool, shard=0, scores={"none@0": "x"})
    assert not result["sidecar"]
    assert [damage["line"] for damage in result["damages"]] == ["shards/00000.parquet: missing"]
    (pool / "shards/00000_stats.json").unlink()
    [damage] = check(pool, shard=0)["damages"]
    assert (damage["kind"], damage["line"]) == ("record", "shards/00000_stats.json: missing")


@pytest.mark.parametrize("text", ["{", "[]", '{"shard": "00001"}', "\0"])
def test_what_is_no_commit_record_says_why(pool: Path, text: str) -> None:
    path = PoolLayout(str(pool)).commit_record(1)
    Path(path).write_text(text)
    problem = read_record(path)
    assert isinstance(problem, str)
    assert problem.startswith("damaged: ")


def test_a_stale_set_is_not_damaged() -> None:
    assert Damage(kind="set", line="scores/x@1: stale: the shards have changed").is_stale
    assert not Damage(kind="set", line="scores/x@1: damaged").is_stale
