"""The list of columns that a rule may read: complete, typed, and every line explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests.columns import SIDECAR
from manifests.schema import FilterSpec
from pipeline.scoring import scorer
from pipeline.views.available_columns import (
    DERIVED_COLUMNS,
    MEANINGS,
    column_lines,
    list_columns,
)
from pipeline.views.rules import DERIVED
from tests.support.small_pool import make_pool, rows, set_name, write_shard

CAPTION = FilterSpec(name="caption")


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
    assert "not scored in this pool: language, optout, picture, tokens, clip_score" in lines[-1]


def test_scores_of_an_older_state_are_not_listed(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, rows(10))
    scorer.score(pool, [CAPTION], engine="inline")
    write_shard(pool, 1, list(enumerate(rows(5), start=10)))
    assert "caption_words" not in {column.name for column in list_columns(pool)}


def test_a_folder_that_is_no_pool(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no committed shard"):
        list_columns(str(tmp_path))
