"""A repair that is killed at any operation on a file: the next one ends it, and the pool is what it
would have been."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest

from manifests.commits import read_commits
from manifests.layout import CommitRecord, PoolLayout
from pipeline.audit.integrity import verify
from pipeline.audit.repair import repair_pool
from tests.support.killed_children import KILLS, PROCESSES, run_in_child
from tests.support.mended import build_pool, contents, copy_of, repair

pytestmark = pytest.mark.slow
# Every operation where this is set, else every seventh one
STEP = 1 if os.environ.get("CLIPMILL_CHAOS") else 7
PROCESSES.set_forkserver_preload(
    ["tests.support.killed_children", "tests.support.five_rows", "tests.support.mended"]
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(build_pool(tmp_path_factory.mktemp("whole")))


@pytest.mark.parametrize("how", KILLS)
def test_a_repair_that_is_killed_anywhere_is_ended_by_the_next(
    whole: Path, tmp_path: Path, how: str
) -> None:
    expected = contents(str(whole))
    kills = 0
    for n in itertools.count(1 if how == "kill_before" else 1 + STEP // 2, STEP):
        pool = copy_of(whole, tmp_path / str(n))
        outcome, count = run_in_child(n, how, tmp_path, repair, pool)
        if outcome == "done" and count < n:
            break
        assert outcome == "killed", (n, outcome)
        kills += 1
        # What is visible in between are whole records; each names files that are there.
        for path in Path(pool).glob("shards/*_stats.json"):
            if path.name != "00002_stats.json":
                record = CommitRecord.read(str(path))
                assert Path(PoolLayout(pool).tar(record)).exists()
        result = repair_pool(pool)
        assert result.left == (), (n, result)
        assert verify(pool) == [], n
        assert contents(pool) == expected, n
        named = {file for r in read_commits(pool).records() for file in (r.tar, r.sidecar)}
        present = {p.name for p in Path(pool).glob("shards/*") if "_stats" not in p.name}
        assert present == named, n  # no leftovers
        shutil.rmtree(pool)
    assert kills >= 20 / STEP
    print(f"{how}: {kills} of {kills} kills of a repair ended by the next one, pools equal")
