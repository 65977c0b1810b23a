from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pipeline.look.survey import NumberColumn, bin_counts, histogram, number_column

INF = float("inf")


def column_of(values: pa.Array) -> NumberColumn:
    return number_column("c", pa.chunked_array([values]), np.arange(len(values), dtype=np.int32))


@pytest.mark.parametrize(
    "values",
    [
        pa.array(np.random.default_rng(1).normal(size=1_000)),
        pa.array([*range(1_000), 10**15]),
        pa.array([1.0] * 500 + [1e300, -1e300, INF, -INF]),
        pa.array([7, 7, 7]),
        pa.array([0.5, None, float("nan")]),
        pa.array([2**62, -(2**62)]),
        pa.array([1.7e308, -1.7e308]),
    ],
)
def test_every_value_is_in_one_bin(values: pa.Array) -> None:
    column = column_of(values)
    shown = histogram(column)
    assert shown is not None
    assert list(shown.edges) == sorted(shown.edges)
    assert np.isfinite(shown.edges).all()
    everything = np.ones(len(values), np.bool_)
    some = np.arange(len(values)) % 3 == 0
    assert sum(bin_counts(column, shown, everything)) == len(column.values)
    assert sum(bin_counts(column, shown, some)) == some[column.rows].sum()


def test_a_value_is_in_the_bin_that_the_edges_say() -> None:
    column = column_of(pa.array([0.0, 0.9, 1.0, 39.5, 40.0]))
    shown = histogram(column)
    assert shown is not None
    counts = bin_counts(column, shown, np.ones(5, np.bool_))
    assert (counts[0], counts[1], counts[39]) == (2, 1, 2)


def test_a_far_value_does_not_flatten_the_others() -> None:
    values = np.append(np.random.default_rng(2).normal(size=1_000), 1e9)
    shown = histogram(column_of(pa.array(values)))
    assert shown is not None
    assert shown.edges[-1] < 5
    assert shown.cut_above
    assert shown.cut_below


def test_a_column_without_a_finite_value_has_none() -> None:
    assert histogram(column_of(pa.array([None, None], pa.int32()))) is None
    assert histogram(column_of(pa.array([INF]))) is None
