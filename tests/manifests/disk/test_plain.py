"""Dataclasses as plain values and back."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Literal

import pytest

from manifests import disk
from manifests.schema import Blend, FilterSpec


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Blend, 5, "x is 5; it must be a mapping"),
        (Blend, {"pools": {"w": "x"}}, "x has no value for 'name'"),
        (Blend, {"name": "b", "poools": {}}, "x has no 'poools'; did you mean 'pools'?"),
        (Blend, {"name": "b", "seed": True}, "x.seed is True; it must be a whole number"),
        (Blend, {"name": "b", "views": {"w/v": "x"}}, "x.views['w/v'] is 'x'; it must be a number"),
        (tuple[int, ...], [1, "2"], "x[1] is '2'; it must be a whole number"),
        (tuple[str, int], ["a"], "x is ['a']; it must be a list of 2 values"),
        (dict[str, float], {"a": None}, "x['a'] is None; it must be a number"),
        (Literal["a", "b"], "c", "x is 'c'; it must be one of a, b"),
        (int | None, "", "x is ''; it must be a whole number"),
        (int | tuple[int, ...], "", "x is ''; it must be a list"),
    ],
)
def test_every_type_of_a_field_is_checked(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        disk.from_plain(kind, value, "x")
    assert disk.from_plain(int | tuple[int, ...], [1], "x") == (1,)
    assert disk.from_plain(float, 1, "x") == 1
    assert disk.from_plain(int | None, None, "x") is None


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
    assert disk.to_plain(Outer(inner=first), with_defaults=False) == {"inner": {"size": 0}}
    both = Outer(inner=first, several=(first, second))
    assert disk.to_plain(both, with_defaults=False) == {
        "inner": {"size": 0},
        "several": [{"size": 0}, {"size": 1, "colour": "blue", "tags": {"a": 1}}],
    }
    by_name = {"x": first, "y": None}
    assert disk.to_plain(Outer(inner=second, by_name=by_name), with_defaults=False)["by_name"] == {
        "x": {"size": 0},
        "y": None,
    }


def test_a_later_field_leaves_what_was_written_before_as_it_was() -> None:
    assert disk.to_plain(FilterSpec(name="a")) == {"name": "a", "options": {}}
    renamed = FilterSpec(name="a", kind="b")
    assert disk.to_plain(renamed) == {"name": "a", "options": {}, "kind": "b"}
    assert disk.from_plain(FilterSpec, disk.to_plain(renamed)) == renamed
