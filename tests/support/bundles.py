"""Score columns and masks of a test's pool, shard by shard: read, written, changed and damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.manifests import disk
from clipmill.manifests.aligned import (
    AlignedFiles,
    Bundle,
    BundlesWriter,
    write_changed,
    write_view_shards,
)
from clipmill.manifests.columns import VIEW
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout, shard_name
from clipmill.manifests.records import ShardTable


def write_bundles(
    folder: str, schema: pa.Schema, shards: Iterable[tuple[int | str, pa.Table, Mapping[str, Any]]]
) -> None:
    """Write and publish the bundles of a score set or a view.

    shards: of each its number, its rows and what is said of them.
    """
    with disk.scratch_folder("clipmill-bundles-") as scratch:
        with BundlesWriter(Path(scratch), schema) as writer:
            for shard, table, metadata in shards:
                writer.add(shard, table, metadata)
        for file in sorted(Path(scratch).iterdir()):
            disk.publish(file, disk.join(folder, file.name))


def scores_of(pool: str | Path, name: str, shard: int | str) -> pa.Table:
    """The columns that the score set NAME@ID has of a shard."""
    return AlignedFiles.of_scores(PoolLayout(str(pool)), name).read(shard)[0]


def mask_of(pool: str | Path, view: str, shard: int | str) -> pa.Table:
    """What a view makes of each row of a shard."""
    return AlignedFiles.of_view(PoolLayout(str(pool)), view).read(shard)[0]


def write_scores(
    pool: str | Path, name: str, shards: Mapping[int | str, tuple[pa.Table, dict[str, Any]]]
) -> None:
    """Write the bundles of a score set of the sidecars that the pool has."""
    schema = next(iter(shards.values()))[0].schema
    commits = read_commits(str(pool))
    of_shards = []
    for shard, (table, said) in shards.items():
        sidecar = commits.record(shard).sidecar_sha256
        of_shards.append((shard, table, {"sidecar": sidecar, **said}))
    write_bundles(PoolLayout(str(pool)).score_set(name), schema, of_shards)


def write_masks(pool: str | Path, view: str, masks: Mapping[int | str, pa.Table]) -> ShardTable:
    """Write the bundles of a view; what its document says of its shards."""
    shards, counts = [], []
    for shard, mask in masks.items():
        counts.append(pc.sum(mask["kept"]).as_py() or 0)
        said = {"kept": counts[-1], "shard": shard_name(shard), "view": view}
        shards.append((shard, mask.cast(VIEW), said))
    write_bundles(disk.join(PoolLayout(str(pool)).views, view), VIEW, shards)
    numbers = np.array([int(shard) for shard in masks], np.int64)
    return write_view_shards(PoolLayout(str(pool)), view, numbers, np.array(counts, np.int64))


def change_shard(
    path: str | Path,
    shard: int,
    rows: Callable[[pa.Table], pa.Table] = lambda table: table,
    **said: Any,
) -> None:
    """Give a shard of a bundle other rows, of the same columns; and say other things of them."""

    def change(
        _: int, table: pa.Table, metadata: dict[str, Any]
    ) -> tuple[pa.Table, dict[str, Any]]:
        return rows(table), {**metadata, **said}

    staged = Path(f"{path}.changed")
    write_changed(Bundle(str(path)), staged, {shard: None}, change)
    staged.rename(path)


def damage_shard(path: str | Path, shard: int) -> None:
    """Flip a bit in the rows of a shard of a bundle."""
    start, length, _ = Bundle(str(path))._ranges[shard_name(shard)]
    content = bytearray(Path(path).read_bytes())
    content[start + length // 2] ^= 1
    Path(path).write_bytes(content)
