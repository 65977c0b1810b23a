"""Filters by name and option, and the id that says whether two sets of columns are the same."""

from __future__ import annotations

from typing import Any

import pytest

from clipmill.filters import (
    FILTERS,
    check_filters,
    check_reads,
    instances_of,
    make,
    specs_of_recipe,
)
from clipmill.filters.base import options_of, set_id
from clipmill.manifests.columns import SIDECAR
from clipmill.manifests.schema import Fetch, FilterSpec, Recipe, Source

WEIGHTS = {"model": "ViT-B-32", "pretrained": "laion2b_s34b_b79k"}


def spec(name: str, **options: Any) -> FilterSpec:
    return FilterSpec(name=name, options=options)


def test_every_filter_adds_columns_of_its_own() -> None:
    columns = [column for kind in FILTERS.values() for column in kind.adds]
    assert len(columns) == len({*columns, *SIDECAR.names}) - len(SIDECAR.names)
    assert all(kind.name == name for name, kind in FILTERS.items())
    needs = [getattr(kind, "needs", frozenset()) for kind in FILTERS.values()]
    assert all(each <= {"image", "caption", "row", "json"} for each in needs)
    meanings = [text for kind in FILTERS.values() for text in kind.meanings.values()]
    assert len(meanings) == len(columns)
    assert all(text and "\n" not in text for text in meanings)


def test_the_id_follows_the_result_and_not_the_speed() -> None:
    exact = {**WEIGHTS, "precision": "fp32"}
    plain = set_id(make(spec("clip_score", **exact)))
    assert set_id(make(spec("clip_score", **exact, batch_size=7, device="cpu"))) == plain
    assert set_id(make(spec("clip_score", **WEIGHTS, precision="bf16"))) != plain
    other = {**exact, "pretrained": "laion400m_e32"}
    assert set_id(make(spec("clip_score", **other))) != plain
    assert set_id(make(spec("caption"))) != set_id(make(spec("picture")))
    assert len(plain) == 12
    reads = [set_id(make(spec("caption")), names) for names in ((), ("a",), ("a", "b"), ("b", "a"))]
    assert len(set(reads)) == 4


def test_options_are_given_back_with_their_defaults() -> None:
    options = options_of(make(spec("clip_score", **WEIGHTS)))
    defaults = {"device": "auto", "precision": "auto", "resize": "exact", "on": None}
    assert options == {**WEIGHTS, **defaults, "batch_size": 256}
    assert options_of(make(spec("tokens"))) == {"tokenizer": "clip"}


@pytest.mark.parametrize(
    ("asked", "set_id_of_before"),
    [
        (spec("caption"), "2a52c03ea8c5"),
        (FilterSpec(name="words", kind="caption"), "2a52c03ea8c5"),
        (spec("picture"), "84af7582bd3f"),
        (spec("optout", user_agent="x/1"), "f987a780651d"),
        (spec("clip_score", **WEIGHTS, precision="fp32"), "7d9be6ea3b29"),
        (spec("clip_score", **WEIGHTS, precision="bf16"), "23b98c6c16d2"),
    ],
)
def test_ids_of_pools_that_were_scored_before_stay(
    asked: FilterSpec, set_id_of_before: str
) -> None:
    assert set_id(make(asked)) == set_id_of_before


def recipe(*specs: FilterSpec, user_agent: str | None = None) -> Recipe:
    source = Source(kind="files", paths=("x.csv",))
    return Recipe(name="r", source=source, fetch=Fetch(user_agent=user_agent), filters=specs)


def test_a_column_that_no_filter_gives_is_refused_where_the_pool_can_have_no_other() -> None:
    duplicate = spec("duplicate", on="perceptual", column="phash")
    with pytest.raises(ValueError, match="filter duplicate reads phash, which no fi"):
        check_reads(instances_of([duplicate]))
    check_reads(instances_of([duplicate]), extra=["phash"])
    check_reads(instances_of([spec("picture"), duplicate]))


def test_what_a_recipe_decides_reaches_its_filters() -> None:
    specs = specs_of_recipe(recipe(spec("optout"), spec("caption"), user_agent="bot/2 (x@y.org)"))
    assert specs == (spec("optout", user_agent="bot/2 (x@y.org)"), spec("caption"))
    check_filters(instances_of(specs))
    with pytest.raises(ValueError, match="there is no filter 'captoin'"):
        check_filters(instances_of(specs_of_recipe(recipe(spec("captoin")))))
