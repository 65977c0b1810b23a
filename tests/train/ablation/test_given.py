"""Predictions that exist: files of other programs in any order, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests import disk
from manifests.schema import Ablation
from train.ablation import GivenTask, all_runs, given_runs

COLUMNS: dict[str, list[Any]] = {
    "sample": ["a", "b", "c"],
    "label": [0, 1, 2],
    "predicted": [0, 2, 2],
    "correct": [True, False, True],
}


def write(path: Path, **changes: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {**COLUMNS, **changes}
    kept = {name: values for name, values in columns.items() if values is not None}
    pq.write_table(pa.table(kept), path)
    return str(path)


def ablation(folder: Path, **changes: Any) -> Ablation:
    fields = {
        "name": "given",
        "question": "?",
        "arms": {
            "long": {"predictions": f"{folder}/long/{{seed}}-{{task}}.parquet"},
            "all": {"predictions": f"{folder}/all/{{seed}}-{{task}}.parquet"},
        },
        "baseline": "all",
        "seeds": [3, 5],
        "evaluate": [{"name": "t", "kind": "classification"}],
        "primary": "t",
    }
    made: Ablation = disk.from_plain(Ablation, {**fields, **changes})
    return made


def test_the_places_of_seed_and_task_are_filled(tmp_path: Path) -> None:
    for arm in ("long", "all"):
        write(tmp_path / arm / "3-t.parquet")
    runs = given_runs(ablation(tmp_path))
    assert [(run.arm, run.seed) for run in runs] == [
        ("all", 3),
        ("all", 5),
        ("long", 3),
        ("long", 5),
    ]
    assert runs[3].predictions("t") == f"{tmp_path}/long/5-t.parquet"
    assert all_runs(ablation(tmp_path), "/out") == runs


def test_an_arm_without_any_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "all" / "3-t.parquet")
    with pytest.raises(ValueError, match=r"arm 'long': none of its predictions exists, as .*/3-t"):
        given_runs(ablation(tmp_path))


def test_rows_are_put_in_the_order_of_the_first_file(tmp_path: Path) -> None:
    task = GivenTask("t")
    first = write(tmp_path / "1.parquet")
    second = write(
        tmp_path / "2.parquet",
        sample=["c", "a", "b"],
        label=[2, 0, 1],
        predicted=[2, 1, 1],
        correct=[1, 0, 1],
    )
    np.testing.assert_array_equal(task.read(first), [True, False, True])
    np.testing.assert_array_equal(task.read(second), [False, True, True])
    assert task.classes == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"predicted": None}, r"no column 'predicted' \(it has sample, label, correct\)"),
        ({"correct": [True, None, True]}, "column 'correct' has 1 empty values"),
        ({"correct": [1, 0, 2]}, "column 'correct' must hold true and false, or 1 and 0"),
        ({"correct": ["yes", "no", "yes"]}, "column 'correct' must hold true and false"),
        ({"sample": ["a", "b", "a"]}, "1 rows repeat a sample"),
        ({"correct": [True] * 3}, "sample 'b' is correct, but its label is 1 and 2 was predicted"),
        ({"sample": ["a", "b", "d"]}, "it lacks 1; all files of task 't' must be of the same"),
        ({"sample": [1, 2, 3]}, "its samples are int64, those of .* are string"),
        ({"label": [0, 3, 2]}, "has other labels than .*first.parquet for the same samples"),
        ({name: [] for name in COLUMNS}, "has no rows"),
    ],
)
def test_files_that_cannot_be_compared_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    task = GivenTask("t")
    task.read(write(tmp_path / "first.parquet"))
    with pytest.raises(ValueError, match=message):
        task.read(write(tmp_path / "second.parquet", **changes))


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("sample,label\n")
    with pytest.raises(ValueError, match=r"x.parquet cannot be read as Parquet"):
        GivenTask("t").read(str(tmp_path / "x.parquet"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"arms": {"all": {"predictions": "/x/t.parquet"}}},
            "the place of the seed must be written",
        ),
        ({"arms": {"all": {}}}, "an arm is POOL/VIEW"),
        ({"arms": {"all": {"view": "a/b", "blend": "c.yaml"}}}, "an arm is POOL/VIEW"),
        ({"arms": {"all": {"view": "web/all"}}}, "arm 'all' is trained, but there are no settings"),
        (
            {"arms": {"all": {"view": "web/all"}}, "train": {"preset": "micro"}},
            "task 't' has no data, but arm 'all' is evaluated on it",
        ),
        ({"controls": {"a_a": "all"}}, "arm 'all' is predictions that exist; only an arm that is"),
        (
            {
                "arms": {"all": {"predictions": "/x/{seed}.parquet"}},
                "evaluate": [
                    {"name": "t", "kind": "classification"},
                    {"name": "u", "kind": "classification"},
                ],
            },
            "with 2 tasks the place of the task must be written as {task}",
        ),
    ],
)
def test_manifests_that_contradict_themselves_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ablation(tmp_path, **changes)
