"""A plan whose shards are given, by a lock: rows are neither sorted nor dealt again.

The files are those of any plan, written one after another in this process, and plan.json comes
last: a plan that was stopped is written again, to the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from manifests import disk, identity
from manifests.columns import LOCKED, PAIRS, PLAN, with_extra
from manifests.layout import PoolLayout
from manifests.schema import Recipe
from pipeline.planning.plan_files import (
    PLAN_VERSION,
    SHARDS,
    plan_json,
    read_rounds,
    shard_id,
    shards_file,
)
from pipeline.planning.planner import FORM, ROWS_PER_TICKET, SHARDS_PER_FILE, settings_hash
from pipeline.pool.lease import check_fence

NUMBERED = ("part", "row", "shard", "position")  # columns of PLAN that are filled in here
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Files:
    """What has been written."""

    shards: list[pa.Table] = field(default_factory=list)  # of SHARDS, one a file
    first_shards: list[int] = field(default_factory=list)  # of each file
    count: int = 0
    rows: int = 0


def write_given_plan(
    pool: str,
    recipe: Recipe,
    shards: Iterable[tuple[int, pa.Table]],
    lock: str,
    groups: int | None,
    fence: int | None = None,
) -> None:
    """Plan shards as they are given: (host group, rows) of each, in the order of their numbers.

    Rows have the columns of PLAN but NUMBERED, the recipe's extra columns and LOCKED. `lock`: the
    id of where they come from. `groups`: how many host groups there are; None where each shard is a
    group of its own. ValueError for no row; LeaseLost where another command has taken the lease
    over.
    """
    folder = PoolLayout(pool).plan_round(0)
    extra = list(with_extra(PAIRS, recipe.source.extra_columns))[len(PAIRS) :]
    schema = pa.schema([*PLAN, *extra, *LOCKED])
    written = _Files()
    check = partial(check_fence, pool, fence)
    waiting = iter(shards)
    while _write_file(folder, schema, settings_hash(recipe.fetch), waiting, written, check):
        pass
    if not written.rows:
        raise ValueError(f"lock {lock} has no rows")
    check()
    disk.write_parquet(disk.join(folder, "shards.parquet"), pa.concat_tables(written.shards))
    document = {
        "version": PLAN_VERSION,
        "form": FORM,
        "pairs": lock,
        "lock": lock,
        "recipe_hash": identity.recipe_hash(recipe),
        "recipe": identity.recipe_identity(recipe),
        "groups": groups,
        "round": 0,
        "shards": written.count,
        "rows": written.rows,
        "first_shard": 0,
        "files": written.first_shards,
        "group_rows": None,
        "group_shards": None,
    }
    check()
    disk.write_json(plan_json(folder), document, sealed=True)
    logger.info("planned %d rows of a lock as %d shards", written.rows, written.count)


def _write_file(
    folder: str,
    schema: pa.Schema,
    settings: str,
    shards: Iterator[tuple[int, pa.Table]],
    written: _Files,
    check: Callable[[], None],
) -> bool:
    """Write the next file of a plan; False where no shard is left. `check`: of the lease."""
    number, first = len(written.first_shards), written.count
    columns: dict[str, list[Any]] = {name: [] for name in SHARDS.names}
    rows_before = written.rows
    with disk.scratch_folder("clipmill-plan-") as scratch:
        staged = Path(scratch) / "shards.parquet"
        with disk.parquet_writer(
            staged, schema, compression="zstd", write_statistics=False, write_page_checksum=True
        ) as writer:
            for group, given in shards:
                rows = _numbered(given, written.count, written.rows).select(schema.names)
                rows = rows.cast(schema)
                writer.write_table(rows, row_group_size=rows.num_rows)
                shard = {"shard": written.count, "group": group, "rows": rows.num_rows}
                # The number: two tars that were adopted may have the same rows.
                decides = f"{settings}\n{written.count}"
                shard |= {"id": shard_id(rows["uid"].combine_chunks(), None, decides)}
                shard |= {"file": number, "row_group": written.count - first}
                for name, value in shard.items():
                    columns[name].append(value)
                written.count += 1
                written.rows += rows.num_rows
                is_full = written.rows - rows_before >= ROWS_PER_TICKET
                if is_full or written.count - first == SHARDS_PER_FILE:
                    break
        if written.count == first:
            return False
        check()
        disk.publish(staged, shards_file(folder, number))
    written.first_shards.append(first)
    written.shards.append(pa.table(columns, SHARDS))
    return True


def _numbered(rows: pa.Table, shard: int, before: int) -> pa.Table:
    """Rows with their numbers: in the source (part 0), and in the shard."""
    count = rows.num_rows
    values = {
        "part": np.zeros(count, np.int32),
        "row": np.arange(before, before + count),
        "shard": np.full(count, shard, np.int32),
        "position": np.arange(count, dtype=np.int16),
    }
    for name, column in values.items():
        rows = rows.append_column(name, pa.array(column))
    return rows


def group_count(pool: str) -> int | None:
    """How many host groups the plan of a pool has; None where each shard is a group of its own."""
    groups: int | None = read_rounds(pool)[0].metadata["groups"]
    return groups
