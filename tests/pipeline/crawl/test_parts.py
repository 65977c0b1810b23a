"""The table of the parts says what their footers say, and is not needed; and the commonest reasons
of a pool, each with an example.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.manifests import disk
from clipmill.manifests.columns import PAIRS, SIDECAR
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Source
from clipmill.pipeline.crawl.crawler import crawl
from clipmill.pipeline.crawl.parts import (
    PARTS,
    Loss,
    UidsDigest,
    check_stored_table,
    content_of,
    dropped_rows,
    examples,
    part_names,
    part_totals,
    read_parts,
    reason_totals,
    rows_between,
    stored_table,
    top_reasons,
    write_parts,
)
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import ShardWriter
from tests.support.pairs import pairs, urls, write_part
from tests.support.wats import image, page, zipped

REASONS = [{"empty_alt": 2, "scheme": 1}, {}, {"empty_alt": 5}]


def make(folder: Path, scheme: str = "") -> str:
    pool = f"{scheme}{folder}"
    table = pairs(urls(30, 4))
    for part, reasons in enumerate(REASONS):
        write_part(
            pool,
            table.slice(10 * part, 10),
            part,
            links=10 + sum(reasons.values()),
            damaged_records=part,
            reasons=reasons,
            examples=dict.fromkeys(reasons, f"row {part}"),
            content={"size": part},
            parts=3,
        )
    return pool


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_one_row_a_part_from_the_footers_or_from_the_table(tmp_path: Path, scheme: str) -> None:
    pool = make(tmp_path, scheme)
    table = read_parts(PoolLayout(pool))
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
    assert write_parts(PoolLayout(pool)).equals(table)
    for part in range(3):
        disk.write_bytes(PoolLayout(pool).pairs_part(part), b"not read")
    assert read_parts(PoolLayout(pool)).equals(table)


def test_a_table_of_other_parts_is_not_believed(tmp_path: Path) -> None:
    pool = make(tmp_path)
    write_parts(PoolLayout(pool))
    Path(PoolLayout(pool).pairs_part(2)).unlink()
    assert read_parts(PoolLayout(pool))["pairs"].to_pylist() == [10, 10]
    assert len(read_parts(PoolLayout(str(tmp_path / "empty")))) == 0
    assert dropped_rows(read_parts(PoolLayout(str(tmp_path / "empty")))).tolist() == []
    assert part_totals(read_parts(PoolLayout(str(tmp_path / "empty"))))["reasons"] == {}


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
    table = pairs(urls(95, 4))
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=30)
    batches = rows_between(str(tmp_path / "t.parquet"), start, stop, ["uid"])
    read = [uid for batch in batches for uid in batch["uid"].to_pylist()]
    assert read == table["uid"].to_pylist()[start:stop]


def test_a_file_that_is_no_part_is_an_error(tmp_path: Path) -> None:
    disk.write_parquet(tmp_path / "pairs/part-00000.parquet", PAIRS.empty_table(), {})
    with pytest.raises(ValueError, match=r"part-00000\.parquet is no part of the pairs.*'links'"):
        read_parts(PoolLayout(str(tmp_path)))
    (tmp_path / "pairs/part-00000.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"part-00000\.parquet is damaged, or no Parquet file"):
        read_parts(PoolLayout(str(tmp_path)))


@pytest.mark.parametrize("column", [None, "name", "pairs", "links", "uids"])
def test_a_damaged_table_of_the_parts_is_not_needed(tmp_path: Path, column: str | None) -> None:
    pool = make(tmp_path)
    expected = write_parts(PoolLayout(pool))
    check_stored_table(PoolLayout(pool))
    path = Path(PoolLayout(pool).parts)
    if column is None:
        damaged = bytearray(path.read_bytes())
        damaged[10] ^= 0x41
        path.write_bytes(damaged)
    elif column == "name":  # one bit of the footer
        damaged = path.read_bytes().replace(b"\x18\x04part\x00", b"\x18\x04`art\x00")
        assert damaged != path.read_bytes()
        path.write_bytes(damaged)
        assert disk.read_parquet(path).column_names[0] == "`art"
    else:
        field = PARTS.field(column)
        nulls = pa.nulls(3, field.type)
        index = PARTS.get_field_index(column)
        disk.write_parquet(path, expected.set_column(index, field, nulls))
    assert stored_table(PoolLayout(pool), 3) is None
    with pytest.raises(ValueError, match="no table of 3 parts"):
        check_stored_table(PoolLayout(pool))
    assert read_parts(PoolLayout(pool)).equals(expected)


def test_parts_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """part-100000 comes before part-99999 in a listing."""
    for part in (99_999, 100_000, 0):
        write_part(tmp_path, PAIRS.empty_table(), part, links=part)
    names = part_names(PoolLayout(str(tmp_path)))
    assert names == [f"part-{part:05d}.parquet" for part in (0, 99_999, 100_000)]
    parts = read_parts(PoolLayout(str(tmp_path)))
    assert parts["part"].to_pylist() == parts["links"].to_pylist() == [0, 99_999, 100_000]


@pytest.mark.parametrize("name", ["a.parquet", "part-00003 (1).parquet", "part-1.parquet"])
def test_another_file_among_the_pairs_is_named_and_stays(tmp_path: Path, name: str) -> None:
    pool = make(tmp_path)
    disk.write_parquet(tmp_path / "pairs" / name, pa.table({"a": [1]}))
    with pytest.raises(ValueError, match=r"pairs/.* is no part of the pairs; move it out"):
        read_parts(PoolLayout(pool))
    assert (tmp_path / "pairs" / name).exists()


@pytest.mark.parametrize("metadata", [{"reasons": 3}, {"links": 10**30}, {"links": "many"}])
def test_a_footer_of_other_values_is_named(tmp_path: Path, metadata: dict[str, Any]) -> None:
    write_part(tmp_path, PAIRS.empty_table(), **metadata)
    with pytest.raises(ValueError, match=r"part-00000\.parquet is no part .* restore it"):
        read_parts(PoolLayout(str(tmp_path)))
    disk.write_parquet(tmp_path / "pairs/part-00000.parquet", pa.table({"a": [1]}))
    with pytest.raises(ValueError, match=r"part-00000\.parquet is no part"):
        read_parts(PoolLayout(str(tmp_path)))


def test_a_damaged_byte_of_a_part_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    disk.write_parquet(path, pairs(urls(95, 4)))
    expected = list(rows_between(str(path), 0, 95))
    whole = path.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little")  # it has no checksum
    noticed = 0
    for position in range(4, len(whole) - 8 - footer, 23):
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        try:
            assert list(rows_between(str(path), 0, 95)) == expected, position
        except disk.DamagedTable:
            noticed += 1
    assert noticed


def test_the_commonest_reasons_of_crawl_and_fetch_come_with_one_row_each(tmp_path: Path) -> None:
    pool = str(tmp_path / "pool")
    assert top_reasons(pool) == []
    (tmp_path / "t.csv").write_text("url,caption\n" + "a.jpg,a\n" * 3 + "http://p.test/1,b\n" * 9)
    crawl(Source(kind="table", paths=(str(tmp_path / "t.csv"),)), PoolWriter(pool), "inline")
    with ShardWriter(PoolWriter(pool), 0, "task", "0") as writer:
        for row in range(5):
            reason = "missing_file" if row > 0 else "dns"
            record = dict.fromkeys(SIDECAR.names) | {
                "uid": f"{row:032x}", "url": f"/x/{row}.jpg", "caption": "c", "reason": reason,
                "error_message": "no such file",
            }  # fmt: skip
            writer.add(row, record, None)
        writer.commit(5)
    assert top_reasons(pool, 2) == [
        Loss(stage="fetch", reason="missing_file", count=4, example="/x/1.jpg (no such file)"),
        Loss(stage="crawl", reason="bad_url", count=3, example="t.csv row 1: 'a.jpg'"),
    ]
    assert str(top_reasons(pool)[1]) == "3 bad_url in crawl, for example t.csv row 1: 'a.jpg'"


def test_examples_of_a_wat(tmp_path: Path) -> None:
    links = [image("/a.jpg"), image("/b.jpg", " "), image("ftp://x/c.jpg", "c")]
    path = tmp_path / "x.wat.gz"
    path.write_bytes(zipped(page("http://page.test/", links)))
    pool = str(tmp_path / "pool")
    crawl(Source(kind="wat", paths=(str(path),)), PoolWriter(pool), "inline")
    assert {loss.reason: loss.example for loss in top_reasons(pool)} == {
        "no_alt": "http://page.test/: '/a.jpg'",
        "empty_alt": "http://page.test/: '/b.jpg'",
        "scheme": "http://page.test/: 'ftp://x/c.jpg'",
    }


def test_a_source_that_is_lost_whole_is_said_with_its_reasons(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t.csv").write_text("url,caption\n/data/a.jpg,a\n/data/b.jpg,b\n")
    with caplog.at_level(logging.WARNING):
        crawl(
            Source(kind="table", paths=(str(tmp_path / "t.csv"),)),
            PoolWriter(str(tmp_path / "p")),
            "inline",
        )
    assert caplog.messages == [
        "none of the 2 rows of the source is a pair: 2 bad_url in crawl, for example t.csv row 1: "
        "'/data/a.jpg'"
    ]
