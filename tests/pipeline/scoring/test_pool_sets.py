"""Instances through a pool: their sets, and what they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from clipmill.filters import FILTERS
from clipmill.filters.base import Batch, Columns, Filter
from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.pool import Pool
from clipmill.manifests.schema import FilterSpec, Recipe
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring.score_sets import PoolSets, read_score_set
from clipmill.pipeline.scoring.scorer import score
from clipmill.pipeline.views.files import choose_views, column_lines, list_columns
from tests.support import chosen
from tests.support.bundles import scores_of
from tests.support.small_pool import make_pool, rows


@dataclass(kw_only=True)
class Words(Filter):
    """A filter that counts its calls."""

    name: ClassVar[str] = "words"
    needs: ClassVar[frozenset[str]] = frozenset({"caption"})
    adds: ClassVar[dict[str, pa.DataType]] = {"words": pa.int32(), "words_twice": pa.int64()}
    meanings: ClassVar[dict[str, str]] = {"words": "words", "words_twice": "and twice as many"}
    calls: ClassVar[list[int]] = []
    step: int = 1

    def score(self, batch: Batch) -> Columns:
        self.calls.append(len(batch.captions))
        counts = [len(caption.split()) // self.step for caption in batch.captions]
        return {"words": counts, "words_twice": [2 * count for count in counts]}


@dataclass(kw_only=True)
class Ratio(Filter):
    """A filter that reads the columns of another one."""

    name: ClassVar[str] = "ratio"
    adds: ClassVar[dict[str, pa.DataType]] = {"ratio": pa.float64()}
    of: str = "words"

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.of,)

    def score(self, batch: Batch) -> Columns:
        return {"ratio": pc.divide(batch.columns[f"{self.of}_twice"], pa.scalar(4.0))}


WORDS, RATIO = FilterSpec(name="words"), FilterSpec(name="ratio")
LONG = FilterSpec(name="long", kind="words")


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILTERS, "words", Words)
    monkeypatch.setitem(FILTERS, "ratio", Ratio)
    Words.calls.clear()


def run(pool: str, *specs: FilterSpec, **options: Any) -> dict[str, Any]:
    report = score(PoolWriter(pool), specs, engine="inline", **options)
    assert report["failed"] == {}
    return {name.partition("@")[0]: state for name, state in report["sets"].items()}


def table(pool: str, instance: str, shard: int = 0) -> dict[str, list[Any]]:
    (name,) = [n for n in disk.list_names(PoolLayout(pool).scores) if n.startswith(instance + "@")]
    values: dict[str, list[Any]] = scores_of(pool, name, shard).to_pydict()
    return values


def recipe(*specs: FilterSpec, rules: Sequence[tuple[str, str]] = ()) -> Recipe:
    return chosen.recipe(chosen.view("v", *rules), filters=specs)


def test_rules_read_the_columns_of_instances(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(20))
    rules = (("enough", "long >= 2"), ("few", "words_twice < 10"))
    of_both = recipe(WORDS, LONG, rules=rules)
    with pytest.raises(ValueError, match=r"scores of filter long \(long@\w+\) are not there"):
        choose_views(PoolWriter(pool), of_both)
    run(pool, WORDS, LONG)
    document = choose_views(PoolWriter(pool), of_both)["v"]
    assert document.kept == sum(1 for i in range(20) if i % 5 != 4 and 2 <= i % 7 + 1 < 5)
    assert {name: each.partition("@")[0] for name, each in document.scores.items()} == {
        "long": "long", "words": "words",
    }  # fmt: skip
    # A blend that balances by a column, or draws captions from one, finds it under this name too.
    table_of_view = Pool.open(pool).view("v").kept_columns(0, ["long", "words_twice"])
    assert table_of_view["words_twice"].to_pylist() == [
        2 * long for long in table_of_view["long"].to_pylist()
    ]
    lines = "\n".join(column_lines(list_columns(pool)))
    assert "long_twice" in lines
    assert "and twice as many" in lines
    with pytest.raises(ValueError, match="uses column 'words' of filter words, which recipe 'r'"):
        choose_views(PoolWriter(pool), recipe(LONG, rules=[("a", "words > 1")]))


def test_columns_that_are_read_run_first_and_decide_the_id(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(20))
    sets = run(pool, WORDS, RATIO)
    assert sets["ratio"]["reads"] == {"words": f"words@{sets['words']['id']}"}
    twice = table(pool, "words")["words_twice"]
    assert table(pool, "ratio")["ratio"] == [None if v is None else v / 4 for v in twice]
    long = FilterSpec(name="ratio", options={"of": "long"})
    run(pool, LONG)
    assert run(pool, long)["ratio"]["scored"] == 16, "one set in the pool is enough to read"
    calls = len(Words.calls)
    stepped = FilterSpec(name="words", options={"step": 2})
    other = run(pool, stepped, RATIO)
    assert other["ratio"]["id"] != sets["ratio"]["id"]
    assert len(Words.calls) == calls + 2
    # Both sets of words are in the pool: the recipe says which one is meant.
    assert (
        PoolSets(read_commits(pool), [WORDS, RATIO]).require("ratio")[1].id == sets["ratio"]["id"]
    )
    with pytest.raises(ValueError, match=r"has several score sets of it \(words@\w+, words@"):
        run(pool, RATIO)
    assert run(pool, RATIO, recipe=recipe(stepped, RATIO))["ratio"]["id"] == other["ratio"]["id"]


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([RATIO], "reads the columns of filter words, which .* does not have; put the filter"),
        ([RATIO, WORDS], "reads words, which stands behind it in the filter list; put words bef"),
        ([FilterSpec(name="ratio", options={"of": "ratio"})], r"reads its own columns \(ratio\)"),
        (
            [WORDS, FilterSpec(name="ratio", options={"of": "wrods"})],
            "did you mean 'words'",
        ),
        (
            [
                FilterSpec(name="a", kind="ratio", options={"of": "b"}),
                FilterSpec(name="b", kind="ratio", options={"of": "a"}),
            ],
            "filter a reads b, which stands behind it",
        ),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, specs: list[FilterSpec], message: str) -> None:
    pool = make_pool(tmp_path, rows(5))
    with pytest.raises(ValueError, match=message) as error:
        score(PoolWriter(pool), specs, engine="inline")
    assert "\n" not in str(error.value)


def test_a_set_that_is_not_complete_is_not_read(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(20))
    words = run(pool, WORDS)["words"]
    disk.remove(PoolLayout(pool).score_set_json(f"words@{words['id']}"))
    assert read_score_set(PoolLayout(pool), f"words@{words['id']}") is None
    with pytest.raises(ValueError, match=r"which .* does not have"):
        score(PoolWriter(pool), [RATIO], engine="inline")
    with pytest.raises(ValueError, match=r"are not complete in .*; score both"):
        score(PoolWriter(pool), [RATIO], engine="inline", recipe=recipe(WORDS, RATIO))
