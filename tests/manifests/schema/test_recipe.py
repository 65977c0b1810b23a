from __future__ import annotations

import re
from typing import Any

import pytest

from manifests.schema import Fetch, HostLimit, Recipe, Rule, Source, View


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
        (HostLimit, {"per_host": 0}, "per_host is 0"),
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
