"""The stage plan: pairs to shards in fetch order by a shuffle on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from clipmill.manifests import disk, identity
from clipmill.manifests.arrays import Hashes, Integers, Mask
from clipmill.manifests.columns import LOCKED, PAIRS, PLAN, REASONS, with_extra
from clipmill.manifests.commits import in_threads, read_commits
from clipmill.manifests.hashes import text_hashes
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.pool import Pool
from clipmill.manifests.ray_runtime import Engine
from clipmill.manifests.schema import SOURCES, Fetch, Recipe
from clipmill.pipeline.archives.urls import host_of
from clipmill.pipeline.crawl.crawler import Block, block_of
from clipmill.pipeline.crawl.parts import read_parts, rows_between
from clipmill.pipeline.database import select, stream
from clipmill.pipeline.executor.tickets import Ticket, Work
from clipmill.pipeline.planning.plan_files import (
    PLAN_VERSION,
    SHARDS,
    PlanDocument,
    Round,
    check_unchanged,
    host_groups,
    is_planned,
    pairs_hash,
    plan_json,
    read_plan,
    read_rounds,
    read_shard_table,
    shard_id,
    shards_file,
)
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.shuffle import (
    PLACE,
    THREADS,
    Exchange,
    ShardUnit,
    Step,
    are_there,
    run_steps,
)
from clipmill.pipeline.table_files import row_of_address

# --------------------------------------------------------------------------------------------------
# Rows of each group to shards, and shards to the files of the plan. Pure.


KEY_BITS = 54  # of an order key in a place; the 10 above them are those of a group
SLICES_PER_FILE = 16  # of a group that is too large for one file
SHARDS_PER_FILE = 256  # a reader of a file reads a footer that grows with them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanFile:
    """What one file of the plan holds: consecutive shards of a round."""

    number: int
    first_shard: int
    groups: Sequence[int] | Integers  # of each shard
    sizes: Sequence[int] | Integers  # rows of each shard

    def plain(self) -> dict[str, object]:
        """As the footer of the file has it."""
        lists = {"groups": [*map(int, self.groups)], "sizes": [*map(int, self.sizes)]}
        return {**disk.to_plain(self), **lists}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FilePart(PlanFile):
    """One out of consecutive cells, the payload of a ticket of merge.

    The rows of the cells are sorted; the first `skip` of them belong to earlier files.
    """

    end_shard: int
    first_cell: int
    end_cell: int
    skip: int


def cell_bounds(group_rows: Integers, rows_per_file: int) -> list[int]:
    """The places where cells begin, and the end: a cell is a group, or a slice of about
    rows_per_file / SLICES_PER_FILE rows of a large one."""
    bounds = []
    for group, rows in enumerate(group_rows.tolist()):
        slices = -(-rows * SLICES_PER_FILE // rows_per_file) if rows > rows_per_file else 1
        for number in range(slices):
            bounds.append((group << KEY_BITS) + (number << KEY_BITS) // slices)
    return [*bounds, len(group_rows) << KEY_BITS]


def shard_sizes(group_rows: Integers, rows_per_shard: int) -> tuple[Integers, Integers]:
    """(group, rows) of each shard: a shard is the next rows of one group, the last may be short."""
    counts = -(-group_rows // rows_per_shard)
    groups = np.repeat(np.arange(len(group_rows)), counts)
    sizes = np.full(len(groups), rows_per_shard, dtype=np.int64)
    last = np.cumsum(counts)[group_rows > 0] - 1
    remainders = group_rows - (counts - 1) * rows_per_shard
    sizes[last] = remainders[group_rows > 0]
    return groups, sizes


def file_parts(
    groups: Integers, sizes: Integers, cell_rows: Integers, rows_per_file: int
) -> list[FilePart]:
    """What each file of a plan holds: shards of at most `rows_per_file` rows, at least one shard.

    groups, sizes: (shards,) the group and the rows of each shard. cell_rows: (cells,) rows of each
    cell, in all runs.
    """
    assert sizes.sum() == cell_rows.sum(), f"{sizes.sum()} rows in {cell_rows.sum()} of the cells"
    row_bounds = np.concatenate([[0], np.cumsum(sizes)])
    cell_bounds = np.concatenate([[0], np.cumsum(cell_rows)])
    parts: list[FilePart] = []
    first = 0
    while first < len(sizes):
        end = int(np.searchsorted(row_bounds, row_bounds[first] + rows_per_file, "right")) - 1
        end = min(max(end, first + 1), first + SHARDS_PER_FILE)
        cell = int(np.searchsorted(cell_bounds, row_bounds[first], "right")) - 1
        parts.append(
            FilePart(
                number=len(parts),
                first_shard=first,
                groups=groups[first:end],  # no copies: a plan may have millions of shards
                sizes=sizes[first:end],
                end_shard=end,
                first_cell=cell,
                end_cell=int(np.searchsorted(cell_bounds, row_bounds[end], "left")),
                skip=int(row_bounds[first] - cell_bounds[cell]),
            )
        )
        first = end
    return parts


# --------------------------------------------------------------------------------------------------
# The keys that decide where a row is planned: the hash of its host, and its order among others.
#
# Pure, and by column: Python sees each host of a table once.


ORDER_SEED = 20240229
ROW_BITS = 20  # of the key of a row that lies in a row group
# `urls.PLAIN_HOST` in RE2's syntax, where $ is the end of the text.
PLAIN_HOST_RE2 = r"^https?://(?P<host>[a-z0-9-]+(?:\.[a-z0-9-]+)*)(?::[0-9]*)?(?:[/?#]|$)"


def host_hash(host: str) -> int:
    """Hash of a host name. Its remainder by the number of groups is the host's group."""
    return int(xxhash.xxh3_64_intdigest(host.encode("utf-8", "surrogatepass")))


def host_hashes(urls: pa.Array, uids: pa.Array) -> Hashes:
    """(rows,) `host_hash` of each URL's host; of the uid where a URL has no host."""
    hosts = pc.struct_field(pc.extract_regex(urls, PLAIN_HOST_RE2), "host")
    unusual = np.flatnonzero(pc.is_null(hosts).to_numpy(zero_copy_only=False))
    encoded = hosts.dictionary_encode()
    by_host = [host_hash(host) for host in encoded.dictionary.to_pylist()]
    indices = pc.fill_null(encoded.indices, 0).to_numpy()
    hashes: Hashes = np.array([*by_host, 0], dtype=np.uint64)[indices]
    if len(unusual):
        _hash_unusual(hashes, unusual, urls, uids)
    return hashes


def _hash_unusual(
    hashes: Hashes, rows: npt.NDArray[np.intp], urls: pa.Array, uids: pa.Array
) -> None:
    """Set the hashes of rows whose URL needs a parser, or has no host."""
    encoded = urls.take(pa.array(rows)).dictionary_encode()
    hosts = [host_of(url) for url in encoded.dictionary.to_pylist()]
    by_url = np.array([host_hash(host) if host else 0 for host in hosts], dtype=np.uint64)
    has_host = np.array([bool(host) for host in hosts], dtype=bool)
    indices = encoded.indices.to_numpy()
    hashes[rows] = by_url[indices]
    without = rows[~has_host[indices]]
    if len(without):
        hashes[without] = text_hashes(uids.take(pa.array(without)).to_pylist())


def order_keys(uids: pa.Array) -> Hashes:
    """(rows,) xxh3(uid): the order of rows inside a group."""
    return text_hashes(uids.to_pylist(), ORDER_SEED)


def row_keys(addresses: pa.Array) -> Hashes:
    """(rows,) the order of rows that lie in Parquet files: row groups by the xxh3 of their address,
    and the rows of one together, so that each is read once. 44 bits are of the row group."""
    keys = []
    for address in addresses.to_pylist():
        path, group, row = row_of_address(address)
        number = xxhash.xxh3_64_intdigest(f"{path}#{group}".encode(), seed=ORDER_SEED)
        keys.append(number >> ROW_BITS << ROW_BITS | min(row, (1 << ROW_BITS) - 1))
    return np.array(keys, np.uint64)


# --------------------------------------------------------------------------------------------------
# The shuffle of a plan, as the work of three kinds of tickets.
#
# sort: some rows of the pairs, or the rows of some shards that are retried, become a file of the
# exchange: a row's place is its group, then the first bits of its order key. slice: where a group
# is too large for one ticket, the rows of each slice of its order keys are counted. merge: the rows
# of some cells become one file of the plan, one row group a shard.
#
# What a ticket leaves is a function of the pairs and the settings, so a ticket that was stopped is
# simply run again.


KEYS_PER_SHARD = 10_000  # a key is the number shard * KEYS_PER_SHARD + position
ORDER = "__order_key"
RETRY_OF, RETRIED = pa.schema([("retry_of", pa.string())]), pa.schema([("key", pa.int64())])
ADDED = ("shard", "position")  # columns of PLAN that the rows of the exchange do not have
NUMBERED = ("part", "row", *ADDED)  # and those that a lock does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanJob:
    """What all tickets of a round have in common."""

    out: PoolWriter
    recipe: Recipe
    id: str  # of what decides the files
    round: int
    is_retry: bool
    groups: int | None  # of hosts; None where each shard is a group of its own
    first_shard: int
    rows_per_file: int
    rounds: tuple[Round, ...] = ()  # before this one, where it is one of retries
    runs: int = 0  # files of the exchange
    bounds: tuple[int, ...] = ()  # of slice and merge: cell_bounds

    @property
    def folder(self) -> str:
        """Where the files of the plan are."""
        return self.out.layout.plan_round(self.round)

    @property
    def group_count(self) -> int:
        """How many groups the places of the exchange have."""
        return self.groups or 1

    @property
    def exchange(self) -> Exchange:
        """The files between sort and merge."""
        folder = _scratch(self.out.layout)
        return Exchange(out=self.out, folder=folder, name=self.id, files=self.runs)

    @property
    def plan_schema(self) -> pa.Schema:
        """The columns of the plan: PLAN, the extra ones, and those of a lock."""
        source = self.recipe.source
        extra = list(with_extra(PAIRS, source.extra_columns))[len(PAIRS) :]
        return pa.schema([*PLAN, *extra, *(LOCKED if source.kind == "lock" else ())])

    @property
    def run_schema(self) -> pa.Schema:
        """The columns of a row before it has a shard. Texts have 64-bit offsets: a ticket may have
        more than 2 GB of them."""
        fields = []
        for field in self.plan_schema:
            if field.name not in ADDED:
                text = pa.types.is_string(field.type)
                fields.append(field.with_type(pa.large_string()) if text else field)
        return pa.schema(fields)


# --- sort ---------------------------------------------------------------------------------------


def sort_pairs(job: PlanJob) -> Work:
    """Factory: rows of the parts become a run."""
    schema = job.run_schema

    def work(ticket: Ticket) -> None:
        block: Block = ticket.payload
        tables = [schema.empty_table()]
        for part, start, stop in block.ranges:
            path = job.out.layout.pairs_part(part)
            tables += _pairs_between(path, part, start, stop, schema)
        _write(job, block.number, tables)

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


def sort_retries(job: PlanJob) -> Work:
    """Factory: rows of shards that are to be retried become a run.

    They are the transient rows of the shards; those that an earlier round retries are left out.
    """
    schema, layout, rounds = job.run_schema, job.out.layout, job.rounds

    def work(ticket: Ticket) -> None:
        unit: ShardUnit = ticket.payload
        shards = unit.shards
        done = retried_keys(rounds, shards[0], shards[-1])
        tables = [schema.empty_table()]
        for shard in shards:
            wanted = np.setdiff1d(_transient_keys(layout, shard), done)
            if len(wanted):
                positions = pa.array(wanted % KEYS_PER_SHARD)
                rows = read_shard_table(layout, shard, rounds).take(positions)
                texts = pa.array([f"{key:09d}" for key in wanted.tolist()], pa.string())
                rows = rows.set_column(rows.schema.get_field_index("retry_of"), "retry_of", texts)
                tables.append(rows.select(schema.names).cast(schema))
        _write(job, unit.number, tables)

    return work


def _transient_keys(layout: PoolLayout, shard: int) -> Integers:
    """The keys of a committed shard's rows that may succeed when they are asked for again."""
    classes = Pool.of_tickets(layout.root).of_shards(shard).read(shard, ["class"])["class"]
    transient = pc.fill_null(pc.equal(classes, "transient"), False).to_numpy()
    return np.flatnonzero(transient).astype(np.int64) + shard * KEYS_PER_SHARD


def retried_keys(rounds: Sequence[Round], first: int, last: int) -> Integers:
    """The keys of shards `first` to `last` that a round retries already, ascending."""
    keys = [np.zeros(0, np.int64)]
    for each in rounds[1:]:
        low, high = first * KEYS_PER_SHARD, (last + 1) * KEYS_PER_SHARD
        where = [("key", ">=", low), ("key", "<", high)]
        table = disk.read_parquet(disk.join(each.path, "retried.parquet"), ["key"], where)
        keys.append(table["key"].to_numpy())
    return np.unique(np.concatenate(keys))


def _write(job: PlanJob, number: int, tables: list[pa.Table]) -> None:
    """Leave the rows of some tables. The list is emptied."""
    table = pa.concat_tables(tables).combine_chunks()
    tables.clear()
    batches = table.select(["url", "uid"]).to_batches()
    hashes = [host_hashes(batch["url"], batch["uid"]) for batch in batches]
    in_files = SOURCES[job.recipe.source.kind].images == "rows"
    orders = [row_keys(b["url"]) if in_files else order_keys(b["uid"]) for b in batches]
    nothing = np.zeros(0, np.uint64)
    count = job.group_count
    groups = np.concatenate([nothing, *hashes]) % np.uint64(count)
    keys = np.concatenate([nothing, *orders])
    places = groups << np.uint64(KEY_BITS) | keys >> np.uint64(64 - KEY_BITS)
    rows = np.bincount(groups.astype(np.int64), minlength=count).tolist()
    table = table.append_column(ORDER, pa.array(keys))
    job.exchange.write(number, table, places, group_rows=rows)


# --- slice --------------------------------------------------------------------------------------


def slice_groups(job: PlanJob) -> Work:
    """Factory: the rows of each cell in one file of the exchange, whose number is the payload."""
    starts, exchange = np.array(job.bounds[:-1], np.uint64), job.exchange

    def work(ticket: Ticket) -> tuple[int, ...]:
        table = disk.read_parquet(exchange.path(ticket.payload), [PLACE])
        first_rows = np.searchsorted(table[PLACE].to_numpy(), starts)
        return tuple(np.diff(first_rows, append=len(table)).tolist())

    return work


# --- merge --------------------------------------------------------------------------------------


KEYS = (PLACE, ORDER, "part", "row", "retry_of")  # that decide where a row stands
NUMBER = "__number"
MERGED = f"SELECT {NUMBER} FROM rows ORDER BY {', '.join(KEYS)} LIMIT {{rows}} OFFSET {{skip}}"


def merge_runs(job: PlanJob) -> Work:
    """Factory: the rows of some cells become a file of the plan.

    Only the keys are sorted; the rows, whose texts may be long, are taken by their numbers.
    """
    schema = pa.schema([*job.run_schema, (ORDER, pa.uint64()), (PLACE, pa.uint64())])
    bounds, exchange = job.bounds, job.exchange

    def work(ticket: Ticket) -> None:
        file: FilePart = ticket.payload
        tables = [schema.empty_table()]
        for table in exchange.tables(bounds[file.first_cell], bounds[file.end_cell]):
            # A copy: the table holds whole row groups, of which only some rows are taken.
            tables.append(table.select(schema.names).take(pa.array(np.arange(table.num_rows))))
        rows = pa.concat_tables(tables).combine_chunks()
        tables.clear()
        keys = rows.select(KEYS).append_column(NUMBER, pa.array(np.arange(rows.num_rows)))
        merged = select(MERGED.format(skip=file.skip, rows=sum(file.sizes)), rows=keys)
        order = pa.Table.from_batches(merged, pa.schema([(NUMBER, pa.int64())]))[NUMBER]
        ends = np.cumsum([0, *file.sizes]).tolist()
        shards = (rows.take(order.slice(start, end - start)) for start, end in pairwise(ends))
        with _shards_file(job, file, shards) as (staged, path):
            exchange.out.publish_new(staged, path)

    return work


@contextmanager
def _shards_file(
    job: PlanJob, file: PlanFile, tables: Iterable[pa.Table], *, numbered: bool = False
) -> Iterator[tuple[Path, str]]:
    """(a new file of the plan, its path): the rows of consecutive shards, with `file` in its
    footer. numbered: ids cover the numbers of the shards.
    """
    schema, ids, settings = job.plan_schema, [], settings_hash(job.recipe.fetch)
    first = job.first_shard + file.first_shard
    with disk.scratch_folder("clipmill-plan-") as scratch:
        staged = Path(scratch) / "shards.parquet"
        with disk.parquet_writer(staged, schema, write_statistics=False) as writer:
            for shard, table in enumerate(tables, start=first):
                table = _with_places(table, shard).select(schema.names).cast(schema)
                retried = table["retry_of"].combine_chunks() if job.is_retry else None
                decides = settings + (f"\n{shard}" if numbered else "")
                ids.append(shard_id(table["uid"].combine_chunks(), retried, decides))
                writer.write_table(table, row_group_size=table.num_rows)
            metadata = {**file.plain(), "ids": ids, "job": job.id}
            writer.add_key_value_metadata(disk.with_metadata(schema, metadata).metadata)
        yield staged, shards_file(job.folder, file.number)


def _with_places(rows: pa.Table, shard: int) -> pa.Table:
    """The rows of a shard with its number and their positions."""
    numbers = pa.array(np.full(rows.num_rows, shard, np.int32))
    positions = pa.array(np.arange(rows.num_rows, dtype=np.int16))
    return rows.append_column("shard", numbers).append_column("position", positions)


# --------------------------------------------------------------------------------------------------
# The stage plan: pairs to shards in fetch order, by tickets. This process holds counts only.
#
# Sort leaves scratch files in POOL/plan/.shuffle, merge the files of the plan; plan.json, written
# last, makes them visible. A plan that was stopped goes on with the files that are there, and ends
# in the same bytes.


FORM = 3  # of the files of a plan
ROWS_PER_TICKET = 500_000  # of a run, and of a file of the plan
BYTES_PER_TICKET = 256 * 2**20  # of the same in memory; a ticket needs about three times that
FEW = 500_000  # rows up to which starting workers would take longer than the work
logger = logging.getLogger(__name__)


def settings_hash(fetch: Fetch) -> str:
    """Hash of the fetch settings that decide what is stored."""
    return disk.content_hash(identity.fetch_identity(fetch))


def write_plan(
    out: PoolWriter, recipe: Recipe, *, engine: Engine = "inline", workers: int | None = None
) -> Mapping[str, str]:
    """Plan the pairs of a pool, or check the plan that is there and plan those of the parts that
    came since, as a round behind it. Returns {task: error}: {} where all are planned.

    ValueError where the plan was made of another recipe or of other pairs: it names what changed.
    LeaseLost where another command has taken the lease over.
    """
    pool, parts = out.pool, read_parts(out.layout)
    if not len(parts):
        raise ValueError(f"{pool} has no pairs to plan; run the stage crawl first")
    expected = pc.max(parts["parts"]).as_py()
    if len(parts) != expected:
        raise ValueError(
            f"{pool}/pairs has {len(parts)} of {expected} parts; "
            "run the stage crawl to its end first"
        )
    by_host = SOURCES[recipe.source.kind].images == "web"
    links = int(parts["pairs"].to_numpy().sum())
    groups = host_groups(links, recipe.fetch.rows_per_shard) if by_host else None
    out.check()
    rounds, first = (read_rounds(out.layout) if is_planned(out.layout) else []), 0

    def of_round(number: int, some: pa.Table, first_shard: int) -> tuple[PlanDocument, PlanJob]:
        """(what plan.json says of the pairs of some parts, the job of its tickets)."""
        shared = rounds[0].document.groups if rounds else groups
        document = replace(
            _document(recipe, pairs_hash(some), shared),
            round=number,
            parts=(first, first + len(some)),
        )
        size = int(some["bytes"].to_numpy().sum())
        fitting = BYTES_PER_TICKET * int(some["pairs"].to_numpy().sum()) // max(size, 1)
        per_ticket = max(1, min(ROWS_PER_TICKET, fitting))
        return document, _job(out, recipe, document, first_shard, per_ticket)

    for each in rounds:
        of_parts = each.document.parts
        if of_parts is None and each.number:
            continue  # of retries
        end = of_parts[1] if of_parts else len(parts)
        some, begin = parts.slice(first, end - first), each.document.first_shard
        document, job = of_round(each.number, some, begin)
        check_unchanged(each.document, document, pool)
        _remove_scratch(out, job.id)  # that of a round that was stopped stays
        first = end
    if rounds and first == len(parts):
        return {}
    parts = parts.slice(first)
    planned = rounds[-1].document.first_shard + rounds[-1].document.shards if rounds else 0
    document, job = of_round(len(rounds), parts, planned)
    rows, per_ticket = parts["pairs"].to_numpy(), job.rows_per_file
    bounds, total = np.concatenate([[0], np.cumsum(rows)]), int(rows.sum())

    def block(number: int) -> Block:
        return block_of(bounds, per_ticket, number, first)

    job = replace(job, runs=-(-total // per_ticket))
    steps = _steps(job, document, sort_pairs, block)
    return run_steps(steps, "inline" if total <= FEW else engine, workers)


def add_retries(out: PoolWriter, recipe: Recipe, *, engine: Engine = "inline") -> Mapping[str, str]:
    """Plan a further round that fetches the committed rows again whose outcome is transient.
    Returns {task: error}.

    A row that an earlier round retries already is left out: it is still to come, or it has a key of
    its own. No round is written where no row is left.
    """
    layout = out.layout
    plan, rounds, shards = read_plan(layout), read_rounds(layout), _shards_to_retry(layout)
    if not len(shards):
        _remove_scratch(out)
        return {}
    number = len(rounds)
    document = replace(rounds[0].document, form=FORM, round=number, parts=None, lock=None)
    rows = plan.rows[shards]
    job = _job(out, recipe, document, len(plan), ROWS_PER_TICKET)
    out.check()
    # Consecutive shards of about ROWS_PER_TICKET rows together.
    number_of = (np.cumsum(rows) - rows) // ROWS_PER_TICKET
    first = np.unique(number_of, return_index=True)[1]
    some_shards = np.split(shards, first[1:])
    # The tickets do not need the recipe of each round.
    before = [replace(r, document=replace(r.document, recipe={})) for r in rounds]
    job = replace(
        job,
        id=disk.content_hash([job.id, shards.tolist()]),
        rounds=tuple(before),
        runs=len(some_shards),
    )

    def unit(number: int) -> ShardUnit:
        return ShardUnit(number=number, shards=tuple(some_shards[number].tolist()))

    steps = _steps(job, document, sort_retries, unit)
    return run_steps(steps, "inline" if rows.sum() <= FEW else engine)


def write_given_plan(
    out: PoolWriter,
    recipe: Recipe,
    shards: Iterable[tuple[int, pa.Table]],
    lock: str,
    groups: int | None,
) -> None:
    """Plan shards as a lock gives them: (host group, rows) of each, in the order of their numbers.

    Rows have the columns of PLAN but NUMBERED, the recipe's extra columns and LOCKED. `lock`: its
    id. `groups`: how many host groups there are; None where each shard is a group of its own. The
    files are written one after another in this process. ValueError for no row; LeaseLost where
    another command has taken the lease over.
    """
    document = replace(_document(recipe, lock, groups), lock=lock)
    job = _job(out, recipe, document, 0, ROWS_PER_TICKET)
    waiting = iter(shards)
    first_shards: list[int] = []
    planned = rows = 0

    def next_file(groups: list[int], sizes: list[int]) -> Iterator[pa.Table]:
        nonlocal rows
        for group, table in waiting:
            groups.append(group)
            sizes.append(table.num_rows)
            numbers = pa.array(np.arange(rows, rows + table.num_rows))
            table = table.append_column("part", pa.array(np.zeros(table.num_rows, np.int32)))
            rows += table.num_rows
            yield table.append_column("row", numbers)
            if sum(sizes) >= ROWS_PER_TICKET or len(sizes) == SHARDS_PER_FILE:
                return

    while True:
        of_file, sizes = list[int](), list[int]()
        file = PlanFile(number=len(first_shards), first_shard=planned, groups=of_file, sizes=sizes)
        with _shards_file(job, file, next_file(of_file, sizes), numbered=True) as (staged, path):
            if not sizes:
                break
            out.publish(staged, path)
        first_shards.append(planned)
        planned += len(sizes)
    if not rows:
        raise ValueError(f"lock {lock} has no rows")
    _commit(job, document, first_shards)


# --- before the shuffle -------------------------------------------------------------------------


def _document(recipe: Recipe, pairs: str, groups: int | None) -> PlanDocument:
    """plan.json of round 0, of whose rows nothing is known yet."""
    settings = identity.recipe_identity(recipe)
    return PlanDocument(
        version=PLAN_VERSION,
        form=FORM,
        pairs=pairs,
        recipe_hash=disk.content_hash(settings),
        recipe=settings,
        groups=groups,
        round=0,
        first_shard=0,
        shards=0,
        rows=0,
        files=(),
    )


def _job(
    out: PoolWriter, recipe: Recipe, plan: PlanDocument, first_shard: int, rows_per_file: int
) -> PlanJob:
    """The job of a round."""
    decides = [plan.version, plan.pairs, plan.recipe, plan.groups, plan.round]
    return PlanJob(
        out=out,
        recipe=recipe,
        id=disk.content_hash([*decides, first_shard, rows_per_file]),
        round=plan.round,
        is_retry=bool(plan.round) and plan.parts is None,
        groups=plan.groups,
        first_shard=first_shard,
        rows_per_file=rows_per_file,
    )


def _shards_to_retry(layout: PoolLayout) -> Integers:
    """The committed shards that have rows to retry, as far as the counts of their reasons say."""
    commits = read_commits(layout.root, ["reasons"])
    is_asked = np.zeros(len(commits), dtype=bool)
    start = 0
    transient = pa.array([name for name, kind in REASONS.items() if kind == "transient"])
    for chunk in commits.column("reasons").chunks:
        flags = pc.is_in(chunk.keys, transient).to_numpy(zero_copy_only=False)
        before = np.concatenate([[0], np.cumsum(flags)])
        offsets = chunk.offsets.to_numpy()  # into the keys of all chunks that share the buffer
        is_asked[start : start + len(chunk)] = np.diff(before[offsets]) > 0
        start += len(chunk)
    return commits.shards[is_asked]


# --- the shuffle --------------------------------------------------------------------------------


def _steps(
    job: PlanJob,
    document: PlanDocument,
    sort: Callable[[PlanJob], Work],
    payload: Callable[[int], object],
) -> Iterator[Step]:
    """Sort, slice, merge, and plan.json. `payload`: of a ticket of sort, by its number."""
    exchange = job.exchange
    yield Step(name="plan: sort", work=sort, job=job, lacks=exchange.lacks(), payload=payload)
    group_rows = np.zeros(job.group_count, np.int64)
    for footer in exchange.footers():
        group_rows += footer["group_rows"]
    if not group_rows.sum() and job.is_retry:
        _remove_scratch(job.out)
        return
    job = replace(job, bounds=tuple(cell_bounds(group_rows, job.rows_per_file)))
    cell_rows = group_rows
    if len(job.bounds) > len(group_rows) + 1:
        cell_rows = np.zeros(len(job.bounds) - 1, np.int64)

        def add(_: str, rows: tuple[int, ...]) -> None:
            np.add(cell_rows, rows, out=cell_rows)

        yield Step(
            name="plan: slice",
            work=slice_groups,
            job=job,
            lacks=np.ones(job.runs, np.bool_),
            result=tuple[int, ...],
            on_done=add,
        )
    groups, sizes = shard_sizes(group_rows, job.recipe.fetch.rows_per_shard)
    parts = file_parts(groups, sizes, cell_rows, job.rows_per_file)
    lacks, file_of = _unmerged(job, len(parts)), parts.__getitem__
    yield Step(name="plan: merge", work=merge_runs, job=job, lacks=lacks, payload=file_of)
    _commit(job, document, [part.first_shard for part in parts])


def _unmerged(job: PlanJob, count: int) -> Mask:
    """(files,) which files of the plan are not there, or are of a plan of other pairs that was not
    completed: those are removed."""
    paths = [shards_file(job.folder, number) for number in range(count)]
    lacks = ~are_there(job.folder, paths)
    for number in np.flatnonzero(~lacks).tolist():
        if disk.read_metadata(paths[number]).get("job") != job.id:
            job.out.remove(paths[number])
            lacks[number] = True
    return lacks


def _commit(job: PlanJob, document: PlanDocument, first_shards: Sequence[int]) -> None:
    """Write shards.parquet and, of a round behind the first, retried.parquet; then plan.json."""
    folder, out = job.folder, job.out
    shards = pa.concat_tables([SHARDS.empty_table(), *_shard_tables(job, len(first_shards))])
    out.write_parquet(disk.join(folder, "shards.parquet"), shards)
    if job.round:
        _write_retried(job, len(first_shards))
    rows = int(shards["rows"].to_numpy().sum())
    document = replace(
        document,
        shards=len(shards),
        rows=rows,
        first_shard=job.first_shard,
        files=tuple(first_shards),
    )
    out.write_json(plan_json(folder), document, sealed=True)
    _remove_scratch(out)
    logger.info("planned %d pairs as %d shards", rows, len(shards))


def _shard_tables(job: PlanJob, files: int) -> Iterator[pa.Table]:
    """The rows of SHARDS of each file of a round, from their footers."""
    paths = [shards_file(job.folder, number) for number in range(files)]
    for number, footer in enumerate(in_threads(disk.read_metadata, paths, THREADS)):
        count = len(footer["sizes"])
        shards = np.arange(count) + job.first_shard + footer["first_shard"]
        groups = footer["groups"] if job.groups else shards
        columns = [shards, groups, footer["sizes"], footer["ids"]]
        yield pa.table([*columns, np.full(count, number), np.arange(count)], schema=SHARDS)


def _write_retried(job: PlanJob, files: int) -> None:
    """retried.parquet: the keys that this round retries, ascending."""
    paths = [shards_file(job.folder, number) for number in range(files)]
    rows = stream((disk.read_parquet(path, ["retry_of"]) for path in paths), RETRY_OF)
    asked = "SELECT retry_of::BIGINT AS key FROM rows WHERE retry_of IS NOT NULL ORDER BY key"
    keys = select(asked, rows=rows)
    with job.out.parquet_writer(disk.join(job.folder, "retried.parquet"), RETRIED) as writer:
        for batch in keys:
            writer.write_batch(batch)


def _scratch(layout: PoolLayout) -> str:
    """The folder of what sort and slice leave."""
    return disk.join(layout.plan_round(0), ".shuffle")


def _remove_scratch(out: PoolWriter, job: str = "") -> None:
    """Remove what sort and slice left, of one job or of all."""
    folder = _scratch(out.layout)
    names = [name for name in disk.list_names(folder) if name.startswith(f"run-{job}")]
    out.remove(*(disk.join(folder, name) for name in names))
