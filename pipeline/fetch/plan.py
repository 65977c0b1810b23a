"""Pairs dealt into host groups and shards: which row is fetched by which task, fixed before anything is fetched.

The first half is pure. The second half writes the plan beside the pairs: POOL/plan.parquet holds every pair in the
order in which it is fetched, one row group per shard, so a task reads its rows with one ranged read and its ticket
carries a shard number only. Further rounds (`--retry`) add POOL/plan-retry-001.parquet and so on; a file is never
changed once it is written.
"""

from __future__ import annotations

import hashlib
import logging
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from manifests import disk
from manifests.columns import PAIRS
from manifests.schema import Fetch, Pair, Recipe
from pipeline.crawl import ascii_host

PLAN_VERSION = 2  # a change of order or of task ids bumps this and the golden test
MAX_GROUPS = 1024  # tasks that can run at a time; a host lives in one of them
ORDER_SEED = 20240229
PLAN = pa.schema(
    [
        *PAIRS,
        ("part", pa.int32()),  # of the pairs
        ("row", pa.int64()),  # in that part
        ("shard", pa.int32()),
        ("position", pa.int16()),  # in the shard
        ("retry_of", pa.string()),  # key of the row that this one asks for again
    ]
)
PLAIN_HOST = re.compile(
    r"https?://([a-z0-9-]+(?:\.[a-z0-9-]+)*)(?::[0-9]*)?(?:[/?#]|\Z)"
)  # 4 times faster
QUOTE = '"'
Integers = npt.NDArray[np.int64]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One shard to fetch. `rows` are row numbers of the pairs in fetch order; [] in a plan read back from disk."""

    shard: int
    group: int
    id: str  # content id: the uids of the rows in order, what they retry, and the fetch settings
    size: int
    rows: Integers = field(
        compare=False, repr=False, default_factory=lambda: np.zeros(0, dtype=np.int64)
    )


# --- pure ----------------------------------------------------------------------------------------------------------


def host_of(url: str) -> str:
    """Lower-case host of a URL without user, port or trailing dot, in its ASCII form; "" where it has none."""
    if plain := PLAIN_HOST.match(url):
        return plain[1]
    try:
        return ascii_host(urlsplit(url).hostname or "")
    except ValueError:  # such a URL is refused before anything is connected to
        return ""


def host_groups(rows: int, rows_per_shard: int) -> int:
    """How many groups the hosts are dealt into: clamp(rows // rows_per_shard, 1, 1024)."""
    return max(1, min(rows // rows_per_shard, MAX_GROUPS))


def group_of(host: str, groups: int) -> int:
    """The group of a host, in 0..groups-1."""
    return int(xxhash.xxh3_64_intdigest(host.encode("utf-8", "surrogatepass")) % groups)


def plan(
    pairs: pa.Table,
    rows_per_shard: int,
    settings: str = "",
    *,
    groups: int | None = None,
    first_shard: int = 0,
) -> list[Task]:
    """The shards of `pairs` (columns uid, url; and retry_of in a round of retries), numbered from `first_shard`.

    A row belongs to the group of its host; a row without one (a local file) is dealt by its uid, as nobody is asked.
    Inside a group rows are ordered by xxh3(uid), and a shard is the next `rows_per_shard` of them. `settings` is the
    hash of the fetch settings. The result depends on nothing else.
    """
    groups = groups or host_groups(pairs.num_rows, rows_per_shard)
    group, order = _dealt(pairs, groups)
    dealt = np.lexsort(
        (order, group)
    )  # stable: equal uids, which only a retry can have, stay in the order of the pairs
    bounds = np.searchsorted(group[dealt], np.arange(groups + 1))
    tasks: list[Task] = []
    for number in range(groups):
        for start in range(int(bounds[number]), int(bounds[number + 1]), rows_per_shard):
            rows = dealt[start : min(start + rows_per_shard, int(bounds[number + 1]))].astype(
                np.int64
            )
            content = hashlib.sha256(f"{PLAN_VERSION}\n{settings}\n".encode())
            content.update("\n".join(pairs["uid"].take(rows).to_pylist()).encode())
            if "retry_of" in pairs.column_names:
                content.update("\n".join(["", *pairs["retry_of"].take(rows).to_pylist()]).encode())
            shard = first_shard + len(tasks)
            tasks.append(
                Task(
                    shard=shard,
                    group=number,
                    id=content.hexdigest()[:16],
                    size=len(rows),
                    rows=rows,
                )
            )
    return tasks


def _dealt(pairs: pa.Table, groups: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.uint64]]:
    """Group and place in the group's order, row by row."""
    group = np.zeros(pairs.num_rows, dtype=np.int16)
    order = np.zeros(pairs.num_rows, dtype=np.uint64)
    row = 0
    for batch in pairs.select(["uid", "url"]).to_batches(max_chunksize=1 << 16):
        for uid, url in zip(batch["uid"].to_pylist(), batch["url"].to_pylist(), strict=True):
            group[row] = group_of(host_of(url) or uid, groups)
            order[row] = xxhash.xxh3_64_intdigest(uid.encode(), seed=ORDER_SEED)
            row += 1
    return group, order


def settings_of(fetch: Fetch) -> str:
    """Hash of the fetch settings that decide what is stored."""
    return disk.content_hash(disk.settings_that_decide_bytes(fetch))


# --- on disk -------------------------------------------------------------------------------------------------------


def write_plan(pool: str, recipe: Recipe) -> list[Task]:
    """Plan a pool's pairs, or read the plan that is there.

    ValueError where a plan is there that was made of another recipe or of other pairs: names what changed.
    """
    parts = _parts(pool)
    if not parts:
        raise ValueError(f"{pool} has no pairs to plan; run the stage crawl first")
    expected = disk.read_metadata(parts[0]).get("parts", len(parts))
    if len(parts) != expected:
        raise ValueError(
            f"{pool}/pairs has {len(parts)} of {expected} parts; run the stage crawl to its end first"
        )
    tables = [disk.read_parquet(path, ["uid", "url"]) for path in parts]
    notes = {
        "version": PLAN_VERSION,
        "pairs": _pairs_hash(tables),
        "recipe_hash": disk.recipe_hash(recipe),
        "recipe": {"source": recipe.source, "fetch": disk.settings_that_decide_bytes(recipe.fetch)},
        "groups": host_groups(sum(t.num_rows for t in tables), recipe.fetch.rows_per_shard),
        "round": 0,
    }
    if disk.exists(disk.join(pool, "plan.parquet")):
        _same(disk.read_metadata(disk.join(pool, "plan.parquet")), disk.to_plain(notes), pool)
        return read_plan(pool)
    whole = pa.concat_tables(tables)
    tasks = plan(whole, recipe.fetch.rows_per_shard, settings_of(recipe.fetch))
    part = np.repeat(np.arange(len(tables)), [t.num_rows for t in tables])
    row = np.concatenate([np.arange(t.num_rows) for t in tables])
    where = _assigned(tasks, part, row, pa.nulls(whole.num_rows, pa.string()))
    _write(disk.join(pool, "plan.parquet"), parts, where, tasks, notes)
    logger.info("planned %d pairs as %d shards", whole.num_rows, len(tasks))
    return read_plan(pool)


def add_retries(pool: str, recipe: Recipe, keys: Sequence[str]) -> list[Task]:
    """A further round that asks again for the rows of these keys, and its tasks.

    A key that an earlier round asks for already is left out: that row is still to come, or has a key of its own.
    """
    files = _files(pool)
    asked = {
        key
        for path in files[1:]
        for key in disk.read_parquet(path, ["retry_of"])["retry_of"].to_pylist()
    }
    keys = [key for key in keys if key not in asked]
    if not keys:
        return []
    before = read_plan(pool)
    wanted = {(int(key[:-4]), int(key[-4:])): key for key in keys}
    found = []
    for shard in sorted({shard for shard, _ in wanted}):
        table = _shard_table(pool, shard, ["uid", "url", "part", "row", "position"])
        mask = pa.array([(shard, p) in wanted for p in table["position"].to_pylist()], pa.bool_())
        table = table.filter(mask)
        retried = [wanted[shard, p] for p in table["position"].to_pylist()]
        found.append(table.append_column("retry_of", pa.array(retried, pa.string())))
    whole = pa.concat_tables(found)
    if whole.num_rows != len(wanted):
        raise ValueError(
            f"{len(wanted) - whole.num_rows} of the keys to retry are not in the plan of {pool}"
        )
    notes = {**disk.read_metadata(files[0]), "round": len(files)}
    tasks = plan(
        whole,
        recipe.fetch.rows_per_shard,
        settings_of(recipe.fetch),
        groups=notes["groups"],
        first_shard=len(before),
    )
    where = _assigned(tasks, whole["part"].to_numpy(), whole["row"].to_numpy(), whole["retry_of"])
    _write(
        disk.join(pool, f"plan-retry-{len(files):03d}.parquet"), _parts(pool), where, tasks, notes
    )
    return read_plan(pool)[len(before) :]


def read_plan(pool: str) -> list[Task]:
    """The tasks of a pool in shard order, all rounds, without their rows. ValueError where there is no plan."""
    tasks: list[Task] = []
    for path in _files(pool):
        for group, size, name in disk.read_metadata(path)["shards"]:
            tasks.append(Task(shard=len(tasks), group=group, id=name, size=size))
    return tasks


def rows_of_shard(pool: str, shard: int) -> list[Pair]:
    """The pairs of one shard in fetch order: position i has the key f"{shard:05d}{i:04d}"."""
    extra = extra_columns(pool)
    rows = _shard_table(pool, shard, [*PAIRS.names, *extra]).to_pylist()
    return [
        Pair(
            **{name: row[name] for name in PAIRS.names},
            extra={name: row[name] for name in extra} or None,
        )
        for row in rows
    ]


def extra_columns(pool: str) -> list[str]:
    """The columns of a pool's pairs that its source brought along."""
    names: list[str] = disk.read_schema(_parts(pool)[0]).names
    return names[len(PAIRS) :]


def retries_of_shard(pool: str, shard: int) -> list[str | None]:
    """For each row of a shard the key of the row that it asks for again, or None."""
    keys: list[str | None] = _shard_table(pool, shard, ["retry_of"])["retry_of"].to_pylist()
    return keys


def _parts(pool: str) -> list[str]:
    return [
        disk.join(pool, "pairs", name)
        for name in disk.list_names(disk.join(pool, "pairs"), ".parquet")
    ]


def _files(pool: str) -> list[str]:
    names = [n for n in disk.list_names(pool, ".parquet") if n.startswith("plan-retry-")]
    if not disk.exists(disk.join(pool, "plan.parquet")):
        raise ValueError(f"{pool} has no plan; run pipeline/build.py on its recipe first")
    return [disk.join(pool, name) for name in ["plan.parquet", *names]]


def _shard_table(pool: str, shard: int, columns: list[str]) -> pa.Table:
    first = 0
    for path in _files(pool):
        first += len(disk.read_metadata(path)["shards"])
        if shard < first:
            return disk.read_parquet(path, columns, where=[("shard", "=", shard)])
    raise ValueError(f"{pool} has no shard {shard}; its plan has {first}, numbered from 0")


def _pairs_hash(tables: Sequence[pa.Table]) -> str:
    """Hash of the uids of all parts in order."""
    content = hashlib.sha256()
    for table in tables:
        for batch in table.select(["uid"]).to_batches(max_chunksize=1 << 16):
            content.update("".join(batch["uid"].to_pylist()).encode())
        content.update(b"\n")
    return content.hexdigest()[:16]


def _assigned(
    tasks: list[Task], part: Integers, row: Integers, retry_of: pa.Array | pa.ChunkedArray
) -> pa.Table:
    """part, row, shard, position and retry_of of every planned row."""
    nothing = np.zeros(0, dtype=np.int64)
    rows = np.concatenate([nothing, *(task.rows for task in tasks)])
    shards = np.array([task.shard for task in tasks], dtype=np.int32)
    return pa.table(
        {
            "part": pa.array(part[rows], pa.int32()),
            "row": pa.array(row[rows], pa.int64()),
            "shard": pa.array(np.repeat(shards, [t.size for t in tasks]), pa.int32()),
            "position": pa.array(
                np.concatenate([nothing, *(np.arange(t.size) for t in tasks)]), pa.int16()
            ),
            "retry_of": retry_of.take(rows),
        }
    )


def _same(there: dict[str, Any], wanted: dict[str, Any], pool: str) -> None:
    """ValueError that names what differs between the plan that is there and the one that is asked for."""
    mend = f"give the old value back, or build into another folder than {pool}"
    if there["recipe_hash"] != wanted["recipe_hash"]:
        changes = [
            f"{block}.{key} was {there['recipe'][block].get(key)!r} and is {value!r}"
            for block in ("source", "fetch")
            for key, value in wanted["recipe"][block].items()
            if there["recipe"][block].get(key) != value
        ]
        raise ValueError(
            f"the recipe has changed since this pool was planned ({'; '.join(changes)}): {mend}"
        )
    if there["pairs"] != wanted["pairs"]:
        raise ValueError(
            f"the pairs in {pool}/pairs are not those that this pool was planned from "
            f"(now {wanted['pairs']}, then {there['pairs']}): {mend}"
        )
    if there["version"] != wanted["version"]:
        raise ValueError(
            f"{pool} was planned by plan version {there['version']}, this is version {wanted['version']}: "
            "finish it with the older program, or build into another folder"
        )


def _write(
    path: str, parts: list[str], where: pa.Table, tasks: list[Task], notes: dict[str, Any]
) -> None:
    """The pairs of `where` in its order, one row group per shard; the tasks go into the footer.

    The sort is DuckDB's, which spills to disk: what is held in memory is `where`, 30 bytes a row.
    """
    notes = {**notes, "shards": [[task.group, task.size, task.id] for task in tasks]}
    extra = list(disk.read_schema(parts[0]))[len(PAIRS) :]
    schema = disk.with_metadata(pa.schema([*PLAN, *extra]), notes)
    with tempfile.TemporaryDirectory(prefix="clipmill-plan-") as folder:
        ordered, staged = Path(folder) / "ordered.parquet", Path(folder) / "plan.parquet"
        with database(folder, parts) as connection:
            connection.register("planned", where)
            pairs = " UNION ALL ".join(
                f"SELECT {part} AS part, file_row_number AS row, * FROM read_parquet('{quoted(name)}', "
                "file_row_number = true)"
                for part, name in enumerate(parts)
            )
            columns = ", ".join(f"p.{name}" for name in PAIRS.names)
            behind = "".join(f', p."{field.name.replace(QUOTE, QUOTE * 2)}"' for field in extra)
            connection.execute(
                f"COPY (SELECT {columns}, w.part, w.row, w.shard, w.position, w.retry_of{behind} FROM ({pairs}) p "
                "JOIN planned w ON p.part = w.part AND p.row = w.row ORDER BY w.shard, w.position) "
                f"TO '{quoted(str(ordered))}' (FORMAT parquet)"
            )
        sizes = [task.size for task in tasks]
        with (
            pq.ParquetFile(ordered) as source,
            pq.ParquetWriter(staged, schema, compression="zstd") as writer,
        ):
            for table in _cut(source.iter_batches(), sizes, schema):
                writer.write_table(table, row_group_size=table.num_rows)
        disk.publish(staged, path)


def _cut(
    batches: Iterator[pa.RecordBatch], sizes: Sequence[int], schema: pa.Schema
) -> Iterator[pa.Table]:
    """The rows of `batches` as tables of these sizes."""
    held = schema.empty_table()
    for size in sizes:
        while held.num_rows < size:
            held = pa.concat_tables([held, pa.Table.from_batches([next(batches)]).cast(schema)])
        yield held.slice(0, size)
        held = held.slice(size)
    assert held.num_rows == 0
    assert next(batches, None) is None


@contextmanager
def database(folder: str, files: Sequence[str]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB in memory that spills into `folder` and can read `files`, remote ones through fsspec."""
    with duckdb.connect(config={"memory_limit": "2GB", "temp_directory": folder}) as connection:
        for protocol in sorted({name.split("://")[0] for name in files if disk.is_url(name)}):
            connection.register_filesystem(fsspec.filesystem(protocol))
        yield connection


def quoted(text: str) -> str:
    """The inside of an SQL string."""
    return text.removeprefix("file://").replace("'", "''")
