"""Files that are aligned with the rows of shards, and what is said of every shard beside them."""

from __future__ import annotations

from manifests.aligned.bundles import (
    AlignedFiles,
    Bundle,
    BundleWriter,
    Change,
    mask_owner,
    parquet_bytes,
    write_changed,
)
from manifests.aligned.current_views import current_view, view_names
from manifests.aligned.shard_tables import (
    count_shards,
    has_table,
    score_shards,
    view_shards,
    write_view_shards,
)

__all__ = [
    "AlignedFiles",
    "Bundle",
    "BundleWriter",
    "Change",
    "count_shards",
    "current_view",
    "has_table",
    "mask_owner",
    "parquet_bytes",
    "score_shards",
    "view_names",
    "view_shards",
    "write_changed",
    "write_view_shards",
]
