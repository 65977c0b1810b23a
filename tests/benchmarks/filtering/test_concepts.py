"""benchmarks/filtering/concepts.py: what it makes, its parts, and the page of its figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.filtering import concepts
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


def test_a_part_measures_a_filter(tmp_path: Path) -> None:
    (tmp_path / "entries.json").write_text(json.dumps(["dog", "a", "red car"]))
    measured = concepts.concept(tmp_path, CAPTIONS, "spaces")
    assert measured["rows"] == 3
    assert measured["entries_per_row"] == pytest.approx(4 / 3, abs=0.01)
    balanced = concepts.balance(tmp_path, CAPTIONS)
    assert balanced["rows"] == 3
    with pytest.raises(ValueError, match="there is no file"):
        concepts.concept(tmp_path / "nowhere", CAPTIONS, "spaces")
