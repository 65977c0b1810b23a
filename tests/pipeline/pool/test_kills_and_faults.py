"""A commit, a replacement and a lease, killed or failed at every operation on a file."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from manifests import disk
from manifests.columns import SIDECAR
from manifests.layout import PoolLayout
from pipeline.pool.lease import hold_lease, read_commit_record, read_sidecar, remove_uncommitted
from pipeline.pool.shard_writer import replace_shard
from tests.support.five_rows import files_of, write_five
from tests.support.killed_children import FAULTS, KILLS, run_in_child

pytestmark = pytest.mark.slow
# Every operation where this is set, else every third one
STEP = 1 if os.environ.get("CLIPMILL_CHAOS") else 3


def commit(pool: str) -> None:
    write_five(pool)


def replace(pool: str) -> None:
    rows = read_sidecar(pool, 3).to_pylist()
    rows[0]["caption"] = "new"
    replace_shard(pool, 3, pa.Table.from_pylist(rows, schema=SIDECAR), fence=None)


def take_and_give_back(pool: str) -> None:
    with hold_lease(pool, create=True):
        pass


def each_operation(
    tmp_path: Path, how: str, function: Callable[[str], None], before: Callable[[str], Any]
) -> list[tuple[str, str]]:
    """(pool, outcome) for every STEP-th operation of a function, in a new pool each."""
    outcomes = []
    for n in itertools.count(1, STEP):
        pool = str(tmp_path / str(n))
        before(pool)
        outcome, count = run_in_child(n, how, tmp_path, function, pool)
        if outcome == "done" and count < n:
            break
        outcomes.append((pool, outcome))
    return outcomes


def nothing(_: str) -> None:
    pass


def comparable(pool: str) -> dict[str, Any]:
    """The files of the shards, without what differs between two runs."""
    files: dict[str, Any] = dict(files_of(Path(pool)))
    record = json.loads(files["00003_stats.json"])
    files["00003_stats.json"] = {**record, "duration_s": 0, disk.SEAL: None}
    return files


def assert_visible_is_whole(pool: str) -> bool:
    """Whether the shard is visible; then its files have the hashes of its record."""
    record = read_commit_record(pool, 3)
    if record is None:
        return False
    layout = PoolLayout(pool)
    assert disk.file_sha256(layout.tar(record)) == record.tar_sha256
    sidecar = layout.sidecar(3, record.revision)
    assert disk.file_sha256(sidecar) == record.sidecar_file_sha256
    return True


@pytest.mark.parametrize("how", KILLS)
def test_a_commit_that_is_killed_anywhere_is_resumed_with_the_same_bytes(
    tmp_path: Path, how: str
) -> None:
    expected_pool = str(tmp_path / "expected")
    write_five(expected_pool)
    expected = comparable(expected_pool)
    outcomes = each_operation(tmp_path, how, commit, nothing)
    assert len(outcomes) >= 20 / STEP
    for pool, outcome in outcomes:
        assert outcome == "killed"
        assert_visible_is_whole(pool)
        remove_uncommitted(pool)
        write_five(pool)
        assert comparable(pool) == expected, pool
    print(f"{how}: {len(outcomes)} of {len(outcomes)} kills of a commit resumed with equal bytes")


@pytest.mark.parametrize("how", KILLS)
def test_a_replacement_that_is_killed_anywhere_shows_the_old_or_the_new_shard(
    tmp_path: Path, how: str
) -> None:
    outcomes = each_operation(tmp_path, how, replace, write_five)
    assert len(outcomes) >= 10 / STEP
    seen = set()
    for pool, outcome in outcomes:
        assert outcome == "killed"
        assert assert_visible_is_whole(pool)
        caption = read_sidecar(pool, 3)["caption"][0].as_py()
        seen.add(caption)
        remove_uncommitted(pool)
        record = read_commit_record(pool, 3)
        assert record is not None
        assert set(files_of(Path(pool))) == {record.tar, record.sidecar, "00003_stats.json"}
        replace(pool)
        assert read_sidecar(pool, 3)["caption"][0].as_py() == "new"
    assert len(seen) == 2
    print(f"{how}: {len(outcomes)} of {len(outcomes)} kills of a replacement")


@pytest.mark.parametrize("how", KILLS)
def test_a_lease_that_is_killed_anywhere_is_taken_over_at_once(tmp_path: Path, how: str) -> None:
    outcomes = each_operation(tmp_path, how, take_and_give_back, nothing)
    assert len(outcomes) >= 8 / STEP
    for pool, outcome in outcomes:
        assert outcome == "killed"
        with hold_lease(pool, create=True) as held:
            assert held.fence in (1, 2)
            held.check()
        hidden = [path.name for path in Path(pool).glob(".lease-*")]
        assert len([name for name in hidden if ".partial." not in name]) == 1
    print(f"{how}: {len(outcomes)} of {len(outcomes)} kills of a lease")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_operation_shows_no_broken_shard_and_names_the_file(
    tmp_path: Path, fault: str
) -> None:
    expected_pool = str(tmp_path / "expected")
    write_five(expected_pool)
    expected = comparable(expected_pool)
    outcomes = each_operation(tmp_path, fault, commit, nothing)
    assert len(outcomes) >= 20 / STEP
    failed = 0
    for pool, outcome in outcomes:
        assert_visible_is_whole(pool)
        if outcome != "done":
            failed += 1
            assert outcome.startswith(("OSError: ", "FileExistsError: ")), outcome
            assert pool in outcome, outcome
        write_five(pool)  # the next try, in the same build
        assert read_commit_record(pool, 3) is not None
        assert_visible_is_whole(pool)
        remove_uncommitted(pool)
        assert comparable(pool) == expected, (pool, outcome)
    assert failed >= (0 if fault == "short_write" else 3 / STEP)
    print(f"{fault}: {failed} of {len(outcomes)} operations failed, 0 broken shards visible")
