"""Rules over columns: exact thresholds, first reasons, and the same answer however the rows are
cut."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.manifests.columns import MASK
from clipmill.manifests.hashes import text_hashes
from clipmill.manifests.records import Threshold
from clipmill.manifests.schema import Rule, View
from clipmill.pipeline.views import choose as choosing
from clipmill.pipeline.views.choose import RowBlock, map_units
from tests.support.chosen import choose, view

SCHEMA = pa.schema(
    [
        ("status", pa.string()),
        ("uid", pa.string()),
        ("words", pa.int32()),
        ("b", pa.int32()),
        ("score", pa.float32()),
        ("half", pa.float16()),
        ("class", pa.string()),
        ("row_is_alive", pa.bool_()),
        ("page_url", pa.string()),
        ("original_width", pa.int32()),
        ("original_height", pa.int32()),
        ("tokens", pa.list_(pa.uint16())),
        ("vector", pa.list_(pa.float16(), 2)),
    ]
)


def table(**columns: list[Any]) -> pa.Table:
    """Rows that are stored unless `status` says otherwise; columns that are not given are NULL."""
    count = len(next(iter(columns.values())))
    columns = {"status": ["success"] * count, "uid": [f"{i:032x}" for i in range(count)], **columns}
    return pa.table(
        {f.name: pa.array(columns.get(f.name, [None] * count), f.type) for f in SCHEMA},
        schema=SCHEMA,
    )


def outcomes(rows: pa.Table, *views: View) -> list[object]:
    """The rule of each row in the last view, None where it is kept."""
    chosen = choose({"00000": rows}, views, [views[-1].name])[views[-1].name]
    assert chosen.tables["00000"].schema == MASK
    assert [rule is None for rule in chosen.column("rule")] == chosen.column("kept")
    return chosen.column("rule")


def test_the_first_rule_that_is_not_true_is_the_reason() -> None:
    rows = table(words=[1, 5, None, 5, 9, 8], score=[0.9, 0.1, 0.9, None, 0.9, 0.8],
                 status=["success"] * 4 + ["failed", "success"])  # fmt: skip
    basic = view("basic", ("words", "words > 2"), ("clip", "score > 0.5"))
    chosen = choose({"00000": rows}, [basic])["basic"]
    expected = ["words", "clip", "words:missing", "clip:missing", "not_stored", None]
    assert chosen.column("rule") == expected
    assert chosen.funnel == (("attempted", 6), ("stored", 5), ("words", 3), ("clip", 1))
    assert outcomes(rows, view("raw")) == [None] * 4 + ["not_stored", None]
    with pytest.raises(ValueError, match=r"'clip' \(score > 0\.5\) lets none of the 2 rows thro"):
        choose({"00000": rows.slice(0, 5)}, [basic])
    with pytest.raises(ValueError, match="none of the pool's 1 rows is stored"):
        choose({"0": rows.slice(4, 1)}, [view("raw")])


class Parts:
    """Rows in units of some rows, and parts of two."""

    def __init__(self, table: pa.Table, unit_rows: int) -> None:
        self.table, self.schema, self.rows = table, table.schema, table.num_rows
        self.unit_rows, self.units = unit_rows, -(-table.num_rows // unit_rows)

    def parts(self, unit: int, columns: Sequence[str] | None = None) -> Iterator[RowBlock]:
        first = unit * self.unit_rows
        for row in range(first, min(first + self.unit_rows, self.rows), 2):
            size = min(2, first + self.unit_rows - row, self.rows - row)
            table = self.table.slice(row, size)
            yield RowBlock(
                table=table if columns is None else table.select(list(columns)),
                first_row=row,
                sizes={f"{row:05d}": size},
            )


def test_a_rule_is_asked_only_of_the_rows_that_are_left() -> None:
    """`number` cannot be evaluated on the rows that `digits` rejects, nor on the last one."""
    rows = table(**{"class": ["1", "x", "7", None, "y"]}, words=[1, 2, 3, 4, 5],
                 status=["success"] * 4 + ["failed"])  # fmt: skip
    digits = Rule(name="digits", where="regexp_matches(class, '^[0-9]+$')")
    number = Rule(name="number", where="CAST(class AS INTEGER) > 3")
    small = Rule(name="small", where="words < 4")
    shifted = Rule(name="shifted", where="1 << (CAST(class AS INTEGER) * words) > 4")
    others = view("others", small, digits)
    chosen = choose(Parts(rows, 5), [view("v", digits, number, small, shifted), others])
    assert chosen["v"].column("kept") == [False, False, True, False, False]
    assert chosen["others"].column("kept") == [True, False, True, False, False]
    effects = [(effect.rule, effect.rejected, effect.alone) for effect in chosen["v"].effects]
    assert effects == [
        ("digits", 2, None), ("number", None, None), ("small", 1, None), ("shifted", None, None),
    ]  # fmt: skip
    assert [(one.rejected, one.alone) for one in chosen["others"].effects] == [(1, 0), (2, 1)]
    with pytest.raises(ValueError, match=r"rule 'number' .*: the text 'x' is no INT32"):
        choose(Parts(rows, 5), [others, view("last", small, number)])


PAGES = ["https://me:pw@WWW.Example.org:80/a/b", "http://x.org", "mailto:a@x.org", None]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("aspect <= 3", [None, "r", "r:missing", "r:missing"]),
        ("CASE WHEN aspect > 3 THEN false ELSE true END", [None, "r", "r:missing", "r:missing"]),
        ("page_host = 'www.example.org'", [None, "r", "r:missing", "r:missing"]),
        ("\"class\" = 'a'", [None, "r", None, "r:missing"]),
        ("len(tokens) < 5", [None, "r", "r:missing", None]),
        ("len(list_filter(tokens, lambda x: x = 1)) > 3", ["r", None, "r:missing", "r"]),
        ("NOT row_is_alive", ["r", None, "r:missing", None]),
        ("half > 0.5", ["r", None, None, "r:missing"]),
        ("vector[1] = 0.5", [None, "r", "r:missing", "r"]),
    ],
)
def test_columns_of_every_kind(where: str, expected: list[str | None]) -> None:
    rows = table(
        original_width=[300, 100, 100, None],
        original_height=[100, 301, 0, 5],
        page_url=PAGES,
        tokens=[[1, 2], [1] * 9, None, []],
        row_is_alive=[True, False, None, False],
        half=[0.25, 1, 2, None],
        vector=[[0.5, 1.0], [0.0, 2.0], None, [1.0, 1.0]],
        **{"class": ["a", "b", "a", None]},
    )
    assert outcomes(rows, view("v", ("r", where))) == expected


# --- top ------------------------------------------------------------------------------------------


def test_a_threshold_is_of_the_whole_pool_and_its_realised_share_is_written_down() -> None:
    rows = table(score=[0.5, 0.1, None, 0.9, 0.3, 0.7, 0.99], words=[4, 4, 4, 4, 1, 9, 9],
                 status=["success"] * 6 + ["failed"])  # fmt: skip
    clip = ("clip", "score >= top(score, 0.5)")
    chosen = choose({"00000": rows}, [view("half", clip)])["half"]
    assert chosen.column("kept") == [True, False, False, True, False, True, False]
    # 3 rows are kept: ceil(0.5 × 5)
    threshold = Threshold(value=0.5, asked=0.5, share=0.6, kept=3, rows=5)
    assert chosen.thresholds == {"top(score, 0.5)": threshold}
    ties = view("v", ("w", "words >= top(words, 1e-1) OR words >= top(words, 0.30)"))
    chosen = choose({"00000": rows}, [ties])["v"]
    assert chosen.thresholds["top(words, 1e-1)"].value == 9
    assert chosen.thresholds["top(words, 0.30)"].kept == chosen.kept == 5
    assert chosen.thresholds["top(words, 0.30)"].share == pytest.approx(5 / 6)
    both = view("both", ("words", "words != 4"), ("low", "score <= top(score, 0.75)"))
    assert outcomes(rows, both)[:5] == ["words", "words", "words", "words", None]


def test_a_share_is_the_decimal_that_was_written() -> None:
    for share, count in (("0.1", 30), ("0.07", 100), ("0.29", 100), ("1", 7), ("1.0", 7)):
        chosen = choose(
            {"0": table(words=list(range(count)))},
            [view("v", ("w", f"words >= top(words, {share})"))],
        )
        assert chosen["v"].kept == round(float(share) * count)


@settings(max_examples=30)
@given(
    st.lists(
        st.one_of(st.none(), st.sampled_from([0.25, 0.5]), st.floats(-1, 1, width=32)),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 100),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_top_against_a_sort_and_any_cut_into_shards(
    scores: list[float | None], percent: int, cuts: list[int]
) -> None:
    rows = table(score=scores)
    expected = sorted((s for s in scores if s is not None), reverse=True)
    wish = [view("v", ("clip", f"score >= top(score, {percent / 100})"))]
    if not expected:
        with pytest.raises(ValueError, match="no stored row has a value"):
            choose({"00000": rows}, wish)
        return
    last = expected[-(-len(expected) * percent // 100) - 1]
    edges = sorted({0, len(scores), *(c for c in cuts if c < len(scores))})
    tables = {f"{i:05d}": rows.slice(a, b - a) for i, (a, b) in enumerate(pairwise(edges))}
    chosen = choose(tables, wish)["v"]
    assert chosen.column("kept") == [s is not None and s >= last for s in scores]
    assert [t.num_rows for t in chosen.tables.values()] == [t.num_rows for t in tables.values()]


# --- random rows ----------------------------------------------------------------------------------


def test_a_random_view_is_as_large_and_depends_on_uids_alone() -> None:
    count = 300
    rows = table(
        words=[i % 3 for i in range(count)],
        status=["failed" if i % 10 == 0 else "success" for i in range(count)],
    )
    long = view("long", ("words", "words = 2"))
    alike = view("alike", Rule(name="random", random_like="long", seed=7))
    hashes = text_hashes(rows["uid"].to_pylist(), 7).tolist()
    assert hashes[3] == xxhash.xxh3_64_intdigest(rows["uid"][3].as_py().encode(), 7)
    expected = set(sorted((i for i in range(count) if i % 10), key=lambda i: hashes[i])[:90])
    order = np.random.default_rng(0).permutation(count)
    for number_of, tables in (
        (np.arange(count), {"0": rows}),
        (order, {"0": rows.take(order[:100]), "1": rows.take(order[100:])}),
    ):
        chosen = choose(tables, [alike, long])
        assert chosen["alike"].kept == chosen["long"].kept == 90
        assert set(number_of[chosen["alike"].column("kept")].tolist()) == expected
    assert choose({"0": rows}, [alike], sizes={"long": 5})["alike"].kept == 5


@pytest.mark.parametrize("size", range(1, 11))
def test_a_draw_of_rows_with_the_same_uids(size: int) -> None:
    uids = ["a", "b", "a", "c", "a", "b", "a", "d", "a", "a", "e"]
    rows = pa.table({"uid": uids, "status": ["success"] * 10 + ["failed"]})
    like = view("like", Rule(name="random", random_like="model", seed=3))
    kept = set()
    for unit_rows in (3, 4, 11):
        chosen = choose(Parts(rows, unit_rows), [like], sizes={"model": size})["like"]
        assert chosen.kept == size == sum(map(bool, chosen.column("kept")))
        kept.add(tuple(chosen.column("kept")))
    assert len(kept) == 1


def sampled(rows: pa.Table, share: float, seed: int = 0) -> set[int]:
    rule = Rule(name="part", sample=share, seed=seed)
    kept = choose({"0": rows}, [view("v", rule)])["v"].column("kept")
    return {i for i, keep in enumerate(kept) if keep}


def test_a_sample_is_the_rows_with_a_hash_below_its_share() -> None:
    rows = table(words=list(range(2000)))
    hashes = text_hashes(rows["uid"].to_pylist(), 7).tolist()
    expected = {i for i, value in enumerate(hashes) if value < 2**64 * 3 // 10}
    assert sampled(rows, 0.3, 7) == expected
    assert sampled(rows, 0.1, 7) < expected
    assert len(sampled(rows, 0.3, 8) & expected) == pytest.approx(180, abs=50)
    with pytest.raises(ValueError, match=r"rule 'part' \(sample 1e-30, seed 0\) lets none"):
        sampled(rows.slice(0, 3), 1e-30)


def test_a_sample_depends_on_no_cut_and_composes_with_other_rules() -> None:
    rows = table(
        words=[i % 3 for i in range(300)],
        status=["failed" if i % 10 == 0 else "success" for i in range(300)],
    )
    part = view("part", Rule(name="part", sample=0.5, seed=2))
    both = view("both", ("words", "words = 2"), Rule(name="inner", view="part"))
    whole = choose({"0": rows}, [part, both])
    cut = choose({"0": rows.slice(0, 7), "1": rows.slice(7)}, [part, both])
    for name in ("part", "both"):
        assert cut[name].column("rule") == whole[name].column("rule")
    of_part = whole["part"].column("kept")
    assert whole["both"].column("kept") == [k and i % 3 == 2 for i, k in enumerate(of_part)]
    assert {"inner.part", "words", "not_stored", None} == set(whole["both"].column("rule"))


# --- NULL -----------------------------------------------------------------------------------------

KEPT, FAILS, MISSING = None, "r", "r:missing"
# (rule, its outcome for (words, score) = (5, NULL), (NULL, 0.9), (5, 0.9), (1, 0.1))
NULLS = [
    ("words > 2", KEPT, MISSING, KEPT, FAILS),
    ("least(words, score) >= 0.3", MISSING, MISSING, KEPT, FAILS),
    ("CASE WHEN score < 0.5 THEN false ELSE true END", MISSING, KEPT, KEPT, FAILS),
    ("CASE WHEN words > 2 THEN true ELSE score > 0.5 END", MISSING, MISSING, KEPT, FAILS),
    ("words > 2 OR score > 0.5", MISSING, MISSING, KEPT, FAILS),
    ("words > 2 OR score IS NULL", KEPT, MISSING, KEPT, FAILS),
    ("score IS NULL", KEPT, FAILS, FAILS, FAILS),
    ("score IS NOT NULL AND words IS NOT NULL", FAILS, FAILS, KEPT, KEPT),
    ("coalesce(score, 1.0) > 0.5", KEPT, KEPT, KEPT, FAILS),
    ("ifnull(score, 1.0) > 0.5 AND words > 2", KEPT, MISSING, KEPT, FAILS),
    ("coalesce(score * words, 1.0) > 0.5", KEPT, KEPT, KEPT, FAILS),
    ("(words > 2) IS NULL", FAILS, KEPT, FAILS, FAILS),
    ("score IS DISTINCT FROM 0.5", MISSING, KEPT, KEPT, KEPT),
    ("concat(words, score) != ''", MISSING, MISSING, KEPT, KEPT),
    ("words >= top(score, 1)", KEPT, MISSING, KEPT, KEPT),
    ("words >= top(coalesce(score, 0), 1) AND words > 2", KEPT, MISSING, KEPT, FAILS),
    ("score >= top(coalesce(score, 0), 1)", MISSING, KEPT, KEPT, KEPT),
    ("list_contains(list_filter([1, 2], lambda words: words > 1), 2)", KEPT, KEPT, KEPT, KEPT),
    ("SCORE IS NULL OR Score > 0.5", KEPT, KEPT, KEPT, FAILS),
]


@pytest.mark.parametrize("case", NULLS, ids=lambda case: case[0])
def test_a_null_fails_a_rule_that_does_not_speak_of_it(case: tuple[str, ...]) -> None:
    rows = table(words=[5, None, 5, 1], score=[None, 0.9, 0.9, 0.1])
    assert outcomes(rows, view("v", ("r", case[0]))) == list(case[1:])


# --- NaN ------------------------------------------------------------------------------------------

# (rule, its outcome for score = NaN, 0.9, 0.1); all would keep NaN, or count it as a failure, if
# NaN were the largest number
NANS = [
    ("score > 0.5", MISSING, KEPT, FAILS),
    ("score <> 0.5", MISSING, KEPT, KEPT),
    ("0.5 < score", MISSING, KEPT, FAILS),
    ("NOT (score >= 0.5 AND words = 5)", MISSING, FAILS, KEPT),
    ("score NOT BETWEEN 0 AND 0.5", MISSING, KEPT, FAILS),
    ("score NOT IN (0.5, 0.75)", MISSING, KEPT, KEPT),
    ("score >= top(score, 0.5)", MISSING, KEPT, FAILS),
    ("score + words >= top(score + words, 0.5)", MISSING, KEPT, FAILS),
    ("greatest(score, words) > 0.5", MISSING, KEPT, KEPT),
    ("NOT isnan(score)", MISSING, KEPT, KEPT),
    ("score IS NULL OR score > 0.5", KEPT, KEPT, FAILS),
    ("coalesce(score, 1) > 0.5", KEPT, KEPT, FAILS),
]


@pytest.mark.parametrize("case", NANS, ids=lambda case: case[0])
def test_nan_is_a_missing_value(case: tuple[str, ...]) -> None:
    # rows of 0.5 and 0.75, so that no rule keeps nothing
    rows = table(words=[5, 5, 5, 5, 5], score=[math.nan, 0.9, 0.1, 0.5, 0.75])
    chosen = choose({"0": rows}, [view("v", ("r", case[0]))])["v"]
    assert chosen.column("rule")[:3] == list(case[1:])
    for threshold in chosen.thresholds.values():
        assert (threshold.rows, threshold.kept) == (4, chosen.kept), "the rows that are kept"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("words / b > 1", [MISSING, KEPT, FAILS, MISSING]),
        ("NOT (words / b <= 1)", [MISSING, KEPT, FAILS, MISSING]),
        ("words / b BETWEEN 1 AND 9", [MISSING, KEPT, FAILS, MISSING]),
        ("1 <> words / b", [MISSING, KEPT, KEPT, MISSING]),
        ("words / b IN (2.0, 7.0)", [MISSING, KEPT, FAILS, MISSING]),
        ("CAST(class AS DOUBLE) > 1", [MISSING, KEPT, FAILS, FAILS]),
        ("TRY_CAST(class AS FLOAT) >= top(score, 0.3)", [MISSING, KEPT, FAILS, FAILS]),
        ("CASE WHEN words / b > 1 THEN true ELSE b = 4 END", [FAILS, KEPT, KEPT, MISSING]),
        ("greatest(words / b, 0.5) > 1", [MISSING, KEPT, FAILS, MISSING]),
        ("CAST(words AS VARCHAR) < '3'", [KEPT, FAILS, KEPT, MISSING]),
        # inside a lambda nothing is rewritten: 1 / 0 is infinite
        ("len(list_filter([1.0], lambda x: x / b > 3)) = 0", [FAILS, KEPT, KEPT, KEPT]),
        ("sqrt(words - 1) < 9", [MISSING, KEPT, KEPT, MISSING]),
        ("1 / b - 1 / b < 1", [MISSING, KEPT, KEPT, KEPT]),
        ("isnan(words / b) OR b = 4", [KEPT, FAILS, KEPT, MISSING]),
    ],
)
def test_no_comparison_with_a_computed_nan_is_true(where: str, expected: list[str | None]) -> None:
    rows = table(words=[0, 4, 1, None], b=[0, 2, 4, 1], score=[math.nan, 2, 0.25, 1],
                 **{"class": ["nan", "2", "0.25", "1"]})  # fmt: skip
    assert outcomes(rows, view("v", ("r", where))) == expected


# --- units of work --------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 4])
def test_results_are_in_order(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "THREADS", threads)

    def work(unit: int) -> int:
        time.sleep(0.002 * (unit % 3 == 0))
        return unit * unit

    assert list(map_units(20, work)) == [unit * unit for unit in range(20)]
    assert list(map_units(0, work)) == []


def test_the_first_error_ends_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "THREADS", 2)
    started = []

    def work(unit: int) -> int:
        started.append(unit)
        if unit == 3:
            raise ValueError("unit 3")
        return unit

    with pytest.raises(ValueError, match="unit 3"):
        list(map_units(1000, work))
    assert len(started) < 50
