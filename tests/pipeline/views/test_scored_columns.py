"""Which instance gives a column that a rule reads."""

from __future__ import annotations

import pyarrow as pa
import pytest

from filters import instances_of
from manifests.schema import FilterSpec, Recipe, Rule, Source, View
from pipeline.views.scored_columns import ScoredColumns


def columns(where: str) -> tuple[set[str], list[str]]:
    specs = (FilterSpec(name="caption"), FilterSpec(name="long", kind="caption"))
    view = View(name="v", rules=(Rule(name="a", where=where),))
    source = Source(kind="files", paths=("x.csv",))
    recipe = Recipe(name="r", source=source, filters=specs, views=(view,))
    scored = ScoredColumns(instances_of(specs))
    assert scored.kinds["long_words"] == pa.int32()
    return scored.columns_of_view(recipe, "v", ["url", "status"])


def test_columns_and_their_instances() -> None:
    assert columns("long_words > 2") == ({"status", "long_words"}, ["long"])
    assert columns("long_words > caption_chars")[1] == ["caption", "long"]
    assert columns("url LIKE 'x'") == ({"status", "url"}, [])
    with pytest.raises(ValueError, match="uses column 'entropy' of filter picture, which recipe"):
        columns("entropy > 3")
    with pytest.raises(ValueError, match="did you mean 'long_words'"):
        columns("long_word > 3")
