from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from manifests import disk
from manifests.schema import TaskSpec
from tests.support import evaluation_ranks
from tests.support.tasks import changed, class_folders
from train.parallel import process_group


def run_ranks(world: int, tasks: list[TaskSpec], folder: Path) -> list[tuple[int, str]]:
    """Status and output of every rank; the predictions are in `folder`/out."""
    folder.mkdir()
    (folder / "tasks.json").write_text(json.dumps(disk.to_plain(tasks)))
    shared = {"WORLD_SIZE": str(world), process_group.STORE: str(folder / "store")}
    shared |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, evaluation_ranks.__file__, str(folder)],
        env={**os.environ, **shared},
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    ended = [(int(status), str(output)) for status, output in disk.read_json(folder / "ended.json")]
    assert {status for status, _ in ended} <= {0, 2}, done.stderr
    return ended


@pytest.mark.slow
def test_the_predictions_are_the_same_bytes_for_one_and_three_ranks(
    colours: TaskSpec, captioned: TaskSpec, tmp_path: Path
) -> None:
    class_folders(tmp_path / "more")
    probe = changed(colours, kind="linear_probe", name="probe", train_data=str(tmp_path / "more"))
    tasks = [colours, captioned, probe]
    contents = []
    for world in (1, 3):
        folder = tmp_path / f"{world}"
        assert run_ranks(world, tasks, folder) == [(0, "")] * world
        files = sorted((folder / "out").iterdir())
        assert [path.stem for path in files] == ["captioned", "colours", "probe"]
        contents.append([path.read_bytes() for path in files])
    assert contents[0] == contents[1]


@pytest.mark.slow
def test_an_error_of_one_rank_ends_all(colours: TaskSpec, tmp_path: Path) -> None:
    (Path(colours.data) / "green" / "0.jpg").write_bytes(b"\xff\xd8\xff no picture")
    for status, output in run_ranks(2, [colours], tmp_path / "r"):
        assert status == 2
        assert "green/0.jpg cannot be decoded as an image" in output
