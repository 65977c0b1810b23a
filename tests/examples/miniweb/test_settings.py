"""The settings of a web: impossible values are refused, and the webs that ship are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.miniweb.settings import WEBS, Miniweb, read_web, web_of
from manifests import reader


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


@pytest.mark.parametrize("path", sorted(WEBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_web_is_that_of_an_ablation(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CIFAR", "CLOTHING"):
        monkeypatch.setenv(name, f"/given/{name.lower()}")
    manifest = Path(__file__).resolve().parents[3] / "manifests" / "ablations" / path.name
    assert web_of(str(manifest)) == path
    for scale in [None, *reader.list_scales(manifest)]:
        assert read_web(path, scale).pairs > 0
    assert set(reader.list_scales(path)) <= set(reader.list_scales(manifest))
