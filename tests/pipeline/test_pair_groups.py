from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.manifests.commits import read_commits
from clipmill.manifests.pool import Pool
from clipmill.manifests.schema import Recipe, Rule, Source, View
from clipmill.pipeline import pair_groups
from clipmill.pipeline.pair_groups import Division, divide_rows, group_views
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.views.files import choose_views
from tests.support.small_pool import Row, make_pool

VIEWS = (
    View(name="raw"),
    View(
        name="wide",
        rules=(
            Rule(name="words", where="caption <> 'bad'"),
            Rule(name="side", where="original_width >= 150"),
        ),
    ),
)


@pytest.fixture
def pool(tmp_path: Path) -> str:
    """20 rows on three hosts, the last two not stored; every fourth caption is bad."""
    rows = []
    for i in range(20):
        rows.append(
            Row(
                caption="bad" if i % 4 == 0 else f"good {i}",
                reason="http_4xx" if i >= 18 else None,
                width=100 + 10 * i,
                url=f"https://{'abc'[min(2, i // 8)]}.example/{i}.jpg",
            )
        )
    folder = make_pool(tmp_path / "a pool", rows, per_shard=7)
    recipe = Recipe(name="r", source=Source(kind="table", paths=("t.csv",)), views=VIEWS)
    choose_views(PoolWriter(folder), recipe)
    return folder


def divided(
    pool: str, *by: str, most: int = 16, views: tuple[str, ...] = ("raw", "wide")
) -> Division:
    return divide_rows(read_commits(pool), views, by, most, "wide")


def counts(division: Division) -> dict[str, int]:
    sizes = np.bincount(division.of_row[division.of_row >= 0], minlength=len(division.names))
    return dict(zip(division.names, sizes.tolist(), strict=True))


def test_hosts_rules_and_values_the_largest_first(pool: str) -> None:
    assert counts(divided(pool, "host")) == {
        "host = a.example": 8,
        "host = b.example": 8,
        "host = c.example": 2,
    }
    assert counts(divided(pool, "host", most=2)) == {"host = a.example": 8, "host: others": 10}
    rules = counts(divided(pool, "rule"))
    assert rules == {"rule = kept": 10, "rule = words": 5, "rule = side": 3}
    assert counts(divided(pool, "host", views=("wide",))) == {
        "host = b.example": 6,
        "host = a.example": 3,
        "host = c.example": 1,
    }


def test_numbers_are_ranges_and_one_division_is_inside_of_the_other(pool: str) -> None:
    ranges = counts(divided(pool, "original_width", most=3))
    assert list(ranges.values()) == [6, 6, 6]
    assert next(iter(ranges)) == "… <= original_width < 156.7"
    both = counts(divided(pool, "rule", "original_width", most=6))
    assert sum(both.values()) == 18
    assert list(both)[:2] == [
        "rule = kept, … <= original_width < 205",
        "rule = kept, 205 <= original_width < …",
    ]


def test_every_group_is_a_view_and_the_same_groups_are_the_same_views(
    pool: str,
) -> None:
    made = group_views(PoolWriter(pool), ["raw"], ["host"], 16, "wide")
    assert [view[-3:] for view in made] == ["_00", "_01", "_02"]
    assert group_views(PoolWriter(pool), ["raw"], ["host"], 16, "wide") == made
    assert not set(group_views(PoolWriter(pool), ["wide"], ["host"], 16, "wide")) & set(made)


def test_groups_of_a_view_that_was_chosen_anew_are_other_views(pool: str) -> None:
    before = group_views(PoolWriter(pool), ["wide"], ["host"], 16, "wide")
    wide = View(name="wide", rules=(Rule(name="side", where="original_width >= 120"),))
    choose_views(
        PoolWriter(pool),
        Recipe(name="r", source=Source(kind="table", paths=("t.csv",)), views=(wide,)),
    )
    after = group_views(PoolWriter(pool), ["wide"], ["host"], 16, "wide")
    assert list(before.values()) == list(after.values()), "the groups have the same names"
    assert not set(before) & set(after), "and other rows"


def test_what_cannot_be_divided_is_refused(pool: str) -> None:
    with pytest.raises(ValueError, match=r"has no column 'hos'; did you mean 'host'\?"):
        divided(pool, "hos")
    with pytest.raises(ValueError, match="3 groups cannot be divided by 'original_width'"):
        divided(pool, "host", "original_width", most=5)
    with pytest.raises(ValueError, match="all rows are in one group, 'status = success'"):
        divided(pool, "status")
    with pytest.raises(ValueError, match="has no view 'nothing'; it has raw, wide"):
        divided(pool, "host", views=("nothing",))


def test_embeddings_are_clusters_and_rows_without_one_are_a_group(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    centres = np.eye(3, 8, dtype=np.float32)
    rows = [None if i == 5 else (centres[i % 3] + 0.01).tolist() for i in range(20)]
    column = pa.array(rows, pa.list_(pa.float32(), 8))
    monkeypatch.setattr(pair_groups, "_column", lambda commits, name, preferred: column)
    groups = counts(divided(pool, "embedding", most=4))
    assert sorted(groups.values()) == [1, 5, 6, 6]
    assert groups["embedding = no value"] == 1


NUMBERS = st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.5, float("nan")]), min_size=20, max_size=20)


@given(values=NUMBERS, cells=st.integers(2, 6), thresholds=st.lists(st.floats(0, 5), max_size=3))
@settings(max_examples=100)
def test_ranges_part_the_rows_whatever_the_numbers(
    values: list[float], cells: int, thresholds: list[float]
) -> None:
    numbers, inside = np.array(values), np.where(np.arange(20) < 15, 0, -1)
    there = numbers[:15][np.isfinite(numbers[:15])]
    parting = {one for one in thresholds if (there < one).any() and (there >= one).any()}
    whole = Division(names=("",), of_row=inside)
    if len(parting) > cells - 1 - (len(there) < 15):
        with pytest.raises(ValueError, match="thresholds, which make more than"):
            pair_groups._by_ranges(whole, "x", numbers, cells, thresholds)
        return
    division = pair_groups._by_ranges(whole, "x", numbers, cells, thresholds)
    assert ((division.of_row >= 0) == (inside >= 0)).all()
    assert len(division.names) <= cells
    for group in range(len(division.names)):
        members = numbers[division.of_row == group]
        assert len(members)
        assert np.isnan(members).all() or not np.isnan(members).any()
        for threshold in thresholds:
            if not np.isnan(members).any():
                assert (members >= threshold).all() or (members < threshold).all()


def test_a_threshold_is_of_the_column_that_it_names(pool: str) -> None:
    rules = (
        Rule(name="wide", where="original_width >= top(original_width, 0.45)"),
        Rule(name="tall", where='original_height >= top( "original_height", 0.5)'),
        Rule(name="less", where="original_width <= top(original_width, 0.4)"),
    )
    recipe = Recipe(
        name="r",
        source=Source(kind="table", paths=("t.csv",)),
        views=(*VIEWS, View(name="two", rules=rules)),
    )
    choose_views(PoolWriter(pool), recipe)
    division = divide_rows(read_commits(pool), ["raw"], ["original_width"], 4, "two")
    thresholds = [
        f"{one.value:g}"
        for call, one in Pool.open(pool).view("two").document.thresholds.items()
        if "width" in call
    ]
    assert len(thresholds) == 2
    for value in thresholds:
        assert any(name.startswith(f"{value} <=") for name in division.names)
    assert [pair_groups._column_of(c) for c in ('top( "a b" ,0.1)', "top(x, 1/3)")] == ["a b", "x"]


def test_of_two_score_sets_with_a_column_that_of_the_arm_is_taken(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = read_commits(pool)
    document = SimpleNamespace(columns=("x",))
    monkeypatch.setattr(Pool, "score_sets", {"t@1": document, "t@2": document})
    taken = []

    def read(pool: Pool, shard: int, columns: object, sets: dict[str, str]) -> object:
        taken.extend(sets.values())
        raise ValueError("enough")

    monkeypatch.setattr(Pool, "read", read)
    with pytest.raises(ValueError, match="enough"):
        pair_groups._column(commits, "x", ["t@2", "other@1"])
    assert taken == ["t@2"]
    for preferred in ([], ["t@1", "t@2"]):
        with pytest.raises(ValueError, match=r"sets t@1 and t@2 of .* does not say which"):
            pair_groups._column(commits, "x", preferred)
