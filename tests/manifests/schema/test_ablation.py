from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manifests.reader import read_manifest
from manifests.schema import Ablation, PoolRef, Stop

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
    assert read(tmp_path, "stop: {decided: true}").stop == Stop(at_least=2, smallest=None)
    stop = read(tmp_path, "stop: {decided: true, at_least: 3, smallest: 0.01}").stop
    assert stop == Stop(at_least=3, smallest=0.01)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("stop: {at_least: 1}", "stop.at_least is 1; it must be at least 2"),
        ("stop: {at_least: 4}", "stop.at_least is 4, but there are 3 seeds"),
        ("stop: {smallest: 0}", "stop.smallest is 0.0; it must be above 0"),
        ("stop: {decided: false}", "stop.decided is false; leave stop out"),
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
        read(tmp_path, "stop: {decided: true}", **{"[0, 1, 2]": "[0]"})


def test_a_pool_has_a_recipe_or_a_folder() -> None:
    with pytest.raises(ValueError, match="a pool needs a recipe"):
        PoolRef()
