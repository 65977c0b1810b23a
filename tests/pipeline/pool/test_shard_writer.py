"""Shards: the bytes are fixed, and the sidecar says where each member lies."""

from __future__ import annotations

import gc
import io
import itertools
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import webdataset
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clipmill.manifests import disk
from clipmill.manifests.columns import SIDECAR, with_extra
from clipmill.manifests.layout import SHARD_VERSION, PoolLayout
from clipmill.manifests.text import valid_text
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import (
    RowColumns,
    ShardWriter,
    json_array,
    member_header,
    outcome_row,
)
from clipmill.pipeline.pool.tars import index_tar
from tests.support.commit_records import read_commit_records
from tests.support.five_rows import Row, five_rows, write_five
from tests.support.sidecars import read_sidecar

# Shard 3 of the rows below. A new value needs a new SHARD_VERSION.
GOLDEN_VERSION = 4
GOLDEN_TAR = "4670f4c27c26ab96769049a706124ac5a84c6fd581eb66321d2346168638d579"
GOLDEN_SIDECAR = "44c9bc853a00336e10e6bb7559eb4bd2e2fd47190bb9a62cfcfd3f9ce63a0322"


def test_golden_bytes(tmp_path: Path) -> None:
    record = write_five(str(tmp_path))
    assert SHARD_VERSION == GOLDEN_VERSION
    assert record.tar_sha256 == GOLDEN_TAR
    assert record.sidecar_sha256 == GOLDEN_SIDECAR
    assert record.tar_sha256 == disk.file_sha256(tmp_path / "shards/00003.tar")
    assert record.sidecar_file_sha256 == disk.file_sha256(tmp_path / "shards/00003.parquet")


def test_neither_the_order_of_arrival_nor_the_clock_changes_the_bytes(tmp_path: Path) -> None:
    first = write_five(str(tmp_path / "a"))
    for n, order in enumerate(itertools.islice(itertools.permutations(range(5)), 0, None, 17)):
        again = write_five(
            str(tmp_path / f"b{n}"),
            order=list(order),
            given=five_rows(fetched_at=1_800_000_000_000),
        )
        assert (again.tar_sha256, again.sidecar_sha256) == (
            first.tar_sha256,
            first.sidecar_sha256,
        )


def test_the_sidecar_is_one_row_per_attempt_with_the_places_of_its_members(tmp_path: Path) -> None:
    record = write_five(str(tmp_path))
    table = read_sidecar(str(tmp_path), 3)
    assert table.schema.equals(SIDECAR)
    assert disk.read_metadata(PoolLayout(str(tmp_path)).sidecar(3))["count"] == 5
    assert record.count == 5 == record.successes + sum(record.reasons.values())
    assert record.reasons == {"not_an_image": 1, "robots_txt": 1}
    assert (record.failed_to_download, record.failed_to_resize) == (1, 1)
    assert table["key"].to_pylist() == [f"00003{i:04d}" for i in range(5)]
    assert table["class"].to_pylist() == [None, "refused", None, "permanent", None]
    data = (tmp_path / "shards/00003.tar").read_bytes()
    for row, (told_of, image, extra) in zip(table.to_pylist(), five_rows(), strict=True):
        if image is None:
            assert row["image_offset"] is None
            assert row["status"] in ("failed_to_download", "failed_to_resize")
            continue
        parts = {
            part: data[row[f"{part}_offset"] :][: row[f"{part}_length"]]
            for part in ("image", "text", "json")
        }
        assert parts["image"] == image
        assert parts["text"].decode() == told_of["caption"]
        metadata = json.loads(parts["json"])
        assert metadata["key"] == row["key"]
        assert metadata["anchor"] == extra["anchor"]
        assert metadata["exif"] is None, "img2dataset's columns are always there"
        assert (
            not {"fetched_at", "elapsed_ms", "attempts", "title", "image_offset"} & metadata.keys()
        )


@pytest.mark.slow
# webdataset leaves closing to the collector
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_standard_tar_that_others_read(tmp_path: Path) -> None:
    write_five(str(tmp_path))
    path = tmp_path / "shards/00003.tar"
    listed = subprocess.run(
        ["tar", "tvf", path], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(listed) == 9
    assert all(line.startswith("-rw-r--r-- 0/0") for line in listed)
    samples_by_key = {s["__key__"]: s for s in webdataset.WebDataset(str(path), shardshuffle=False)}
    gc.collect()  # while its warning is ignored
    assert list(samples_by_key) == ["000030000", "000030002", "000030004"]
    for i in (0, 2, 4):
        record, image, _ = five_rows()[i]
        sample = samples_by_key[f"00003{i:04d}"]
        assert sample["jpg"] == image
        assert sample["txt"].decode() == record["caption"]
        assert json.loads(sample["json"])["url"] == record["url"]


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=90)
    | st.text("abc/.0", min_size=95, max_size=105),
    st.integers(0, 8**11 - 1),
)
@example("0" * 100, 8**11 - 1)
def test_a_header_is_that_of_the_standard_library(name: str, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    try:
        expected = info.tobuf(tarfile.USTAR_FORMAT)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)):
            member_header(name, size)
    else:
        assert member_header(name, size) == expected


def test_a_member_that_no_header_can_describe_is_an_error() -> None:
    with pytest.raises(ValueError, match="overflow"):
        member_header("a", 8**11)


def test_a_shard_in_which_nothing_was_stored(tmp_path: Path) -> None:
    record = write_five(str(tmp_path), given=[five_rows()[1]])
    assert (record.count, record.successes, record.tar_bytes) == (1, 0, 10240)
    assert index_tar(PoolLayout(str(tmp_path)).tar(record)) == []


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    samples=st.lists(
        st.tuples(st.binary(max_size=2000), st.text(st.characters(exclude_categories=["Cs"])))
    )
)
def test_what_goes_in_comes_out(
    tmp_path_factory: pytest.TempPathFactory, samples: list[tuple[bytes, str]]
) -> None:
    pool = str(tmp_path_factory.mktemp("pool"))
    given_rows: list[Row] = [
        ({"url": "u", "caption": caption}, image, {}) for image, caption in samples
    ]
    with ShardWriter(PoolWriter(pool), 0, "task", "0") as writer:
        for i in reversed(range(len(given_rows))):
            writer.add(i, *given_rows[i])
        record = writer.commit(len(given_rows))
    with tarfile.open(PoolLayout(pool).tar(record)) as tar:
        contents = [(tar.extractfile(m) or io.BytesIO()).read() for m in tar.getmembers()]
    assert contents[0::3] == [image for image, _ in samples]
    assert [text.decode() for text in contents[1::3]] == [caption for _, caption in samples]


@pytest.mark.parametrize("lost", ["cut", "shifted"])
def test_an_image_that_the_local_disk_loses_is_not_stored(tmp_path: Path, lost: str) -> None:
    record, image, extra = five_rows()[0]
    with ShardWriter(PoolWriter(str(tmp_path)), 0, "task", "0") as writer:
        writer.add(0, record, image, extra)
        writer.add(1, record, image, extra)
        if lost == "cut":
            writer._spool.truncate(len(image) + 1)
        else:
            writer._spool.seek(0)
            writer._spool.write(image[1:])
        with pytest.raises(OSError, match="an image reads back differently"):
            writer.commit(2)
    assert read_commit_records(str(tmp_path)) == {}
    assert not list(tmp_path.rglob("*.tar"))


def test_the_books_of_a_writer_must_balance(tmp_path: Path) -> None:
    record, image, extra = five_rows()[0]
    with ShardWriter(PoolWriter(str(tmp_path)), 0, "task", "0") as writer:
        with pytest.raises(AssertionError, match="stored is False"):
            writer.add(0, record, None)
        with pytest.raises(AssertionError, match="stored is True"):
            writer.add(0, record | {"reason": "empty"}, image)
        with pytest.raises(AssertionError, match="colour"):
            writer.add(0, record | {"colour": "red"}, image)
        writer.add(0, record, image, extra)
        with pytest.raises(AssertionError, match="two outcomes"):
            writer.add(0, record, image, extra)
        with pytest.raises(AssertionError, match="1 of 2 outcomes"):
            writer.commit(2)
    assert read_commit_records(str(tmp_path)) == {}


# --------------------------------------------------------------------------------------------------
# The text of a column is byte for byte that of json.dumps.


TEXTS = [
    None, "", "plain", 'a "quote"', "back\\slash", "tab\t", "\x7f", "ü", "🐱", "a\n", "/", "~ ",
]  # fmt: skip


def as_json(values: list[Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()


@given(st.lists(st.one_of(st.none(), st.sampled_from(TEXTS), st.text(max_size=20)), max_size=30))
def test_text_is_escaped_as_json_does(values: list[str | None]) -> None:
    values = [v if v is None else v.encode("utf-8", "replace").decode() for v in values]
    column = pa.chunked_array([values[:3], values[3:]], pa.string())
    assert json_array(column) == as_json(values)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, -(2**63), 2**63 - 1], pa.int64()),
        ([None, None], pa.int32()),
        ([True, None, False], pa.bool_()),
        ([1.5, None, 1e300, 0.1], pa.float64()),
        ([[1, 2], None, []], pa.list_(pa.int64())),
        ([], pa.string()),
        ([None], pa.string()),
        (TEXTS, pa.large_string()),
    ],
)
def test_other_types_too(values: list[Any], kind: pa.DataType) -> None:
    assert json_array(pa.chunked_array([values], kind)) == as_json(values)


# --------------------------------------------------------------------------------------------------
# One value that no file can hold costs at most its own row, never the shard.


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
    with ShardWriter(PoolWriter(str(tmp_path)), 0, "task", "0", columns) as writer:
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
    with ShardWriter(PoolWriter(str(tmp_path)), 0, "task", "0") as writer:
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
    ("name", "bits"), [("original_width", 32), ("http_status", 16), ("link", 32), ("votes", 64)]
)
def test_the_largest_and_the_smallest_integer_fit(name: str, bits: int) -> None:
    columns = RowColumns.of(with_extra(SIDECAR, {"votes": "int"}))
    for value in (2 ** (bits - 1) - 1, -(2 ** (bits - 1))):
        assert outcome_row({name: value}, columns, stored=True)[name] == value
    row = outcome_row({name: 2 ** (bits - 1)}, columns, stored=True)
    assert (row[name], row["status"], row["reason"]) == (None, "failed_to_resize", "decode_error")
