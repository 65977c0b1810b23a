"""An exchange: what goes to a place comes out of it; statements in bounded memory; and the hash of
rows with a flag: of their sorted records, whatever their order and repetitions.
"""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.manifests import disk
from clipmill.pipeline import shuffle
from clipmill.pipeline.database import (
    create_keyed,
    database,
    hash_flagged,
    insert,
    key_columns,
    of_flags,
    row_keys,
    select,
    stream,
)
from clipmill.pipeline.executor import tickets
from clipmill.pipeline.executor.tickets import Ticket, Work
from clipmill.pipeline.pool.lease import LeaseLost, PoolWriter
from clipmill.pipeline.shuffle import PLACE, Exchange, Step, run_steps

LAST = (1 << 64) - 1
PLACES = st.lists(st.sampled_from([0, 1, 2, 3, 1 << 40, LAST - 1, LAST]), max_size=40)


def exchange_in(folder: str | Path, files: int = 2, fence: int | None = None) -> Exchange:
    out = PoolWriter(str(folder), fence)
    return Exchange(out=out, folder=f"{folder}/work", name="x", files=files)


@settings(max_examples=60)
@given(st.lists(PLACES, min_size=1, max_size=3), st.integers(0, 5), st.integers(0, 5))
def test_the_rows_of_some_places_come_out_in_the_order_of_files_and_places(
    files: list[list[int]], low: int, width: int
) -> None:
    """Where a row group has two rows: a place has several, and a row group several places."""
    folder = "memory://" + disk.content_hash([files, low, width])
    bounds = [0, 1, 2, 4, LAST, 1 << 64]
    start, end = bounds[low], bounds[min(5, low + width)]
    exchange = exchange_in(folder, len(files))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle, "FEWEST_ROWS", 2)
        patch.setattr(shuffle, "ROW_GROUPS", 1000)
        for number, places in enumerate(files):
            assert exchange.lacks().tolist() == [each >= number for each in range(len(files))]
            rows = pa.table({"row": np.arange(len(places)), "text": [str(p) for p in places]})
            exchange.write(number, rows, np.array(places, np.uint64), count=len(places))
    assert [footer["count"] for footer in exchange.footers()] == [len(places) for places in files]
    for places, table in zip(files, exchange.tables(start, end), strict=True):
        expected = sorted((place, row) for row, place in enumerate(places) if start <= place < end)
        got = zip(table[PLACE].to_pylist(), table["row"].to_pylist(), strict=True)
        assert list(got) == expected
        assert table["text"].to_pylist() == [str(place) for place, _ in expected]
    at = exchange.at(2)
    expected_rows = [row for places in files for row, place in enumerate(places) if place == 2]
    assert (at["row"].to_pylist() if at.num_columns else []) == expected_rows


def leaves_a_file(exchange: Exchange) -> Work:
    def work(ticket: Ticket) -> dict[str, Any]:
        if ticket.payload == 2 and not Path(f"{exchange.out.pool}/may-end").exists():
            raise ValueError("the disk is full")
        exchange.write(ticket.payload, pa.table({"a": [1]}), np.zeros(1, np.uint64))
        return {"number": ticket.payload}

    return work


def test_a_step_begins_behind_the_last_and_with_the_files_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tickets, "RETRY_PAUSE_S", 0.0)
    exchange, events = exchange_in(tmp_path, files=4), list[str]()

    def steps() -> Iterator[Step]:
        for name in ("job: first", "job: second"):
            events.append(name)
            yield Step(
                name=name,
                work=leaves_a_file,
                job=exchange,
                lacks=exchange.lacks(),
                on_done=lambda ticket, _: events.append(ticket),
            )
        events.append("end")

    assert run_steps(steps(), "inline") == {"first-00002": "the disk is full"}
    assert events == ["job: first", "first-00000", "first-00001", "first-00003"]
    (tmp_path / "may-end").touch()
    events.clear()
    assert run_steps(steps(), "inline") == {}
    assert events == ["job: first", "first-00002", "job: second", "end"]


def test_only_the_row_groups_of_a_place_are_read(tmp_path: Path) -> None:
    exchange = exchange_in(tmp_path, files=1)
    places = np.random.default_rng(0).permutation(300_000).astype(np.uint64)
    exchange.write(0, pa.table({"value": places}), places)
    with pq.ParquetFile(exchange.path(0)) as file:
        assert file.num_row_groups == shuffle.ROW_GROUPS
        assert len(shuffle._groups_with(file, 0, 1 << 64)) == file.num_row_groups
        assert len(shuffle._groups_with(file, 150_000, 150_010)) in (1, 2)
    assert exchange.at(150_000)["value"].to_pylist() == [150_000]


def test_footers_are_not_all_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "read_metadata", lambda _: {"rows": list(range(10**6, 10**6 + 1000))})
    tracemalloc.start()
    try:
        count = sum(len(footer["rows"]) for footer in exchange_in(tmp_path, files=1000).footers())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 10**6
    assert most < 10 * 2**20  # bytes; of all 1,000 footers 40 MB


def test_nothing_is_written_under_a_lost_lease(tmp_path: Path) -> None:
    exchange = exchange_in(tmp_path, fence=7)
    with pytest.raises(LeaseLost):
        exchange.write(0, pa.table({"a": [1]}), np.zeros(1, np.uint64))
    assert disk.list_names(exchange.folder) == []


def test_a_statement_spills_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clipmill.pipeline.database.MEMORY", "24MB")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tables = (
        pa.table({"row": np.arange(start, start + 50_000)}) for start in range(0, 10**6, 50_000)
    )
    schema = pa.schema([("row", pa.int64()), ("text", pa.string())])
    texts = (t.append_column("text", pa.array(["x" * 60] * len(t))) for t in tables)
    spilled, row = False, 10**6
    for batch in select("SELECT * FROM rows ORDER BY row DESC", rows=stream(texts, schema)):
        spilled = spilled or any(path.is_file() for path in tmp_path.rglob("*"))
        assert batch["row"][0].as_py() == row - 1
        row -= len(batch)
    assert (row, spilled) == (0, True)
    assert list(tmp_path.iterdir()) == []


def test_a_statement_sees_no_file_and_no_variable(tmp_path: Path) -> None:
    table = pa.table({"a": [1]})
    pq.write_table(table, tmp_path / "a.parquet")
    with database() as connection:
        for name in ("table", f"'{tmp_path}/a.parquet'"):
            with pytest.raises(duckdb.Error):
                connection.sql(f"SELECT * FROM {name}")


def columns(numbers: list[int]) -> tuple[pa.Array, pa.Array]:
    uids = [hashlib.md5(str(n).encode()).hexdigest() for n in numbers]
    hashes = [hashlib.sha256(str(n).encode()).hexdigest() for n in numbers]
    return pa.array(uids), pa.array(hashes)


def expected_hash(numbers: list[int]) -> tuple[int, str]:
    """A plain program for the canonical hash."""
    records = set()
    for uid, sha256 in zip(*(column.to_pylist() for column in columns(numbers)), strict=True):
        records.add(bytes.fromhex(uid + sha256))
    return len(records), hashlib.sha256(b"".join(sorted(records))).hexdigest()


@pytest.mark.parametrize("batch_rows", [7, 10_000])
def test_the_hash_is_that_of_the_sorted_records_with_the_flag(
    batch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clipmill.pipeline.database.BATCH_ROWS", batch_rows)
    numbers = [n % 150 for n in np.random.default_rng(0).permutation(400).tolist()]
    with database() as connection:
        create_keyed(connection, "t", of_flags("{} BOOLEAN", 3))
        for start in range(0, 400, 64):
            part = np.array(numbers[start : start + 64])
            flags = (np.ones(len(part), bool), part % 3 == 0, np.zeros(len(part), np.uint8))
            insert(connection, "t", *key_columns(row_keys(*columns(part.tolist()))), *flags)
        hashes = hash_flagged(connection, "t", 3)
    assert hashes == [
        expected_hash(numbers),
        expected_hash([n for n in numbers if n % 3 == 0]),
        (0, hashlib.sha256().hexdigest()),
    ]


def test_records_that_end_in_zeros_are_told_apart() -> None:
    uids = pa.array(["00" * 16, "00" * 15 + "01", "01" + "00" * 15])
    keys = row_keys(uids, pa.array(["00" * 32] * 3))
    with database() as connection:
        create_keyed(connection, "t", of_flags("{} BOOLEAN", 1))
        for _ in range(2):
            insert(connection, "t", *key_columns(keys), np.ones(3, bool))
        ((rows, digest),) = hash_flagged(connection, "t", 1)
    assert (rows, digest) == (3, hashlib.sha256(keys.tobytes()).hexdigest())


@pytest.mark.parametrize(("uid", "sha256"), [("ab", "00" * 32), ("00" * 16, "00"), ("x", "00")])
def test_a_value_that_is_no_hash_is_refused(uid: str, sha256: str) -> None:
    with pytest.raises(ValueError, match=r"hex"):
        row_keys(pa.array([uid]), pa.array([sha256]))
