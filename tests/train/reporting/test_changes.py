from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from manifests import disk
from manifests.schema import TaskSpec
from tests.support.ablations import two_classes
from train.ablation.arms import GivenRun
from train.reporting import collect

TASK = TaskSpec(name="t", kind="classification", data="")
LABELS = ["cat", "cat", "dog", "dog"]


def given(folder: Path, arm: str, seed: int, predicted: list[str], **columns: object) -> GivenRun:
    """A run with these predictions of four samples."""
    path = str(folder / f"{arm}-{seed}.parquet")
    correct = [label == answer for label, answer in zip(LABELS, predicted, strict=True)]
    plain = {
        "sample": ["a", "b", "c", "d"],
        "label": LABELS,
        "predicted": predicted,
        "correct": correct,
    }
    disk.write_parquet(path, pa.table({**plain, **columns}), {})
    return GivenRun(arm=arm, seed=seed, files={"t": path})


def two_arms(folder: Path) -> list[GivenRun]:
    return [
        given(folder, "raw", 0, ["dog", "dog", "dog", "cat"]),
        given(folder, "raw", 1, ["dog", "cat", "dog", "cat"]),
        given(folder, "half", 0, ["cat", "cat", "cat", "cat"]),
        given(folder, "half", 1, ["cat", "dog", "cat", "cat"]),
    ]


def test_classes_confusions_and_samples_by_hand(tmp_path: Path) -> None:
    (change,) = collect.collect_changes(two_arms(tmp_path), TASK, "raw")
    assert (change.arm, change.classes_in_all, change.gained, change.lost) == ("half", 2, 1, 1)
    cat, dog = change.classes
    assert (cat.name, cat.samples, cat.baseline, cat.arm) == ("cat", 2, 0.25, 0.75)
    assert (dog.name, dog.baseline, dog.arm) == ("dog", 0.5, 0.0)
    pairs = {(one.label, one.predicted): (one.baseline, one.arm) for one in change.confusions}
    assert pairs == {("cat", "dog"): (1.5, 0.5), ("dog", "cat"): (1.0, 2.0)}
    gained, lost = change.shown
    assert (gained.sample, gained.arm_answer, gained.baseline_answer) == ("a", "cat", "dog")
    assert (gained.arm_right, gained.baseline_right, gained.image) == (1.0, 0.0, None)
    assert (lost.sample, lost.arm_right, lost.baseline_right) == ("c", 0.0, 1.0)


def test_rows_in_another_order_are_put_in_order(tmp_path: Path) -> None:
    runs = two_arms(tmp_path)
    path = runs[2].files["t"]
    disk.write_parquet(path, disk.read_parquet(path).take([3, 1, 0, 2]), {})
    (change,) = collect.collect_changes(runs, TASK, "raw")
    assert [shown.sample for shown in change.shown] == ["a", "c"]


def test_a_dozen_samples_at_most_is_drawn_with_a_fixed_seed(tmp_path: Path) -> None:
    wide = pa.table(
        {
            "sample": [str(i) for i in range(100)],
            "label": ["x"] * 100,
            "predicted": ["x"] * 50 + ["y"] * 50,
            "correct": [True] * 50 + [False] * 50,
        }
    )
    runs = []
    for arm, order in (("raw", 1), ("half", -1)):
        path = str(tmp_path / f"{arm}.parquet")
        columns = {name: wide[name].to_pylist()[::order] for name in ("predicted", "correct")}
        for name, values in columns.items():
            wide = wide.set_column(wide.schema.get_field_index(name), name, pa.array(values))
        disk.write_parquet(path, wide, {})
        runs.append(GivenRun(arm=arm, seed=0, files={"t": path}))
    (change,) = collect.collect_changes(runs, TASK, "raw")
    assert (change.gained, change.lost, len(change.shown)) == (50, 50, 12)
    assert collect.collect_changes(runs, TASK, "raw") == (change,)


def test_images_come_from_the_data_of_the_task(tmp_path: Path) -> None:
    task = TaskSpec(name="t", kind="classification", data=two_classes(tmp_path / "data"))
    names = pa.array(["red/0.png", "red/1.png", "blue/0.png", "gone.png"])
    predicted = {"raw": ["dog", "dog", "dog", "cat"], "half": ["cat", "cat", "cat", "dog"]}
    runs = [given(tmp_path, arm, 0, answers, sample=names) for arm, answers in predicted.items()]
    (change,) = collect.collect_changes(runs, task, "raw")
    images = {shown.sample: shown.image for shown in change.shown}
    assert images.pop("gone.png") is None
    assert all(str(image).startswith("data:image/png;base64,") for image in images.values())
    elsewhere = TaskSpec(name="t", kind="classification", data=str(tmp_path / "nothing"))
    (change,) = collect.collect_changes(runs, elsewhere, "raw")
    assert {shown.image for shown in change.shown} == {None}


@pytest.mark.parametrize("column", ["sample", "label"])
def test_runs_of_other_samples_or_labels_have_no_changes(tmp_path: Path, column: str) -> None:
    runs = two_arms(tmp_path)
    other = {column: ["a", "b", "c", "x"] if column == "sample" else ["dog"] * 4}
    runs[3] = given(tmp_path, "half", 1, ["dog"] * 4, **other)
    assert collect.collect_changes(runs, TASK, "raw") == ()


def test_a_task_without_labels_or_a_baseline_has_none(tmp_path: Path) -> None:
    runs = two_arms(tmp_path)
    assert collect.collect_changes(runs, TASK, "nothing") == ()
    assert collect.collect_changes([], TASK, "raw") == ()
    path = runs[0].files["t"]
    disk.write_parquet(path, disk.read_parquet(path).drop_columns(["label"]), {})
    assert collect.collect_changes(runs, TASK, "raw") == ()
