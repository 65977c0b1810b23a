"""The limit of damaged samples: one rule for any number of ranks, and over a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manifests import disk
from tests.support import commands

SETTINGS = [
    "model=test",
    "samples_seen=240",
    "batch_size=8",
    "lanes=4",
    "warmup=2",
    "precision=fp32",
    "threads=1",
    "device=cpu",
]
LIMIT = "samples cannot be used, more than 1 in 1,000; the last is key 00002"


def damaged_pool(make_pool: Any, folder: Path) -> str:
    """A pool of 48 rows; the images of 6 of them are overwritten."""
    pool = str(make_pool(folder / "pool"))
    sidecar = disk.read_parquet(f"{pool}/shards/00002.parquet")
    with open(f"{pool}/shards/00002.tar", "r+b") as tar:
        for row in range(6):
            tar.seek(sidecar["image_offset"][row].as_py())
            tar.write(b"no image")
    return pool


@pytest.mark.slow
def test_a_run_stops_at_the_same_sample_for_any_number_of_ranks(
    make_pool: Any, tmp_path: Path, capfd: Any
) -> None:
    pool = damaged_pool(make_pool, tmp_path)
    errors = []
    for ranks in ("1", "2", "4"):
        out = str(tmp_path / ranks)
        arguments = ["--mix", f"{pool}/all=1", "--out", out, "--set", *SETTINGS]
        assert commands.train([*arguments, "--ranks", ranks]) == 2
        lines = capfd.readouterr().err.splitlines()
        errors.append({line for line in lines if line.startswith("error: ")})
    assert len(errors[0]) == 1
    assert LIMIT in next(iter(errors[0]))
    assert errors[1] == errors[2] == errors[0]


def test_samples_before_a_resume_count(make_pool: Any, tmp_path: Path, capfd: Any) -> None:
    pool = damaged_pool(make_pool, tmp_path)
    out = tmp_path / "run"
    settings = ["--set", *SETTINGS, "checkpoint_every=1"]
    arguments = ["--mix", f"{pool}/all=1", "--out", str(out), *settings]
    assert commands.train(arguments) == 2
    error = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error")]
    saved = sorted(path.name for path in (out / "checkpoints").iterdir())
    assert saved
    assert commands.train(arguments) == 2  # it resumes after the last checkpoint
    again = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error")]
    assert again == error
