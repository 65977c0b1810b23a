from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.trainer.cells import read_data
from tests.support.other_tars import Members, pack, picture


def test_a_blend_a_view_and_a_folder_of_tars(tiny_pool: str, tmp_path: Path) -> None:
    path = tmp_path / "blend.yaml"
    path.write_text(yaml.safe_dump({"name": "b", "pools": {"p": tiny_pool}, "views": {"p/all": 1}}))
    assert read_data(str(path)).name == "b"
    assert list(read_data(f"{tiny_pool}/all").pools.values()) == [tiny_pool]
    folder = tmp_path / "tars"
    folder.mkdir()
    members: Members = [("0.jpg", picture(40, 32)), ("0.txt", b"text")]
    pack(folder / "a.tar", members)
    assert read_data(str(folder)).streams["stream"].tars == (str(folder / "a.tar"),)


def test_what_is_no_data_is_refused(tiny_pool: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder without tars"):
        read_data(str(tmp_path))
    with pytest.raises(ValueError, match="is a pool, not a blend"):
        read_data(tiny_pool)
    with pytest.raises(ValueError, match="has no view 'al'"):
        read_data(f"{tiny_pool}/al")
