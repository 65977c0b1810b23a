"""benchmarks/filtering/concepts.py: what it makes, its parts, and the page of its figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.filtering import concepts
from filters.concepts import can_occur, read_entries
from manifests.reader import read_manifest
from manifests.schema import Recipe
from pipeline.views.files import check_views

ROOT = Path(__file__).resolve().parents[3]
CAPTIONS = ["a dog, two dogs", "the old house by the sea", "a red car"]
PAGE = (ROOT / "docs" / "concepts.md").read_text()


RECIPES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)


@pytest.mark.parametrize("text", RECIPES)
def test_the_recipes_of_the_page_can_be_used(text: str, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "ads.txt").write_text("sale")
    (tmp_path / "lists" / "metadata.json").write_text('["dog"]')
    np.save(tmp_path / "imagenet_l14.npy", np.ones((2, 768), np.float32))
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    check_views(read_manifest(path, Recipe))


def test_the_example_list_can_be_used() -> None:
    entries = read_entries(str(ROOT / "manifests" / "recipes" / "concepts_example.txt"))
    assert all(can_occur(entry) for entry in entries)


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    text = (ROOT / "benchmarks" / "results" / "concepts.json").read_text()
    document: dict[str, Any] = json.loads(text)["results"]
    return document


def test_the_page_has_the_figures_of_the_results(results: dict[str, Any]) -> None:
    for line in concepts.table_lines(results):
        assert line in PAGE
    rows = [line for line in PAGE.split("## Figures")[1].split("\n") if line.startswith("| `")]
    assert len(rows) == len(results) - 1


def test_the_bars_hold(results: dict[str, Any]) -> None:
    assert results["corpus"]["entries"] == 500_000
    assert results["corpus"]["captions"] == 1_000_000
    assert results["concept"]["rows_per_cpu_s"] >= 50_000
    assert results["caption_detail"]["rows_per_cpu_s"] >= 100_000
    kept, expected = (results["balance"][name] for name in ("kept", "kept_expected"))
    assert abs(kept - expected) < 4 * expected**0.5


def test_captions_and_entries_are_as_many_as_asked_for() -> None:
    made = concepts.spliced(CAPTIONS, 10)
    assert len(made) == 10
    assert set(CAPTIONS) <= set(made)
    assert made == concepts.spliced(CAPTIONS, 10)
    entries = concepts.make_entries(CAPTIONS, 40)
    assert len(set(entries)) == 40
    assert {"a", "dog", "two dogs", "the old house"} <= set(concepts.make_entries(CAPTIONS, 100))
    assert all(can_occur(entry) for entry in entries)


def test_a_part_measures_a_filter(tmp_path: Path) -> None:
    (tmp_path / "entries.json").write_text(json.dumps(["dog", "a", "red car"]))
    measured = concepts.concept(tmp_path, CAPTIONS, "spaces")
    assert measured["rows"] == 3
    assert measured["entries_per_row"] == pytest.approx(4 / 3, abs=0.01)
    balanced = concepts.balance(tmp_path, CAPTIONS)
    assert balanced["rows"] == 3
    with pytest.raises(ValueError, match="there is no file"):
        concepts.concept(tmp_path / "nowhere", CAPTIONS, "spaces")
