from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from manifests import disk
from manifests.schema import TaskSpec
from tests.support.tasks import changed, draw
from train.evaluation.tasks import evaluate, kind_of, read_samples, saved_metrics
from train.model.clip import CLIP


def test_an_unknown_kind_is_an_error_and_not_retrieval(captioned: TaskSpec) -> None:
    other = dataclasses.replace(captioned, kind="retrival")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"no kind 'retrival'; did you mean 'retrieval'\? \(of cla"
    ):
        read_samples(other)


def test_names_and_folders_are_checked(captioned: TaskSpec, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="task 'a/b': a task name is a file name"):
        read_samples(changed(captioned, name="a/b"))
    with pytest.raises(ValueError, match=r"there is no folder .*/nowhere"):
        read_samples(changed(captioned, data=str(tmp_path / "nowhere")))
    with pytest.raises(ValueError, match="task 'captioned' has no data; only predictions"):
        read_samples(changed(captioned, data=""))


def test_saved_metrics_are_of_this_task_and_these_images(
    colours: TaskSpec, model: CLIP, tmp_path: Path
) -> None:
    out = str(tmp_path / "eval")
    assert saved_metrics(out, colours) is None
    metrics = evaluate(model, [colours], out)["colours"]
    assert saved_metrics(out, colours) == metrics
    assert saved_metrics(out, changed(colours, templates=["a {}"])) is None
    draw(Path(colours.data) / "green" / "new.png", (0, 0, 0), seed=99)
    assert saved_metrics(out, colours) is None


def test_predictions_of_another_version_are_made_anew_with_a_reason(
    colours: TaskSpec, model: CLIP, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out, path = str(tmp_path), tmp_path / "colours.parquet"
    evaluate(model, [colours], out)
    metadata = disk.read_metadata(path)
    metadata["version"] = 1
    old = disk.read_parquet(path, ["sample", "label", "predicted", "correct", "correct5"])
    disk.write_parquet(path, old, metadata)
    with caplog.at_level("INFO"):
        assert saved_metrics(out, colours) is None
    assert "colours.parquet is of version 1, not 2: it is made anew" in caplog.text
    (correct,) = kind_of(colours).correct(disk.read_parquet(path))  # it can still be read
    assert correct.shape == (18,)
