"""Samples of tars: how members group, and bad members and rows that cost themselves only."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests import disk
from pipeline.external.adopt import group_samples
from pipeline.pool.tars import Member
from tests.support import commands
from tests.support.other_tars import Members, pack, picture, rows, take


def test_samples_need_not_lie_together_and_a_repeated_member_begins_another() -> None:
    names = ["a.jpg", "b.jpg", "a.txt", "b.txt", "a.jpg", "x/.jpg", "noext"]
    samples = group_samples([Member(name=name, offset=i, length=1) for i, name in enumerate(names)])
    assert [(s.name, sorted(s.members)) for s in samples] == [
        ("a", ["jpg", "txt"]),
        ("b", ["jpg", "txt"]),
        ("a", ["jpg"]),
    ]


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (b'{"caption": "half \\ud800"}', "encoding"),
        (b'{"caption": "c", "original_width": 1099511627776}', None),
        (b'{"caption": "c", "original_height": -99999999999}', None),
        (b'{"caption": "c", "x": ' + DEEP + b"}", "no_caption"),
        (b'{"caption": "c", "x": ' + b"9" * 5000 + b"}", "no_caption"),
        (b'{"caption": 5}', "no_caption"),
        (b'{"caption": "c", "url": "http://h.test/\\udfff", "exif": "\\ud800"}', None),
        (b'{"caption": "c", "original_width": true, "label": "\\ud800"}', None),
    ],
)
def test_a_bad_json_member_costs_its_row(member: bytes, reason: str | None, tmp_path: Path) -> None:
    members = [("0.jpg", picture()), ("0.json", b'{"caption": "good", "label": "l"}')]
    members += [("1.jpg", picture()), ("1.json", member)]
    extra = {"label": "string", "everything": "x:json"}
    [record] = take(tmp_path / "pool", pack(tmp_path / "x.tar", members), extra_columns=extra)
    assert record["reasons"] == ({reason: 1} if reason else {})
    assert record["successes"] == (1 if reason else 2)


def test_invalid_utf8_in_the_parquet_beside_a_tar_costs_its_row(tmp_path: Path) -> None:
    captions = (b"good", b"caf\xe9")
    offsets = pa.array([0, 4, 8], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"".join(captions))])
    status = pa.array(["success", "success"])
    table = pa.table({"key": ["0", "1"], "caption": text, "status": status})
    pq.write_table(table, tmp_path / "x.parquet")
    members = [("0.jpg", picture()), ("1.jpg", picture())]
    [record] = take(tmp_path / "pool", pack(tmp_path / "x.tar", members))
    assert (record["successes"], record["reasons"]) == (1, {"encoding": 1})
    for row in rows(tmp_path / "pool"):
        assert row["uid"] == disk.uid_of(row["url"], row["caption"] or "")


def built(folder: Path, members: Members, table: pa.Table | None = None) -> list[dict[str, Any]]:
    """A build from one tar and the parquet beside it; the rows of the pool. AssertionError with
    what it printed where it failed."""
    pack(folder / "tars" / "x.tar", members)
    if table is not None:
        pq.write_table(table, folder / "tars" / "x.parquet")
    recipe = "name: r\nsource: {kind: shards, paths: [tars], caption_column: null}\n"
    (folder / "r.yaml").write_text(recipe)
    words = [str(folder / "r.yaml"), "--out", str(folder / "pool"), "--engine", "inline"]
    if commands.build([*words, "--until", "fetch"]) != 0:
        return []
    return rows(folder / "pool")


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (1600.0, 1200.0, (1600, 1200)),  # pandas writes doubles where one row is NULL
        ("1600", "1200", (1600, 1200)),
        (99_999_999_999, 1200, (6, 4)),
        (1600, -5, (6, 4)),  # both or none: else their ratio would be of no image
        (True, 1200, (6, 4)),
        (float("nan"), 1200.0, (6, 4)),
        (float("inf"), 1200.0, (6, 4)),
        (1600.5, 1200.0, (6, 4)),
        (None, 1200, (6, 4)),
    ],
)
def test_the_size_beside_a_good_image_is_read_or_left_out(
    width: Any, height: Any, expected: tuple[int, int], tmp_path: Path
) -> None:
    member = json.dumps({"original_width": width, "original_height": height}).encode()
    [row] = built(tmp_path, [("0.jpg", picture(6, 4)), ("0.json", member)])
    assert (row["status"], row["original_width"], row["original_height"]) == ("success", *expected)


@pytest.mark.parametrize(
    "width", [pa.array([1600.0]), pa.array([Decimal("1600.00")]), pa.array(["1600"])]
)
def test_the_columns_of_a_parquet_may_have_other_types(width: pa.Array, tmp_path: Path) -> None:
    """Text as bytes, as some writers leave it, is text; a dictionary is what it stands for."""
    columns = {
        "key": pa.array([b"007"], pa.binary()),
        "url": pa.array([b"http://h.test/7"], pa.binary()),
        "status": pa.array(["success"]).dictionary_encode(),
        "original_width": width,
        "original_height": pa.array([1200], pa.int64()),
    }
    [row] = built(tmp_path, [("007.jpg", picture())], pa.table(columns))
    assert (row["url"], row["status"]) == ("http://h.test/7", "success")
    assert (row["original_width"], row["original_height"]) == (1600, 1200)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (pa.array([0, 1]), "x.parquet, beside the tar, has the key 0, of type int64"),
        (pa.array([0.0, 1.0]), "x.parquet, beside the tar, has the key 0.0, of type double"),
        (pa.array(["0", "1"]), "lists none of the samples of the tar: its first key is '0'"),
        (pa.array(["000", None]), "x.parquet, beside the tar, has a row without a key"),
        (pa.array(["001", "001"]), "x.parquet, beside the tar, has two rows of the key '001'"),
    ],
)
def test_keys_of_no_sample_are_refused_by_name(
    keys: pa.Array, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A column of numbers has lost the zeros of 001: each sample would be two rows."""
    table = pa.table({"key": keys, "status": ["success", "success"]})
    assert built(tmp_path, [("000.jpg", picture()), ("001.jpg", picture())], table) == []
    assert message in capsys.readouterr().err


def test_two_columns_of_one_name_beside_a_tar_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pa.Table.from_arrays([pa.array(["0"])] * 3, names=["key", "url", "url"])
    assert built(tmp_path, [("0.jpg", picture())], table) == []
    assert "x.parquet has two columns 'url'" in capsys.readouterr().err
