"""Predictions that exist: files of other programs in any order, and what is refused."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.manifests import disk
from clipmill.manifests.schema import Ablation
from clipmill.study.arms import GivenTask, all_runs, given_runs

COLUMNS: dict[str, list[Any]] = {
    "sample": ["a", "b", "c"],
    "label": [0, 1, 2],
    "predicted": [0, 2, 2],
    "correct": [True, False, True],
}


WHOLE = "text or whole numbers"
DAYS = [datetime.date(2020, 1, day) for day in (1, 2, 3)]
NO_TRUTH: list[list[Any]] = [
    [float("nan"), 0.0, 1.0], [[1], [0], [1]], ["1", "0", "1"], [b"1", b"0", b"1"], DAYS,
]  # fmt: skip


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
    assert task.read(first)["correct"].to_pylist() == [True, False, True]
    ordered = task.read(second)
    assert ordered["correct"].to_pylist() == [False, True, True]
    assert ordered["predicted"].to_pylist() == [1, 1, 2]
    assert task.classes == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"predicted": None}, r"no column 'predicted' \(it has sample, label, correct\)"),
        ({"correct": [True, None, True]}, "column 'correct' has 1 empty values"),
        ({"correct": [1, 0, 2]}, "column 'correct' must hold true and false, or 1 and 0"),
        *(({"correct": values}, "column 'correct' must hold true and") for values in NO_TRUTH),
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


@pytest.mark.parametrize("column", ["sample", "label", "predicted"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([float("nan"), 1.0, 2.0], WHOLE),
        ([float("inf"), 1.0, 2.0], WHOLE),
        ([0.5, 1.0, 2.0], WHOLE),
        ([b"\xff\xfe", b"b", b"c"], WHOLE),
        ([[0], [1], [2]], f"holds list<.*>; it must hold {WHOLE}"),
        ([{"a": 0}, {"a": 1}, {"a": 2}], f"holds struct<.*>; it must hold {WHOLE}"),
        (DAYS, f"holds date32.*; it must hold {WHOLE}"),
        ([None, None, None], "has 3 empty values"),
    ],
)
def test_a_wrong_type_in_any_column_is_refused(
    tmp_path: Path, column: str, values: list[Any], message: str
) -> None:
    for before in (False, True):
        task = GivenTask("t")
        if before:
            task.read(write(tmp_path / "first.parquet"))
        path = write(tmp_path / "second.parquet", **{column: values})
        with pytest.raises(ValueError, match=rf"second.parquet: column {column!r} .*{message}"):
            task.read(path)


def test_the_same_classes_and_samples_in_another_storage_are_the_same(tmp_path: Path) -> None:
    task = GivenTask("t")
    expected = task.read(write(tmp_path / "plain.parquet"))
    others: list[dict[str, Any]] = [
        {"sample": pa.array(["a", "b", "c"]).dictionary_encode()},
        {"sample": pa.array(["a", "b", "c"], pa.large_string())},
        {"sample": [b"a", b"b", b"c"]},
        {"label": [0.0, 1.0, 2.0], "predicted": ["0", "2", "2"]},
        {"correct": np.array([1, 0, 1], np.float16)},
    ]
    for number, changes in enumerate(others):
        path = write(tmp_path / f"{number}.parquet", **changes)
        assert task.read(path)["correct"].equals(expected["correct"])


def test_no_damaged_byte_ends_in_anything_but_one_line(tmp_path: Path) -> None:
    whole = Path(write(tmp_path / "x.parquet")).read_bytes()
    damaged = tmp_path / "y.parquet"
    messages = []
    for position in range(0, len(whole), 7):
        data = bytearray(whole)
        data[position] ^= 0xFF
        damaged.write_bytes(data)
        try:
            GivenTask("t").read(str(damaged))
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > 50
    others = [message for message in messages if not message.startswith(str(damaged))]
    assert not others


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
