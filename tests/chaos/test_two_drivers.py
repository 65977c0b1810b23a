"""Two builds of one pool that are started at once: one builds, the other says so and exits 2."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from clipmill.manifests import console
from clipmill.manifests.commits import read_commits
from clipmill.pipeline.audit.counts import count_pool
from clipmill.pipeline.audit.integrity import verify
from tests.support import chaos_pools
from tests.support.commit_records import read_commit_records
from tests.support.trials import EVERYWHERE

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
TIMES = 20 if EVERYWHERE else 1


def start(inputs: Path, pool: Path) -> subprocess.Popen[str]:
    words = ["build", str(inputs / "recipe.yaml"), "--out", str(pool), "--engine", "inline"]
    return subprocess.Popen(
        console.program(words),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_of_two_builds_one_builds_and_the_other_ends_with_one_line(tmp_path: Path) -> None:
    inputs = tmp_path / "inputs"
    chaos_pools.write_inputs(inputs)
    met = one_after_the_other = 0
    while met < TIMES:
        pool = tmp_path / f"pool-{met}-{one_after_the_other}"
        both = [start(inputs, pool) for _ in range(2)]
        ended = [process.communicate(timeout=600) for process in both]
        statuses = sorted(process.returncode for process in both)
        assert verify(str(pool)) == []
        assert len(read_commit_records(str(pool))) == 3
        assert count_pool(read_commits(str(pool))).complete
        if statuses == [0, 0]:  # the second had not yet asked when the first had ended
            assert any("was complete already" in output for output, _ in ended), ended
            one_after_the_other += 1
            assert one_after_the_other <= 2 * TIMES
            continue
        assert statuses == [0, 2], ended
        refused = next(i for i, process in enumerate(both) if process.returncode == 2)
        output, errors = ended[refused]
        assert output == ""
        assert errors.startswith("error: ")
        assert errors.count("\n") == 1, errors
        assert "`clipmill build " in errors or "at the same moment" in errors
        met += 1
    print(json.dumps({"met": met, "one after the other": one_after_the_other}))
