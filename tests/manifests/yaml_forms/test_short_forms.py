from __future__ import annotations

from pathlib import Path

import pytest

from clipmill.manifests import disk, reader
from clipmill.manifests.reader import cross_arms
from clipmill.manifests.schema import Ablation, Arm, FilterSpec, Recipe

MANIFEST = """
name: a
question: q
pools: {web: {recipe: r.yaml}}
BODY
seeds: [0, 1]
train: {preset: micro}
evaluate: [{name: t, kind: classification, data: d}]
primary: t
"""


def read(tmp_path: Path, body: str) -> Ablation:
    path = tmp_path / "a.yaml"
    path.write_text(MANIFEST.replace("BODY", body))
    return reader.read_manifest(path, Ablation)


def test_a_setting_that_varies_is_crossed_with_the_arms() -> None:
    own = {"view": "web/c", "train": {"precision": "tf32"}}
    given = {"predictions": "p/{seed}"}
    arms = {"raw": {"view": "web/raw"}, "own": own, "given": given}
    assert cross_arms(arms, {"precision": ["bf16", "fp32"]}) == {
        "raw-bf16": {"view": "web/raw", "train": {"precision": "bf16"}},
        "raw-fp32": {"view": "web/raw", "train": {"precision": "fp32"}},
        "own": own,
        "given": given,
    }


def test_a_manifest_is_expanded_once_and_its_json_is_what_it_is(tmp_path: Path) -> None:
    body = (
        "arms: {raw: web/raw, clip10: web/clip10, clip30: web/clip30}\n"
        "vary: {samples_seen: [12.8k, 25.6k]}\n"
        "baseline: raw-12.8k\n"
        "controls: {random_like: [clip30-25.6k]}\n"
    )
    ablation = read(tmp_path, body)
    assert list(ablation.arms) == [
        "raw-12.8k", "raw-25.6k", "clip10-12.8k", "clip10-25.6k", "clip30-12.8k", "clip30-25.6k",
    ]  # fmt: skip
    assert ablation.arms["clip10-12.8k"] == Arm(view="web/clip10", train={"samples_seen": "12.8k"})
    disk.write_json(tmp_path / "ablation.json", ablation)
    assert reader.read_manifest(tmp_path / "ablation.json", Ablation) == ablation


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("arms: {raw: web/raw}\nvary: {lr: [1, 2], warmup: [1]}", "it names one setting"),
        ("arms: {raw: web/raw}\nvary: {lr: 1}", "vary.lr is 1; it must be a list"),
    ],
)
def test_other_forms_are_refused(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path, body + "\nbaseline: raw")


FILTERS = """
name: r
source: {kind: files, paths: [x.csv]}
filters:
  - caption
  - {clip_score: {model: ViT-B-32}}
  - {clip_l14: {clip_score: {model: ViT-L-14}}}
  - {long: caption}
  - {mine: {my.py:Sharp: {step: 2}}}
  - {other: {/abs/my.py:Sharp: }}
  - {concept: {entries: lists/x.txt, rule: spaces}}
  - {wiki: {concept: {entries: /abs/wiki.json}}}
"""


def test_the_forms_of_a_filter(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(FILTERS)
    recipe = reader.read_manifest(path, Recipe)
    assert recipe.filters == (
        FilterSpec(name="caption"),
        FilterSpec(name="clip_score", options={"model": "ViT-B-32"}),
        FilterSpec(name="clip_l14", options={"clip_score": {"model": "ViT-L-14"}}),
        FilterSpec(name="long", kind="caption"),
        FilterSpec(name="mine", kind=f"{tmp_path}/my.py:Sharp", options={"step": 2}),
        FilterSpec(name="other", kind="/abs/my.py:Sharp"),
        FilterSpec(
            name="concept", options={"entries": f"{tmp_path}/lists/x.txt", "rule": "spaces"}
        ),
        FilterSpec(name="wiki", options={"concept": {"entries": "/abs/wiki.json"}}),
    )
    disk.write_json(tmp_path / "r.json", recipe)
    assert reader.read_manifest(tmp_path / "r.json", Recipe) == recipe
    path.write_text(FILTERS.replace("- caption", "- [caption]"))
    with pytest.raises(ValueError, match=r"filters\[0\]|filters"):
        reader.read_manifest(path, Recipe)


def test_files_that_filters_name_are_relative_to_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    path = tmp_path / "r" / "recipe.yaml"
    path.write_text(
        """
name: r
source: {kind: shards, paths: [s]}
filters:
  - {b: {clip_score: {model: "local-dir:../models/b"}}}
  - {a: {clip_score: {model: "local-dir:/models/a"}}}
  - {h: {embed: {model: "hf-hub:org/name"}}}
  - {t: {clip_score: {model: ViT-B-32, pretrained: w/b.pt}}}
  - {n: {clip_score: {model: ViT-B-32, pretrained: openai}}}
  - language: {model: lid.176.bin}
  - {c: {table: {paths: [x.parquet, "s3://b/y.parquet"], take: {z: float}}}}
  - {d: {decontaminate: {against: ../images}}}
"""
    )
    options = [spec.options for spec in reader.read_manifest(path, Recipe).filters]
    assert options[0]["clip_score"]["model"] == f"local-dir:{tmp_path}/models/b"
    assert options[1]["clip_score"]["model"] == "local-dir:/models/a"
    assert options[2]["embed"]["model"] == "hf-hub:org/name"
    assert options[3]["clip_score"]["pretrained"] == f"{tmp_path}/r/w/b.pt"
    assert options[4]["clip_score"]["pretrained"] == "openai"
    assert options[5]["model"] == f"{tmp_path}/r/lid.176.bin"
    assert options[6]["table"]["paths"] == [f"{tmp_path}/r/x.parquet", "s3://b/y.parquet"]
    assert options[7]["decontaminate"]["against"] == f"{tmp_path}/images"
