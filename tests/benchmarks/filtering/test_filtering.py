"""The benchmarks of filters: what they make and measure, and the pages of their figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from benchmarks.filtering import duplicates, score_quality, scoring
from clipmill.filters import instances_of, specs_of_recipe
from clipmill.manifests import disk, reader
from clipmill.manifests.reader import read_manifest
from clipmill.manifests.schema import Recipe
from clipmill.pipeline.views.files import check_views
from tests.manifests.test_phash import photograph

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/reference/filters.md").read_text()

RECIPES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)


@pytest.mark.parametrize("text", RECIPES)
def test_the_recipes_of_the_page_can_be_used(text: str, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "ads.txt").write_text("sale")
    (tmp_path / "lists" / "metadata.json").write_text('["dog"]')
    np.save(tmp_path / "imagenet_l14.npy", np.ones((2, 768), np.float32))
    (tmp_path / "val").mkdir()
    photograph(0).save(tmp_path / "val" / "0.jpg")
    path = tmp_path / "recipe.yaml"
    path.write_text(text.replace("/data/imagenet/val", str(tmp_path / "val")))
    check_views(read_manifest(path, Recipe))


def test_copies_of_photographs_are_found(tmp_path: Path) -> None:
    for seed in range(4):
        photograph(seed).resize((240, 180)).save(tmp_path / f"{seed}.jpg", quality=95)
    figures = duplicates.quality(str(tmp_path))
    assert figures["photographs"] == 4
    assert list(figures["kinds"]) == list(duplicates.COPIES)
    assert figures["kinds"]["JPEG quality 90"]["pdq, 31 bits"] == [1.0, 1.0]
    assert figures["kinds"]["mirrored"]["pdq, 31 bits"] == [0.0, 0.0]
    assert figures["near_originals"]["pdq, 31 bits"] == []


def test_the_recipe_of_the_document_is_one(tmp_path: Path) -> None:
    (example,) = [text for text in RECIPES if text.startswith("name: unique\n")]
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


def test_the_figures_are_those_of_their_definitions() -> None:
    """The area is the share of pairs of a good and a bad row in which the good one scores more, a
    tie counting half."""
    rng = np.random.default_rng(0)
    good = rng.random(300) < 0.4
    values = np.round(rng.normal(size=300) + good, 1)  # with ties
    figures = score_quality.quality(values, good)
    gaps = values[good][:, None] - values[~good][None]
    assert figures["auc"] == pytest.approx(np.mean((gaps > 0) + 0.5 * (gaps == 0)))
    precision = [good[values >= value].mean() for value in values[good]]
    assert figures["average_precision"] == pytest.approx(np.mean(precision))
    for point in figures["points"]:
        kept = values >= point["threshold"]
        assert kept.mean() == point["kept"] >= point["share"]
        assert (values > point["threshold"]).mean() < point["share"]
        assert point["precision"] == good[kept].mean()
        assert point["recall"] == pytest.approx(good[kept].sum() / good.sum())


def test_the_command_joins_by_url_and_caption(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls, captions = ["a", "a", "b", "c"], ["x", "y", "x", "x"]
    rows = pa.table({"url": urls, "caption": captions, "score": [0.9, 0.1, 0.8, 0.2]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    truth = pa.table({"url": urls[:3], "caption": captions[:3], "good": [1, 0, 1]})
    pyarrow.csv.write_csv(pa.concat_tables([truth, truth]), tmp_path / "truth.csv")
    words = [str(tmp_path / "rows.parquet"), "--truth", str(tmp_path / "truth.csv")]
    out = str(tmp_path / "o.json")
    words += ["--name", "small", "--columns", "score", "score:low", "--out", out]
    assert score_quality.main(words) == 0
    result = disk.read_json(tmp_path / "o.json")["small"]
    assert (result["rows"], result["of"]) == (3, 4)
    assert result["scores"]["score"]["auc"] == 1
    assert result["scores"]["score:low"]["auc"] == 0
    assert "| score | 1.000 | 1.000 |" in capsys.readouterr().out
    both = pa.table({"url": ["a"], "caption": ["x"], "good": [0]})
    pyarrow.csv.write_csv(pa.concat_tables([truth, both]), tmp_path / "truth.csv")
    with pytest.raises(ValueError, match="calls 1 pairs both good and not"):
        score_quality.main(words)


@pytest.mark.slow
def test_drawn_images_are_preprocessed_by_each_way(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert scoring.main(["--part", "preprocess", "--images", "2", "--out", str(out)]) == 0
    preprocess = json.loads(out.read_text())["preprocess"]
    assert preprocess["parity"]["exact"]["largest_level"] == 0
    assert all(cost > 0 for cost in preprocess["ms"].values())
