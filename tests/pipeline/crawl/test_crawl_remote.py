"""Crawls over the network: by name, with ranges and without, and connections that break."""

from __future__ import annotations

import dataclasses
import gzip
import random
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import pytest

from clipmill.manifests import disk
from clipmill.manifests.schema import Source
from clipmill.pipeline.crawl import sources
from clipmill.pipeline.crawl.crawler import crawl
from clipmill.pipeline.crawl.sources import parts
from clipmill.pipeline.pool.lease import PoolWriter
from tests.support.warcs import block, record
from tests.support.wats import INFO, image, page, zipped
from tests.support.web_files import FileServer

PAGES = 400


def noise(seed: int) -> str:
    return random.Random(seed).randbytes(600).hex()


def wat(first: int) -> bytes:
    """A WAT of PAGES pages, about 300 KB, which no reader takes in one piece."""
    each = (
        page(f"http://p.test/{i}/", [image(f"/{i}.jpg", f"c{i} {noise(i)}")])
        for i in range(first, first + PAGES)
    )
    return zipped([INFO, *(one for records in each for one in records)])


def warc(first: int) -> bytes:
    html = (
        f"<img data-src=/{i}.jpg alt='c{i} {noise(i)}'>".encode()
        for i in range(first, first + PAGES)
    )
    return zipped([record(block(one), f"http://p.test/{i}/") for i, one in enumerate(html, first)])


def web(kind: str, count: int = 2) -> dict[str, bytes]:
    """A crawl by name."""
    names = [f"crawl-data/CC-TEST/segments/1/{kind}/{k}.warc.gz" for k in range(count)]
    make = wat if kind == "wat" else warc
    files = {f"/{name}": make(k * PAGES) for k, name in enumerate(names)}
    return {
        f"/crawl-data/CC-TEST/{kind}.paths.gz": gzip.compress("\n".join(names).encode()),
        **files,
    }


def captions(pool: str, count: int = 2) -> list[str]:
    tables = [
        disk.read_parquet(disk.join(pool, "pairs", f"part-{k:05d}.parquet")) for k in range(count)
    ]
    return [text.partition(" ")[0] for table in tables for text in table["caption"].to_pylist()]


@pytest.mark.parametrize("kind", ["wat", "warc"])
def test_a_crawl_by_name_in_a_store(kind: str, tmp_path: Path) -> None:
    base = f"memory://{tmp_path}/cc/"
    for name, data in web(kind).items():
        disk.write_bytes(base.rstrip("/") + name, data)
    source = Source(kind=f"{kind}_index", crawl="CC-TEST", sample=1, seed=3, base=base)  # type: ignore[arg-type]
    assert crawl(source, PoolWriter(str(tmp_path / "pool")), "inline")["pairs"] == PAGES
    assert len(parts(Source(kind=source.kind, crawl="CC-TEST", sample=2, base=base))) == 2


@pytest.mark.parametrize("kind", ["wat", "warc"])
@pytest.mark.parametrize(("ranges", "chunked"), [(True, False), (False, False), (False, True)])
def test_a_broken_connection_never_passes_for_the_end_of_a_file(
    kind: str, ranges: bool, chunked: bool, tmp_path: Path
) -> None:
    """Of a crawl by name, over HTTP."""
    files = web(kind)
    path = max(name for name in files if "/segments/" in name)  # the second file of the crawl
    with FileServer(files, ranges=ranges, chunked=chunked) as server:
        source = Source(kind=f"{kind}_index", crawl="CC-TEST", sample=2, base=server.base)  # type: ignore[arg-type]
        pool = str(tmp_path / "pool")
        server.cuts[path] = 1000
        totals = crawl(source, PoolWriter(pool), "inline")
        assert list(totals["failed"]) == [server.base + path[1:]], (
            "a broken connection passed for the end of the file"
        )
        assert not disk.list_names(disk.join(pool, "pairs"), ".parquet")
        # The next time the line is whole; in another pool it breaks once: the stage tries again.
        for folder, cuts in ((pool, 0), (str(tmp_path / "again"), 1)):
            server.cuts[path] = cuts
            totals = crawl(source, PoolWriter(folder), "inline")
            assert (totals["pairs"], totals["damaged_records"]) == (2 * PAGES, 0)
            assert totals["failed"] == {}
            assert captions(folder) == [f"c{i}" for i in range(2 * PAGES)]
        with pytest.raises(ValueError, match=r"there is no http://.*/CC-NONE/"):
            parts(dataclasses.replace(source, crawl="CC-NONE"))


@pytest.mark.parametrize("kind", ["wat", "warc", "table"])
def test_a_part_of_another_version_is_read_again(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(2):
        if kind == "table":
            (tmp_path / f"{k}.csv").write_text(f"url,caption\nhttp://p.test/{k}.jpg,c\n")
        else:
            (tmp_path / f"{k}.csv").write_bytes((wat if kind == "wat" else warc)(k))
    paths = (str(tmp_path / "0.csv"), str(tmp_path / "1.csv"))
    source, pool = Source(kind=kind, paths=paths), str(tmp_path / "pool")
    read: Counter[str] = Counter()
    reader, broken = sources.READERS[kind], True

    def counted(path: str, *rest: Any) -> Any:
        if broken and path == paths[1]:
            raise OSError("away")
        read[Path(path).name] += 1
        return reader.batches(path, *rest)

    monkeypatch.setitem(sources.READERS, kind, dataclasses.replace(reader, batches=counted))
    assert list(crawl(source, PoolWriter(pool), "inline")["failed"]) == [paths[1]]
    broken = False
    assert crawl(source, PoolWriter(pool), "inline")["failed"] == {}
    assert read == {"0.csv": 1, "1.csv": 1}
    broken = True
    crawl(source, PoolWriter(str(tmp_path / "other")), "inline")
    monkeypatch.setattr(sources, "READ_VERSION", sources.READ_VERSION + 1)
    broken = False
    assert crawl(source, PoolWriter(str(tmp_path / "other")), "inline")["failed"] == {}
    assert read == {"0.csv": 3, "1.csv": 2}
    with pytest.raises(ValueError, match="this version of clipmill reads it in another way"):
        crawl(source, PoolWriter(pool), "inline")


@pytest.fixture(autouse=True)
def _no_open_sessions() -> Any:
    """fsspec keeps a client session per server: a test's own ends with it."""
    yield
    fsspec.get_filesystem_class("http").clear_instance_cache()
