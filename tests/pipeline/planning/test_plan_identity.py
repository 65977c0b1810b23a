"""A plan is of certain pairs and of a recipe: what differs is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from manifests import identity
from pipeline.crawl.parts import read_parts
from pipeline.planning.plan_files import check_unchanged, pairs_hash
from tests.support import audited


def made_of(**changes: Any) -> dict[str, Any]:
    recipe = identity.recipe_identity(audited.RECIPE)
    return {"recipe": recipe, "pairs": "a", "version": 2, **changes}


def test_the_same_pairs_have_the_same_hash_and_others_another_one(tmp_path: Path) -> None:
    hashes = []
    for name, count in (("a", 5), ("b", 5), ("c", 6)):
        pool = str(tmp_path / name)
        audited.write_pairs(pool, count)
        hashes.append(pairs_hash(read_parts(pool)))
    assert hashes[0] == hashes[1] != hashes[2]


def test_what_differs_is_named() -> None:
    recipe = audited.RECIPE
    check_unchanged(made_of(), made_of(), recipe, "POOL")
    other = dataclasses.replace(recipe, fetch=dataclasses.replace(recipe.fetch, image_size=7))
    for planned, asked, now, message in (
        (made_of(), made_of(), other, "the recipe has changed .*image_size.*another folder than P"),
        (made_of(pairs="b"), made_of(), recipe, r"not those .* \(now a, then b\)"),
        (made_of(version=1), made_of(), recipe, "plan version 1, this is version 2"),
    ):
        with pytest.raises(ValueError, match=message):
            check_unchanged(planned, asked, now, "POOL")
