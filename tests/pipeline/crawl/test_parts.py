"""The table of the parts says what their footers say, and is not needed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from manifests import disk
from manifests.columns import PAIRS
from manifests.pool_layout import PoolLayout
from pipeline.crawl.parts import (
    PARTS,
    UidsDigest,
    content_of,
    dropped_rows,
    examples,
    part_totals,
    read_parts,
    reason_totals,
    rows_between,
    write_parts,
)
from tests.support.pairs import pairs, urls

REASONS = [{"empty_alt": 2, "scheme": 1}, {}, {"empty_alt": 5}]


def make(folder: Path, scheme: str = "") -> str:
    pool = f"{scheme}{folder}"
    table = pairs(urls(30, 4))
    for part, reasons in enumerate(REASONS):
        rows = table.slice(10 * part, 10)
        metadata = {
            "links": 10 + sum(reasons.values()),
            "pairs": 10,
            "damaged_records": part,
            "reasons": reasons,
            "examples": dict.fromkeys(reasons, f"row {part}"),
            "content": {"size": part},
            "parts": 3,
        }
        disk.write_parquet(PoolLayout(pool).pairs_part(part), rows, metadata)
    return pool


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_one_row_a_part_from_the_footers_or_from_the_table(tmp_path: Path, scheme: str) -> None:
    pool = make(tmp_path, scheme)
    table = read_parts(pool)
    assert table.schema == PARTS
    assert table["pairs"].to_pylist() == [10, 10, 10]
    assert part_totals(table) == {
        "links": 38, "pairs": 30, "damaged_records": 3, "reasons": {"empty_alt": 7, "scheme": 1},
    }  # fmt: skip
    assert reason_totals(table) == {"empty_alt": 7, "scheme": 1}
    assert dropped_rows(table).tolist() == [3, 0, 5]
    assert dropped_rows(table.slice(1)).tolist() == [0, 5]
    assert examples(table) == {"empty_alt": "row 0", "scheme": "row 0"}
    assert content_of(table) == [{"size": 0}, {"size": 1}, {"size": 2}]
    assert write_parts(pool).equals(table)
    for part in range(3):
        disk.write_bytes(PoolLayout(pool).pairs_part(part), b"not read")
    assert read_parts(pool).equals(table)


def test_a_table_of_other_parts_is_not_believed(tmp_path: Path) -> None:
    pool = make(tmp_path)
    write_parts(pool)
    Path(PoolLayout(pool).pairs_part(2)).unlink()
    assert read_parts(pool)["pairs"].to_pylist() == [10, 10]
    assert len(read_parts(str(tmp_path / "empty"))) == 0
    assert dropped_rows(read_parts(str(tmp_path / "empty"))).tolist() == []
    assert part_totals(read_parts(str(tmp_path / "empty")))["reasons"] == {}


def test_the_digest_follows_uids_and_order_and_not_the_batches() -> None:
    def digest(*batches: list[str]) -> str:
        content = UidsDigest()
        for batch in batches:
            content.update(pa.array(batch, pa.string()))
        return content.hexdigest()

    assert digest(["a", "bc"], ["d"]) == digest(["a"], [], ["bc", "d"])
    different = [digest(["a", "bc"]), digest(["ab", "c"]), digest(["bc", "a"]), digest(["a"])]
    assert len(set(different)) == 4


@pytest.mark.parametrize(("start", "stop"), [(0, 95), (0, 0), (7, 8), (29, 61), (90, 95), (40, 40)])
def test_rows_between_two_numbers(tmp_path: Path, start: int, stop: int) -> None:
    import pyarrow.parquet as pq

    table = pairs(urls(95, 4))
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=30)
    batches = rows_between(str(tmp_path / "t.parquet"), start, stop, ["uid"])
    read = [uid for batch in batches for uid in batch["uid"].to_pylist()]
    assert read == table["uid"].to_pylist()[start:stop]


def test_a_file_that_is_no_part_is_an_error(tmp_path: Path) -> None:
    disk.write_parquet(tmp_path / "pairs/part-00000.parquet", PAIRS.empty_table(), {})
    assert json.loads(read_parts(str(tmp_path))["content"][0].as_py()) == {}
    (tmp_path / "pairs/part-00000.parquet").write_bytes(b"PAR1")
    with pytest.raises(pa.ArrowInvalid):
        read_parts(str(tmp_path))
