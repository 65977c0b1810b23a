from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests.reader import read_manifest
from clipmill.manifests.schema import Ablation, Stop

MANIFEST = """
name: n
question: q
arms: {raw: {predictions: "r/{seed}.parquet"}, clip: {predictions: "c/{seed}.parquet"}}
baseline: raw
seeds: [0, 1, 2]
evaluate: [{name: t, kind: classification}]
primary: t
"""


def read(folder: Path, line: str, **replaced: str) -> Any:
    text = MANIFEST
    for old, new in replaced.items():
        text = text.replace(old, new)
    (folder / "m.yaml").write_text(text + line)
    return read_manifest(str(folder / "m.yaml"), Ablation)


def test_without_it_every_seed_is_run(tmp_path: Path) -> None:
    assert read(tmp_path, "").stop is None
    assert read(tmp_path, "stop: {}").stop == Stop(at_least=2)
    assert read(tmp_path, "stop: {at_least: 3}").stop == Stop(at_least=3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("stop: {at_least: 1}", "at_least is 1; it must lie in 2..10000"),
        ("stop: {at_least: 4}", "stop.at_least is 4, but there are 3 seeds"),
        ("stop: {at_most: 4}", "at_most"),
        ("stop: true", "stop"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, line)
    assert "\n" not in str(caught.value)


def test_rounds_need_two_seeds(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"seeds are \[0\]; at least two different ones"):
        read(tmp_path, "stop: {}", **{"[0, 1, 2]": "[0]"})


MODELS = """
name: n
question: q
arms: ARMS
baseline: raw
seeds: [0, 1]
evaluate: [{name: t, kind: classification, data: d}]
primary: t
"""


def read_models(folder: Path, arms: str, line: str = "") -> Any:
    (folder / "m.yaml").write_text(MODELS.replace("ARMS", arms) + line)
    return read_manifest(str(folder / "m.yaml"), Ablation)


def test_a_model_is_a_folder_or_a_name(tmp_path: Path) -> None:
    arms = (
        '{raw: {model: "runs/s-{seed}"}, hub: {model: "open_clip:ViT-B-32/openai"}, '
        "here: {model: local-dir:x}}"
    )
    made = read_models(tmp_path, arms).arms
    assert made["raw"].model == f"{tmp_path}/runs/s-{{seed}}"
    assert made["hub"].model == "open_clip:ViT-B-32/openai"
    assert made["here"].model == f"local-dir:{tmp_path}/x"
    assert [arm.is_one_model for arm in made.values()] == [False, True, True]
    assert not any(arm.is_trained for arm in made.values())


@pytest.mark.parametrize(
    ("arms", "line", "message"),
    [
        ('{raw: {model: ""}}', "", "model is empty; name a run"),
        ("{raw: {model: x-{seed}, ranks: 2}}", "", "an arm of a model is not trained"),
        ("{raw: {view: w/raw, weights: repeats}}", "", "only an arm with views has"),
        ("{raw: {model: x}, b: {model: 'y-{seed}'}}", "", "the baseline 'raw' is one model"),
        (
            "{raw: {model: 'x-{seed}'}, b: {model: y}}",
            "stop: {}",
            "stop runs seeds in rounds, but arm 'b' is one model without seeds",
        ),
        (
            "{raw: {model: 'x-{seed}'}, b: {model: 'y-{seed}'}}",
            "controls: {a_a: b}",
            "arm 'b' is a model; only an arm that is trained has controls",
        ),
        ("{raw: {model: 'x-{seed}'}}", "stop: {}", "'raw' is the only arm"),
    ],
)
def test_impossible_models_are_refused(arms: str, line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read_models(tmp_path, arms.replace("x-{seed}, ranks", "'x-{seed}', ranks"), line)
