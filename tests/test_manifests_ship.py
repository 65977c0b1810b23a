"""The manifests that ship are read as they stand, at every scale that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from filters import make
from manifests import reader
from manifests.schema import Ablation, Recipe
from train.config import configure

ROOT = Path(__file__).resolve().parents[1]
VARIABLES = (
    "MINIWEB",
    "MINIWEB_PORT",
    "SCORER",
    "CIFAR",
    "IMAGENET",
    "DATACOMP",
    "CLIPMILL_USER_AGENT",
)
SHIPPED = [
    (path, scale)
    for path in sorted((ROOT / "manifests").glob("*/*.yaml"))
    for scale in [None, *reader.list_scales(path)]
]


@pytest.mark.parametrize(("path", "scale"), SHIPPED, ids=[f"{p.stem}-{s}" for p, s in SHIPPED])
def test_it_can_be_read(path: Path, scale: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, f"/given/{name.lower()}")
    kind = reader.manifest_kind(path)
    manifest = reader.read_manifest(path, kind, scale=scale)
    if isinstance(manifest, Recipe):
        assert manifest.source.kind == "files" or manifest.fetch.user_agent
        for spec in manifest.filters:
            assert make(spec).name == spec.name
    else:
        assert isinstance(manifest, Ablation)
        configure({**manifest.train, "seed": manifest.seeds[0]})
        for name, view in (
            (n, v) for n, _, v in (a.partition("/") for a in manifest.arms.values())
        ):
            recipe_path = manifest.pools[name].recipe
            assert recipe_path is not None
            known = scale if scale in reader.list_scales(recipe_path) else None
            assert reader.read_manifest(recipe_path, Recipe, scale=known).view(view).name == view


def test_there_are_both_kinds_for_datacomp_and_for_the_open_question() -> None:
    names = {path.stem for path, _ in SHIPPED}
    assert {
        "datacomp_small",
        "commoncrawl_b32",
        "nvidia_question",
        "demo",
        "demo_null",
        "cifar10",
    } <= names
