"""Pools from which rows are purged, and what is in their files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from tests.support import audited, plans


def make(folder: Path, count: int) -> str:
    """A pool whose captions, URLs and images are all different."""
    pool = str(folder)
    audited.write_pairs(pool, count)
    path = PoolLayout(pool).pairs_part(0)
    rows = disk.read_parquet(path).to_pylist()
    for i, row in enumerate(rows):
        row["caption"] += f" caption-{i}-end"
        row["uid"] = disk.uid_of(row["url"], row["caption"])
    schema = disk.read_schema(path)
    metadata = disk.read_metadata(path)
    disk.write_parquet(path, pa.Table.from_pylist(rows, schema.remove_metadata()), metadata)
    for task in plans.planned(pool, audited.RECIPE):
        audited.write_shard(pool, task)
    audited.score_and_choose(pool)
    return pool


def rows_of(pool: str) -> dict[str, dict[str, Any]]:
    rows = {}
    for path in read_commits(pool).names():
        for row in disk.read_parquet(read_commits(pool).sidecar(path)).to_pylist():
            rows[row["uid"]] = row | {"shard": path}
    return rows


def members(pool: str, row: dict[str, Any]) -> tuple[bytes, ...]:
    """The bytes of the members of a row."""
    tar = read_commits(pool).tar(row["shard"])
    parts = [(row[f"{part}_offset"], row[f"{part}_length"]) for part in ("image", "text", "json")]
    return tuple(disk.read_bytes(tar, offset, length) for offset, length in parts)


def contents(pool: str) -> Iterator[bytes]:
    """Every file as bytes; what Parquet files hold also as text."""
    for path in Path(pool).rglob("*"):
        if path.is_file():
            yield path.read_bytes()
            if path.suffix == ".parquet":
                yield str(pq.read_table(path).to_pylist()).encode()
                yield str(pq.read_schema(path).metadata).encode()
