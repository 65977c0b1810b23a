from __future__ import annotations

from pathlib import Path

import pytest

from manifests.schema import TaskSpec
from tests.support.task_data import task_of
from tests.support.tasks import changed, class_folders
from train.eval_data.samples import (
    Samples,
    read_probe,
    write_benchmark,
)


def test_a_probe_has_training_data_of_the_same_classes(colours: TaskSpec, tmp_path: Path) -> None:
    class_folders(tmp_path / "more")
    probe = changed(colours, kind="linear_probe", train_data=str(tmp_path / "more"))
    samples = read_probe(probe)
    assert samples.train is not None
    assert samples.train.images.path(0) == f"{tmp_path}/more/dark_red/0.jpg"
    assert samples.train.labels == samples.labels
    (tmp_path / "more" / "green").rename(tmp_path / "more" / "grass")
    with pytest.raises(ValueError, match=r"more has other classes than .* \(grass, green\)"):
        read_probe(probe)


def test_a_probe_takes_two_splits_of_one_folder(coloured: Samples, tmp_path: Path) -> None:
    for split in ("test", "train"):
        write_benchmark(coloured, str(tmp_path / "b"), split)
    samples = read_probe(task_of(tmp_path / "b", "linear_probe"))
    assert samples.train is not None
    assert samples.train.images.path(0) == f"{tmp_path}/b/train/0.tar:s0000000.jpg"
    with pytest.raises(ValueError, match="test and training data are both 'test' of"):
        read_probe(task_of(tmp_path / "b", "linear_probe", train_split="test"))
