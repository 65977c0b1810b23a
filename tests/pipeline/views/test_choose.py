"""Rules over columns: exact thresholds, first reasons, and the same answer however the rows are
cut."""

from __future__ import annotations

import math
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.columns import VIEW
from manifests.records import Threshold
from manifests.schema import Rule, View
from pipeline.views.choose import check
from pipeline.views.row_tests import uid_hashes
from pipeline.views.rules import rules_of, steps_of
from tests.support.chosen import choose

SCHEMA = pa.schema(
    [
        ("status", pa.string()),
        ("uid", pa.string()),
        ("words", pa.int32()),
        ("score", pa.float32()),
        ("class", pa.string()),
        ("page_url", pa.string()),
        ("original_width", pa.int32()),
        ("original_height", pa.int32()),
        ("tokens", pa.list_(pa.uint16())),
    ]
)


def view(name: str, *rules: tuple[str, str] | Rule) -> View:
    return View(
        name=name,
        rules=tuple(r if isinstance(r, Rule) else Rule(name=r[0], where=r[1]) for r in rules),
    )


def table(**columns: list[Any]) -> pa.Table:
    """Rows that are stored unless `status` says otherwise; columns that are not given are NULL."""
    count = len(next(iter(columns.values())))
    columns = {"status": ["success"] * count, "uid": [f"{i:032x}" for i in range(count)], **columns}
    return pa.table(
        {f.name: pa.array(columns.get(f.name, [None] * count), f.type) for f in SCHEMA},
        schema=SCHEMA,
    )


def outcomes(rows: pa.Table, *views: View, name: str | None = None) -> list[str | None]:
    """The rule of each row in the last view, None where it is kept."""
    name = name or views[-1].name
    chosen = choose({"00000": rows}, views, [name])[name].tables["00000"]
    assert chosen.schema == VIEW
    assert [rule is None for rule in chosen["rule"].to_pylist()] == chosen["kept"].to_pylist()
    return list(chosen["rule"].to_pylist())


@pytest.mark.slow
def test_the_first_rule_that_is_not_true_is_the_reason() -> None:
    rows = table(
        words=[1, 5, None, 5, 9],
        score=[0.9, 0.1, 0.9, None, 0.9],
        status=["success"] * 4 + ["failed"],
    )
    basic = view("basic", ("words", "words > 2"), ("clip", "score > 0.5"))
    with pytest.raises(ValueError, match="lets none of the 2 rows through"):
        choose({"00000": rows}, [basic])
    rows = table(words=[1, 5, None, 5, 9, 8], score=[0.9, 0.1, 0.9, None, 0.9, 0.8],
                 status=["success"] * 4 + ["failed", "success"])  # fmt: skip
    assert outcomes(rows, basic) == [
        "words",
        "clip",
        "words:missing",
        "clip:missing",
        "not_stored",
        None,
    ]
    chosen = choose({"00000": rows}, [basic])["basic"]
    assert chosen.funnel == (("attempted", 6), ("stored", 5), ("words", 3), ("clip", 1))
    assert chosen.kept == 1


def test_no_rules_keep_what_is_stored() -> None:
    assert outcomes(table(status=["success", "failed_to_resize"]), view("raw")) == [
        None,
        "not_stored",
    ]


def test_a_rule_is_asked_only_of_the_rows_that_are_left() -> None:
    rows = table(page_url=["7", "nine", "12"], words=[1, 0, 1])
    guarded = view("guarded", ("number", "words = 1"), ("large", "page_url::INTEGER > 8"))
    assert outcomes(rows, guarded) == ["large", "number", None]
    with pytest.raises(
        ValueError, match=r"rule 'large' \(page_url::INTEGER > 8\): .*the text 'nine' is no INT32"
    ):
        outcomes(rows, view("bare", guarded.rules[1]))


def test_what_each_rule_rejects_whatever_the_others_do() -> None:
    rows = table(words=[1, 5, 1, 5, 5], score=[0.9, 0.1, 0.1, 0.9, None])
    both = view("both", ("words", "words > 2"), ("clip", "score >= 0.5"))
    effects = choose({"00000": rows}, [both])["both"].effects
    assert [(one.rule, one.rejected, one.alone) for one in effects] == [
        ("words", 2, 1),
        ("clip", 3, 2),
    ]
    (turned,) = [view("both", *reversed(both.rules))]
    again = {one.rule: one for one in choose({"00000": rows}, [turned])["both"].effects}
    assert again == {one.rule: one for one in effects}, "the order of the rules does not count"
    assert choose({"00000": rows}, [view("one", ("words", "words > 2"))])["one"].effects == ()


def test_a_rule_that_needs_the_ones_before_it_has_no_counts() -> None:
    rows = table(**{"class": ["7", "x", "9"], "words": [1, 1, 1]})
    guarded = view("g", ("number", "class != 'x'"), ("large", "CAST(class AS INT) > 8"))
    chosen = choose({"00000": rows}, [guarded])["g"]
    assert chosen.kept == 1
    number, large = chosen.effects
    assert (number.rejected, number.alone) == (1, None)
    assert (large.rejected, large.alone) == (None, None)


def test_columns_that_no_file_holds() -> None:
    rows = table(
        original_width=[300, 100, 100, None],
        original_height=[100, 301, 0, 5],
        page_url=[
            "https://me:pw@WWW.Example.org:80/a/b",
            "http://x.org",
            "mailto:a@x.org",
            None,
        ],
    )
    assert outcomes(rows, view("shape", ("shape", "aspect <= 3"))) == [
        None,
        "shape",
        "shape:missing",
        "shape:missing",
    ]
    assert outcomes(rows, view("host", ("host", "page_host = 'www.example.org'")))[0] is None
    assert outcomes(rows, view("host", ("host", "page_host IN ('x.org')")))[1:] == [
        None,
        "host:missing",
        "host:missing",
    ]


def test_names_that_are_words_of_sql_and_lists_work() -> None:
    rows = table(tokens=[[1, 2], [1] * 9, None], **{"class": ["a", "b", "a"]})
    assert outcomes(rows, view("v", ("class", "class = 'a'"), ("short", "len(tokens) < 5"))) == [
        None, "class", "short:missing"]  # fmt: skip
    assert outcomes(rows, view("v", ("long", "len(list_filter(tokens, lambda x: x = 1)) > 3"))) == [
        "long", None, "long:missing"]  # fmt: skip


# --- top ------------------------------------------------------------------------------------------


def test_top_is_the_kth_value_of_the_stored_rows_that_have_one() -> None:
    score = [0.5, 0.1, None, 0.9, 0.3, 0.7, 0.99]
    rows = table(score=score, status=["success"] * 6 + ["failed"])
    chosen = choose({"00000": rows}, [view("half", ("clip", "score >= top(score, 0.5)"))])["half"]
    assert chosen.tables["00000"]["kept"].to_pylist() == [
        True,
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    # 3 rows are kept: ceil(0.5 × 5)
    assert chosen.thresholds == {
        "top(score, 0.5)": Threshold(value=0.5, asked=0.5, share=0.6, kept=3, rows=5)
    }


def test_top_looks_at_the_whole_pool_and_not_at_what_earlier_rules_left() -> None:
    rows = table(score=[0.9, 0.8, 0.2, 0.1], words=[0, 0, 9, 9])
    both = view("both", ("words", "words = 9"), ("clip", "score >= top(score, 0.75)"))
    assert outcomes(rows, both) == ["words", "words", None, "clip"]


def test_all_ties_are_kept_and_the_realised_share_is_written_down() -> None:
    rows = table(words=[4, 4, 4, 4, 1, 9])
    chosen = choose(
        {"00000": rows},
        [view("v", ("w", "words >= top(words, 1e-1) OR words >= top(words, 0.30)"))],
    )["v"]
    assert chosen.thresholds["top(words, 1e-1)"].value == 9
    threshold = chosen.thresholds["top(words, 0.30)"]
    assert (threshold.value, threshold.kept) == (4, 5)
    assert threshold.share == pytest.approx(5 / 6)
    assert chosen.kept == 5


def test_a_share_is_the_decimal_that_was_written() -> None:
    for share, count in (("0.1", 30), ("0.07", 100), ("0.29", 100), ("1", 7), ("1.0", 7)):
        chosen = choose(
            {"0": table(words=list(range(count)))},
            [view("v", ("w", f"words >= top(words, {share})"))],
        )
        assert chosen["v"].kept == round(float(share) * count)


def test_top_of_an_expression_and_of_numbers_that_are_none() -> None:
    rows = table(score=[0.5, 0.1, math.nan, 0.3], words=[1, 9, 1, 1])
    rule = "score < 1 AND score + words * 0.5 >= top(score + words * 0.5, 0.1)"
    assert outcomes(rows, view("v", ("w", rule))) == ["w", None, "w:missing", "w"]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
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
    kept = [k for t in chosen.tables.values() for k in t["kept"].to_pylist()]
    assert kept == [s is not None and s >= last for s in scores]
    assert [t.num_rows for t in chosen.tables.values()] == [t.num_rows for t in tables.values()]


# --- views in views -------------------------------------------------------------------------------


def test_a_view_inside_a_view_brings_its_rules_under_its_name() -> None:
    basic = view("basic", ("words", "words > 2"))
    both = view("both", Rule(name="basic", view="basic"), ("clip", "score > 0.5"))
    rows = table(words=[1, 5, 5], score=[0.9, 0.1, 0.9])
    assert outcomes(rows, basic, both) == ["basic.words", "clip", None]
    assert [step.name for step in steps_of([basic, both], "both")] == ["basic.words", "clip"]


def test_a_random_view_is_as_large_and_depends_on_uids_alone() -> None:
    count = 300
    rows = table(
        words=[i % 3 for i in range(count)],
        status=["failed" if i % 10 == 0 else "success" for i in range(count)],
    )
    long = view("long", ("words", "words = 2"))
    alike = view("alike", Rule(name="random", random_like="long", seed=7))
    chosen = choose({"00000": rows}, [alike, long])
    assert chosen["alike"].kept == chosen["long"].kept == 90
    hashes = {
        i: xxhash.xxh3_64_intdigest(rows["uid"][i].as_py().encode(), 7)
        for i in range(count)
        if i % 10
    }
    expected = set(sorted(hashes, key=lambda i: hashes[i])[:90])
    assert {
        i for i, kept in enumerate(chosen["alike"].tables["00000"]["kept"].to_pylist()) if kept
    } == expected
    order = np.random.default_rng(0).permutation(count)
    again = choose({"0": rows.take(order[:100]), "1": rows.take(order[100:])}, [alike, long])[
        "alike"
    ]
    kept = pa.concat_tables(again.tables.values())["kept"].to_pylist()
    assert {int(order[i]) for i, k in enumerate(kept) if k} == expected
    other = view("alike", Rule(name="random", random_like="long", seed=8))
    drawn_otherwise = choose({"0": rows}, [other, long])["alike"].tables["0"]
    assert drawn_otherwise != chosen["alike"].tables["00000"]
    assert choose({"0": rows}, [alike], sizes={"long": 5})["alike"].kept == 5


@pytest.mark.parametrize(
    ("views", "message"),
    [
        (
            [view("a", Rule(name="b", view="b")), view("b", Rule(name="a", view="a"))],
            "in a circle: a -> b -> a",
        ),
        ([view("a", Rule(name="r", random_like="a"))], "in a circle: a -> a"),
        (
            [view("a", Rule(name="b", random_like="b")), view("b", Rule(name="a", view="a"))],
            "in a circle: a -> b -> a",
        ),
        (
            [view("a", Rule(name="x", view="basik")), view("basic")],
            "view 'a': there is no view 'basik'; did you mean",
        ),
        (
            [view("a", Rule(name="x", random_like="basik")), view("basic")],
            "there is no view 'basik'",
        ),
        ([view("a", ("x", "words > 1"), ("x", "words > 2"))], "two rules named 'x'"),
        ([view("a", ("not_stored", "words > 1"))], "cannot be named 'not_stored'"),
    ],
)
def test_views_that_name_each_other_wrongly(views: list[View], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose({"00000": table(words=[3])}, views, ["a"])


def test_rules_as_plain_values_are_the_same_exactly_when_they_decide_the_same() -> None:
    basic, harder = view("basic", ("words", "words > 2")), view("basic", ("words", "words > 3"))
    for user in (
        view("v", Rule(name="basic", view="basic")),
        view("v", Rule(name="r", random_like="basic")),
    ):
        assert rules_of([basic, user], "v") == rules_of([user, basic], "v")
        assert rules_of([basic, user], "v") != rules_of([harder, user], "v")


# --- NULL -----------------------------------------------------------------------------------------

KEPT, FAILS, MISSING = None, "r", "r:missing"
# (rule, its outcome for (words, score) = (5, NULL), (NULL, 0.9), (5, 0.9), (1, 0.1))
NULLS = [
    ("words > 2", KEPT, MISSING, KEPT, FAILS),
    ("least(words, score) >= 0.3", MISSING, MISSING, KEPT, FAILS),
    ("greatest(words, score) >= 0.3", MISSING, MISSING, KEPT, KEPT),
    ("CASE WHEN score < 0.5 THEN false ELSE true END", MISSING, KEPT, KEPT, FAILS),
    ("CASE WHEN words > 2 THEN true ELSE score > 0.5 END", MISSING, MISSING, KEPT, FAILS),
    ("words > 2 OR score > 0.5", MISSING, MISSING, KEPT, FAILS),
    ("words > 2 OR score IS NULL", KEPT, MISSING, KEPT, FAILS),
    ("score IS NULL", KEPT, FAILS, FAILS, FAILS),
    ("score IS NOT NULL AND words IS NOT NULL", FAILS, FAILS, KEPT, KEPT),
    ("words IS NULL OR words > 2", KEPT, KEPT, KEPT, FAILS),
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


def test_a_null_of_a_derived_column_and_of_a_name_in_quotes() -> None:
    rows = table(original_width=[9, None, 9], original_height=[9, 9, 0])
    rule = view("v", ("r", "CASE WHEN aspect > 3 THEN false ELSE true END"))
    assert outcomes(rows, rule) == [None, "r:missing", "r:missing"]
    rows = table(**{"class": ["a", None, "b"]})
    rule = view("v", ("r", "CASE WHEN \"class\" = 'b' THEN false ELSE true END"))
    assert outcomes(rows, rule) == [None, "r:missing", "r"]


# --- NaN ------------------------------------------------------------------------------------------

# (rule, its outcome for score = NaN, 0.9, 0.1); all would keep NaN, or count it as a failure, if
# NaN were the largest number
NANS = [
    ("score > 0.5", MISSING, KEPT, FAILS),
    ("score >= 0.5", MISSING, KEPT, FAILS),
    ("score < 0.5", MISSING, FAILS, KEPT),
    ("score <= 0.5", MISSING, FAILS, KEPT),
    ("score = 0.5", MISSING, FAILS, FAILS),
    ("score <> 0.5", MISSING, KEPT, KEPT),
    ("0.5 < score", MISSING, KEPT, FAILS),
    ("NOT score < 0.5", MISSING, KEPT, FAILS),
    ("NOT (score >= 0.5 AND words = 5)", MISSING, FAILS, KEPT),
    ("score BETWEEN 0.5 AND 1", MISSING, KEPT, FAILS),
    ("score NOT BETWEEN 0 AND 0.5", MISSING, KEPT, FAILS),
    ("score IN (0.5, 0.75)", MISSING, FAILS, FAILS),
    ("score NOT IN (0.5, 0.75)", MISSING, KEPT, KEPT),
    ("score >= top(score, 1)", MISSING, KEPT, KEPT),
    ("score >= top(score, 0.5)", MISSING, KEPT, FAILS),
    ("score * 2 > 1", MISSING, KEPT, FAILS),
    ("greatest(score, words) > 0.5", MISSING, KEPT, KEPT),
    ("score IS DISTINCT FROM 0.5", MISSING, KEPT, KEPT),
    ("NOT isnan(score)", MISSING, KEPT, KEPT),
    ("score IS NULL OR score > 0.5", KEPT, KEPT, FAILS),
    ("coalesce(score, 1) > 0.5", KEPT, KEPT, FAILS),
]


@pytest.mark.parametrize("case", NANS, ids=lambda case: case[0])
def test_nan_is_a_missing_value(case: tuple[str, ...]) -> None:
    # rows of 0.5 and 0.75, so that no rule keeps nothing
    rows = table(words=[5, 5, 5, 5, 5], score=[math.nan, 0.9, 0.1, 0.5, 0.75])
    chosen = choose({"0": rows}, [view("v", ("r", case[0]))])["v"]
    assert chosen.tables["0"]["rule"].to_pylist()[:3] == list(case[1:])
    for threshold in chosen.thresholds.values():
        assert (threshold.rows, threshold.kept) == (4, chosen.kept), "the rows that are kept"


# --- samples --------------------------------------------------------------------------------------


def sampled(rows: pa.Table, share: float, seed: int = 0) -> set[int]:
    rule = Rule(name="part", sample=share, seed=seed)
    kept = choose({"0": rows}, [view("v", rule)])["v"].tables["0"]["kept"].to_pylist()
    return {i for i, keep in enumerate(kept) if keep}


def test_a_sample_is_the_rows_with_a_hash_below_its_share() -> None:
    rows = table(words=list(range(4000)))
    hashes = uid_hashes(rows["uid"].to_pylist(), 7)
    assert int(hashes[3]) == xxhash.xxh3_64_intdigest(rows["uid"][3].as_py().encode(), 7)
    expected = {i for i, value in enumerate(hashes.tolist()) if value < 2**64 * 3 // 10}
    assert sampled(rows, 0.3, 7) == expected
    assert abs(len(expected) - 1200) < 4 * math.sqrt(4000 * 0.3 * 0.7)


def test_samples_of_one_seed_are_nested_and_of_two_seeds_are_not() -> None:
    rows = table(words=list(range(500)))
    assert sampled(rows, 0.1) < sampled(rows, 0.5) < sampled(rows, 0.9)
    other = sampled(rows, 0.5, 1)
    assert abs(len(sampled(rows, 0.5) & other) - 125) < 40
    alike = Rule(name="a", random_like="part", seed=0)
    part = Rule(name="part", sample=0.5, seed=0)
    chosen = choose({"0": rows}, [view("part", part), view("alike", alike)])
    assert chosen["part"].tables["0"]["kept"] == chosen["alike"].tables["0"]["kept"]


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
        rules = [rule for t in cut[name].tables.values() for rule in t["rule"].to_pylist()]
        assert rules == whole[name].tables["0"]["rule"].to_pylist()
    of_part = whole["part"].tables["0"]["kept"].to_pylist()
    of_both = whole["both"].tables["0"]["kept"].to_pylist()
    assert of_both == [keep and i % 3 == 2 for i, keep in enumerate(of_part)]
    assert {"inner.part", "words", "not_stored", None} == set(
        whole["both"].tables["0"]["rule"].to_pylist()
    )


def test_a_share_so_small_that_no_row_is_drawn() -> None:
    with pytest.raises(ValueError, match=r"rule 'part' \(sample 1e-30, seed 0\) lets none"):
        sampled(table(words=[1, 2, 3]), 1e-30)


# --- what is no rule ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("words >> or", "it ends too early, after 'or'"),
        ("", "it is empty; write one condition"),
        ("words > 1) OR (words > 2", "it is no SQL expression"),
        ("words > 1; SELECT 1", "one SQL expression and nothing beside it"),
        ("words > 1 AS x", "one SQL expression and nothing beside it"),
        ("words > 1, words > 2", "one SQL expression and nothing beside it"),
        ("words > 1 LIMIT 3", "one SQL expression and nothing beside it"),
        ("words FROM read_text('/etc/passwd')", "one SQL expression and nothing beside it"),
        ("word > 1", "there is no column 'word'; did you mean 'words'"),
        ("words", "it gives INTEGER, not true or false"),
        ("NULL", "not true or false"),
        ("page_url > 5", "it compares a text with a number"),
        ("foo(words) > 1", "there is no function foo\\(\\)"),
        ("words > (SELECT 1)", "a subquery is not allowed"),
        ("EXISTS (FROM read_text('/etc/passwd'))", "a subquery is not allowed"),
        ("max(words) > 1", "looks at many rows"),
        ("row_number() OVER () > 1", "a window function is not allowed"),
        ("COLUMNS(*) > 1", "is not allowed"),
        ("words > ?", "a parameter is not allowed"),
        ("random() > 0.5", "another answer the next time; for random rows write {mine: {sample"),
        ("uuid() > 'a'", "can give another answer the next time"),
        ("now() > '2020-01-01'", "can give another answer the next time"),
        ("ago(INTERVAL 1 DAY) > '2020-01-01'", "can give another answer the next time"),
        ("age(TIMESTAMP '2020-01-01') > INTERVAL 1 DAY", "can give another answer the next time"),
        ("current_date > '2020-01-01'", "no column 'current_date'|another answer"),
        ("score >= top(score)", "top\\(\\) takes a column and a share"),
        ("score >= top(score, 30)", "the share of top\\(\\) is 30"),
        ("score >= top(score, 0)", "the share of top\\(\\) is 0"),
        ("score >= top(score, words)", "the share of top\\(\\) is words"),
        ("score >= top(scor, 0.3)", "no column 'scor'; did you mean 'score'"),
        ("score >= top(top(score, 0.1), 0.3)", "top\\(\\) takes a column and a share"),
    ],
)  # fmt: skip
def test_what_is_no_rule_is_told_in_one_line(where: str, message: str) -> None:
    wrong = view("v", ("mine", where))
    for attempt in (
        lambda: choose({"0": table(words=[3], score=[1.0])}, [wrong]),
        lambda: check([wrong], SCHEMA),
    ):
        with pytest.raises(ValueError, match=message) as raised:
            attempt()
        assert "\n" not in str(raised.value)
        assert "rule 'mine'" in str(raised.value)


def test_top_needs_a_number() -> None:
    with pytest.raises(ValueError, match=r"top\(page_url, 0\.3\) needs a number"):
        choose(
            {"0": table(page_url=["a"])}, [view("v", ("mine", "page_url >= top(page_url, 0.3)"))]
        )


def test_a_view_over_nothing_stored() -> None:
    with pytest.raises(ValueError, match="none of the pool's 2 rows is stored"):
        choose({"0": table(status=["failed", "failed"])}, [view("raw")])


def test_check_finds_nothing_wrong_with_what_works() -> None:
    check(
        [
            view("raw"),
            view("v", ("clip", "score >= top(score, 0.3)"), Rule(name="r", random_like="raw")),
        ],
        SCHEMA,
    )


# --- large rules ----------------------------------------------------------------------------------


def test_large_rules_are_cheap_or_refused_in_one_short_line() -> None:
    """Lists and chains of thousands of values, a thousand rules, thousands of operations."""
    rows = table(**{"class": [f"c{number}" for number in range(50)]})
    listed = ", ".join(f"'c{number}'" for number in range(10, 20_010))
    chained = " OR ".join(f"class = 'c{number}'" for number in range(10, 20_010))
    started = time.process_time()
    for where in (f"class IN ({listed})", chained):
        assert choose({"0": rows}, [view("v", ("r", where))])["v"].kept == 40
    many = [(f"r{number}", f"words > -{number}") for number in range(1, 1001)]
    assert choose({"0": table(words=[1])}, [view("v", *many)])["v"].kept == 1
    assert time.process_time() - started < 20, "1 s on an idle machine"
    likes = " OR ".join(f"class LIKE '%{number}'" for number in range(10_001))
    with pytest.raises(
        ValueError, match=r"10,002 operations, and may have 10,000; write column IN"
    ):
        check([view("v", ("r", likes))], SCHEMA)
    with pytest.raises(ValueError, match="nested too deeply") as raised:
        check([view("v", ("r", "(" * 3000 + "words > 1" + ")" * 3000))], SCHEMA)
    assert len(str(raised.value)) < 700
