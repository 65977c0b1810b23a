"""The rows of one committed shard, as its commit record is now."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from clipmill.manifests.layout import shard_name
from clipmill.manifests.pool import Pool


def read_sidecar(pool: str, shard: int | str, columns: Sequence[str] | None = None) -> pa.Table:
    """All columns of the sidecar, or those named."""
    return Pool.of_tickets(pool).of_shards(shard_name(shard)).read(shard, columns)
