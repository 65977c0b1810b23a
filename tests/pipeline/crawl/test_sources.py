"""Kinds of sources: which parts each has, what identifies a part, and what is refused; changed
source files of equal size are noticed, copies of a file pass.
"""

from __future__ import annotations

import gzip
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import disk
from clipmill.manifests.schema import Source
from clipmill.pipeline.crawl import sources
from clipmill.pipeline.crawl.crawler import crawl
from clipmill.pipeline.crawl.sources import parts
from clipmill.pipeline.pool.lease import PoolWriter
from tests.support import warcs
from tests.support.wats import INFO, zipped
from tests.support.wats import captioned as wat


def test_a_crawl_is_sampled_without_replacement_from_its_index(tmp_path: Path) -> None:
    names = [f"crawl-data/CC-TEST/segments/1/wat/{i}.warc.wat.gz" for i in range(12)]
    for i, name in enumerate(names):
        wat(tmp_path / name, f"caption {i}", first=i)
    index = tmp_path / "crawl-data/CC-TEST/wat.paths.gz"
    index.write_bytes(gzip.compress("\n".join(names).encode()))
    source = Source(kind="wat_index", crawl="CC-TEST", sample=4, base=f"file://{tmp_path}/")

    def sample(count: int, seed: int = 0) -> list[str]:
        return parts(replace(source, sample=count, seed=seed, base=str(tmp_path)))

    assert sample(5) == sample(5)
    assert len(set(sample(5))) == 5
    in_order = [f"{tmp_path}/{name}" for name in names]
    assert sample(5) == sorted(sample(5), key=in_order.index)
    assert set(sample(3)) < set(sample(5)) < set(sample(12))
    assert sample(5, seed=1) != sample(5)
    totals = crawl(source, PoolWriter(str(tmp_path / "pool")), "inline")
    assert (totals["parts"], totals["pairs"]) == (4, 4)
    with pytest.raises(ValueError, match=r"sample is 13, but CC-TEST has 12 WATs"):
        sample(13)
    with pytest.raises(ValueError, match=r"there is no .*CC-NONE/wat\.paths\.gz"):
        parts(replace(source, crawl="CC-NONE"))


def test_sources_that_cannot_be_read_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"paths names .*/none\.wat\.gz, which does not exist"):
        parts(Source(kind="wat", paths=(str(tmp_path / "none.wat.gz"),)))
    for name in ("list.xls", "list.parquet.gz"):
        (tmp_path / name).write_text("http://p.test/a.jpg\n")
        with pytest.raises(ValueError, match=r"is no table: its name must end in \.parquet"):
            parts(Source(kind="table", paths=(str(tmp_path / name),)))
    with pytest.raises(ValueError, match="adopted, not crawled"):
        crawl(Source(kind="shards", paths=("0.tar",)), PoolWriter(str(tmp_path / "pool")), "inline")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"the folder .*/empty has no tables \(\.parquet"):
        parts(Source(kind="table", paths=(str(tmp_path / "empty"),)))


@pytest.mark.parametrize("kind", ["files", "table"])
def test_a_folder_of_images_is_no_folder_of_tables(tmp_path: Path, kind: Any) -> None:
    """A README.txt beside a table does no harm."""
    (tmp_path / "a.jpg").touch()
    (tmp_path / "README.txt").write_text("Read me.")
    with pytest.raises(ValueError, match=r"has no tables .* write kind: image_folder with capt"):
        parts(Source(kind=kind, paths=(str(tmp_path),)))
    with pytest.raises(ValueError, match=r"a\.jpg is no table.* write kind: image_folder"):
        parts(Source(kind=kind, paths=(str(tmp_path / "a.jpg"),)))
    (tmp_path / "captions.csv").write_text("file,caption\na.jpg,a\n")
    assert parts(Source(kind=kind, paths=(str(tmp_path),))) == [str(tmp_path / "captions.csv")]


def test_the_id_of_a_part_follows_its_path_its_size_and_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("url,caption\nhttp://p.test/1,a\n")
    source = Source(kind="table", paths=(str(path),))
    first = sources.source_id(source, str(path))
    assert sources.source_id(source, str(path)) == first
    others = [
        sources.source_id(Source(kind="table", paths=(str(path),), **fields), str(path))
        for fields in ({"caption_column": "text"}, {"extra_columns": {"n": "int"}})
    ]
    others.append(sources.source_id(source, str(tmp_path / "other.csv")))
    path.write_text("url,caption\nhttp://p.test/1,ab\n")
    others.append(sources.source_id(source, str(path)))
    assert len({first, *others}) == 5


@pytest.mark.parametrize("kind", ["wat", "warc"])
@pytest.mark.parametrize(
    "content",
    [b"", b"<html>Slow down</html>", gzip.compress(b"no record", mtime=0), bytes(range(256)) * 99],
)
def test_a_file_that_is_no_archive_is_a_failed_task(
    tmp_path: Path, content: bytes, kind: str
) -> None:
    """One of 9,000 files that is empty, or an error page, would else be a part without links."""
    good = wat(tmp_path / "good.warc.gz", "a cat")
    if kind == "warc":
        Path(good).write_bytes(warcs.zipped(warcs.pages(1)))
    bad = tmp_path / "bad.gz"
    bad.write_bytes(content)
    source = Source(kind=kind, paths=(good, str(bad)))  # type: ignore[arg-type]
    failed = crawl(source, PoolWriter(str(tmp_path / "pool")), "inline")["failed"]
    assert list(failed) == [str(bad)]
    assert "is no WAT or WARC: no record begins in its first 65,536 bytes" in failed[str(bad)]
    bad.write_bytes(zipped([INFO]))
    assert crawl(source, PoolWriter(str(tmp_path / "pool")), "inline")["failed"] == {}


def test_a_damaged_list_of_a_crawl_is_named(tmp_path: Path) -> None:
    path = tmp_path / "crawl-data/CC-TEST/wat.paths.gz"
    path.parent.mkdir(parents=True)
    whole = gzip.compress("\n".join(f"crawl-data/{i * 7919}.wat.gz" for i in range(500)).encode())
    source = Source(kind="wat_index", crawl="CC-TEST", sample=1, base=str(tmp_path))
    for position in range(10, len(whole), 97):
        content = bytearray(whole)
        content[position] ^= 0xFF
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"wat\.paths\.gz cannot be read as a list of files"):
            parts(source)


def test_a_changed_file_of_equal_size_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("url,caption\nhttp://p.test/1,a\n")
    source, pool = Source(kind="table", paths=(str(path),)), str(tmp_path / "pool")
    totals = crawl(source, PoolWriter(pool), "inline")
    assert crawl(source, PoolWriter(pool), "inline") == totals
    shutil.copy(path, tmp_path / "copy")  # the same content at another time
    os.replace(tmp_path / "copy", path)
    assert crawl(source, PoolWriter(pool), "inline") == totals
    path.write_text("url,caption\nhttp://p.test/1,b\n")
    with pytest.raises(
        ValueError, match=r"t\.csv has changed since .*/pool/pairs was made of it: b"
    ):
        crawl(source, PoolWriter(pool), "inline")


def test_of_two_files_of_one_name_the_changed_one_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "t.csv" for folder in "ab"]
    for number, path in enumerate(paths):
        path.parent.mkdir()
        path.write_text(f"url,caption\nhttp://p.test/1,{'a' * (number + 1)}\n")
    source = Source(kind="table", paths=tuple(map(str, paths)))
    pool = PoolWriter(str(tmp_path / "pool"))
    crawl(source, pool, "inline")
    paths[1].write_text("url,caption\nhttp://p.test/1,bb\n")
    with pytest.raises(ValueError, match=r"/b/t\.csv has changed since"):
        crawl(source, pool, "inline")


def test_a_part_is_read_again_where_its_file_changed_before_all_were_read(tmp_path: Path) -> None:
    one, two = tmp_path / "1.csv", tmp_path / "2.csv"
    one.write_text("url,caption\nhttp://p.test/1,a\n")
    two.write_text("url,captions\nhttp://p.test/2,a\n")
    source = Source(kind="table", paths=(str(one), str(two)))
    pool = str(tmp_path / "pool")
    assert list(crawl(source, PoolWriter(pool), "inline")["failed"]) == [str(two)]
    one.write_text("url,caption\nhttp://p.test/1,b\n")
    two.write_text("url,caption\nhttp://p.test/2,a\n")
    crawl(source, PoolWriter(pool), "inline")
    assert disk.read_parquet(f"{pool}/pairs/part-00000.parquet")["caption"].to_pylist() == ["b"]
