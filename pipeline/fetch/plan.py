"""The plan of a pool on disk: which pair is fetched with which shard.

POOL/plan.parquet holds every pair in fetch order, one row group per shard. A ticket carries only a
shard number, and its rows are one ranged read. Further rounds (`--retry`) add
POOL/plan-retry-001.parquet and so on. A plan file never changes once it is written.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from manifests import disk, identity
from manifests.columns import PAIRS
from manifests.pool_layout import PoolLayout
from manifests.schema import SOURCES, Fetch, Pair, Recipe
from pipeline.fetch.host_groups import (
    PLAN_VERSION,
    Integers,
    PlannedShard,
    host_groups,
    plan_shards,
    row_keys,
)

PLAN = pa.schema(
    [
        *PAIRS,
        ("part", pa.int32()),  # of the pairs
        ("row", pa.int64()),  # in that part
        ("shard", pa.int32()),
        ("position", pa.int16()),  # in the shard
        ("retry_of", pa.string()),  # key of the row that this row fetches again
    ]
)
QUOTE = '"'
logger = logging.getLogger(__name__)


def settings_hash(fetch: Fetch) -> str:
    """Hash of the fetch settings that decide what is stored."""
    return disk.content_hash(identity.fetch_identity(fetch))


# --- writing ---------------------------------------------------------------------------------


def write_plan(pool: str, recipe: Recipe) -> list[PlannedShard]:
    """Plan a pool's pairs, or read the plan that is there.

    ValueError where the plan was made of another recipe or of other pairs: it names what changed.
    """
    parts = _parts(pool)
    if not parts:
        raise ValueError(f"{pool} has no pairs to plan; run the stage crawl first")
    expected = disk.read_metadata(parts[0]).get("parts", len(parts))
    if len(parts) != expected:
        raise ValueError(
            f"{pool}/pairs has {len(parts)} of {expected} parts; "
            "run the stage crawl to its end first"
        )
    sizes: list[int] = []
    content = hashlib.sha256()
    keys = row_keys(_read_parts(parts, sizes, content))
    by_host = SOURCES[recipe.source.kind].images == "web"
    groups = host_groups(len(keys), recipe.fetch.rows_per_shard) if by_host else None
    metadata = {
        "version": PLAN_VERSION,
        "pairs": content.hexdigest()[:16],
        "recipe_hash": identity.recipe_hash(recipe),
        "recipe": identity.recipe_identity(recipe),
        "groups": groups,  # None: each shard is a group of its own
        "round": 0,
    }
    path = PoolLayout(pool).plan
    if disk.exists(path):
        _check_unchanged(disk.read_metadata(path), metadata, recipe, pool)
        return read_plan(pool)
    shards = plan_shards(
        keys, recipe.fetch.rows_per_shard, settings_hash(recipe.fetch), by_host=by_host
    )
    part = np.repeat(np.arange(len(parts)), sizes)
    row = np.concatenate([np.arange(size) for size in sizes])
    assigned = _assigned(shards, part, row, pa.nulls(len(keys), pa.string()))
    _write(path, parts, assigned, shards, metadata)
    logger.info("planned %d pairs as %d shards", len(keys), len(shards))
    return read_plan(pool)


def add_retries(pool: str, recipe: Recipe, keys: Sequence[str]) -> list[PlannedShard]:
    """A further round that fetches the rows of these keys again, and its shards.

    A key that an earlier round retries already is left out: that row is still to come, or it has a
    key of its own.
    """
    files = _files(pool)
    planned_keys: set[str] = set()
    for path in files[1:]:
        planned_keys.update(disk.read_parquet(path, ["retry_of"])["retry_of"].to_pylist())
    wanted = {(int(key[:-4]), int(key[-4:])): key for key in keys if key not in planned_keys}
    if not wanted:
        return []
    before = read_plan(pool)
    tables = []
    for shard in sorted({shard for shard, _ in wanted}):
        table = _shard_table(pool, shard, ["uid", "url", "part", "row", "position"])
        positions = table["position"].to_pylist()
        table = table.filter(pa.array([(shard, p) in wanted for p in positions], pa.bool_()))
        retried = [wanted[shard, p] for p in table["position"].to_pylist()]
        tables.append(table.append_column("retry_of", pa.array(retried, pa.string())))
    rows = pa.concat_tables(tables)
    if rows.num_rows != len(wanted):
        raise ValueError(
            f"{len(wanted) - rows.num_rows} of the keys to retry are not in the plan of {pool}"
        )
    metadata = {**disk.read_metadata(files[0]), "round": len(files)}
    shards = plan_shards(
        row_keys([rows]),
        recipe.fetch.rows_per_shard,
        settings_hash(recipe.fetch),
        by_host=metadata["groups"] is not None,
        groups=metadata["groups"],
        first_shard=len(before),
        retry_of=rows["retry_of"].to_pylist(),
    )
    assigned = _assigned(shards, rows["part"].to_numpy(), rows["row"].to_numpy(), rows["retry_of"])
    path = disk.join(pool, f"plan-retry-{len(files):03d}.parquet")
    _write(path, _parts(pool), assigned, shards, metadata)
    return read_plan(pool)[len(before) :]


# --- reading ---------------------------------------------------------------------------------


def read_plan(pool: str) -> list[PlannedShard]:
    """The shards of a pool in order, all rounds, without their rows.

    ValueError where there is no plan.
    """
    shards: list[PlannedShard] = []
    for path in _files(pool):
        for group, size, content_id in disk.read_metadata(path)["shards"]:
            shards.append(PlannedShard(shard=len(shards), group=group, id=content_id, size=size))
    return shards


def read_shard(pool: str, shard: int) -> tuple[list[Pair], list[str | None]]:
    """The pairs of one shard in fetch order, and for each the key of the row that it retries.

    Position i has the key f"{shard:05d}{i:04d}". ValueError where the plan has no such shard.
    """
    table = _shard_table(pool, shard)
    extra = table.column_names[len(PLAN) :]
    pairs, retried = [], []
    for row in table.to_pylist():
        own = {name: row[name] for name in PAIRS.names}
        pairs.append(Pair(**own, extra={name: row[name] for name in extra} or None))
        retried.append(row["retry_of"])
    return pairs, retried


def rows_of_shard(pool: str, shard: int) -> list[Pair]:
    """The pairs of one shard in fetch order."""
    return read_shard(pool, shard)[0]


def retries_of_shard(pool: str, shard: int) -> list[str | None]:
    """For each row of a shard the key of the row that it fetches again, or None."""
    return read_shard(pool, shard)[1]


def _parts(pool: str) -> list[str]:
    folder = PoolLayout(pool).pairs
    return [disk.join(folder, name) for name in disk.list_names(folder, ".parquet")]


def _read_parts(
    parts: Sequence[str], sizes: list[int], content: hashlib._Hash
) -> Iterator[pa.Table]:
    """uid and url of each part. Fills `sizes` and `content`, the hash over all uids."""
    for path in parts:
        table = disk.read_parquet(path, ["uid", "url"])
        sizes.append(table.num_rows)
        for batch in table.select(["uid"]).to_batches(max_chunksize=1 << 16):
            content.update("".join(batch["uid"].to_pylist()).encode())
        content.update(b"\n")
        yield table


def _files(pool: str) -> list[str]:
    plan = PoolLayout(pool).plan
    names = [name for name in disk.list_names(pool, ".parquet") if name.startswith("plan-retry-")]
    if not disk.exists(plan):
        raise ValueError(f"{pool} has no plan; run pipeline/build.py on its recipe first")
    return [plan, *(disk.join(pool, name) for name in names)]


def _shard_table(pool: str, shard: int, columns: list[str] | None = None) -> pa.Table:
    first = 0
    for path in _files(pool):
        first += len(disk.read_metadata(path)["shards"])
        if shard < first:
            return disk.read_parquet(path, columns, where=[("shard", "=", shard)])
    raise ValueError(f"{pool} has no shard {shard}; its plan has {first}, numbered from 0")


# --- parts of the writing ----------------------------------------------------------------------


def _assigned(
    shards: list[PlannedShard],
    part: Integers,
    row: Integers,
    retry_of: pa.Array | pa.ChunkedArray,
) -> pa.Table:
    """part, row, shard, position and retry_of of every planned row."""
    nothing = np.zeros(0, dtype=np.int64)
    rows = np.concatenate([nothing, *(shard.rows for shard in shards)])
    positions = np.concatenate([nothing, *(np.arange(shard.size) for shard in shards)])
    numbers = np.array([shard.shard for shard in shards], dtype=np.int32)
    return pa.table(
        {
            "part": pa.array(part[rows], pa.int32()),
            "row": pa.array(row[rows], pa.int64()),
            "shard": pa.array(np.repeat(numbers, [shard.size for shard in shards]), pa.int32()),
            "position": pa.array(positions, pa.int16()),
            "retry_of": retry_of.take(pa.array(rows)),
        }
    )


def _check_unchanged(
    planned: dict[str, Any], asked: dict[str, Any], recipe: Recipe, pool: str
) -> None:
    """ValueError that names what differs between the plan that is there and the one asked for."""
    remedy = f"give the old value back, or build into another folder than {pool}"
    changes = identity.recipe_changes(planned["recipe"], recipe)
    if changes:
        raise ValueError(
            f"the recipe has changed since this pool was planned ({'; '.join(changes)}): {remedy}"
        )
    if planned["pairs"] != asked["pairs"]:
        raise ValueError(
            f"the pairs in {pool}/pairs are not those that this pool was planned from "
            f"(now {asked['pairs']}, then {planned['pairs']}): {remedy}"
        )
    if planned["version"] != asked["version"]:
        raise ValueError(
            f"{pool} was planned by plan version {planned['version']}, this is version "
            f"{asked['version']}: finish it with the older program, or build into another folder"
        )


def _write(
    path: str,
    parts: list[str],
    assigned: pa.Table,
    shards: list[PlannedShard],
    metadata: dict[str, Any],
) -> None:
    """The pairs of `assigned` in its order, one row group per shard. The footer lists the shards.

    DuckDB sorts and spills to disk. `assigned` is held in memory, 30 bytes a row.
    """
    metadata = {**metadata, "shards": [[shard.group, shard.size, shard.id] for shard in shards]}
    extra = list(disk.read_schema(parts[0]))[len(PAIRS) :]
    schema = disk.with_metadata(pa.schema([*PLAN, *extra]), metadata)
    with tempfile.TemporaryDirectory(prefix="clipmill-plan-") as folder:
        ordered, staged = Path(folder) / "ordered.parquet", Path(folder) / "plan.parquet"
        _sort(ordered, folder, parts, assigned, [field.name for field in extra])
        with (
            pq.ParquetFile(ordered) as source,
            pq.ParquetWriter(staged, schema, compression="zstd") as writer,
        ):
            sizes = [shard.size for shard in shards]
            for table in _cut(source.iter_batches(), sizes, schema):
                writer.write_table(table, row_group_size=table.num_rows)
        disk.publish(staged, path)


def _sort(
    target: Path, folder: str, parts: list[str], assigned: pa.Table, extra: Sequence[str]
) -> None:
    """The pairs of `assigned` in its order, as Parquet in `target`.

    One scan over the list of parts: a scan per part needs memory for each, 2 GB for 2,500 of them.
    """
    files = pa.table({"filename": [_plain_path(name) for name in parts]})
    files = files.append_column("part", pa.array(range(len(parts)), pa.int32()))
    names = ", ".join(f"'{quoted(name)}'" for name in parts)
    columns = ", ".join(f"p.{name}" for name in PAIRS.names)
    extra_names = "".join(f', p."{name.replace(QUOTE, QUOTE * 2)}"' for name in extra)
    with database(folder, parts) as connection:
        connection.register("assigned", assigned)
        connection.register("files", files)
        connection.execute(
            f"COPY (SELECT {columns}, a.part, a.row, a.shard, a.position, a.retry_of{extra_names} "
            f"FROM read_parquet([{names}], filename = 'part_file', file_row_number = true) p "
            "JOIN files f ON f.filename = p.part_file "
            "JOIN assigned a ON a.part = f.part AND a.row = p.file_row_number "
            f"ORDER BY a.shard, a.position) TO '{quoted(str(target))}' (FORMAT parquet)"
        )


def _cut(
    batches: Iterator[pa.RecordBatch], sizes: Sequence[int], schema: pa.Schema
) -> Iterator[pa.Table]:
    """The rows of `batches` as tables of these sizes."""
    waiting = schema.empty_table()
    for size in sizes:
        while waiting.num_rows < size:
            batch = pa.Table.from_batches([next(batches)]).cast(schema)
            waiting = pa.concat_tables([waiting, batch])
        yield waiting.slice(0, size)
        waiting = waiting.slice(size)
    assert waiting.num_rows == 0
    assert next(batches, None) is None


@contextmanager
def database(folder: str, files: Sequence[str]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB in memory that spills into `folder` and reads `files`, remote ones by fsspec."""
    with duckdb.connect(config={"memory_limit": "2GB", "temp_directory": folder}) as connection:
        for protocol in sorted({name.split("://")[0] for name in files if disk.is_url(name)}):
            connection.register_filesystem(fsspec.filesystem(protocol))
        yield connection


def quoted(text: str) -> str:
    """The inside of an SQL string."""
    return _plain_path(text).replace("'", "''")


def _plain_path(path: str) -> str:
    return path.removeprefix("file://")
