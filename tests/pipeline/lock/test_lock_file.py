"""A lock on disk: whatever is damaged is one plain line, and nothing damaged is used."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.manifests import disk
from clipmill.pipeline.lock import lock_file
from clipmill.pipeline.lock.lock_file import LockFile, head_id
from clipmill.pipeline.lock.lock_writer import write_lock
from tests.support import locked_pools


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lock")
    pool = locked_pools.make_pool(folder / "pool", 40, lambda i: "dns" if i % 7 == 0 else None)
    return Path(write_lock(pool, str(folder / "a.parquet")).path)


def problem(path: Path) -> str:
    """The one line that a file which is no lock ends with."""
    with pytest.raises(ValueError, match=r".") as caught:
        for _ in LockFile(str(path)).shards():
            pass
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def plain_head(path: Path) -> dict[str, Any]:
    head: dict[str, Any] = disk.read_metadata(path)
    return head


def write_changed(
    path: Path, target: Path, head: dict[str, Any], table: pa.Table | None = None
) -> Path:
    table = pq.read_table(path) if table is None else table
    schema = table.schema.remove_metadata()
    with pq.ParquetWriter(target, schema, write_page_checksum=True) as writer:
        writer.write_table(table.cast(schema))
        writer.add_key_value_metadata({b"clipmill": json.dumps(head).encode()})
    return target


def test_a_lock_has_the_rows_of_the_pool_in_the_order_of_its_shards(lock: Path) -> None:
    read = LockFile(str(lock))
    pool = str(lock.parent / "pool")
    expected = locked_pools.rows_of(pool)
    rows = [row for _, table in read.shards() for row in table.to_pylist()]
    assert [row["uid"] for row in rows] == [row["uid"] for row in expected]
    assert [row["sha256"] for row in rows] == [row["sha256"] for row in expected]
    assert [row["lock_outcome"] for row in rows] == [r["reason"] or "stored" for r in expected]
    assert {row["title"] for row in rows} == {f"title {i}" for i in range(40)}
    assert [number for number, _ in read.shards(["uid"])] == [0, 1, 2, 3, 4][: read.head.shards]
    assert read.head.rows == 40
    assert read.head.outcomes == {"dns": 6, "stored": 34}


def test_a_shard_with_more_rows_than_a_build_writes_comes_in_parts(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_file, "ROWS_PER_SHARD_LIMIT", 4)
    sizes = [table.num_rows for _, table in LockFile(str(lock)).shards(["uid"])]
    assert max(sizes) == 4
    assert sum(sizes) == 40


def test_every_field_of_the_head_is_guarded(lock: Path, tmp_path: Path) -> None:
    head = plain_head(lock)
    changes: list[dict[str, Any]] = [{}, {"form": 1}]
    for key, value in head.items():
        without = {name: each for name, each in head.items() if name != key}
        other: Any = [None] if isinstance(value, str) else "x"
        changes += [without, head | {key: None}, head | {key: other}]
        if isinstance(value, int):
            changes += [head | {key: -1}, head | {key: value + 1}, head | {key: 10**30}]
        elif isinstance(value, dict):
            changes += [head | {key: {}}, head | {key: {"x": 3}}, head | {key: {"x": "y"}}]
    for number, change in enumerate(changes):
        signed = change | {"id": head_id(change)} if "id" in change else change
        for damaged in (change, signed):
            if damaged == head:
                continue
            path = write_changed(lock, tmp_path / f"{number}.parquet", damaged)
            if damaged is signed and damaged.keys() == head.keys():
                # a head that another program signed may be right in another way
                with contextlib.suppress(ValueError):
                    list(LockFile(str(path)).shards())
                continue
            assert "is not a lock that can be used" in problem(path)


def test_a_newer_form_and_a_file_of_another_kind_are_named(lock: Path, tmp_path: Path) -> None:
    head = plain_head(lock) | {"form": 2}
    newer = write_changed(lock, tmp_path / "newer.parquet", head)
    assert "it has form 2, this clipmill reads up to 1; use a newer one" in problem(newer)
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"url": ["x"]}), other)
    assert "it was not written by `clipmill audit lock`" in problem(other)
    (tmp_path / "text.parquet").write_text("url,caption\n")
    assert "is not a lock that can be used" in problem(tmp_path / "text.parquet")
    assert problem(tmp_path / "none.parquet").startswith("there is no lock ")


def test_a_truncated_file_is_noticed_at_any_length(lock: Path, tmp_path: Path) -> None:
    data, path = lock.read_bytes(), tmp_path / "short.parquet"
    for length in [0, 1, 7, 8, 100, len(data) // 2, len(data) - 9, len(data) - 1]:
        path.write_bytes(data[:length])
        assert "is not a lock that can be used" in problem(path)


def test_every_changed_value_of_a_column_is_noticed(lock: Path, tmp_path: Path) -> None:
    table, head = pq.read_table(lock), plain_head(lock)
    for name in table.column_names:
        values = table[name].to_pylist()
        value = values[5]
        if isinstance(value, bool) or value is None:
            values[5] = {True: False, False: True}.get(value, "x" if name != "warc_offset" else 1)
        else:
            values[5] = value + 1 if isinstance(value, int) else value[:-1] + "~"
        position = table.column_names.index(name)
        column = pa.array(values, table[name].type)
        changed = table.set_column(position, name, column)
        path = write_changed(lock, tmp_path / "changed.parquet", head, changed)
        assert f"the values of its column '{name}' have changed" in problem(path)
    swapped = table.take([1, 0, *range(2, 40)])
    path = write_changed(lock, tmp_path / "swapped.parquet", head, swapped)
    assert "have changed" in problem(path)
    path = write_changed(lock, tmp_path / "fewer.parquet", head, table.slice(1))
    assert "it has 39 rows, its head 40" in problem(path)
    path = write_changed(lock, tmp_path / "columns.parquet", head, table.drop_columns(["title"]))
    assert "its columns are not those of its head" in problem(path)


def test_of_random_damages_none_changes_a_row(lock: Path, tmp_path: Path) -> None:
    data = lock.read_bytes()
    expected = [table.to_pylist() for _, table in LockFile(str(lock)).shards()]
    draw, path = random.Random(0), tmp_path / "damaged.parquet"
    noticed = 0
    for _ in range(150):
        damaged = bytearray(data)
        damaged[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        rows = None
        with contextlib.suppress(ValueError):
            rows = [table.to_pylist() for _, table in LockFile(str(path)).shards()]
        noticed += rows is None
        assert rows in (None, expected)
    assert noticed > 120


@pytest.mark.parametrize(
    ("signals", "refused"),
    [
        (None, False),
        ('{"x-robots-tag": ["noai"]}', True),
        ('{"x-robots-tag": ["noarchive"]}', False),
        ('{"page": {"meta": ["otherbot: noai"]}}', False),
        ('{"page": {"meta": ["noai"]}}', True),
        ('{"site": {"http://x.test": {"robots.txt": {"allowed": false}}}}', True),
        ("{", True),
        ("[]", True),
    ],
)
def test_a_row_that_was_stored_against_its_signals_is_withheld(
    signals: str | None, refused: bool
) -> None:
    row = {"uid": "a", "url": "http://x.test/", "reason": None, "optout": signals}
    schema = pa.schema([(name, pa.string()) for name in lock_file.COLUMNS])
    table, nobody = pa.Table.from_pylist([row], schema), pa.array([], pa.string())
    assert lock_file.withheld_rows(table, nobody, "clipmill/1").tolist() == [refused]
    # a pool with a policy of its own has refused such rows when they were fetched
    assert lock_file.withheld_rows(table, nobody, None).tolist() == [False]
