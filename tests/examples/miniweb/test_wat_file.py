"""The WAT of the small web: records as Common Crawl writes them, and the truth inside."""

from __future__ import annotations

import gzip
import json
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


def test_links_are_written_in_all_ways_and_lie_between_junk(web: Path) -> None:
    links = [
        link
        for envelope in envelopes(web / "crawl.warc.wat.gz")
        for link in envelope["Payload-Metadata"]
        .get("HTTP-Response-Metadata", {})
        .get("HTML-Metadata", {})
        .get("Links", [])
    ]
    urls = [link["url"] for link in links if link["path"] == "IMG@/src"]
    for beginning in ("http://", "//", "/img/", "../", "data:"):
        assert any(url.startswith(beginning) for url in urls), beginning
    assert {"IMG@/src", "A@/href", "VIDEO@/poster", "STYLE/#text"} <= {
        link["path"] for link in links
    }
    assert any(link.get("alt") == "" for link in links)
    headers = [
        e["Payload-Metadata"]["HTTP-Response-Metadata"]["Headers"]
        for e in envelopes(web / "crawl.warc.wat.gz")
        if "HTTP-Response-Metadata" in e["Payload-Metadata"]
    ]
    assert any(isinstance(h.get("Set-Cookie"), list) for h in headers)


def test_only_the_pages_of_optout_pairs_say_no(web: Path) -> None:
    refusing = set()
    for envelope in envelopes(web / "crawl.warc.wat.gz"):
        answer = envelope["Payload-Metadata"].get("HTTP-Response-Metadata")
        if answer:
            metas = [
                m["content"]
                for m in answer["HTML-Metadata"]["Head"]["Metas"]
                if m.get("name") == "robots"
            ]
            if "noai" in json.dumps([metas, answer["Headers"].get("X-Robots-Tag")]):
                refusing.add(envelope["WARC-Header-Metadata"]["WARC-Target-URI"])
    assert refusing == {r["page_url"] for r in truth(web) if r["kind"] == "optout_page"}
    assert not refusing & {r["page_url"] for r in truth(web) if r["kind"] != "optout_page"}


def test_pages_say_the_language_of_their_captions(web: Path) -> None:
    languages: dict[str, str] = {}
    for envelope in envelopes(web / "crawl.warc.wat.gz"):
        fields = (
            envelope["Payload-Metadata"]
            .get("WARC-Metadata-Metadata", {})
            .get("Metadata-Records", [])
        )
        for field in fields:
            if field["Name"] == "languages-cld2":
                page = envelope["WARC-Header-Metadata"]["WARC-Target-URI"]
                languages[page] = json.loads(field["Value"])["languages"][0]["code"]
    rows = [r for r in truth(web) if r["page_url"] in languages]
    assert {r["language"] for r in rows} > {"en"}
    assert all(languages[r["page_url"]] == r["language"] for r in rows)
