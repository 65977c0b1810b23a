"""The commonest reasons of a pool, each with an example."""

from __future__ import annotations

from pathlib import Path

from manifests.columns import SIDECAR
from manifests.schema import Source
from pipeline.crawl.crawler import crawl
from pipeline.crawl.parts import Loss, top_reasons
from pipeline.pool.shard_writer import ShardWriter
from tests.support.wats import image, page, zipped


def test_the_commonest_reasons_of_crawl_and_fetch_come_with_one_row_each(tmp_path: Path) -> None:
    pool = str(tmp_path / "pool")
    assert top_reasons(pool) == []
    (tmp_path / "t.csv").write_text("url,caption\n" + "a.jpg,a\n" * 3 + "http://p.test/1,b\n" * 9)
    crawl(Source(kind="table", paths=(str(tmp_path / "t.csv"),)), pool, "inline")
    with ShardWriter(pool, 0, "task", "0") as writer:
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
    crawl(Source(kind="wat", paths=(str(path),)), pool, "inline")
    assert {loss.reason: loss.example for loss in top_reasons(pool)} == {
        "no_alt": "http://page.test/: '/a.jpg'",
        "empty_alt": "http://page.test/: '/b.jpg'",
        "scheme": "http://page.test/: 'ftp://x/c.jpg'",
    }


def test_a_source_that_is_lost_whole_is_said_with_its_reasons(
    tmp_path: Path, caplog: object
) -> None:
    import logging

    import pytest

    assert isinstance(caplog, pytest.LogCaptureFixture)
    (tmp_path / "t.csv").write_text("url,caption\n/data/a.jpg,a\n/data/b.jpg,b\n")
    with caplog.at_level(logging.WARNING):
        crawl(Source(kind="table", paths=(str(tmp_path / "t.csv"),)), str(tmp_path / "p"), "inline")
    assert caplog.messages == [
        "none of the 2 rows of the source is a pair: 2 bad_url in crawl, for example t.csv row 1: "
        "'/data/a.jpg'"
    ]
