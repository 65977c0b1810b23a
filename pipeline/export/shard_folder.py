"""The kept samples of a view as a folder of WebDataset shards: NNNNN.tar and NNNNN.parquet.

The members are copied byte for byte. The Parquet file has the columns of the sidecar with the
offsets in the new tar, and the score columns. Both are what img2dataset writes, with more columns.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from manifests import disk
from manifests.pool_layout import shard_name
from pipeline.dataset_lock import DataFile
from pipeline.export.kept_rows import KeptRows
from pipeline.views import ShardCopy, copy_kept_samples, map_units

SHARD_FILE = re.compile(r"(\d{5,})\.(tar|parquet)")
TAR_ENCODING, SIDECARS = "application/x-tar", "*.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderCopy:
    """What was written: files in the order of the shards."""

    rows: int
    files: tuple[DataFile, ...]


def write_shard_folder(
    rows: KeptRows, folder: str, check: Callable[[], None] = lambda: None
) -> FolderCopy:
    """Write the shards that are missing or of other rows, and remove those of other shards.

    check: called before a file gets its name. ValueError for a damaged tar of the pool. What is
    there after a kill is not written again.
    """
    made_of = {"scores": " ".join(rows.score_sets)}

    def copy(unit: int) -> ShardCopy:
        shard = rows.shards[unit]
        kept = rows.mask(shard)
        stem = disk.join(folder, shard_name(shard))

        def with_scores(table: pa.Table) -> pa.Table:
            return rows.with_scores(shard, table, pa.array(kept))

        return copy_kept_samples(
            rows.commits,
            shard,
            kept,
            f"{stem}.tar",
            f"{stem}.parquet",
            made_of=made_of,
            columns=with_scores,
            check=check,
        )

    copies = list(map_units(len(rows.shards), copy, "export"))
    _remove_others(folder, {shard_name(shard) for shard in rows.shards})
    files = []
    for shard, each in zip(rows.shards, copies, strict=True):
        name = f"{shard_name(shard)}.tar"
        files.append(
            DataFile(name=name, size=each.bytes, sha256=each.sha256, encoding=TAR_ENCODING)
        )
    return FolderCopy(rows=sum(each.rows for each in copies), files=tuple(files))


def folder_hash(files: tuple[DataFile, ...]) -> str:
    """One hash of the tars of a folder, 64 hex digits."""
    lines = [f"{file.sha256}  {file.name}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _remove_others(folder: str, wanted: set[str]) -> None:
    """Remove the shards of an earlier export of which this view keeps nothing."""
    for name in disk.list_names(folder):
        match = SHARD_FILE.fullmatch(name)
        if match is not None and match[1] not in wanted:
            disk.remove(disk.join(folder, name))
