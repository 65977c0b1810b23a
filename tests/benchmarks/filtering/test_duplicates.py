from __future__ import annotations

from pathlib import Path

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


def test_copies_of_photographs_are_found(tmp_path: Path) -> None:
    for seed in range(4):
        photograph(seed).resize((240, 180)).save(tmp_path / f"{seed}.jpg", quality=95)
    figures = duplicates.quality(str(tmp_path))
    assert figures["photographs"] == 4
    assert list(figures["kinds"]) == list(duplicates.COPIES)
    assert figures["kinds"]["JPEG quality 90"]["pdq, 31 bits"] == [1.0, 1.0]
    assert figures["kinds"]["mirrored"]["pdq, 31 bits"] == [0.0, 0.0]
    assert figures["near_originals"]["pdq, 31 bits"] == []


def test_a_search_finds_the_planted_groups() -> None:
    row = duplicates.search_once(256, 31, 2000, 0.0)
    assert row["groups"] == 1800
    assert duplicates.search_once(64, 6, 2000, 0.5)["groups"] < 1000


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
