"""Rows to a tar with reproducible bytes, and to the rows of its sidecar."""

from __future__ import annotations

import errno
import hashlib
import tarfile
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pyarrow as pa

from manifests import disk
from manifests.columns import SIDECAR, with_extra
from manifests.pool_layout import CommitRecord, PoolLayout, revised_name
from manifests.schema import ROWS_PER_SHARD_LIMIT
from pipeline.pool.publication import TarFile, publish_shard, replace_shard, staged_file
from pipeline.pool.rows import member_json, outcome_row, row_key
from pipeline.pool.tars import BLOCK, end_mark


class ShardWriter:
    """Collects the rows of one shard in any order and commits them; images wait in a local file.

    Use it as a context manager: what was not committed when it ends leaves no files.
    """

    def __init__(
        self,
        pool: str,
        shard: int,
        task: str,
        group: str,
        extra_columns: Mapping[str, str] | None = None,
        fence: int | None = None,
    ) -> None:
        """`extra_columns`: those of the recipe, as Recipe.sidecar_extra has them. `fence`: that of
        the lease under which the shard is published.
        """
        self.pool, self.shard, self.task, self.group = pool, shard, task, group
        self.fence = fence
        self.schema = with_extra(SIDECAR, extra_columns or {})
        self._rows: dict[int, dict[str, Any]] = {}
        self._extra: dict[int, dict[str, Any]] = {}
        self._spool: IO[bytes] = tempfile.TemporaryFile(prefix="clipmill-spool-")  # noqa: SIM115
        self._spooled: dict[int, tuple[int, int, int]] = {}  # start, length, checksum
        self._started = time.monotonic()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spool.close()

    def add(
        self,
        row: int,
        record: Mapping[str, Any],
        image: bytes | None,
        extra: Mapping[str, Any] | None = None,
        extension: str = "jpg",
    ) -> None:
        """Add the outcome of a row: `record` has columns of the sidecar, `image` what is stored.

        `image` is None where the record has a reason. key, status, class, image_name and the
        offsets in the tar are filled in here. `extra` goes into {key}.json only; `extension` is
        that of the image's member name.
        """
        assert 0 <= row < ROWS_PER_SHARD_LIMIT, row
        assert row not in self._rows, f"row {row} of shard {self.shard} has two outcomes"
        values = outcome_row(record, self.schema, stored=image is not None)
        values["key"] = row_key(self.shard, row)
        if image is not None and values["reason"] is None:
            values["image_name"] = f"{values['key']}.{extension}"
            self._spooled[row] = (self._spool.tell(), len(image), zlib.crc32(image))
            with disk.naming(Path(tempfile.gettempdir()) / "clipmill-spool"):
                self._spool.write(image)
            self._extra[row] = {k: v for k, v in (extra or {}).items() if v is not None}
        self._rows[row] = values

    def commit(
        self,
        count: int,
        *,
        engine: str | None = None,
        engine_version: str | None = None,
        manners: dict[str, Any] | None = None,
        replace: bool = False,
    ) -> CommitRecord:
        """Publish tar, sidecar and commit record. `count` is how many rows were asked for.

        A shard that is committed already is not written again: its record is returned. With
        `replace` it gets these rows instead, see `replace_shard`. `engine` and
        `engine_version` name another program that fetched the images. `manners`: how they were
        asked for, see `manifests.identity.manners_of`.
        """
        assert sorted(self._rows) == list(range(count)), (
            f"shard {self.shard}: {len(self._rows)} of {count} outcomes"
        )
        with staged_file(PoolLayout(self.pool).shard_tar(self.shard)) as staged:
            sha256, size = self._write_tar(staged)
            tar = TarFile(name=f"{revised_name(self.shard)}.tar", bytes=size, sha256=sha256)
            rows = [self._rows[row] for row in range(count)]
            if replace:
                table = pa.Table.from_pylist(rows, schema=self.schema)
                return replace_shard(
                    self.pool, self.shard, table, tar, staged_tar=staged, fence=self.fence
                )
            return publish_shard(
                self.pool,
                self.shard,
                rows,
                tar,
                staged_tar=staged,
                task=self.task,
                group=self.group,
                duration_s=time.monotonic() - self._started,
                schema=self.schema,
                engine=engine,
                engine_version=engine_version,
                manners=manners,
                fence=self.fence,
            )

    def _write_tar(self, staged: Path) -> tuple[str, int]:
        """Write the members in key order; set the offsets in the rows. (sha256, size in bytes)."""
        content, offset = hashlib.sha256(), 0
        with disk.naming(staged), open(staged, "wb") as f:
            for row in sorted(self._spooled):
                values = self._rows[row]
                members = {
                    "image": (values["image_name"].rpartition(".")[2], self._image(row)),
                    "text": ("txt", (values["caption"] or "").encode()),
                    "json": ("json", member_json(values, self._extra[row])),
                }
                for part, (extension, data) in members.items():
                    block = member_block(f"{values['key']}.{extension}", data)
                    values[f"{part}_offset"], values[f"{part}_length"] = offset + BLOCK, len(data)
                    content.update(block)
                    f.write(block)
                    offset += len(block)
            end = end_mark(offset)
            content.update(end)
            f.write(end)
        return content.hexdigest(), offset + len(end)

    def _image(self, row: int) -> bytes:
        """An image that was added. OSError where the local disk has lost bytes of it."""
        start, length, checksum = self._spooled[row]
        self._spool.seek(start)
        image = self._spool.read(length)
        if len(image) != length or zlib.crc32(image) != checksum:
            folder = tempfile.gettempdir()
            raise OSError(errno.EIO, "an image reads back differently", f"{folder}/clipmill-spool")
        return image


def member_block(name: str, data: bytes) -> bytes:
    """A member as it stands in the tar: header, bytes, padding. No time, no user."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % BLOCK)
