"""Sources to pairs: every kind, the first of two equal pairs, the counts, and resuming."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import disk
from clipmill.manifests.columns import PAIRS
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Source
from clipmill.pipeline.crawl.crawler import crawl
from clipmill.pipeline.pool.lease import PoolWriter
from tests.support.wats import captioned as wat


def pairs(pool: str, part: int = 0) -> list[dict[str, Any]]:
    table = disk.read_parquet(disk.join(pool, "pairs", f"part-{part:05d}.parquet"))
    assert table.schema.equals(PAIRS)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def captions(pool: str, part: int = 0) -> list[str]:
    return [row["caption"] for row in pairs(pool, part)]


def balanced(totals: dict[str, Any]) -> bool:
    return bool(totals["links"] == totals["pairs"] + sum(totals["reasons"].values()))


# --- WATs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_every_wat_is_a_part_and_the_first_of_equal_pairs_stays(
    tmp_path: Path, scheme: str
) -> None:
    one = wat(tmp_path / "a.warc.wat.gz", "zero", "one", "two")
    two = wat(tmp_path / "b.warc.wat.gz", "one", "two", "three", first=1)
    pool = f"{scheme}{tmp_path}/pool"
    totals = crawl(Source(kind="wat", paths=(two, one)), PoolWriter(pool), "inline")
    assert captions(pool, 0) == ["one", "two", "three"]
    assert captions(pool, 1) == ["zero"]
    assert totals == {
        "links": 12,
        "pairs": 4,
        "damaged_records": 0,
        "reasons": {"duplicate_pair": 2, "empty_alt": 6},
        "parts": 2,
        "failed": {},
    }
    assert balanced(totals)
    metadata = disk.read_metadata(disk.join(pool, "pairs", "part-00001.parquet"))
    assert (metadata["wat"], metadata["links"], metadata["pairs"]) == ("a.warc.wat.gz", 6, 1)
    assert metadata["reasons"] == {"duplicate_pair": 2, "empty_alt": 3}
    assert pairs(pool, 1)[0]["page_lang"] == "en"


# --- resuming -------------------------------------------------------------------------------------


def test_a_pool_of_another_source_is_refused(tmp_path: Path) -> None:
    one, two = wat(tmp_path / "a.wat.gz", "a"), wat(tmp_path / "b.wat.gz", "b")
    pool = str(tmp_path / "pool")
    crawl(Source(kind="wat", paths=(one,)), PoolWriter(pool), "inline")
    with pytest.raises(
        ValueError, match=r"made of another source \(a\.wat\.gz is not in it, and b\.wat\.gz is\)"
    ):
        crawl(Source(kind="wat", paths=(two,)), PoolWriter(pool), "inline")
    assert crawl(Source(kind="wat", paths=(one, two)), PoolWriter(pool), "inline")["parts"] == 2
    wat(tmp_path / "a.wat.gz", "a", "more")
    with pytest.raises(ValueError, match=r"a\.wat\.gz has another size"):
        crawl(Source(kind="wat", paths=(one,)), PoolWriter(pool), "inline")


def test_a_pool_and_its_source_may_move(tmp_path: Path) -> None:
    """Paths are named, contents are compared: a copy is the same pool, another file is not."""
    first = tmp_path / "first"
    first.mkdir()
    path = wat(first / "a.wat.gz", "one", "two")
    totals = crawl(Source(kind="wat", paths=(path,)), PoolWriter(str(first / "pool")), "inline")
    shutil.copytree(first, tmp_path / "second")
    shutil.rmtree(first)
    moved, pool = tmp_path / "second/a.wat.gz", tmp_path / "second/pool"
    before = {p: p.read_bytes() for p in pool.rglob("*.parquet")}
    assert crawl(Source(kind="wat", paths=(str(moved),)), PoolWriter(str(pool)), "inline") == totals
    assert {p: p.read_bytes() for p in pool.rglob("*.parquet")} == before
    data = moved.read_bytes()
    moved.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ValueError, match="has changed since"):
        crawl(Source(kind="wat", paths=(str(moved),)), PoolWriter(str(pool)), "inline")
    moved.write_bytes(data)
    renamed = moved.rename(moved.with_name("b.wat.gz"))
    with pytest.raises(ValueError, match="made of another source"):
        crawl(Source(kind="wat", paths=(str(renamed),)), PoolWriter(str(pool)), "inline")


def test_a_source_of_files_may_not_move_because_its_pairs_name_absolute_paths(
    tmp_path: Path,
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.csv").write_text("file,caption\na.jpg,a\n")
    pool = str(tmp_path / "pool")
    crawl(Source(kind="files", paths=(str(tmp_path / "first/t.csv"),)), PoolWriter(pool), "inline")
    with pytest.raises(ValueError, match="made of another source"):
        crawl(
            Source(kind="files", paths=(str(tmp_path / "second/t.csv"),)),
            PoolWriter(pool),
            "inline",
        )


def test_the_table_of_parts_is_written_by_the_next_crawl_after_a_kill(tmp_path: Path) -> None:
    pool = str(tmp_path / "pool")
    source = Source(kind="wat", paths=(wat(tmp_path / "a.warc.wat.gz", "zero", "one"),))
    totals = crawl(source, PoolWriter(pool), "inline")
    table = Path(PoolLayout(pool).parts)
    before = table.read_bytes()
    table.unlink()  # as after a kill behind the last part of the pairs
    assert crawl(source, PoolWriter(pool), "inline") == totals
    assert table.read_bytes() == before
