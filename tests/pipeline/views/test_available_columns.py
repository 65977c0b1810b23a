"""The list of columns that a rule may read: complete, typed, and every line explained."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from filters import FILTERS, instances_of, make
from manifests import disk
from manifests.columns import PAIRS, SIDECAR
from manifests.layout import PoolLayout
from manifests.schema import FilterSpec, Recipe, Rule, Source, View
from pipeline.scoring import scorer
from pipeline.views.files import (
    DERIVED_COLUMNS,
    MEANINGS,
    ScoredColumns,
    check_views,
    choose_views,
    column_lines,
    list_columns,
)
from pipeline.views.rules import DERIVED
from tests.support.small_pool import make_pool, rows, set_name, write_shard

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference"
CAPTION = FilterSpec(name="caption")


def column_names(text: str) -> set[str]:
    """The first cells of the tables of columns of a page."""
    names: set[str] = set()
    for lines in re.findall(r"^\| column \| type \|.*\n\|---.*\n((?:\|.*\n)+)", text, re.M):
        names |= set(re.findall(r"^\| `(\w+)`", lines, re.M))
    return names


def test_every_column_of_a_sidecar_and_every_derived_one_has_a_meaning() -> None:
    assert MEANINGS.keys() == set(SIDECAR.names)
    assert {name for name, _, _ in DERIVED_COLUMNS} == DERIVED.keys()


def test_columns_of_sidecar_score_sets_and_what_is_derived(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(10))
    scorer.score(pool, [CAPTION], engine="inline")
    columns = {column.name: column for column in list_columns(pool)}
    assert columns["original_width"].type == "int32"
    assert columns["original_width"].source == "sidecar"
    assert columns["aspect"].source == "derived"
    words = columns["caption_words"]
    assert (words.type, words.source) == ("int32", set_name(CAPTION))
    lines = list(column_lines(columns.values()))
    assert lines.index("sidecar:") < lines.index("derived:") < lines.index(f"{words.source}:")
    assert any(line.split()[:3] == ["caption_words", "int32", "words"] for line in lines)
    others = ", ".join(name for name in FILTERS if name != "caption")
    assert f"not scored in this pool: {others}" in lines[-1]


def test_a_filter_that_is_scored_under_another_name_is_scored(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(10))
    scorer.score(pool, [FilterSpec(name="words", kind="caption", options={})], engine="inline")
    *_, missing = column_lines(list_columns(pool))
    assert "caption" not in missing.split(": ")[1].split(", ")


def test_scores_of_an_older_state_are_not_listed(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(10))
    scorer.score(pool, [CAPTION], engine="inline")
    write_shard(pool, 1, list(enumerate(rows(5), start=10)))
    assert "caption_words" not in {column.name for column in list_columns(pool)}


def test_a_folder_that_is_no_pool(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no committed shard"):
        list_columns(str(tmp_path))


def test_a_rule_can_read_every_listed_column_and_the_reference_lists_them(tmp_path: Path) -> None:
    filters = (
        *(FilterSpec(name=name) for name in ("caption", "picture", "tokens")),
        FilterSpec(name="optout", options={"user_agent": "test/1"}),
    )
    pool = make_pool(tmp_path, rows(10))
    scorer.score(pool, filters, engine="inline")
    listed = [column.name for column in list_columns(pool)]
    rules = tuple(Rule(name=f"r{i}", where=f'"{c}" IS NULL OR true') for i, c in enumerate(listed))
    source = Source(kind="files", paths=("x.csv",))
    recipe = Recipe(
        name="r", source=source, filters=filters, views=(View(name="all", rules=rules),)
    )
    check_views(recipe)
    assert choose_views(pool, recipe)["all"].kept == 8
    every = {*SIDECAR.names, *DERIVED}
    of_these = {column for spec in filters for column in make(spec).columns()}
    assert set(listed) == every | of_these
    for filter_class in FILTERS.values():
        every |= filter_class.adds.keys()
    columns = (REFERENCE / "columns.md").read_text()
    readable, _, pairs = columns.partition("\n## Pairs")
    assert column_names(readable + (REFERENCE / "filters.md").read_text()) == every
    assert column_names(pairs) == set(PAIRS.names)
    for name in set(PAIRS.names) - set(listed):
        wrong = replace(
            recipe, views=(View(name="v", rules=(Rule(name="r", where=f"{name} = 'x'"),)),)
        )
        with pytest.raises(ValueError, match=f"'{name}' of filter page, which recipe 'r' does not"):
            choose_views(pool, wrong)


def test_an_extra_column_of_the_pool_is_read_whatever_the_recipe_names(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(4))
    path = PoolLayout(pool).sidecar(0)
    table = disk.read_parquet(path)
    disk.write_parquet(path, table.append_column("similarity", pa.array([0.1, 0.2, 0.3, 0.4])))
    assert "similarity" in {column.name for column in list_columns(pool)}
    rule = Rule(name="similar", where="similarity > 0.15")
    recipe = Recipe(
        name="r",
        source=Source(kind="files", paths=("x.csv",)),
        views=(View(name="v", rules=(rule,)),),
    )
    assert choose_views(pool, recipe)["v"].kept == 3


def instances_read(where: str) -> tuple[set[str], list[str]]:
    specs = (FilterSpec(name="caption"), FilterSpec(name="long", kind="caption"))
    view = View(name="v", rules=(Rule(name="a", where=where),))
    source = Source(kind="files", paths=("x.csv",))
    recipe = Recipe(name="r", source=source, filters=specs, views=(view,))
    scored = ScoredColumns(instances_of(specs))
    assert scored.kinds["long_words"] == pa.int32()
    return scored.columns_of_view(recipe, "v", ["url", "status"])


def test_which_instance_gives_a_column() -> None:
    assert instances_read("long_words > 2") == ({"status", "long_words"}, ["long"])
    assert instances_read("long_words > caption_chars")[1] == ["caption", "long"]
    assert instances_read("url LIKE 'x'") == ({"status", "url"}, [])
    with pytest.raises(ValueError, match="uses column 'entropy' of filter picture, which recipe"):
        instances_read("entropy > 3")
    with pytest.raises(ValueError, match="did you mean 'long_words'"):
        instances_read("long_word > 3")
