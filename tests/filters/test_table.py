"""The filter `table`: its options, types and what its id covers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from filters import instances_of, make
from filters.base import set_id
from filters.table import Table
from manifests.schema import FilterSpec


def spec(path: Path | str, name: str = "mine", **options: object) -> FilterSpec:
    given = {"paths": [str(path)], "take": {"score": "float"}, **options}
    return FilterSpec(name=name, kind="table", options=given)


def write(path: Path, values: list[float]) -> None:
    pq.write_table(pa.table({"uid": ["ab" * 16] * len(values), "score": values}), path)


def test_columns_of_an_instance_carry_its_name(tmp_path: Path) -> None:
    take = {"clip": "clip_l14_similarity_score:float", "l14_img": "fp16[768]", "faces": "json"}
    (instance,) = instances_of([spec(tmp_path, "datacomp", take=take)]).values()
    assert instance.columns() == {
        "datacomp_clip": pa.float64(),
        "datacomp_l14_img": pa.list_(pa.float16(), 768),
        "datacomp_faces": pa.string(),
    }
    assert isinstance(instance.filter, Table)
    assert instance.filter.source_columns()["clip"] == "clip_l14_similarity_score"


def test_the_id_is_that_of_the_content_whatever_the_folder(tmp_path: Path) -> None:
    ids = []
    for folder, values in (("a", [0.5]), ("b", [0.5]), ("c", [0.25])):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "x.parquet", values)
        ids.append(set_id(make(spec(tmp_path / folder))))
    assert ids[0] == ids[1] != ids[2]
    assert set_id(make(spec(tmp_path / "a", key="other"))) != ids[0]
    assert make(spec(f"{tmp_path}/a/*.parquet")).identity() == make(spec(tmp_path / "a")).identity()


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no table at"):
        make(spec(tmp_path / "none")).identity()
    write(tmp_path / "x.parquet", [0.5])
    with pytest.raises(ValueError, match=r"x\.npz is missing"):
        make(spec(tmp_path, take={"l14_img": "fp16[8]"})).identity()
