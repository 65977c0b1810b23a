"""Tars of other programs for tests, and their adoption into a pool."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

from PIL import Image

from manifests.columns import SIDECAR
from manifests.layout import read_commit_records
from manifests.schema import Source
from pipeline.external.adopt import adopt_tars, tar_tickets
from pipeline.pool.lease import read_sidecar

Members = list[tuple[str, bytes]]


def picture(width: int = 6, height: int = 4, kind: str = "JPEG", shade: int = 0) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (width, height), (shade, 90, 10)).save(sink, kind)
    return sink.getvalue()


def pack(path: Path, members: Members, kind: int = tarfile.GNU_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uname = len(data), 1_600_000_000, "somebody"
            tar.addfile(info, io.BytesIO(data))
    return path


def take(
    pool: Path, *paths: Path | str, fetch: dict[str, Any] | None = None, **source: Any
) -> list[dict[str, Any]]:
    """Adopt tars into a pool; the commit records."""
    work = adopt_tars({"pool": str(pool), "fetch": fetch or {}})
    members = [
        work(t) for t in tar_tickets(Source(kind="shards", paths=tuple(map(str, paths)), **source))
    ]
    for record in members:
        assert record["count"] == record["successes"] + sum(record["reasons"].values())
        written = read_commit_records(str(pool))[record["shard"]]
        assert record == written.to_plain()
    return members


def rows(pool: Path, number: int = 0) -> list[dict[str, Any]]:
    table = read_sidecar(str(pool), number)
    assert table.schema.equals(SIDECAR)
    records: list[dict[str, Any]] = table.to_pylist()
    return records
