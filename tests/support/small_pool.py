"""Pools of a few drawn pictures, written as a build writes them, for the tests of what comes
after a build."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from clipmill.filters import make
from clipmill.manifests import disk
from clipmill.manifests.layout import CommitRecord
from clipmill.manifests.schema import FilterSpec
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import ShardWriter
from clipmill.pipeline.scoring.score_sets import name_of_filter


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One attempt. A reason makes it one that failed; `image` replaces the drawn picture's
    bytes."""

    caption: str | None
    reason: str | None = None
    width: int = 300
    height: int = 200
    page: str = "https://www.Example.org:8080/page"
    image: bytes | None = None
    url: str | None = None
    more: dict[str, Any] = field(default_factory=dict)  # further columns of the sidecar
    beside: dict[str, Any] | None = None  # further texts of the JSON member


def set_name(spec: FilterSpec) -> str:
    """NAME@ID of a filter's columns, as a machine without a GPU scores them."""
    return name_of_filter(make(spec).resolved(gpu=False))


def jpeg(number: int) -> bytes:
    """A grey that is brighter by 3 than that of the number before."""
    buffer = io.BytesIO()
    Image.new("RGB", (24, 16), (3 * number % 256,) * 3).save(buffer, "JPEG")
    return buffer.getvalue()


def rows(count: int) -> list[Row]:
    """Every fifth attempt failed; captions grow from one word to seven."""
    return [
        Row(
            caption=" ".join(["dog"] * (i % 7 + 1)),
            reason="http_4xx" if i % 5 == 4 else None,
            width=100 + 10 * i,
            page=f"https://host{i % 3}.example/p{i}",
        )
        for i in range(count)
    ]


def write_shard(pool: str, number: int, given: Sequence[tuple[int, Row]]) -> CommitRecord:
    """Attempts with their numbers in the pool, which decide their urls, uids and pictures."""
    with ShardWriter(PoolWriter(pool), number, f"task-{number}", "0") as writer:
        for row_number, (i, row) in enumerate(given):
            url = row.url or f"https://img{i}.example/{i}.jpg"
            record = {
                "url": url,
                "caption": row.caption,
                "uid": disk.uid_of(url, row.caption or ""),
                "reason": row.reason,
                "page_url": row.page,
                "original_width": None if row.reason else row.width,
                "original_height": None if row.reason else row.height,
                **row.more,
            }
            image = None if row.reason else row.image if row.image is not None else jpeg(i)
            writer.add(row_number, record, image, row.beside)
        return writer.commit(len(given))


def make_pool(folder: Path, given: Iterable[Row], per_shard: int = 10) -> str:
    """A pool of these rows in shards of `per_shard`."""
    numbered = list(enumerate(given))
    for number, at in enumerate(range(0, len(numbered), per_shard)):
        write_shard(str(folder), number, numbered[at : at + per_shard])
    return str(folder)
