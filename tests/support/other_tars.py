"""Tars of other programs for tests, and their adoption into a pool."""

from __future__ import annotations

import io
import tarfile
from typing import Any

from PIL import Image

from clipmill.manifests.columns import SIDECAR
from clipmill.manifests.schema import Fetch, Recipe, Source
from clipmill.pipeline.external.adopt import adopt_tars, tar_tickets
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import ShardJob
from tests.support.commit_records import read_commit_records
from tests.support.sidecars import read_sidecar

Members = list[tuple[str, bytes | str]]  # a text: the member that a hard link stands for


def picture(width=6, height=4, kind="JPEG", shade=0):
    sink = io.BytesIO()
    Image.new("RGB", (width, height), (shade, 90, 10)).save(sink, kind)
    return sink.getvalue()


def pack(path, members, kind=tarfile.GNU_FORMAT):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if isinstance(data, str):
                info.type, info.linkname, data = tarfile.LNKTYPE, data, b""
            info.size, info.mtime, info.uname = len(data), 1_600_000_000, "somebody"
            tar.addfile(info, io.BytesIO(data))
    return path


def adoption(pool, source, **fetch):
    """The job of the stage that adopts the tars of a source."""
    recipe = Recipe(name="tars", source=source, fetch=Fetch(**fetch))
    return ShardJob(out=PoolWriter(str(pool)), recipe=recipe)


def take(pool, *paths, fetch=None, **columns):
    """Adopt tars into a pool; the commit records."""
    source = Source(kind="shards", paths=tuple(map(str, paths)), **columns)
    work = adopt_tars(adoption(pool, source, **(fetch or {})))
    members = [work(ticket) for ticket in tar_tickets(source)]
    for record in members:
        assert record.count == record.successes + sum(record.reasons.values())
        assert record == read_commit_records(str(pool))[record.shard]
    return members


def rows(pool, number=0):
    table = read_sidecar(str(pool), number)
    assert table.schema.equals(SIDECAR)
    records: list[dict[str, Any]] = table.to_pylist()
    return records
