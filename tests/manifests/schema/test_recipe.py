from __future__ import annotations

import re
import typing
from types import SimpleNamespace
from typing import Any

import pytest

from manifests import schema
from manifests.schema import Fetch, Recipe, Rule, Source, View
from manifests.schema.recipe import check_ranges

BLOCKS = [each for each in vars(schema).values() if hasattr(each, "__pydantic_config__")]


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (Rule, {"name": "x"}, "must be one of an SQL expression, a view, random_like or sample"),
        (Rule, {"name": "x", "where": "a", "view": "b"}, "must be one of"),
        (Rule, {"name": "x", "sample": 1.5}, "sample is 1.5; it must lie between 0 and 1"),
        (
            Recipe,
            {
                "name": "r",
                "source": Source(kind="files", paths=("x.csv",)),
                "views": (View(name="a"), View(name="a")),
            },
            "views named twice: a",
        ),
        (Rule, {"name": " ", "where": "a"}, "a rule is named ' '; its name is the reason"),
        (
            Rule,
            {"name": "x", "sample": 0.5, "seed": -1},
            "rule 'x': seed is -1; it must lie in 0..",
        ),
        (
            Recipe,
            {
                "name": "r",
                "source": Source(kind="table", paths=("x.csv",), extra_columns={"MD5": "string"}),
                "fetch": Fetch(compute_hash="md5"),
            },
            "extra_columns names 'md5', the column of fetch.compute_hash",
        ),
        (Fetch, {"encode_format": "png", "encode_quality": 95}, "must lie in 0..9"),
    ],
)
def test_impossible_values_are_refused(make: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make(**values)


def test_a_view_is_found_by_its_name() -> None:
    recipe = Recipe(
        name="r", source=Source(kind="files", paths=("x.csv",)), views=(View(name="raw"),)
    )
    assert recipe.view("raw") == View(name="raw")
    with pytest.raises(ValueError, match="recipe 'r' has no view 'row'; it has raw"):
        recipe.view("row")


def has_numbers(kind: Any) -> bool:
    return kind in (int, float) or any(map(has_numbers, typing.get_args(kind)))


@pytest.mark.parametrize("block", BLOCKS)
def test_every_number_of_a_manifest_has_a_range(block: Any) -> None:
    hints = typing.get_type_hints(block)
    del hints["__pydantic_config__"]
    ranges = hints.pop("ranges", None) and block.ranges
    assert set(ranges or {}) == {name for name, kind in hints.items() if has_numbers(kind)}
    assert not ranges or "check_ranges" in block.__post_init__.__code__.co_names
    for name in ranges or {}:
        for wrong in (10**30, -(10**30), float("nan"), float("inf"), True, "5", (10**30,)):
            values = dict.fromkeys(ranges) | {name: {"key": wrong}}
            holder = type("Block", (SimpleNamespace,), {"ranges": ranges})(**values)
            with pytest.raises(ValueError, match=f"^{name}.key.* it must lie in"):
                check_ranges(holder)
