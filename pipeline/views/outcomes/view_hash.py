"""The hash of the rows that a view keeps: equal hashes mean the same pairs with the same bytes.

It is the hash of a lock's views and of common rows (`pipeline/pool/rows_hash.py`): sha256 over uid
and sha256 of the received bytes of each kept row, in ascending order, each once. So it depends
neither on shards and their order, nor on workers, folders, image sizes or the rules that chose the
rows. A row whose sha256 is not known has 32 zero bytes there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifests import disk
from manifests.commits import Commits
from pipeline.pool import Bytes, RowsHash, row_bits, row_keys, row_spill, sorted_rows
from pipeline.views.unit_threads import map_units

UNIT_SHARDS = 16  # shards that a thread reads at a time: 8 MB of records where all rows are kept
HEX = r"^[0-9a-f]{64}$"
UNKNOWN = "0" * 64
Mask = npt.NDArray[np.bool_]
KeptRows = Callable[[int], Mask]  # position of a shard -> (rows,) which of its rows are kept


def hash_rows(
    commits: Commits, kept_rows: Mapping[str, KeptRows], kept: int | None = None
) -> dict[str, str]:
    """The hash of each of some views, in one pass over the sidecars.

    kept: rows that all views together keep at most, if that is known: fewer than are stored need
    fewer partitions. Memory: one partition of the rows, see `row_spill`. ValueError for a sidecar
    of other rows.
    """
    stored = commits.totals.stored
    at_most = stored if kept is None else min(kept, stored)
    views = list(kept_rows.values())

    def read(unit: int) -> Bytes:
        end = min(len(commits), (unit + 1) * UNIT_SHARDS)
        parts = []
        for position in range(unit * UNIT_SHARDS, end):
            parts.append(_records(commits, position, [kept(position) for kept in views]))
        return np.concatenate(parts)

    hashes = {name: RowsHash() for name in kept_rows}
    with row_spill(row_bits(at_most), len(views)) as spill:
        for records in map_units(-(-len(commits) // UNIT_SHARDS), read, "hash views"):
            spill.add(records)
        for keys, flags in sorted_rows(spill):
            for number, content in enumerate(hashes.values()):
                content.add(keys[flags[:, number] == 1])
    return {name: content.hexdigest() for name, content in hashes.items()}


def _records(commits: Commits, position: int, masks: list[Mask]) -> Bytes:
    """(rows that a view keeps, bytes of a record) of a shard: keys, then one flag a view."""
    flags = np.stack(masks, axis=1).astype(np.uint8)
    chosen: Mask = np.any(flags, axis=1)
    if not chosen.any():
        return np.zeros((0, 48 + len(masks)), np.uint8)
    path = commits.sidecar(int(commits.shards[position]))

    def read_columns(source: Any) -> pa.Table:
        file = pq.ParquetFile(source, page_checksum_verification=True)
        return file.read(["uid", "sha256"], use_threads=False)

    table = disk.read_with(path, read_columns)
    if table.num_rows != len(chosen):
        raise ValueError(
            f"{path} has {table.num_rows} rows and its mask {len(chosen)}; choose the view again "
            "with pipeline/filter.py"
        )
    if not chosen.all():
        table = table.filter(pa.array(chosen))
    try:
        keys = row_keys(table["uid"], table["sha256"])
    except ValueError:  # some are not known
        known = pc.fill_null(pc.match_substring_regex(table["sha256"], HEX), False)
        keys = row_keys(table["uid"], pc.if_else(known, table["sha256"], UNKNOWN))
    return np.hstack([keys, flags[chosen]])
