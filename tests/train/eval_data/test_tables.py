"""Parquet files of images, and of associations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests.schema import TaskSpec
from tests.support.task_data import images_of, task_of
from train.eval_data.samples import Samples, read_associations, read_captioned, read_labelled


def test_the_form_of_hugging_face_in_several_files_and_row_groups(
    coloured: Samples, tmp_path: Path
) -> None:
    features = {"label": {"names": ["red", "green", "blue"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    images = images_of(coloured)
    for number, rows in enumerate((slice(0, 7), slice(7, 18))):
        structs = [{"bytes": image, "path": None} for image in images[rows]]
        table = pa.table({"img": structs, "label": list(coloured.labels[rows]), "g": structs and
                          [f"g{i % 2}" for i in range(len(structs))]})  # fmt: skip
        pq.write_table(
            table.replace_schema_metadata(metadata),
            tmp_path / f"test-{number}.parquet",
            row_group_size=3,
        )
    pq.write_table(pa.table({"img": [b"x"]}), tmp_path / "train-0.parquet")
    samples = read_labelled(task_of(tmp_path, columns={"group": "g"}))
    assert samples.classes == ("red", "green", "blue")
    assert samples.labels == coloured.labels
    assert samples.groups[:3] == ("g0", "g1", "g0")
    assert images_of(samples) == images
    readers = samples.images.readers(5, 12)
    assert [read() for read in readers] == images[5:12]
    assert samples.images.path(8) == f"{tmp_path}/test-1.parquet:test-1/1"


def test_paths_are_beside_the_file_and_captions_may_be_lists(
    captioned: TaskSpec, described: Samples
) -> None:
    folder = Path(captioned.data)
    texts = [["red", "a red picture"], ["green"], ["blue"], ["grey"], ["grey", ""]]
    pq.write_table(pa.table({"path": described.files, "caption": texts}), folder / "c.parquet")
    samples = read_captioned(task_of(folder / "c.parquet", "retrieval"))
    assert samples == described


@pytest.mark.parametrize(
    ("columns", "names", "message"),
    [
        (
            {"picture": [b"x"], "label": [0]},
            {},
            r"no column for the image \(of picture, label\); n",
        ),
        ({"image": [b"x"], "y": [0]}, {}, r"no column for the label .*columns: \{label: image\}"),
        ({"image": [b"x"], "y": [0]}, {"label": "z"}, "has no column 'z'"),
        ({"image": [b"x"], "label": [0]}, {"group": "labels"}, "did you mean 'label'"),
        ({"image": [b"x"], "label": [None]}, {}, r"a/0 of .*a\.parquet has no label"),
    ],
)
def test_what_a_table_lacks_is_named(
    columns: dict[str, list[object]], names: dict[str, str], message: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=message):
        read_labelled(task_of(tmp_path / "a.parquet", columns=names, classes=["a", "b"]))


ROW = {
    "cue": "fire",
    "candidates": ["a", "b", "c"],
    "associations": ["c", "a"],
    "candidate_images": [b"1", b"2", b"3"],
}


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "w.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=1)
    return path


def test_rows_become_prompts_images_and_right_pairs(tmp_path: Path) -> None:
    other = {**ROW, "cue": "Ice", "associations": ["b"], "candidate_images": [b"4", b"5", b"6"]}
    write(tmp_path, ROW, other)
    samples = read_associations(task_of(tmp_path, "association"))
    assert samples.captions == ("A fire", "An ice")
    assert samples.labels == (0, 0, 0, 1, 1, 1)
    assert samples.matches == ((0, 0), (2, 0), (4, 1))
    assert samples.files[5] == "w/1/c"
    assert images_of(samples) == [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"associations": []}, r"w\.parquet, row 0 needs right and wrong candidates.*cue 'fire'"),
        ({"associations": ["a", "b", "c"]}, "needs right and wrong candidates"),
        ({"associations": ["z"]}, "every association among them"),
    ],
)
def test_a_row_that_cannot_be_is_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_associations(task_of(write(tmp_path, {**ROW, **change}), "association"))
