from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.task_data import images_of, task_of
from train.eval_data.samples import read_associations

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
