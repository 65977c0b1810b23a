"""The columns of a table of another program as a score set: joined by uid and committed."""

from __future__ import annotations

import logging
import time

import numpy as np
import numpy.typing as npt

from filters import Instance
from filters.table import Table
from filters.values import valid_in_all
from manifests.aligned import parquet_bytes
from manifests.commits import Commits
from manifests.pool_layout import PoolLayout
from pipeline.foreign_columns import MatchCounts, ShardColumns, TableJoin
from pipeline.pool import commit_columns

logger = logging.getLogger(__name__)


def join_table(
    commits: Commits,
    name: str,
    instance: Instance,
    lacking: npt.NDArray[np.bool_],
    fence: int | None,
) -> MatchCounts:
    """Write the columns of the shards that lack them into the set `name`; what was matched.

    lacking: (shards,). ValueError for tables that cannot be read.
    """
    assert isinstance(instance.filter, Table)
    started = time.perf_counter()
    with TableJoin(commits, np.flatnonzero(lacking), instance.filter) as join:
        for columns in join.shards():
            seconds = round(time.perf_counter() - started, 3)
            started = time.perf_counter()
            _commit(commits, name, instance, columns, seconds, fence)
        counts = join.counts
    if counts.table_rows:
        logger.info("%s", match_line(name, counts, instance.filter))
    return counts


def match_line(name: str, counts: MatchCounts, table: Table) -> str:
    """What became of the rows of a table."""
    key = "uid" if not table.hashed_keys else table.on
    line = (
        f"{name}: {counts.matched_rows:,} of {counts.pool_rows:,} stored rows have one of the "
        f"{counts.keys:,} {key}s of the table"
    )
    if repeats := counts.table_rows - counts.keys:
        line += f"; {repeats:,} table rows repeat a {key}, the first row of each counts"
    if counts.missing:
        line += f"; {counts.missing:,} {key}s are not stored in these shards"
        if not table.hashed_keys:  # what is kept of other keys are their hashes
            line += f" ({', '.join(counts.missing_keys[:3])} …)"
    return line


def shown_counts(counts: MatchCounts, table: Table) -> dict[str, int | str]:
    """The counts of a join as plain values, for `score.py --json`."""
    return {
        "by": table.on,
        "table_rows": counts.table_rows,
        "keys": counts.keys,
        "pool_rows": counts.pool_rows,
        "matched_rows": counts.matched_rows,
        "missing_keys": counts.missing,
    }


def _commit(
    commits: Commits,
    name: str,
    instance: Instance,
    columns: ShardColumns,
    seconds: float,
    fence: int | None,
) -> None:
    names = instance.column_names()
    table = columns.table.rename_columns([names[each] for each in columns.table.column_names])
    scored = valid_in_all(table.columns)
    metadata = {
        "uids": columns.uids,
        "sidecar": commits.column("sidecar_sha256")[columns.position].as_py().hex(),
        "rows": table.num_rows,
        "stored": columns.stored,
        "seconds": seconds,
        "scored": scored,
    }
    layout, shard = PoolLayout(commits.pool), int(commits.shards[columns.position])
    content = parquet_bytes(table, metadata)
    commit_columns(layout, name, shard, content, metadata, scored, fence)
