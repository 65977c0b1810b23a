"""Row groups of a Parquet file are copied as bytes, and any reader takes the result."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests import disk
from manifests.disk import row_groups
from manifests.disk.row_groups import Footer, RowGroupWriter

SIZES = [5, 1000, 7, 0, 3000, *[3] * 20]
OPTIONS: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}


def table(rows: int, seed: int) -> pa.Table:
    columns = {
        "uid": [f"{i * seed:032x}" for i in range(rows)],
        "number": pa.array([None if seed == 3 else i for i in range(rows)], pa.int32()),
        "kept": [i % 3 == 0 for i in range(rows)],
        "names": [["a"] * (i % 3) for i in range(rows)],
        "rule": pa.array([None if i % 2 else "x" for i in range(rows)], pa.string()),
        "value": [i * 0.1 for i in range(rows)],
    }
    kinds = [pa.string(), pa.int32(), pa.bool_(), pa.list_(pa.string()), pa.string(), pa.float64()]
    return pa.table(columns, pa.schema(list(zip(columns, kinds, strict=True))))


@pytest.fixture(scope="module")
def tables() -> list[pa.Table]:
    return [table(rows, seed) for seed, rows in enumerate(SIZES, 1)]


@pytest.fixture(scope="module")
def whole(tables: list[pa.Table]) -> bytes:
    sink = io.BytesIO()
    schema = disk.with_metadata(tables[0].schema, {"form": 1})
    with pq.ParquetWriter(sink, schema, **OPTIONS) as writer:
        for each in tables:
            writer.write_table(each.cast(schema), row_group_size=max(1, each.num_rows))
        writer.add_key_value_metadata({"beside": "x" * 1000})
    return sink.getvalue()


def test_a_footer_is_written_as_it_was_read(whole: bytes) -> None:
    length = int.from_bytes(whole[-8:-4], "little")
    footer = Footer.of_file(whole)
    assert row_groups._Writer().struct(footer.struct) == whole[-8 - length : -8]
    assert [footer.rows(group) for group in range(len(SIZES))] == SIZES


def test_some_groups_are_new_and_the_others_keep_their_bytes(
    whole: bytes, tables: list[pa.Table], tmp_path: Path
) -> None:
    (tmp_path / "old").write_bytes(whole)
    footer = Footer.read(tmp_path / "old")
    schema = disk.with_metadata(tables[0].schema, {"form": 2})
    changed = {1: table(2000, 77), 24: table(0, 1)}
    with disk.CountedFile(tmp_path / "new") as file:
        writer = RowGroupWriter(file, schema, **OPTIONS)
        assert writer.fits(footer)
        for group in range(len(SIZES)):
            begin, length = footer.range(group)
            old = whole[begin : begin + length]
            if group in changed:
                writer.write(changed[group].cast(schema))
                continue
            start, _ = writer.copy(footer, group, old)
            file._file.flush()
            assert (tmp_path / "new").read_bytes()[start:] == old
        writer.finish({"beside": "y"})
    expected = [changed.get(group, each) for group, each in enumerate(tables)]
    file = pq.ParquetFile(tmp_path / "new", page_checksum_verification=True)
    for group, each in enumerate(expected):
        assert file.read_row_group(group).equals(each)
    assert file.read().equals(pa.concat_tables(expected))
    assert disk.read_metadata(tmp_path / "new") == {"form": 2}
    assert file.metadata.metadata[b"beside"] == b"y"
    rows = disk.read_parquet(tmp_path / "new", where=[("uid", "=", f"{5 * 77:032x}")])
    assert rows["number"].to_pylist() == [5, 77]


def test_columns_that_are_stored_otherwise_are_not_copied(whole: bytes) -> None:
    schema = pa.schema([("uid", pa.binary())])
    assert not RowGroupWriter(io.BytesIO(), schema).fits(Footer.of_file(whole))
    sink = io.BytesIO()
    writer = RowGroupWriter(sink, schema)
    writer.finish({})
    assert pq.read_table(io.BytesIO(sink.getvalue())).num_rows == 0


@pytest.mark.parametrize("data", [b"", b"PAR1", b"x" * 100, b"\xff\xff\0\0PAR1"])
def test_what_is_no_parquet_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ValueError, match="no footer of a Parquet file"):
        Footer.read(tmp_path / "x")


def test_columns_that_do_not_lie_together_are_refused(whole: bytes) -> None:
    footer = Footer.of_file(whole)
    chunks = footer.groups[1][row_groups.COLUMNS][1][1]
    chunks[2], chunks[3] = chunks[3], chunks[2]
    with pytest.raises(ValueError, match="row group 1 do not lie together"):
        footer.range(1)


integers = st.integers(-(2**63), 2**63 - 1)
values = st.recursive(
    st.one_of(
        st.tuples(st.sampled_from(row_groups.INTEGERS), integers),
        st.tuples(st.just(row_groups.BINARY), st.binary(max_size=200)),
        st.sampled_from([(row_groups.TRUE, True), (row_groups.FALSE, False)]),
        st.tuples(st.just(row_groups.DOUBLE), st.binary(min_size=8, max_size=8)),
        st.tuples(st.just(row_groups.BYTE), st.integers(0, 255)),
        st.tuples(
            st.just(row_groups.LIST),
            st.tuples(st.just(row_groups.INTEGERS[2]), st.lists(integers, max_size=20)),
        ),
    ),
    lambda inner: st.tuples(
        st.just(row_groups.STRUCT), st.dictionaries(st.integers(1, 300), inner, max_size=5)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(st.integers(1, 300), values, max_size=8))
def test_any_struct_comes_back(struct: row_groups.Struct) -> None:
    assert row_groups._Reader(row_groups._Writer().struct(struct)).struct() == struct
