"""Where the files of the shards of a pool are, for readers that need nothing else: the trainer.

A closed index has a list of the shards whose files have other names than their numbers give: tars
that were adopted, shards that were replaced. So a reader of a million shards reads two small files.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from manifests.commits.commits import Commits
from manifests.commits.index_files import damaged, read_document, read_file
from manifests.commits.reading import read_commits
from manifests.pool_layout import FLAT_SHARDS, PoolLayout, shard_name


class ShardFiles:
    """Paths of tars and sidecars, and the fingerprint of the pool. It does not change."""

    __slots__ = ("_layout", "_renamed", "_shards", "fingerprint", "pool")

    def __init__(self, pool: str, fingerprint: str, renamed: pa.Table) -> None:
        """renamed: shard, revision and tar of the shards that have other names than usual."""
        self.pool, self.fingerprint, self._renamed = pool, fingerprint, renamed
        self._layout = PoolLayout(pool)
        self._shards = np.asarray(renamed["shard"].to_numpy(), np.int64)

    def tar(self, shard: int | str) -> str:
        """The path or URL of a shard's tar."""
        position = self._position(shard)
        if position is None:
            return self._layout.named_tar(shard, f"{shard_name(shard)}.tar")
        return self._layout.named_tar(shard, self._renamed["tar"][position].as_py())

    def sidecar(self, shard: int | str) -> str:
        """The path of a shard's sidecar."""
        position = self._position(shard)
        revision = 0 if position is None else self._renamed["revision"][position].as_py()
        return self._layout.sidecar(shard, revision or 0)

    def _position(self, shard: int | str) -> int | None:
        number = int(shard)
        position = int(np.searchsorted(self._shards, number))
        is_there = position < len(self._shards) and self._shards[position] == number
        return position if is_there else None


def open_shard_files(pool: str) -> ShardFiles | Commits:
    """The files of all committed shards, by a closed index of a large pool from two small files.

    ValueError for a damaged index.
    """
    document = read_document(pool)
    if document is not None and document.closed and document.shards > FLAT_SHARDS:
        assert document.fingerprint is not None
        columns = ["shard", "revision", "tar"]
        if document.renamed is None:
            return ShardFiles(pool, document.fingerprint, Commits.of_records(pool, []).table)
        try:
            renamed = read_file(pool, document.renamed, columns)
        except FileNotFoundError:
            # A writer has opened the index in the meantime, or the file is lost.
            if read_document(pool) == document:
                path = PoolLayout(pool).index_json
                name = document.renamed.name
                raise damaged(pool, path, f"{name} is not there") from None
        else:
            return ShardFiles(pool, document.fingerprint, renamed)
    return read_commits(pool, ["tar"])
