"""One value that no file can hold costs at most its own row, never the shard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from manifests.columns import SIDECAR, with_extra
from manifests.layout import PoolLayout
from manifests.text import valid_text
from pipeline.pool.lease import read_sidecar
from pipeline.pool.shard_writer import ShardWriter, outcome_row, row_key
from pipeline.pool.tars import index_tar

# What aiohttp makes of `caf\xe9` in a header, and json.loads of "\ud800".
HALVES = ("caf\udce9", "a \ud800 b", "\udfff")
FILLED_IN = ("key", "status", "reason", "class", "image_name")
TEXT_COLUMNS = [f.name for f in SIDECAR if f.type == pa.string() and f.name not in FILLED_IN]
INTEGERS = [f.name for f in SIDECAR if pa.types.is_integer(f.type)]
WRITTEN_HERE = ("image_", "text_", "json_")


@pytest.mark.parametrize("bad", HALVES)
@pytest.mark.parametrize("stored", [True, False])
def test_a_bad_byte_in_every_text_through_commit_and_read_back(
    bad: str, stored: bool, tmp_path: Path
) -> None:
    record: dict[str, Any] = {
        **dict.fromkeys(TEXT_COLUMNS, bad),
        "reason": None if stored else "dns",
    }
    record["mine"] = bad
    columns = {"mine": "string"}
    with ShardWriter(str(tmp_path), 0, "task", "0", columns) as writer:
        writer.add(0, record, b"image" if stored else None, {"title": bad, "deep": [{bad: bad}]})
        writer.add(1, {"url": "http://a.test/", "caption": "fine"}, b"image")
        commit = writer.commit(2)
    assert commit.successes == 1 + stored
    good = valid_text(bad)
    good.encode()
    row, neighbour = read_sidecar(str(tmp_path), 0).to_pylist()
    assert {row[name] for name in (*TEXT_COLUMNS, "mine")} == {good}
    assert neighbour["caption"] == "fine"
    if stored:
        data = Path(PoolLayout(str(tmp_path)).tar(commit)).read_bytes()
        members = {
            m.name: data[m.offset :][: m.length] for m in index_tar(f"{tmp_path}/shards/00000.tar")
        }
        assert members["000000000.txt"].decode() == good
        document = json.loads(members["000000000.json"])
        assert document["final_url"] == document["title"] == good
        assert document["deep"] == [{good: good}]


@pytest.mark.parametrize("name", [n for n in INTEGERS if not n.startswith(WRITTEN_HERE)])
@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_an_integer_that_its_column_cannot_hold_costs_its_row(
    name: str, value: int, tmp_path: Path
) -> None:
    with ShardWriter(str(tmp_path), 0, "task", "0") as writer:
        writer.add(0, {"url": "u", "caption": "c", name: value}, b"image")
        writer.add(
            1, {"url": "u", "reason": "dns", "error_message": "no answer", name: value}, None
        )
        writer.add(2, {"url": "u", "caption": "c"}, b"image")
        commit = writer.commit(3)
    assert (commit.successes, commit.reasons) == (1, {"decode_error": 1, "dns": 1})
    rows = read_sidecar(str(tmp_path), 0).to_pylist()
    assert [row[name] for row in rows[:2]] == [None, None]
    assert rows[0]["error_message"] == f"{name}: more than the column can hold"
    assert rows[0]["image_name"] is rows[0]["image_offset"] is None
    assert rows[1]["error_message"] == f"no answer; {name}: more than the column can hold"
    assert next(m.name for m in index_tar(f"{tmp_path}/shards/00000.tar")) == "000000002.jpg"


@pytest.mark.parametrize(
    ("name", "bits"), [("original_width", 32), ("http_status", 16), ("link", 32)]
)
def test_the_largest_and_the_smallest_integer_fit(name: str, bits: int) -> None:
    for value in (2 ** (bits - 1) - 1, -(2 ** (bits - 1))):
        assert outcome_row({name: value}, stored=True)[name] == value
    assert outcome_row({name: 2 ** (bits - 1)}, stored=True)["status"] == "failed_to_resize"


def test_an_extra_column_counts_too() -> None:
    schema = with_extra(SIDECAR, {"votes": "int"})
    row = outcome_row({"votes": 10**30}, schema, stored=True)
    assert (row["votes"], row["reason"]) == (None, "decode_error")


def test_a_key_is_five_digits_of_the_shard_and_four_of_the_row() -> None:
    assert row_key(3, 17) == "000030017"
    assert row_key(123456, 9999) == "1234569999"
