"""Names and documents of score sets, and the filters that a command asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manifests import disk
from manifests.layout import PoolLayout
from manifests.schema import Fetch, FilterSpec, Recipe, Source
from pipeline.scoring import score_sets, scorer
from tests.support.small_pool import make_pool, rows, set_name, write_shard

CAPTION, PICTURE = FilterSpec(name="caption"), FilterSpec(name="picture")
TOKENS = FilterSpec(name="tokens", options={"tokenizer": "clip"})
RECIPE = Recipe(name="r", source=Source(kind="files", paths=("x.csv",)), filters=(CAPTION, TOKENS))


def test_a_set_is_complete_once_its_document_is_there(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(10))
    assert score_sets.complete_score_sets(pool) == {}
    assert score_sets.read_score_set(pool, set_name(CAPTION)) is None
    scorer.score(pool, [CAPTION, PICTURE], engine="inline")
    documents = score_sets.complete_score_sets(pool)
    assert list(documents) == [set_name(CAPTION), set_name(PICTURE)]
    assert documents[set_name(CAPTION)].columns == ("caption_words", "caption_chars")
    disk.remove(PoolLayout(pool).score_set_json(set_name(PICTURE)))
    assert list(score_sets.complete_score_sets(pool)) == [set_name(CAPTION)]


def test_a_damaged_document_is_named(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(10))
    path = PoolLayout(pool).score_set_json(set_name(CAPTION))
    disk.write_json(path, {"name": "caption"})
    with pytest.raises(ValueError, match=r"scores\.json is no ScoreSetDocument"):
        score_sets.complete_score_sets(pool)


def test_scores_of_an_older_state_are_not_the_scores_of_the_pool(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(10))
    with pytest.raises(ValueError, match=r"\(caption@\w+\) are not there; run clipmill score"):
        score_sets.score_set(pool, CAPTION)
    scorer.score(pool, [CAPTION], engine="inline")
    name, document = score_sets.score_set(pool, CAPTION)
    assert (name, document.stored) == (set_name(CAPTION), 8)
    write_shard(pool, 1, list(enumerate(rows(5), start=10)))
    with pytest.raises(ValueError, match="are of an older state of the pool"):
        score_sets.score_set(pool, CAPTION)


def test_the_filters_of_a_recipe_some_of_them_and_changes() -> None:
    assert score_sets.filter_specs(RECIPE, [], {}) == list(RECIPE.filters)
    assert score_sets.filter_specs(RECIPE, ["tokens"], {"tokens.tokenizer": "x"}) == [
        FilterSpec(name="tokens", options={"tokenizer": "x"})
    ]
    assert score_sets.filter_specs(None, ["caption"], {}) == [CAPTION]


def test_the_opt_out_filter_of_a_recipe_has_the_agent_of_the_recipe() -> None:
    def agent(**options: Any) -> Any:
        recipe = Recipe(
            name="r",
            source=Source(kind="files", paths=("x.csv",)),
            fetch=Fetch(user_agent="mybot/1.0 (+https://x.example)"),
            filters=(FilterSpec(name="optout", options=options),),
        )
        (spec,) = score_sets.filter_specs(recipe, [], {})
        return spec.options["user_agent"]

    assert agent() == "mybot/1.0 (+https://x.example)"
    assert agent(user_agent="other") == "other"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: score_sets.filter_specs(RECIPE, ["language"], {}),
            "has no filter 'language'.*; it has caption, tokens",
        ),
        (lambda: score_sets.filter_specs(None, [], {}), "no filter to score by"),
        (
            lambda: score_sets.filter_specs(None, ["tokens"], {"shade.offset": 1}),
            "--set shade.offset: write FILTER.OPTION",
        ),
        (
            lambda: score_sets.filter_specs(None, ["tokens"], {"tokens": 1}),
            "--set tokens: write FILTER.OPTION",
        ),
    ],
)
def test_filters_that_cannot_be_meant(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
