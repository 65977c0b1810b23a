"""A threshold of the page, pasted into a recipe, keeps as many rows as the page says; every value
is in one bin of a histogram."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clipmill.pipeline.look.survey import (
    NumberColumn,
    bin_counts,
    counts_below,
    histogram,
    number_column,
    positions,
    sql_name,
    threshold_at,
)
from tests.support.chosen import choose, view

SEVEN = np.float32(0.7)
GENERATOR = np.random.default_rng(5)
COLUMNS: dict[str, pa.Array] = {
    "float32": pa.array(GENERATOR.normal(0.28, 0.05, 400).astype(np.float32)),
    "neighbours": pa.array([SEVEN, np.nextafter(SEVEN, np.float32(1)), 0.1], pa.float32()),
    "double": pa.array(GENERATOR.lognormal(0, 8, 300)),
    "near": pa.array([0.1 + 0.2, 0.3, 0.1, 0.2]),
    "whole": pa.array(GENERATOR.integers(-(10**17), 10**17, 300)),
    "small": pa.array([3, 3, 3, 7, 7, -2, 0, 0], pa.int16()),
    "tail": pa.array([1e-300, -1e300, 5.0, 1e300, 0.0, -0.0]),
    "holes": pa.array([0.5, None, nan, inf, -inf, 0.25, 0.5, None, 2.0]),
    "one": pa.array([4.25, 4.25]),
    "far": pa.array([*GENERATOR.normal(size=1_000), 1e9]),
    "widest": pa.array([1.7e308, -1.7e308]),
    "whole, widest": pa.array([2**62, -(2**62)]),
}  # fmt: skip


def column_of(values: pa.Array) -> NumberColumn:
    numbers = np.arange(len(values), dtype=np.int32)
    return number_column("c", pa.chunked_array([values]), numbers)


def kept_by(values: pa.Array, rule: str) -> int:
    """Rows that a view with this rule keeps; a row that is always kept is added and taken off."""
    table = pa.table(
        {"c": values, "more": pa.array([False] * len(values)), "status": ["success"] * len(values)}
    )
    extra = pa.table({"c": values.slice(0, 1), "more": [True], "status": ["success"]})
    both = pa.concat_tables([table, extra])
    return choose({"0": both}, [view("v", ("r", f"more OR coalesce({rule}, false)"))])["v"].kept - 1


@pytest.mark.parametrize("name", COLUMNS)
def test_the_rule_keeps_what_the_page_counts(name: str) -> None:
    values = COLUMNS[name]
    column = column_of(values)
    places = positions(column, 8)
    scope = np.ones(len(values), np.bool_)
    below = counts_below(column, scope, places)
    for place, count in zip(places.tolist(), below.tolist(), strict=True):
        threshold = threshold_at(column, place)
        assert column.below(threshold) == count == place
        assert kept_by(values, f"c >= {threshold}") == len(column.values) - count, threshold
        assert kept_by(values, f"c < {threshold}") == count, threshold


@pytest.mark.parametrize("name", COLUMNS)
def test_every_value_is_in_one_bin(name: str) -> None:
    values = COLUMNS[name]
    column = column_of(values)
    shown = histogram(column)
    assert shown is not None
    assert list(shown.edges) == sorted(shown.edges)
    assert np.isfinite(shown.edges).all()
    for scope in (np.ones(len(values), np.bool_), np.arange(len(values)) % 3 == 0):
        counts = bin_counts(column, shown, scope)
        assert sum(counts) == scope[column.rows].sum()
        inside = scope[column.rows] & (column.values >= shown.edges[1])
        assert sum(counts[1:]) == (inside.sum() if len(counts) > 1 else 0)
    if name == "far":  # one value does not flatten the others
        assert (shown.edges[-1] < 5, shown.cut_above, shown.cut_below) == (True, True, True)


def test_a_column_without_a_finite_value_has_no_histogram_and_no_threshold() -> None:
    empty = column_of(pa.array([None, None], pa.int32()))
    assert histogram(empty) is None
    assert histogram(column_of(pa.array([inf]))) is None
    assert positions(empty, 5).tolist() == []


def test_thresholds_are_short_and_a_bounded_number() -> None:
    column = column_of(COLUMNS["float32"])
    texts = [threshold_at(column, place) for place in positions(column, 20).tolist()]
    assert max(map(len, texts)) <= 8, texts
    small = column_of(COLUMNS["small"])
    assert threshold_at(small, 0) == "-2"
    assert threshold_at(column_of(pa.array([3, 17, 25])), 1) == "10"
    assert positions(small, 100).tolist() == [0, 1, 3, 6], "every value"
    places = positions(column_of(pa.array(np.arange(10_000.0))), 100)
    assert len(places) == 100
    assert np.diff(places).max() <= 102


def test_null_and_nan_are_counted_apart_and_a_scope_counts_only_its_rows() -> None:
    column = column_of(COLUMNS["holes"])
    assert (column.nulls, column.nans, len(column.values)) == (2, 1, 6)
    column = column_of(pa.array([5, 1, 3, 2]))
    scope = np.array([True, False, True, False])
    assert counts_below(column, scope, positions(column, 9)).tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("text", ["nan", "Infinity", "abc", ""])
def test_what_is_no_number_is_refused(text: str) -> None:
    error: Any = (ValueError, ArithmeticError)
    with pytest.raises(error):
        column_of(COLUMNS["one"]).below(text)


def test_odd_names_are_quoted() -> None:
    assert sql_name("clip_score") == "clip_score"
    assert sql_name('a"b') == '"a""b"'
