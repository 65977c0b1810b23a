from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.filtering import duplicates
from filters import instances_of, specs_of_recipe
from manifests import disk, reader
from manifests.schema import Recipe
from tests.manifests.test_phash import photograph

ROOT = Path(__file__).resolve().parents[3]


def test_the_document_has_the_tables_of_the_figures() -> None:
    text = (ROOT / "docs" / "duplicates.md").read_text()
    for line in duplicates.table_lines(disk.read_json(duplicates.RESULT)):
        assert f"{line}\n" in text


def test_the_figures_hold_the_bars() -> None:
    results = disk.read_json(duplicates.RESULT)
    assert duplicates.below_the_bar(results, "pdq, 31 bits") == []
    for name, row in results["search"].items():
        assert row["rows"] == duplicates.SEARCHES[name][2]
        assert row["cpu_seconds"] <= 60


def test_copies_of_photographs_are_found(tmp_path: Path) -> None:
    for seed in range(4):
        photograph(seed).resize((240, 180)).save(tmp_path / f"{seed}.jpg", quality=95)
    figures = duplicates.quality(str(tmp_path))
    assert figures["photographs"] == 4
    assert list(figures["kinds"]) == list(duplicates.COPIES)
    assert figures["kinds"]["JPEG quality 90"]["pdq, 31 bits"] == [1.0, 1.0]
    assert figures["kinds"]["mirrored"]["pdq, 31 bits"] == [0.0, 0.0]
    assert figures["near_originals"]["pdq, 31 bits"] == []


def test_precision_counts_pairs_and_recall_counts_copies() -> None:
    originals = np.array([[0], [1], [2**40 - 1]], np.uint64)
    copies = np.array([[0], [2**40 - 1], [2**40 - 1]], np.uint64)
    usable = np.ones(3, np.bool_)
    values = duplicates.precision_and_recall(originals, copies, 1, usable, usable)
    assert values == (2 / 4, 2 / 3)


def test_a_search_finds_the_planted_groups() -> None:
    row = duplicates.search_once(256, 31, 2000, 0.0)
    assert row["groups"] == 1800
    assert duplicates.search_once(64, 6, 2000, 0.5)["groups"] < 1000


def test_a_folder_without_photographs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    assert duplicates.main(["quality", str(tmp_path)]) == 2
    assert "has no *.jpg files" in capsys.readouterr().err


def test_the_recipe_of_the_document_is_one(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "duplicates.md").read_text()
    example = text.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "d.yaml").write_text(example)
    recipe = reader.read_manifest(tmp_path / "d.yaml", Recipe)
    columns = set()
    for instance in instances_of(specs_of_recipe(recipe)).values():
        columns.update(instance.columns())
    assert {"near_survivor", "near_group", "clean_distance", "exact_size", "pdq_quality"} <= columns
    assert [rule.name for rule in recipe.view("unique").rules] == [
        "dup_survivor",
        "not_in_evaluation",
    ]
