"""The dataset card: a YAML header, and tables that add up."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipeline.export.card import dataset_card, is_card_of
from pipeline.export.kept_rows import KeptRows
from pipeline.export.targets import Kind, Target
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


def test_the_text_says_what_the_pool_says(tmp_path: Path) -> None:
    rows = KeptRows(exported_pool(tmp_path / "pool"), "wide")
    target = Target(kind="parquet", path=str(tmp_path / "x.parquet"))
    card = dataset_card(rows, target, "r-wide", RECIPE)
    assert f"| wide | {rows.document.kept} |" in card
    assert "| wide | `original_width >= 200` |" in card
    assert "| attempted | 48 | 100.00% |" in card
    assert str(rows.document.rows_sha256) in card
    assert "| `caption_chars` | caption |" in card
    assert "source of kind `files`" in card
    assert "source of kind" not in dataset_card(rows, target, "r-wide", None)
