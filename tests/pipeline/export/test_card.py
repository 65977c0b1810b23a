"""The dataset card: a YAML header, and tables that add up."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from pipeline.export import KeptRows, Kind, Target, dataset_card, is_card_of
from tests.support.exported import RECIPE, exported_pool


def header_of(card: str) -> dict[str, object]:
    _, header, _ = card.split("---\n", 2)
    plain: dict[str, object] = yaml.safe_load(header)
    return plain


@pytest.mark.parametrize(
    ("kind", "files"),
    [("parquet", "x.parquet"), ("csv", "x.csv"), ("npy", None), ("folder", "*.tar")],
)
def test_the_header_names_the_files(tmp_path: Path, kind: Kind, files: str | None) -> None:
    rows = KeptRows(exported_pool(tmp_path / "pool"), "wide")
    name = "x" if kind == "folder" else f"x.{kind}"
    target = Target(kind=kind, path=str(tmp_path / name))
    card = dataset_card(rows, target, "r-wide", RECIPE)
    header = header_of(card)
    assert header["size_categories"] == ["n<1K"]
    assert header["license"] == "unknown"
    configs = header.get("configs")
    if files is None:
        assert configs is None
    else:
        data_files = [{"split": "train", "path": files}]
        assert configs == [{"config_name": "default", "data_files": data_files}]
    assert dataset_card(rows, target, "r-wide", RECIPE) == card
    (tmp_path / "README.md").write_text(card)
    assert is_card_of(str(tmp_path / "README.md"), target)
    other = Target(kind=kind, path=str(tmp_path / "other"))
    assert not is_card_of(str(tmp_path / "README.md"), other)


def test_options_of_a_filter_show_no_folder_of_this_machine(tmp_path: Path) -> None:
    rows = KeptRows(exported_pool(tmp_path / "pool"), "wide")
    (name,) = rows.score_sets
    paths = {
        "model": "local-dir:/home/me/clip",
        "weights": "/home/me/head.pth",
        "against": ["/a/b"],
    }
    other = {"pretrained": "laion2b", "url": "https://host.example/x/y"}
    rows.score_sets[name] = dataclasses.replace(rows.score_sets[name], options={**paths, **other})
    card = dataset_card(rows, Target(kind="folder", path=str(tmp_path / "x")), "r-wide", RECIPE)
    assert "/home" not in card
    assert str(tmp_path) not in card
    assert "against=['b'], model=local-dir:clip, pretrained=laion2b, " in card
    assert "url=https://host.example/x/y, weights=head.pth" in card
