"""Dataclasses as plain values and back."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from manifests import disk
from manifests.schema import Blend, FilterSpec


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "Blend is 5; it must be a mapping"),
        ({"pools": {"w": "x"}}, "Blend has no value for 'name'"),
        ({"name": "b", "poools": {}, "views": {}}, "did you mean 'pools'?"),
    ],
)
def test_a_document_that_is_no_dataclass(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        disk.from_plain(Blend, value)


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int
    colour: str = "red"
    tags: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    several: tuple[Inner, ...] = ()
    by_name: Any = None


def test_fields_with_their_default_are_left_out() -> None:
    first, second = Inner(size=0), Inner(size=1, colour="blue", tags={"a": 1})
    assert disk.without_defaults(Outer(inner=first)) == {"inner": {"size": 0}}
    assert disk.without_defaults(Outer(inner=first, several=(first, second))) == {
        "inner": {"size": 0},
        "several": [{"size": 0}, {"size": 1, "colour": "blue", "tags": {"a": 1}}],
    }
    by_name = {"x": first, "y": None}
    assert disk.without_defaults(Outer(inner=second, by_name=by_name))["by_name"] == {
        "x": {"size": 0},
        "y": None,
    }


def test_a_later_field_leaves_what_was_written_before_as_it_was() -> None:
    assert disk.to_plain(FilterSpec(name="a")) == {"name": "a", "options": {}}
    renamed = FilterSpec(name="a", kind="b")
    assert disk.to_plain(renamed) == {"name": "a", "options": {}, "kind": "b"}
    assert disk.from_plain(FilterSpec, disk.to_plain(renamed)) == renamed
