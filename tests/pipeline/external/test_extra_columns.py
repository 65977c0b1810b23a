"""A source's own columns: beside the pairs, in the plan, in sidecars and {key}.json, and in the
rules of views.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from manifests import disk
from manifests.columns import PAIRS, SIDECAR, with_extra
from manifests.layout import PoolLayout, read_commit_records
from manifests.schema import Recipe, Rule, Source, View
from pipeline.audit import integrity
from pipeline.pool.lease import read_sidecar
from pipeline.pool.shard_writer import ShardWriter
from pipeline.pool.tars import index_tar
from pipeline.views import files
from tests.support.pairs import write_part

COLUMNS = {"similarity": "float", "NSFW": "string", "boxes": "json"}
SOURCE = Source(kind="table", paths=("a.csv",), extra_columns=COLUMNS)
VALUES: list[dict[str, Any]] = [
    {"similarity": 0.31, "NSFW": "UNLIKELY", "boxes": "[[0, 0, 0.5, 0.5]]"},
    {"similarity": 0.22, "NSFW": None, "boxes": None},
    {"similarity": None, "NSFW": "UNSURE", "boxes": "[]"},
]


def recipe(**fields: Any) -> Recipe:
    return Recipe(name="r", source=SOURCE, **fields)


def write_pairs(pool: Path) -> list[dict[str, Any]]:
    rows = [
        {
            "uid": disk.uid_of(f"http://h.test/{i}", "c"),
            "url": f"http://h.test/{i}",
            "caption": "c",
            **values,
        }
        for i, values in enumerate(VALUES)
    ]
    write_part(pool, pa.Table.from_pylist(rows, with_extra(PAIRS, COLUMNS)))
    return rows


def make_pool(pool: Path) -> str:
    """The three rows, stored."""
    rows = write_pairs(pool)
    with ShardWriter(str(pool), 0, "task", "0", recipe().sidecar_extra) as writer:
        for i, row in enumerate(rows):
            size = {"width": 8, "height": 8, "original_width": 8, "original_height": 8}
            writer.add(i, {**row, **size, "sha256": "0" * 64}, b"\xff\xd8picture")
        writer.commit(len(rows))
    return str(pool)


def test_they_are_columns_of_the_sidecar_and_of_each_samples_json(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    table = read_sidecar(pool, 0)
    assert table.schema.remove_metadata() == with_extra(SIDECAR, COLUMNS)
    assert table.select(list(COLUMNS)).to_pylist() == VALUES
    tar = PoolLayout(pool).tar(read_commit_records(pool)["00000"])
    members = {m.name: m for m in index_tar(tar)}
    first = members["000000000.json"]
    metadata = json.loads(disk.read_bytes(tar, first.offset, first.length))
    assert {name: metadata[name] for name in COLUMNS} == VALUES[0]
    assert integrity.verify(pool) == []


def test_a_view_may_ask_for_them(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    wanted = recipe(views=(View(name="v", rules=(Rule(name="alike", where="similarity > 0.3"),)),))
    funnel = files.choose_views(pool, wanted)["v"].funnel
    assert funnel == (("attempted", 3), ("stored", 3), ("alike", 1))
    with pytest.raises(ValueError, match="similarty"):
        files.check_views(
            recipe(views=(View(name="v", rules=(Rule(name="x", where="similarty > 0.3"),)),))
        )


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"similarity": "double"}, "'double' is not one of string, int, float, bool, json"),
        (
            {"Url": "string"},
            "names 'Url', which every pool has a column of its own for; .* source_Url: Url:string",
        ),
    ],
)
def test_columns_that_cannot_be(columns: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Source(kind="table", paths=("a.csv",), extra_columns=columns)
