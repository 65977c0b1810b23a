"""The settings of a web: impossible values are refused, and the webs that ship are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from examples.miniweb.settings import WEBS, Miniweb, read_web, web_of
from manifests import reader


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"noise": 1.0}, "noise is 1.0"),
        ({"pairs": -3}, "pairs is -3; it must lie in 1..1000000000"),
        ({"hosts": 0}, "hosts is 0; it must lie in 1..100000"),
        ({"fault_kinds": ("html", "gone")}, "miniweb fault_kinds has 'gone'; known are dead_link"),
        ({"captions": "c.csv"}, "miniweb captions is given without photos"),
    ],
)
def test_impossible_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Miniweb(**values)


def test_paths_are_relative_to_the_file_and_a_scale_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIFAR", "cifar")
    path = tmp_path / "web.yaml"
    path.write_text(
        "photos: ${CIFAR}/train\ncaptions: ../c.csv\npairs: 2k\nscales: {debug: {pairs: 60}}\n"
    )
    photos, captions = str(tmp_path / "cifar/train"), str(tmp_path.parent / "c.csv")
    assert read_web(path) == Miniweb(photos=photos, captions=captions, pairs=2000)
    assert read_web(path, "debug").pairs == 60
    assert read_web(path, "big").pairs == 2000  # a scale of the manifest alone


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pears: 3", "unknown key 'pears'; did you mean 'pairs'?"),
        ("noise: 2", "miniweb noise is 2.0; it must lie in [0, 1)"),
        ("pairs: many", "pairs is 'many'; it must be a whole number"),
    ],
)
def test_a_wrong_web_names_file_key_and_value(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "web.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"web\.yaml: ") as error:
        read_web(tmp_path / "web.yaml")
    assert message in str(error.value)


@pytest.mark.parametrize("path", sorted(WEBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_web_is_that_of_an_ablation(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CIFAR", "CLOTHING"):
        monkeypatch.setenv(name, f"/given/{name.lower()}")
    manifest = Path(__file__).resolve().parents[3] / "manifests" / "ablations" / path.name
    assert web_of(str(manifest)) == path
    for scale in [None, *reader.list_scales(manifest)]:
        assert read_web(path, scale).pairs > 0
    assert set(reader.list_scales(path)) <= set(reader.list_scales(manifest))


def test_a_manifest_without_a_web_is_told_which_there_are() -> None:
    with pytest.raises(ValueError, match=r"no web for mine\.yaml: name one with --web, .*null"):
        web_of("mine.yaml")
