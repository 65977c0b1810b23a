"""The masks of a view as files: written into a folder that nobody reads, then published.

A flat shard has a file of its own, the others share a bundle per thousand. What a killed process
left in such a folder is removed before the next view is written.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from manifests import disk
from manifests.aligned.bundles import BundleWriter, parquet_bytes
from manifests.aligned.shard_tables import has_table
from manifests.columns import VIEW
from manifests.commits import Commits
from manifests.pool_layout import (
    FLAT_SHARDS,
    SHARDS_PER_FOLDER,
    PoolLayout,
    bundle_name,
    shard_name,
)
from pipeline.pool import check_fence
from pipeline.views.joined_columns import JoinedColumns

PUBLISHERS = 8  # files that are published at a time
SYNCED_FILES = 64  # more files than that are made to last by one sync of the whole machine
PARTIAL = ".partial-"


class MaskFiles:
    """The masks of some views in the making, each in a folder of its own."""

    def __init__(self, source: JoinedColumns, views: Sequence[str]) -> None:
        self._source = source
        self.commits: Commits = source.commits
        self._layout = PoolLayout(self.commits.pool)
        self._folders = {view: _partial_folder(self._layout, view) for view in views}
        self.kept = {view: np.zeros(len(self.commits), np.int64) for view in views}
        # One bit a row: what the hash of the rows is made from.
        self._bits: dict[str, list[NDArray[np.uint8]]] = {}
        for view in views:
            self._bits[view] = [np.zeros(0, np.uint8)] * len(self.commits)
        self._rows = np.asarray(self.commits.column("count").to_numpy(), np.int64)

    def kept_rows(self, view: str, position: int) -> NDArray[np.bool_]:
        """(rows,) which rows of the shard at a position of `commits` a view keeps."""
        bits = self._bits[view][position]
        return np.unpackbits(bits, count=int(self._rows[position])).astype(np.bool_)

    @contextmanager
    def open_sink(self, view: str, unit: int) -> Iterator[UnitMasks]:
        """Where the masks of the shards of one unit go."""
        positions = self._source.shards_of(unit)
        folder = self._folders[view]
        name = bundle_name(int(self.commits.shards[positions.start]))
        unit_masks = UnitMasks(folder, None, view)
        if not name:
            yield unit_masks
        else:
            with BundleWriter(folder / name, VIEW) as writer:
                unit_masks.writer = writer
                yield unit_masks
        self.kept[view][positions.start : positions.stop] = unit_masks.kept
        self._bits[view][positions.start : positions.stop] = unit_masks.bits

    def publish(self, view: str, fence: int | None = None) -> None:
        """Move the masks of a view to their place. The document must not be there yet.

        Masks of the view as it was before, or of a kill, are replaced. LeaseLost where another
        command has taken the lease over: its masks stay.
        """
        folder = self._folders[view]
        names = sorted(os.listdir(folder))
        if not disk.is_url(self._layout.root):
            _make_last([folder / name for name in names])
        target = disk.join(self._layout.views, view)
        if not disk.is_url(target):
            disk.local_path(target).mkdir(parents=True, exist_ok=True)

        def move(name: str) -> None:
            path = disk.join(target, name)
            check_fence(self.commits.pool, fence)
            if disk.is_url(path):
                disk.publish(folder / name, path)
            else:
                os.replace(folder / name, disk.local_path(path))

        with ThreadPoolExecutor(PUBLISHERS) as threads:
            list(threads.map(move, names))
        disk.sync_folder(target)

    def remove(self) -> None:
        """Remove what was not published."""
        for folder in self._folders.values():
            shutil.rmtree(folder, ignore_errors=True)


class UnitMasks:
    """The masks of consecutive shards."""

    def __init__(self, folder: Path, writer: BundleWriter | None, view: str) -> None:
        self.writer = writer
        self.kept: list[int] = []  # rows that are kept, by shard
        self.bits: list[NDArray[np.uint8]] = []  # which ones, one bit a row, by shard
        self._folder, self._view = folder, view

    def add(self, shard: str, mask: pa.Table) -> None:
        """The mask of the next shard, of schema VIEW."""
        kept_rows = mask["kept"].to_numpy()
        kept = int(kept_rows.sum())
        self.kept.append(kept)
        self.bits.append(np.packbits(kept_rows))
        # Whose rows these are: masks of two shards or views may keep as many.
        metadata = {"kept": kept, "shard": shard_name(shard), "view": self._view}
        if self.writer is not None:
            self.writer.add(shard, mask, metadata)
        else:
            content = parquet_bytes(mask, metadata)
            path = self._folder / f"{shard_name(shard)}.parquet"
            with disk.naming(path):
                path.write_bytes(content)
                disk.check_size(path, len(content))


def has_masks(commits: Commits, view: str) -> bool:
    """True where every file of a view is there, so that it need not be made again."""
    layout = PoolLayout(commits.pool)
    names = set(disk.list_names(disk.join(layout.views, view)))
    flat = int(np.searchsorted(commits.shards, FLAT_SHARDS))
    needed = {f"{shard_name(shard)}.parquet" for shard in commits.shards[:flat].tolist()}
    later = commits.shards[flat:]
    _, first = np.unique(later // SHARDS_PER_FOLDER, return_index=True)
    needed |= {bundle_name(shard) for shard in later[first].tolist()}
    if has_table(len(commits)):
        needed.add("shards.parquet")
    return needed <= names


def kept_by_shard(commits: Commits, kept: NDArray[np.int64]) -> dict[str, int] | None:
    """Kept rows by shard for the document of a view; None for a pool that has a file for them."""
    if has_table(len(commits)):
        return None
    return dict(zip(commits.names(), kept.tolist(), strict=True))


def _partial_folder(layout: PoolLayout, view: str) -> Path:
    """An empty folder for the masks of a view; those of killed processes are removed."""
    if disk.is_url(layout.root):
        return Path(tempfile.mkdtemp(prefix="clipmill-view-"))
    parent = disk.local_path(layout.views)
    for old in parent.glob(f".{view}{PARTIAL}*"):
        shutil.rmtree(old, ignore_errors=True)
    folder = parent / f".{view}{PARTIAL}{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    return folder


def _make_last(files: Sequence[Path]) -> None:
    """Have the content of files survive a power failure."""
    if len(files) > SYNCED_FILES:
        os.sync()
        return
    for path in files:
        with open(path, "rb") as f:
            os.fsync(f.fileno())
