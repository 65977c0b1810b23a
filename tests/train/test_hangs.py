"""A file that never answers: who waits for it is said, and the run ends and can be resumed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from clipmill.manifests import console
from clipmill.train.config import configure, model_config
from clipmill.train.data.blends import blend_of
from clipmill.train.data.loader import RunLoader
from clipmill.train.parallel import checkpoint
from tests.support.steps import RUN_SETTINGS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
ROOT = Path(__file__).resolve().parents[2]
STEPS = 24
SETTINGS = {
    **RUN_SETTINGS,
    "samples_seen": 4 * STEPS,
    "batch_size": 4,
    "lanes": 2,
    "window": 1,
    "checkpoint_every": 1,
}


@pytest.fixture
def pool(make_pool, tmp_path):
    return make_pool(tmp_path / "pool", rows_per_shard=8, shards=6)


def hanging(pool, rank):
    """Put a pipe in the place of a tar that one of two ranks needs first, after two steps."""
    blend = blend_of([f"{pool}/all=1"], 0)
    config = configure({**SETTINGS, "threads": 1})
    order = RunLoader(blend, config, model_config(config)).order
    first = {}
    for step in range(STEPS):
        shards = np.asarray(order.batch(step, range(4))[1])
        for position, shard in enumerate(shards.tolist()):
            first.setdefault(shard, []).append((step, position // 2))
    for shard, uses in sorted(first.items()):
        step = uses[0][0]
        if step >= 2 and {r for s, r in uses if s < step + 2} == {rank}:
            tar = Path(pool) / "shards" / f"{shard:05d}.tar"
            shutil.move(tar, tar.with_suffix(".away"))
            os.mkfifo(tar)
            return tar, step
    raise AssertionError("no shard that this rank alone needs first")


def words(pool, out, ranks=1, **changes):
    settings = {**SETTINGS, "threads": 1, **changes}
    given = [f"{key}={value}" for key, value in settings.items()]
    return ["--mix", f"{pool}/all=1", "--out", str(out), "--ranks", str(ranks), "--set", *given]


def start(*arguments, **changes):
    command = console.program(["train", *words(*arguments, **changes)])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def ends_as_undisturbed(pool, tar, out, ranks):
    """The same command again, once the tar is back."""
    os.replace(tar.with_suffix(".away"), tar)
    whole = out.parent / "whole"
    for folder in (out, whole):
        with start(pool, folder, ranks) as again:
            assert again.wait(900) == 0, again.stderr.read()
    return checkpoint.latest(str(out)).record.sha256 == checkpoint.latest(str(whole)).record.sha256


def test_of_two_ranks_one_waits_for_a_file(pool, tmp_path):
    tar, step = hanging(pool, 1)
    out = tmp_path / "run"
    with start(pool, out, 2, hang_seconds=16) as run:
        errors = run.communicate(timeout=900)[1]
    assert run.returncode == console.EXIT_INCOMPLETE, errors
    image = rf"image \d+ in {re.escape(str(tar))} \(view_rows.py:\d+ in \w+\)"
    waits = rf"the batch of step {step + 1}: {image}"
    said = rf"rank 0 has waited \d+ s in step {step + 1} for rank 1, which waits for {waits}"
    assert re.search(said, errors), errors
    assert re.search(rf"error: rank 1 has waited \d+ s for {waits}.*hang_seconds", errors)
    assert checkpoint.saved_steps(str(out))[-1] == step
    assert ends_as_undisturbed(pool, tar, out, 2)


def test_a_stop_signal_ends_a_run_that_waits_for_a_file(pool, tmp_path):
    tar, step = hanging(pool, 0)
    out = tmp_path / "run"
    with start(pool, out, hang_seconds=80, threads=0) as run:
        while step not in checkpoint.saved_steps(str(out)):
            time.sleep(0.2)
        time.sleep(1)
        sent = time.monotonic()
        run.send_signal(signal.SIGTERM)
        errors = run.communicate(timeout=900)[1]
    assert run.returncode == 128 + signal.SIGTERM, errors
    assert time.monotonic() - sent > 19
    assert "SIGTERM ends the run before that step" in errors
    assert ends_as_undisturbed(pool, tar, out, 1)
