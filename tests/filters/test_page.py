"""What the page says of a sample, from the JSON members of the tars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clipmill.filters.base import Batch
from clipmill.filters.page import Page
from clipmill.manifests.schema import FilterSpec, Recipe, Rule, Source, View
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring.scorer import score
from clipmill.pipeline.views.files import choose_views
from tests.support.bundles import scores_of
from tests.support.small_pool import Row, make_pool

PAGE = FilterSpec(name="page")


def batch(*members: Any) -> Batch:
    data = [json.dumps(member).encode() for member in members]
    rows = pa.table({"json": pa.array(data, pa.binary())})
    return Batch(captions=["x"] * len(data), images=None, rows=rows)


def test_texts_of_a_page() -> None:
    columns = Page().score(batch({"title": "a", "license": None, "robots": ["noai"]}, {}))
    assert columns == {
        "title": ["a", ""],
        "anchor": ["", ""],
        "license": ["", ""],
        "robots": ['["noai"]', ""],
    }
    with pytest.raises(ValueError, match="a JSON member is no object"):
        Page().score(batch([1]))


def test_rules_read_the_page(tmp_path: Path) -> None:
    given = []
    for row in range(6):
        texts = {"title": f"title {row}", "anchor": None, "robots": None}
        texts["license"] = "https://cc.example/by" if row % 2 else None
        given.append(Row(caption="x", reason="http_4xx" if row == 5 else None, beside=texts))
    pool = make_pool(tmp_path, given)
    rules = (Rule(name="free", where="license <> ''"), Rule(name="t", where="title LIKE 'title%'"))
    recipe = Recipe(
        name="r",
        source=Source(kind="files", paths=("x.csv",)),
        filters=(PAGE,),
        views=(View(name="free", rules=rules),),
    )
    report = score(PoolWriter(pool), recipe.filters, engine="inline")
    ((name, state),) = report["sets"].items()
    assert (state["stored"], state["scored"]) == (5, 5)
    table = scores_of(pool, name, 0).to_pydict()
    assert table["title"] == [*(f"title {row}" for row in range(5)), None]
    assert table["anchor"] == [""] * 5 + [None]
    assert choose_views(PoolWriter(pool), recipe)["free"].kept == 2
