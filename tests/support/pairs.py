"""Pairs to plan: URLs over some hosts, as a table of the pairs of a pool."""

from __future__ import annotations

import pyarrow as pa

from manifests import disk
from manifests.columns import PAIRS


def pairs(urls: list[str]) -> pa.Table:
    rows = [
        {"uid": disk.uid_of(url, str(i)), "url": url, "caption": str(i)}
        for i, url in enumerate(urls)
    ]
    return pa.Table.from_pylist(rows, PAIRS)


def urls(count: int, hosts: int) -> list[str]:
    return [f"http://h{i * i % hosts}.test/{i}.jpg" for i in range(count)]
