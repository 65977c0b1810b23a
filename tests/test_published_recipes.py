"""The recipes of published datasets: every rule at its threshold, by hand-made rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clipmill.manifests import reader
from clipmill.manifests.schema import Recipe
from clipmill.pipeline.views.files import check_views
from tests.support.chosen import choose

RECIPES = Path(__file__).resolve().parents[1] / "manifests" / "recipes"
# A row that every view keeps.
GOOD: dict[str, Any] = {
    "status": "success", "uid": "ab" * 16, "language": "en", "caption_words": 3,
    "caption_chars": 6, "caption_fasttext_words": 2, "dc_width": 200, "dc_height": 600,
    "original_width": 200, "original_height": 600, "image_length": 5000, "synset_match": True,
    "targets_in_target": True, "dc_clip_b32": 0.28, "dc_clip_l14": 0.9, "clip_score": 0.30,
    "same_text_size": 10, "same_image_survivor": True, "concept_count": 1, "balance_keep": True,
    "duplicate_survivor": True,
}  # fmt: skip
BORDERS = [
    ("datacomp_baselines", "basic", {"language": "de"}, "english"),
    ("datacomp_baselines", "basic", {"language": None}, "english:missing"),
    ("datacomp_baselines", "basic", {"caption_words": 2}, "words"),
    ("datacomp_baselines", "basic", {"caption_chars": 5}, "chars"),
    ("datacomp_baselines", "basic", {"dc_width": 199}, "side"),
    ("datacomp_baselines", "basic", {"dc_height": 601}, "shape"),
    ("datacomp_baselines", "text_based", {"synset_match": False}, "synset"),
    ("datacomp_baselines", "text_based", {"caption_words": 1, "dc_width": 10}, None),
    ("datacomp_baselines", "image_based", {"caption_fasttext_words": 1}, "words"),
    ("datacomp_baselines", "image_based", {"caption_words": 1}, None),
    ("datacomp_baselines", "image_based", {"caption_chars": 5}, "chars"),
    ("datacomp_baselines", "image_based", {"targets_in_target": False}, "target"),
    ("datacomp_baselines", "laion2b", {"dc_clip_b32": 0.2799}, "clip"),
    ("datacomp_baselines", "laion2b", {"language": "fr"}, "english"),
    ("datacomp_baselines", "no_filter", dict.fromkeys(set(GOOD) - {"status", "uid"}), None),
    (
        "datacomp_baselines",
        "image_based_and_clip_l14_30",
        {"dc_clip_l14": -1.0},
        "clip_l14_30.clip",
    ),
    (
        "datacomp_baselines",
        "image_based_and_clip_l14_30",
        {"targets_in_target": False},
        "image_based.target",
    ),
    ("laion", "laion400m", {"caption_chars": 5}, None),
    ("laion", "laion400m", {"caption_chars": 4}, "candidates.chars"),
    ("laion", "laion400m", {"image_length": 4999}, "candidates.bytes"),
    ("laion", "laion400m", {"clip_score": 0.2999}, "clip"),
    ("laion", "laion400m", {"language": "de"}, None),
    ("laion", "laion2b_en", {"clip_score": 0.28}, None),
    ("laion", "laion2b_en", {"clip_score": 0.2799}, "clip"),
    ("laion", "laion2b_en", {"language": "de"}, "english"),
    ("coyo", "coyo", {"image_length": 4999}, "bytes"),
    ("coyo", "coyo", {"original_width": 199}, "side"),
    ("coyo", "coyo", {"original_height": 601}, "shape"),
    ("coyo", "coyo", {"caption_words": 2}, "words"),
    ("coyo", "coyo", {"caption_words": 256}, None),
    ("coyo", "coyo", {"caption_words": 257}, "words"),
    ("coyo", "coyo", {"caption_chars": 5}, "chars"),
    ("coyo", "coyo", {"caption_chars": 1000}, None),
    ("coyo", "coyo", {"caption_chars": 1001}, "chars"),
    ("coyo", "coyo", {"same_text_size": 11}, "repeated"),
    ("coyo", "coyo", {"same_image_survivor": False}, "unique"),
    ("metaclip", "metaclip", {"concept_count": 0}, "matched.entry"),
    ("metaclip", "metaclip", {"balance_keep": False}, "balanced"),
    ("metaclip", "metaclip", {"balance_keep": None}, "balanced:missing"),
    ("semdedup", "semdedup", {"duplicate_survivor": False}, "unique"),
]


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Recipe]:
    """The recipes, with small files of a user's."""
    (tmp_path / "nouns").write_text("dog n 1 0 1 0 02084071\n")
    (tmp_path / "noun.exc").touch()
    (tmp_path / "wnids").write_text("n02084071\n")
    (tmp_path / "entries").write_text("dog\n")
    np.save(tmp_path / "targets.npy", np.eye(4, dtype=np.float32))
    files = {"NOUNS": "nouns", "WNIDS": "wnids", "ENTRIES": "entries", "TARGETS": "targets.npy"}
    for name, file in files.items():
        monkeypatch.setenv(f"CLIPMILL_{name}", str(tmp_path / file))
    for name in ("CLIPMILL_SHARDS", "CLIPMILL_WAT", "DATACOMP"):
        monkeypatch.setenv(name, f"/given/{name.lower()}")
    monkeypatch.setenv("CLIPMILL_USER_AGENT", "test/1 (x@example.org)")
    names = {name for name, *_ in BORDERS}
    return {name: reader.read_manifest(RECIPES / f"{name}.yaml", Recipe) for name in names}


@pytest.mark.parametrize(("name", "view", "changes", "rule"), BORDERS)
def test_a_row_at_a_threshold(
    recipes: dict[str, Recipe], name: str, view: str, changes: dict[str, Any], rule: str | None
) -> None:
    # Six of ten rows have a low score, so that the good rows are the best 30 %.
    rows = [{**GOOD, **changes}] + [GOOD] * 3 + [{**GOOD, "dc_clip_l14": 0.0}] * 6
    table = pa.Table.from_pylist(rows, schema=pa.Table.from_pylist([GOOD]).schema)
    selection = choose({"00000": table}, recipes[name].views, [view])[view]
    assert selection.tables["00000"]["rule"][0].as_py() == rule
    assert selection.tables["00000"]["rule"][1].as_py() is None


def test_the_best_30_percent_of_datacomp_are_those_of_all_rows(recipes: dict[str, Recipe]) -> None:
    rows = [{**GOOD, "dc_clip_l14": number / 100, "language": "de"} for number in range(100)]
    table = pa.Table.from_pylist(rows)
    names = ["clip_l14_30"]
    selection = choose({"0": table}, recipes["datacomp_baselines"].views, names)["clip_l14_30"]
    assert selection.kept == 30
    assert selection.thresholds["top(dc_clip_l14, 0.30)"].value == 0.7


def test_every_view_of_every_recipe_can_work(recipes: dict[str, Recipe]) -> None:
    for name, recipe in recipes.items():
        check_views(recipe)
        head = (RECIPES / f"{name}.yaml").read_text().split("\nname:")[0]
        assert "http" in head or "arXiv:" in head
    names = {view.name for view in recipes["datacomp_baselines"].views}
    assert len(names) == 7
