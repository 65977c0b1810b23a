from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.duplicates import as_score, sizes, survivors

SCORES = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0, float("nan"), float("-inf")]))


@given(st.lists(st.tuples(st.integers(0, 3), SCORES), min_size=1, max_size=20), st.randoms())
def test_the_best_row_of_each_group_survives_in_any_order(
    rows: list[tuple[int, float | None]], random: object
) -> None:
    table = [(f"u{number:02d}", f"g{group}", score) for number, (group, score) in enumerate(rows)]
    random.shuffle(table)  # type: ignore[attr-defined]
    uids, groups, scores = (pa.array(values) for values in zip(*table, strict=True))
    survives = survivors(uids, groups, as_score(scores.cast(pa.float64()), "s"))
    expected = set()
    for group in set(groups.to_pylist()):
        members = [(uid, score) for uid, own, score in table if own == group]

        def rank(member: tuple[str, float | None]) -> tuple[float, str]:
            score = member[1]
            return (2 if score is None or score != score else -np.arctan(score)), member[0]

        expected.add(min(members, key=rank)[0])
    assert {uid for (uid, *_), alive in zip(table, survives, strict=True) if alive} == expected
    of_group = groups.to_pylist()
    assert sizes(groups).tolist() == [of_group.count(group) for group in of_group]


def test_without_a_score_the_smallest_uid_survives_and_of_two_equal_ones_the_first() -> None:
    uids, groups = pa.array(["b", "a", "a", "c"]), pa.array(["g", "g", "g", "h"])
    assert survivors(uids, groups, None).tolist() == [False, True, False, True]


def test_large_integers_keep_their_digits() -> None:
    scores = as_score(pa.chunked_array([[2**53], [2**53 + 1]]), "pixels")
    assert survivors(pa.array(["a", "b"]), pa.array(["g", "g"]), scores).tolist() == [False, True]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([True, False]),
        pa.array(np.array([1, 0.5], np.float16)),
        pa.array([decimal.Decimal("1.5"), None]),
        pa.nulls(2),
        pa.array([3, 2], pa.int8()),
    ],
)
def test_numbers_of_all_kinds_are_scores(column: pa.Array) -> None:
    survives = survivors(pa.array(["a", "b"]), pa.array(["g", "g"]), as_score(column, "best"))
    assert survives.tolist() == [True, False]


def test_texts_are_no_scores() -> None:
    with pytest.raises(ValueError, match="best names the column 'caption' of type string"):
        as_score(pa.array(["a"]), "caption")
