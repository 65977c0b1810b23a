"""The columns of shards in parts: every row once, in order, and only the columns asked for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from manifests import disk
from manifests.commits import read_commits
from manifests.layout import PoolLayout
from pipeline.views import files
from pipeline.views.files import JoinedColumns
from tests.support.small_pool import make_pool, rows


@pytest.mark.parametrize("kept_rows", [0, 10**6])
def test_every_row_once_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_rows: int
) -> None:
    monkeypatch.setattr(files, "KEPT_ROWS", kept_rows)
    monkeypatch.setattr(files, "PART_ROWS", 4)
    monkeypatch.setattr(files, "UNIT_SHARDS", 2)
    commits = read_commits(make_pool(tmp_path, rows(26), per_shard=3))
    source = JoinedColumns(commits, {"uid", "status"}, {})
    assert [list(source.shards_of(unit)) for unit in range(source.units)] == [
        [0, 1], [2, 3], [4, 5], [6, 7], [8],
    ]  # fmt: skip
    assert source.rows == 26
    uids, next_row = [], 0
    for unit in range(source.units):
        for part in source.parts(unit):
            assert part.first_row == next_row
            assert sum(part.sizes.values()) == part.table.num_rows
            uids += part.table["uid"].to_pylist()
            next_row += part.table.num_rows
    expected = []
    for shard in commits.names():
        expected += disk.read_parquet(commits.sidecar(shard), ["uid"])["uid"].to_pylist()
    assert uids == expected


def test_units_are_small_enough_for_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = read_commits(make_pool(tmp_path, rows(26), per_shard=3))
    monkeypatch.setattr(files, "UNIT_ROWS", 6)
    source = JoinedColumns(commits, {"status"}, {})
    sizes = [len(source.shards_of(unit)) for unit in range(source.units)]
    assert sizes == [2, 2, 2, 2, 1]
    monkeypatch.setattr(files, "UNIT_ROWS", 1)
    assert JoinedColumns(commits, {"status"}, {}).units == 9


def test_a_sidecar_of_other_rows_is_refused(tmp_path: Path) -> None:
    commits = read_commits(make_pool(tmp_path, rows(6), per_shard=3))
    path = commits.sidecar(1)
    disk.write_parquet(path, disk.read_parquet(path).slice(1))
    source = JoinedColumns(commits, {"uid", "status"}, {})
    with pytest.raises(ValueError, match=r"00001\.parquet does not have the rows of its commit"):
        list(source.parts(0))


def test_a_damaged_byte_of_a_sidecar_is_never_chosen_by(tmp_path: Path) -> None:
    """A pool whose views are made reads one column: its pages have checksums."""
    commits = read_commits(make_pool(tmp_path, rows(6), per_shard=3))
    source = JoinedColumns(commits, {"original_width", "status"}, {})
    expected = [part.table for part in source.parts(0)]
    path = Path(commits.sidecar(1))
    whole = path.read_bytes()
    named = 0
    for position in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        try:
            tables = [
                part.table
                for part in JoinedColumns(commits, {"original_width", "status"}, {}).parts(0)
            ]
        except ValueError as error:
            named += str(path) in str(error)
        else:
            assert tables == expected, position
    assert named


@pytest.mark.parametrize(
    ("values", "message"),
    [(None, r"00001\.parquet has no column 'extra', unlike the first"), ("x", "'extra' as string")],
)
def test_a_column_that_some_shards_lack_is_named(
    tmp_path: Path, values: str | None, message: str
) -> None:
    pool = make_pool(tmp_path, rows(9), per_shard=3)
    for shard in (0, 1, 2):
        path = PoolLayout(pool).sidecar(shard)
        table = disk.read_parquet(path)
        if shard != 1:
            table = table.append_column("extra", pa.array([1.5] * 3))
        elif values is not None:
            table = table.append_column("extra", pa.array([values] * 3))
        disk.write_parquet(path, table, {})
    source = JoinedColumns(read_commits(pool), ["extra", "status"], {})
    with pytest.raises(ValueError, match=message):
        list(source.parts(0))
