"""The WAT of the small web: records as Common Crawl writes them, and the truth inside."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType

from manifests import disk
from tests.support.miniwebs import SETTINGS, envelopes, image_links, truth


@pytest.mark.parametrize("name", ["crawl", "trusted"])
def test_a_wat_has_three_metadata_records_a_page_each_in_its_own_gzip_member(
    web: Path, name: str
) -> None:
    path = web / f"{name}.warc.wat.gz"
    data = path.read_bytes()
    with open(path, "rb") as stream:
        records = [
            (r.record_type, r.headers.get("WARC-Target-URI"), r.stream_pos)
            for r in ArchiveIterator(stream)
        ]
    assert records[0][0] == WarcRecordType.warcinfo
    assert all(kind == WarcRecordType.metadata for kind, _, _ in records[1:])
    pages = [records[i : i + 3] for i in range(1, len(records), 3)]
    assert len(pages) > 3
    for page in pages:
        assert len({uri for _, uri, _ in page}) == 1
    ends = [offset for _, _, offset in records[1:]] + [len(data)]
    for (_, _, start), end in zip(records, ends, strict=True):
        assert gzip.decompress(data[start:end]).startswith(b"WARC/1.0\r\n")
    kinds = [e["WARC-Header-Metadata"]["WARC-Type"] for e in envelopes(path)]
    assert kinds == ["request", "response", "metadata"] * len(pages)


def test_every_pair_of_the_truth_is_in_the_wat_once_and_in_its_order(web: Path) -> None:
    rows = truth(web)
    assert len(rows) == SETTINGS.pairs
    assert image_links(web / "crawl.warc.wat.gz") == [
        (r["url"], r["caption"], r["page_url"]) for r in rows
    ]
    assert len({r["url"] for r in rows}) == len(rows)
    assert [r["uid"] for r in rows] == [disk.uid_of(r["url"], r["caption"]) for r in rows]
    listed = pq.read_table(web / "pairs.parquet").to_pylist()
    assert [(r["url"], r["text"]) for r in listed] == [(r["url"], r["caption"]) for r in rows]
