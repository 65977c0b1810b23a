"""The external shuffle of a plan, as the work of three kinds of tickets.

sort: some rows of the pairs, or the rows of some shards that are retried, become a sorted run.
slice: where a group is too large for one ticket, the slices of its order keys are found in a run.
merge: the same cells of every run become one file of the plan, one row group a shard.

No ticket holds more than the rows of one run or one file. What a ticket leaves is a function of the
pairs and the settings, so a ticket that was stopped is simply run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk
from manifests.columns import PAIRS, with_extra
from manifests.pool_layout import PoolLayout
from pipeline.crawl import rows_between
from pipeline.exchange import NUMBER, Run, read_index, read_keys, read_rows, write_run
from pipeline.executor import Ticket, Work
from pipeline.planning.assignment import Cells, slice_bounds
from pipeline.planning.host_groups import shard_id
from pipeline.planning.keys import host_hashes, order_keys
from pipeline.planning.plan_files import LOCKED, PLAN, Round, read_shard_table, shards_file
from pipeline.pool import check_fence, publish_new, read_sidecar

KEYS_PER_SHARD = 10_000  # a key is the number shard * KEYS_PER_SHARD + position
ADDED = ("shard", "position")  # columns of PLAN that a run does not have
Config = dict[str, Any]
Integers = npt.NDArray[np.int64]


def run_of(config: Config, number: int) -> Run:
    """One of the runs of a job."""
    return Run(config["scratch"], config["job"], number)


def plan_schema(config: Config) -> pa.Schema:
    """The columns of the plan of this job: PLAN, the extra ones, and those of a lock."""
    extra = list(with_extra(PAIRS, config["extra_columns"]))[len(PAIRS) :]
    return pa.schema([*PLAN, *extra, *(LOCKED if config["locked"] else ())])


def run_schema(config: Config) -> pa.Schema:
    """The columns of a run. Texts have 64-bit offsets: a run may have more than 2 GB of them."""
    fields = []
    for field in plan_schema(config):
        if field.name not in ADDED:
            text = pa.types.is_string(field.type)
            fields.append(field.with_type(pa.large_string()) if text else field)
    return pa.schema(fields)


# --- sort ---------------------------------------------------------------------------------------


def sort_pairs(config: Config) -> Work:
    """Factory: rows of the parts become a run. Payload: number, ranges of (part, start, stop)."""
    schema = run_schema(config)

    def work(ticket: Ticket) -> dict[str, Any]:
        tables = [schema.empty_table()]
        for part, start, stop in ticket.payload["ranges"]:
            path = PoolLayout(config["pool"]).pairs_part(part)
            tables += _pairs_between(path, part, start, stop, schema)
        return {"rows": _write(config, ticket.payload["number"], tables)}

    return work


def _pairs_between(
    path: str, part: int, start: int, stop: int, schema: pa.Schema
) -> Iterator[pa.Table]:
    columns = [name for name in schema.names if name not in ("part", "row", "retry_of")]
    row = start
    for batch in rows_between(path, start, stop, columns):
        if missing := set(columns) - set(batch.schema.names):
            raise ValueError(f"{path} has no column {min(missing)!r}; run the stage crawl again")
        count = batch.num_rows
        values = {name: batch[name] for name in columns}
        values["part"] = pa.array(np.full(count, part, np.int32))
        values["row"] = pa.array(np.arange(row, row + count))
        values["retry_of"] = pa.nulls(count, pa.string())
        yield pa.table({name: values[name] for name in schema.names}).cast(schema)
        row += count
    assert row == stop, f"{path} has {row} rows, not {stop}"


def sort_retries(config: Config) -> Work:
    """Factory: rows of shards that are to be retried become a run. Payload: number, shards.

    They are the rows of `config["keys"]`; where that is None, the transient rows of the shards.
    Rows that an earlier round retries are left out. The keys are left beside the run.
    """
    schema = run_schema(config)
    rounds = [Round(**each) for each in config["rounds"]]
    asked = None if config["keys"] is None else np.array(config["keys"], dtype=np.int64)

    def work(ticket: Ticket) -> dict[str, Any]:
        shards = ticket.payload["shards"]
        done = retried_keys(rounds, shards[0], shards[-1])
        tables, keys = [schema.empty_table()], [np.zeros(0, np.int64)]
        for shard in shards:
            wanted = asked if asked is not None else _transient_keys(config["pool"], shard)
            wanted = wanted[wanted // KEYS_PER_SHARD == shard]
            wanted = wanted[~np.isin(wanted, done)]
            if len(wanted):
                positions = pa.array(wanted % KEYS_PER_SHARD)
                rows = read_shard_table(config["pool"], shard, rounds).take(positions)
                texts = pa.array([f"{key:09d}" for key in wanted.tolist()], pa.string())
                rows = rows.set_column(rows.schema.get_field_index("retry_of"), "retry_of", texts)
                tables.append(rows.select(schema.names).cast(schema))
                keys.append(wanted)
        number = ticket.payload["number"]
        check_fence(config["pool"], config.get("fence"))
        disk.write_bytes(
            run_of(config, number).path("retried"), np.concatenate(keys).astype(NUMBER).tobytes()
        )
        return {"rows": _write(config, number, tables)}

    return work


def _transient_keys(pool: str, shard: int) -> Integers:
    """The keys of a committed shard's rows that may succeed when they are asked for again."""
    classes = read_sidecar(pool, shard, ["class"])["class"]
    transient = pc.fill_null(pc.equal(classes, "transient"), False).to_numpy()
    return np.flatnonzero(transient).astype(np.int64) + shard * KEYS_PER_SHARD


def retried_keys(rounds: list[Round], first: int, last: int) -> Integers:
    """The keys of shards `first` to `last` that a round retries already, ascending."""
    keys = [np.zeros(0, np.int64)]
    for each in rounds[1:]:
        if each.is_first_form:
            texts = disk.read_parquet(each.path, ["retry_of"])["retry_of"]
            keys.append(pc.cast(texts, pa.int64()).to_numpy())
            continue
        low, high = first * KEYS_PER_SHARD, (last + 1) * KEYS_PER_SHARD
        where = [("key", ">=", low), ("key", "<", high)]
        table = disk.read_parquet(disk.join(each.path, "retried.parquet"), ["key"], where)
        keys.append(table["key"].to_numpy())
    return np.unique(np.concatenate(keys))


def _write(config: Config, number: int, tables: list[pa.Table]) -> int:
    """Write the rows of some tables as a run; their number. The list is emptied."""
    table = pa.concat_tables(tables).combine_chunks()
    tables.clear()
    batches = table.select(["url", "uid"]).to_batches()
    hashes = [host_hashes(batch["url"], batch["uid"]) for batch in batches]
    orders = [order_keys(batch["uid"]) for batch in batches]
    nothing = np.zeros(0, np.uint64)
    count = config["group_count"]
    groups = (np.concatenate([nothing, *hashes]) % np.uint64(count)).astype(np.int64)
    keys = np.concatenate([nothing, *orders])
    check_fence(config["pool"], config.get("fence"))
    with disk.scratch_folder("clipmill-plan-") as folder:
        write_run(run_of(config, number), table, groups, keys, count, folder)
    return len(groups)


# --- slice --------------------------------------------------------------------------------------


def slice_groups(config: Config) -> Work:
    """Factory: where the cells of a run begin. Payload: number."""
    slices = np.array(config["slices"], dtype=np.int64)

    def work(ticket: Ticket) -> dict[str, Any]:
        run = run_of(config, ticket.payload["number"])
        bounds = read_index(run).groups
        starts = []
        for group, count in enumerate(slices.tolist()):
            first, end = int(bounds[group]), int(bounds[group + 1])
            starts.append(np.array([first], NUMBER))
            if count > 1:
                keys = read_keys(run, first, end)
                starts.append(np.searchsorted(keys, slice_bounds(count)).astype(NUMBER) + first)
        starts.append(bounds[-1:])
        check_fence(config["pool"], config.get("fence"))
        disk.write_bytes(run.path("cells"), np.concatenate(starts).tobytes())
        return {}

    return work


def cell_bounds(run: Run, is_sliced: bool) -> Integers:
    """(cells + 1,) where the cells of a run begin, in rows."""
    if is_sliced:
        return np.frombuffer(disk.read_bytes(run.path("cells")), NUMBER)
    return read_index(run).groups


# --- merge --------------------------------------------------------------------------------------


def merge_runs(config: Config) -> Work:
    """Factory: some cells of all runs become a file of the plan. Payload: number, a FilePart."""
    schema = plan_schema(config)
    slices = np.array(config["slices"], dtype=np.int64)
    cells = Cells(groups=np.repeat(np.arange(len(slices)), slices), slices=slices)

    def work(ticket: Ticket) -> dict[str, Any]:
        part = ticket.payload
        table, order = _sorted_rows(config, cells, part["first_cell"], part["end_cell"])
        ids = []
        path = shards_file(config["folder"], part["number"])
        with disk.scratch_folder("clipmill-plan-") as scratch:
            staged = Path(scratch) / "shards.parquet"
            with disk.parquet_writer(
                staged, schema, compression="zstd", write_statistics=False, write_page_checksum=True
            ) as writer:
                start = part["skip"]
                for position, size in enumerate(part["sizes"]):
                    shard = config["first_shard"] + part["first_shard"] + position
                    rows = table.take(pa.array(order[start : start + size]))
                    assert rows.num_rows == size
                    rows = _with_places(rows, shard).select(schema.names).cast(schema)
                    retried = rows["retry_of"].combine_chunks() if config["round"] else None
                    uids = rows["uid"].combine_chunks()
                    ids.append(shard_id(uids, retried, config["settings"]))
                    writer.write_table(rows, row_group_size=size)
                    start += size
                metadata = {**part, "ids": ids, "job": config["job"]}
                footer = disk.with_metadata(schema, metadata).metadata
                writer.add_key_value_metadata(footer)
            publish_new(config["pool"], staged, path, config.get("fence"))
        return {}

    return work


def _with_places(rows: pa.Table, shard: int) -> pa.Table:
    """The rows of a shard with its number and their positions."""
    numbers = pa.array(np.full(rows.num_rows, shard, np.int32))
    positions = pa.array(np.arange(rows.num_rows, dtype=np.int16))
    return rows.append_column("shard", numbers).append_column("position", positions)


def _sorted_rows(
    config: Config, cells: Cells, first: int, end: int
) -> tuple[pa.Table, npt.NDArray[np.intp]]:
    """The rows of some cells of all runs, and the order that sorts them by (group, order key)."""
    is_sliced = len(cells.groups) > len(cells.slices)
    schema = run_schema(config)
    batches: list[pa.RecordBatch] = []
    keys, groups = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for number in range(config["runs"]):
        run = run_of(config, number)
        index = read_index(run)
        bounds = cell_bounds(run, is_sliced) if is_sliced else index.groups
        start, stop = int(bounds[first]), int(bounds[end])
        if start == stop:
            continue
        batches += read_rows(run, index, start, stop)
        keys.append(read_keys(run, start, stop))
        groups.append(np.repeat(cells.groups[first:end], np.diff(bounds[first : end + 1])))
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    batches.clear()
    # Stable: equal uids, which only a round of retries can have, stay in the order of the pairs.
    return table, np.lexsort((np.concatenate(keys), np.concatenate(groups)))
