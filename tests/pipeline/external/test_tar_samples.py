"""Samples of tars: how members group, and bad members and rows that cost themselves only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests import disk
from manifests.schema import Fetch
from pipeline.external.tar_samples import group_samples, json_object, size_of
from pipeline.images import RejectedImage
from pipeline.pool import Member
from tests.support.other_tars import pack, picture, rows, take


def test_samples_need_not_lie_together_and_a_repeated_member_begins_another() -> None:
    names = ["a.jpg", "b.jpg", "a.txt", "b.txt", "a.jpg", "x/.jpg", "noext"]
    samples = group_samples([Member(name=name, offset=i, length=1) for i, name in enumerate(names)])
    assert [(s.name, sorted(s.members)) for s in samples] == [
        ("a", ["jpg", "txt"]),
        ("b", ["jpg", "txt"]),
        ("a", ["jpg"]),
    ]


@pytest.mark.parametrize(
    ("fetch", "reason"),
    [({"max_pixels": 23}, "too_many_pixels"), ({"min_image_size": 5}, "too_small"), ({}, None)],
)
def test_the_size_is_read_from_the_header(fetch: dict[str, Any], reason: str | None) -> None:
    if reason is None:
        assert size_of(picture(6, 4, "PNG"), Fetch(**fetch)) == (6, 4)
        return
    with pytest.raises(RejectedImage) as bad:
        size_of(picture(6, 4), Fetch(**fetch))
    assert bad.value.reason == reason


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (b'{"caption": "half \\ud800"}', "encoding"),
        (b'{"caption": "c", "original_width": 1099511627776}', "decode_error"),
        (b'{"caption": "c", "original_height": -99999999999}', "decode_error"),
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


def test_deep_json_beside_a_text_file_costs_nothing(tmp_path: Path) -> None:
    members = [("0.jpg", picture()), ("0.txt", b"a caption"), ("0.json", b'{"x": ' + DEEP + b"}")]
    [record] = take(tmp_path / "pool", pack(tmp_path / "x.tar", members))
    assert (record["successes"], rows(tmp_path / "pool")[0]["caption"]) == (1, "a caption")


def test_what_is_no_json_object_is_an_empty_one() -> None:
    for data in (None, b"", b"[]", b"{", DEEP, b"\xff"):
        assert json_object(data) == {}
    assert json_object(b'{"a": 1}') == {"a": 1}


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


def test_a_parquet_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    tar = pack(tmp_path / "x.tar", [("0.jpg", picture()), ("0.txt", b"c")])
    with pytest.raises(ValueError, match=r"x\.parquet, beside the tar, cannot be read"):
        take(tmp_path / "pool", tar)
