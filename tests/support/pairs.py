"""Pairs to plan: URLs over some hosts, as a table of the pairs of a pool, and parts of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from clipmill.manifests import disk
from clipmill.manifests.columns import PAIRS
from clipmill.manifests.layout import PoolLayout
from clipmill.pipeline.crawl.parts import UidsDigest


def pairs(urls: list[str]) -> pa.Table:
    rows = [
        {"uid": disk.uid_of(url, str(i)), "url": url, "caption": str(i)}
        for i, url in enumerate(urls)
    ]
    return pa.Table.from_pylist(rows, PAIRS)


def write_part(pool: object, table: pa.Table, part: int = 0, **changes: Any) -> None:
    """One part of the pairs of a pool, with the footer that a crawl writes."""
    digest = UidsDigest()
    for chunk in table["uid"].chunks:
        digest.update(chunk)
    footer = {
        "links": len(table),
        "pairs": len(table),
        "damaged_records": 0,
        "reasons": {},
        "examples": {},
        "bytes": table.nbytes,
        "uids": digest.hexdigest(),
        "wat": "crawl.wat.gz",
        "source_id": "abc",
        "content": {},
        "parts": 1,
    }
    disk.write_parquet(PoolLayout(str(pool)).pairs_part(part), table, footer | changes)


def urls(count: int, hosts: int) -> list[str]:
    return [f"http://h{i * i % hosts}.test/{i}.jpg" for i in range(count)]
