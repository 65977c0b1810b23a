"""The plan of a pool on disk: host groups, shards, and what decides them."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clipmill.manifests import disk, identity
from clipmill.manifests.arrays import Integers
from clipmill.manifests.columns import LOCKED, PAIRS, PLAN, joined_text
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.records import read_document
from clipmill.manifests.schema import Pair
from clipmill.pipeline.crawl.parts import UidsDigest
from clipmill.pipeline.executor.tickets import Ticket, Tickets

# --------------------------------------------------------------------------------------------------
# How many host groups a pool has, and what one planned shard is.
#
# Pure: numbers in, numbers out.


PLAN_VERSION = 2  # a change of order or of shard ids bumps this and the golden test
MAX_GROUPS = 1024  # shards that can be fetched at a time; a host belongs to one group


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedShard:
    """One shard to fetch, without its rows."""

    shard: int
    group: int
    id: str  # content id, see shard_id
    size: int  # rows


def host_groups(rows: int, rows_per_shard: int) -> int:
    """The number of host groups: clamp(rows // rows_per_shard, 1, 1024)."""
    return max(1, min(rows // rows_per_shard, MAX_GROUPS))


def shard_id(uids: pa.Array, retried: pa.Array | None, settings: str) -> str:
    """Content id of a shard, 16 hex digits.

    It covers the uids of its rows in fetch order, the fetch settings, and, in a round of retries,
    the keys that the rows retry.
    """
    content = hashlib.sha256(f"{PLAN_VERSION}\n{settings}\n".encode())
    content.update(joined_text(uids, "\n"))
    if retried is not None:
        content.update(b"\n")
        content.update(joined_text(retried, "\n"))
    return content.hexdigest()[:16]


# --------------------------------------------------------------------------------------------------
# The plan of a pool on disk: which pair is fetched with which shard.
#
# POOL/plan/shards-00000.parquet … hold every pair in fetch order, one row group a shard;
# POOL/plan/shards.parquet has one row per shard; POOL/plan/plan.json is written last. A ticket
# names a file and a row group, so its rows are one footer and one range. Further rounds
# (`--retry`) have the same files in POOL/plan/retry-001 and so on. A plan never changes once it
# is written. Pairs of files that came later are such a round, too.


SHARDS = pa.schema(
    [
        ("shard", pa.int64()),
        ("group", pa.int64()),
        ("rows", pa.int64()),
        ("id", pa.string()),  # content id, the task that a commit record names
        ("file", pa.int64()),  # number of the file that holds its rows
        ("row_group", pa.int64()),  # in that file
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument:
    """plan.json of a round: what it was made of, and where its rows lie."""

    version: int
    form: int  # of the files
    pairs: str  # their hash, or the id of the lock
    recipe_hash: str
    recipe: dict[str, Any]  # see `identity.recipe_identity`
    groups: int | None  # host groups; None where each shard is one
    round: int
    # The first and the end of the parts whose pairs it has; None of retries and of a lock
    parts: tuple[int, int] | None = field(default=None, metadata=disk.OPTIONAL)
    lock: str | None = field(default=None, metadata=disk.OPTIONAL)  # id of the lock it was made of
    first_shard: int
    shards: int
    rows: int
    files: tuple[int, ...]  # the first shard of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of a plan: round 0, one of retries, or one of pairs of files that came later."""

    number: int
    path: str  # its folder
    document: PlanDocument

    def file(self, number: int) -> str:
        """One of the files that hold its rows."""
        return shards_file(self.path, number)


def shards_file(folder: str, number: int) -> str:
    """The path of file `number` of a round."""
    return disk.join(folder, f"shards-{number:05d}.parquet")


def plan_json(folder: str) -> str:
    """The JSON that is written last and makes a round visible."""
    return disk.join(folder, "plan.json")


def is_planned(layout: PoolLayout) -> bool:
    """Whether a pool has a plan."""
    return disk.exists(plan_json(layout.plan_round(0)))


def read_rounds(layout: PoolLayout) -> list[Round]:
    """The rounds of a plan in order. ValueError where there is no plan."""
    rounds: list[Round] = []
    while disk.exists(plan_json(path := layout.plan_round(len(rounds)))):
        document = _read_plan_json(layout, plan_json(path), len(rounds))
        rounds.append(Round(number=len(rounds), path=path, document=document))
    if not rounds:
        raise ValueError(f"{layout} has no plan; run clipmill build on its recipe first")
    return rounds


def _read_plan_json(layout: PoolLayout, path: str, number: int) -> PlanDocument:
    """plan.json of a round. ValueError, with the remedy, where it is none."""
    try:
        return read_document(path, PlanDocument)
    except ValueError as error:
        reason = str(error).removeprefix(f"{path} ")
        raise _damaged_plan(layout, path, number, reason) from None


def _damaged_plan(layout: PoolLayout, path: str, number: int, problem: str) -> ValueError:
    """The error for a plan that cannot be used. Round 0 is a function of the pairs or the lock."""
    remedy = f"restore it from a copy of {layout}"
    if number == 0:
        folder = path.rpartition("/")[0]
        remedy += f", or remove {plan_json(folder)} and build again: the plan is made anew"
    return ValueError(f"{path} cannot be used: {problem}; {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOfShard:
    """Where the rows of a shard lie: the payload of the ticket that fetches it."""

    shard: int
    file: str
    row_group: int

    def read(self) -> tuple[list[Pair], list[str | None]]:
        """The pairs in fetch order, and for each the key of the row that it retries."""
        return pairs_of(read_row_group(self.file, self.row_group))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """The shards of a pool in order, all rounds, as columns of (shards,); no row is held."""

    groups: Integers
    rows: Integers
    ids: pa.Array
    files: list[str]  # paths, of all rounds
    file: Integers  # index in `files`
    row_group: Integers

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[PlannedShard]:
        for shard in range(len(self.groups)):
            yield self.shard(shard)

    def shard(self, number: int) -> PlannedShard:
        """One shard."""
        return PlannedShard(
            shard=number,
            group=int(self.groups[number]),
            id=self.ids[number].as_py(),
            size=int(self.rows[number]),
        )

    def tickets(self, shards: Integers) -> Tickets:
        """The tickets that fetch these shards."""

        def make(position: int) -> Ticket:
            number = int(shards[position])
            shard = self.shard(number)
            return Ticket(id=shard.id, group=str(shard.group), payload=self.location(number))

        return Tickets(self.groups[shards], make)

    def location(self, shard: int) -> RowsOfShard:
        """Where the rows of a shard lie."""
        file, row_group = self.files[int(self.file[shard])], int(self.row_group[shard])
        return RowsOfShard(shard=shard, file=file, row_group=row_group)


def read_plan(layout: PoolLayout) -> Plan:
    """The shards of a pool. ValueError where there is no plan."""
    files: list[str] = []
    tables = []
    for each in read_rounds(layout):
        table = _shards_of_round(layout, each)
        numbers = range(int(table["file"].to_numpy().max(initial=-1)) + 1)
        location = pa.array(table["file"].to_numpy() + len(files), pa.int64())
        tables.append(table.set_column(SHARDS.get_field_index("file"), "file", location))
        files += [each.file(number) for number in numbers]
    whole = pa.concat_tables(tables).combine_chunks()
    return Plan(
        groups=whole["group"].to_numpy(),
        rows=whole["rows"].to_numpy(),
        ids=pa.concat_arrays(whole["id"].chunks) if len(whole) else pa.array([], pa.string()),
        files=files,
        file=whole["file"].to_numpy(),
        row_group=whole["row_group"].to_numpy(),
    )


def _shards_of_round(layout: PoolLayout, each: Round) -> pa.Table:
    """The table SHARDS of a round. ValueError, with the remedy, where it is damaged."""
    path = disk.join(each.path, "shards.parquet")
    try:
        table = disk.read_parquet(path).cast(SHARDS)
    except FileNotFoundError:
        raise _damaged_plan(layout, path, each.number, "it is missing") from None
    except ValueError as error:
        reason = str(error).removeprefix(f"{path} ")
        raise _damaged_plan(layout, path, each.number, reason) from None
    nulls, planned = sum(column.null_count for column in table.columns), each.document.shards
    if nulls or len(table) != planned:
        problem = f"it has {len(table)} shards and {nulls} NULLs, plan.json says {planned}"
        raise _damaged_plan(layout, path, each.number, problem)
    return table


# --- rows -------------------------------------------------------------------------------------


def read_shard_table(
    layout: PoolLayout, shard: int, rounds: Sequence[Round] | None = None
) -> pa.Table:
    """The rows of one shard, columns of PLAN and the extra ones. ValueError where there is none.

    `rounds` are those of the pool, where they were read already.
    """
    rounds = rounds or read_rounds(layout)
    total = rounds[-1].document.first_shard + rounds[-1].document.shards
    if not 0 <= shard < total:
        raise ValueError(f"{layout} has no shard {shard}; its plan has {total}, numbered from 0")
    each = rounds[bisect_right([one.document.first_shard for one in rounds], shard) - 1]
    number = shard - each.document.first_shard
    file = bisect_right(each.document.files, number) - 1
    return read_row_group(each.file(file), number - each.document.files[file])


def read_row_group(path: str, number: int, columns: list[str] | None = None) -> pa.Table:
    """One row group of a Parquet file: its footer and one range are read.

    DamagedTable where a page does not have its checksum.
    """

    def read(file: Any) -> pa.Table:
        with pq.ParquetFile(file, page_checksum_verification=True) as table:
            return table.read_row_group(number, columns=columns)

    table: pa.Table = disk.read_with(path, read)
    return table


def pairs_of(table: pa.Table) -> tuple[list[Pair], list[str | None]]:
    """The pairs of a shard's table in fetch order, and for each the key of the row it retries."""
    locked = [name for name in LOCKED.names if name in table.column_names]
    extra = table.column_names[len(PLAN) : len(table.column_names) - len(locked)]
    pairs, retried = [], []
    for row in table.to_pylist():
        own = {name: row[name] for name in [*PAIRS.names, *locked]}
        pairs.append(Pair(**own, extra={name: row[name] for name in extra} or None))
        retried.append(row["retry_of"])
    return pairs, retried


def read_shard(layout: PoolLayout, shard: int) -> tuple[list[Pair], list[str | None]]:
    """The pairs of one shard in fetch order, and for each the key of the row that it retries.

    Position i has the key f"{shard:05d}{i:04d}". ValueError where the plan has no such shard.
    """
    return pairs_of(read_shard_table(layout, shard))


def rows_of_shard(layout: PoolLayout, shard: int) -> list[Pair]:
    """The pairs of one shard in fetch order."""
    return read_shard(layout, shard)[0]


# --------------------------------------------------------------------------------------------------
# What a plan was made of: the pairs and the recipe, and whether they are the same now.


def pairs_hash(parts: pa.Table) -> str:
    """Hash over the uids of all pairs."""
    digest = UidsDigest()
    for column in (parts["uids"], parts["pairs"].cast(pa.string())):
        for chunk in column.chunks:
            digest.update(chunk)
    return digest.hexdigest()[:16]


def check_unchanged(planned: PlanDocument, asked: PlanDocument, pool: str) -> None:
    """ValueError that names what differs between the plan that is there and the one asked for."""
    remedy = f"give the old value back, or build into another folder than {pool}"
    changes = identity.recipe_changes(planned.recipe, asked.recipe)
    if changes:
        raise ValueError(
            f"the recipe has changed since this pool was planned ({'; '.join(changes)}): {remedy}"
        )
    if planned.pairs != asked.pairs:
        raise ValueError(
            f"the pairs in {pool}/pairs are not those that this pool was planned from "
            f"(now {asked.pairs}, then {planned.pairs}): {remedy}"
        )
    if planned.version != asked.version:
        raise ValueError(
            f"{pool} was planned by plan version {planned.version}, this is version "
            f"{asked.version}: build into another folder"
        )


def group_count(layout: PoolLayout) -> int | None:
    """How many host groups the plan of a pool has; None where each shard is a group of its own."""
    return read_rounds(layout)[0].document.groups


def lock_of_plan(layout: PoolLayout) -> tuple[str, dict[str, Any]] | None:
    """(id of the lock that a plan was made of, the identity of its recipe); None without a lock."""
    if not is_planned(layout):
        return None
    document = read_rounds(layout)[0].document
    return None if document.lock is None else (document.lock, document.recipe)
