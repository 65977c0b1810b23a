"""A shard of five attempts with fixed values, for tests of its bytes and of its publication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clipmill.manifests.layout import CommitRecord
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import ShardWriter

Row = tuple[dict[str, Any], bytes | None, dict[str, Any]]


def five_rows(*, fetched_at: int = 1_700_000_000_000) -> list[Row]:
    """Five attempts: three stored, one refused, one that is not an image."""
    attempts: list[Row] = []
    for i in range(5):
        reason = {1: "robots_txt", 3: "not_an_image"}.get(i)
        record = {
            "url": f"http://host{i}.test/ü{i}.jpg",
            "caption": f"ein Bild, «{i}» 🐱",
            "uid": f"{i:032x}",
            "reason": reason,
            "error_message": reason and f"because of {i}",
            "sha256": None if i == 1 else f"{i:064x}",
            "http_status": None if i == 1 else 200,
            "wat": "crawl.warc.wat.gz",
            "warc_offset": 1000 * i,
            "link": i,
            "fetched_at": fetched_at + i,
            "elapsed_ms": fetched_at % 97,
            "attempts": 1,
        }
        image = None if reason else bytes(range(256)) * i + b"\xff\xd8picture"
        attempts.append(
            (
                record | ({"width": 8 + i, "height": 9} if image else {}),
                image,
                {"title": None, "anchor": "a"},
            )
        )
    return attempts


def write_five(
    pool: str, number: int = 3, order: list[int] | None = None, given: list[Row] | None = None
) -> CommitRecord:
    given = given or five_rows()
    with ShardWriter(PoolWriter(pool), number, "task", "0") as writer:
        for i in order or range(len(given)):
            writer.add(i, *given[i])
        return writer.commit(len(given))


def files_of(pool: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (pool / "shards").iterdir()}
