"""The plan of a pool on disk: which pair is fetched with which shard.

POOL/plan/shards-00000.parquet … hold every pair in fetch order, one row group a shard;
POOL/plan/shards.parquet has one row per shard; POOL/plan/plan.json is written last. A ticket names
a file and a row group, so its rows are one footer and one range. Further rounds (`--retry`) have
the same files in POOL/plan/retry-001 and so on. A plan never changes once it is written.

The first form, which is still read: one file POOL/plan.parquet, POOL/plan-retry-001.parquet ….
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from manifests import disk
from manifests.columns import PAIRS
from manifests.pool_layout import PoolLayout
from manifests.schema import Pair
from pipeline.exchange import opened
from pipeline.executor import Ticket, Tickets
from pipeline.planning.host_groups import PlannedShard

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
# Last columns of a plan that was made of a lock; see Pair.
LOCKED = pa.schema([("locked_outcome", pa.string()), ("locked_sha256", pa.string())])
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
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of a plan: round 0, or one of retries. `metadata` is its plan.json."""

    number: int
    path: str  # its folder; its only file in the first form
    first_shard: int
    metadata: dict[str, Any]

    @property
    def is_first_form(self) -> bool:
        """Whether it is one file, whose footer lists the shards."""
        return self.path.endswith(".parquet")

    @property
    def shards(self) -> int:
        """How many shards it has."""
        shards = self.metadata["shards"]
        return len(shards) if self.is_first_form else int(shards)

    def file(self, number: int) -> str:
        """One of the files that hold its rows."""
        return self.path if self.is_first_form else shards_file(self.path, number)


def shards_file(folder: str, number: int) -> str:
    """The path of file `number` of a round."""
    return disk.join(folder, f"shards-{number:05d}.parquet")


def plan_json(folder: str) -> str:
    """The JSON that is written last and makes a round visible."""
    return disk.join(folder, "plan.json")


def is_planned(pool: str) -> bool:
    """Whether a pool has a plan, of either form."""
    layout = PoolLayout(pool)
    return disk.exists(plan_json(layout.plan_round(0))) or disk.exists(layout.plan)


def read_rounds(pool: str) -> list[Round]:
    """The rounds of a plan in order. ValueError where there is no plan."""
    layout = PoolLayout(pool)
    files = []
    if not disk.exists(plan_json(layout.plan_round(0))):
        if not disk.exists(layout.plan):
            raise ValueError(f"{pool} has no plan; run pipeline/build.py on its recipe first")
        names = disk.list_names(pool, ".parquet")
        retries = [name for name in names if name.startswith("plan-retry-")]
        files = [layout.plan, *(disk.join(pool, name) for name in retries)]
    rounds: list[Round] = []
    first = 0
    while True:
        number = len(rounds)
        if number < len(files):
            path, metadata = files[number], disk.read_metadata(files[number])
        else:
            path = layout.plan_round(number)
            if not disk.exists(plan_json(path)):
                return rounds
            metadata = _read_plan_json(pool, plan_json(path), number)
        rounds.append(Round(number=number, path=path, first_shard=first, metadata=metadata))
        first += rounds[-1].shards


def _read_plan_json(pool: str, path: str, number: int) -> dict[str, Any]:
    """plan.json of a round. ValueError, with the remedy, where it is none."""
    try:
        document = disk.read_json(path)
        disk.check_types(_PlanKeys, document, "plan.json")
        disk.from_plain(_PlanKeys, {name: document[name] for name in _PlanKeys.__slots__})
    except KeyError as error:
        raise _damaged_plan(pool, path, number, f"it has no {error.args[0]!r}") from None
    except ValueError as error:
        reason = str(error).removeprefix(f"{path} ")
        raise _damaged_plan(pool, path, number, reason) from None
    metadata: dict[str, Any] = document
    return metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanKeys:
    """What every plan.json has, and readers use."""

    version: int
    pairs: str
    recipe: dict[str, Any]
    round: int
    shards: int
    rows: int
    files: tuple[int, ...]


def _damaged_plan(pool: str, path: str, number: int, problem: str) -> ValueError:
    """The error for a plan that cannot be used. Round 0 is a function of the pairs or the lock."""
    remedy = f"restore it from a copy of {pool}"
    if number == 0:
        folder = path.rpartition("/")[0]
        remedy += f", or remove {plan_json(folder)} and build again: the plan is made anew"
    return ValueError(f"{path} cannot be used: {problem}; {remedy}")


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
        """The tickets that fetch these shards; each names the file and row group of its rows."""

        def make(position: int) -> Ticket:
            number = int(shards[position])
            shard = self.shard(number)
            payload = {"shard": number, **self.location(number)}
            return Ticket(id=shard.id, group=str(shard.group), payload=payload)

        return Tickets(self.groups[shards], make)

    def location(self, shard: int) -> dict[str, Any]:
        """{"file", "row_group"} of a shard's rows, for `read_pairs`."""
        return {
            "file": self.files[int(self.file[shard])],
            "row_group": int(self.row_group[shard]),
        }


def read_plan(pool: str) -> Plan:
    """The shards of a pool. ValueError where there is no plan."""
    files: list[str] = []
    tables = []
    for each in read_rounds(pool):
        table = _shards_of_round(pool, each)
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


def _shards_of_round(pool: str, each: Round) -> pa.Table:
    """The table SHARDS of a round. ValueError, with the remedy, where it is damaged."""
    if not each.is_first_form:
        path = disk.join(each.path, "shards.parquet")
        try:
            table = disk.read_parquet(path).cast(SHARDS)
        except FileNotFoundError:
            raise _damaged_plan(pool, path, each.number, "it is missing") from None
        except ValueError as error:
            reason = str(error).removeprefix(f"{path} ")
            raise _damaged_plan(pool, path, each.number, reason) from None
        nulls = sum(column.null_count for column in table.columns)
        if nulls or len(table) != each.shards:
            problem = f"it has {len(table)} shards and {nulls} NULLs, plan.json says {each.shards}"
            raise _damaged_plan(pool, path, each.number, problem)
        return table
    shards = each.metadata["shards"]
    groups, rows, ids = zip(*shards, strict=True) if shards else ((), (), ())
    numbers = np.arange(len(shards))
    return pa.table(
        {
            "shard": numbers + each.first_shard,
            "group": groups,
            "rows": rows,
            "id": ids,
            "file": np.zeros(len(shards), dtype=np.int64),
            "row_group": numbers,
        },
        SHARDS,
    )


# --- rows -------------------------------------------------------------------------------------


def read_shard_table(pool: str, shard: int, rounds: list[Round] | None = None) -> pa.Table:
    """The rows of one shard, columns of PLAN and the extra ones. ValueError where there is none.

    `rounds` are those of the pool, where they were read already.
    """
    rounds = rounds or read_rounds(pool)
    total = rounds[-1].first_shard + rounds[-1].shards
    if not 0 <= shard < total:
        raise ValueError(f"{pool} has no shard {shard}; its plan has {total}, numbered from 0")
    each = rounds[bisect_right([round_.first_shard for round_ in rounds], shard) - 1]
    number = shard - each.first_shard
    if each.is_first_form:
        return read_row_group(each.path, number)
    first_shards: list[int] = each.metadata["files"]
    file = bisect_right(first_shards, number) - 1
    return read_row_group(each.file(file), number - first_shards[file])


def read_row_group(path: str, number: int, columns: list[str] | None = None) -> pa.Table:
    """One row group of a Parquet file: its footer and one range are read.

    DamagedTable where a page does not have its checksum.
    """
    with (
        disk.naming_table(path),
        opened(path) as file,
        pq.ParquetFile(file, page_checksum_verification=True) as table,
    ):
        return table.read_row_group(number, columns=columns)


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


def read_ticket(payload: dict[str, Any], pool: str) -> tuple[list[Pair], list[str | None]]:
    """The pairs of a ticket of `Plan.tickets`, and what they retry.

    A ticket without a file and a row group is looked up in the plan.
    """
    if "file" in payload:
        return pairs_of(read_row_group(payload["file"], int(payload["row_group"])))
    return read_shard(pool, int(payload["shard"]))


def read_shard(pool: str, shard: int) -> tuple[list[Pair], list[str | None]]:
    """The pairs of one shard in fetch order, and for each the key of the row that it retries.

    Position i has the key f"{shard:05d}{i:04d}". ValueError where the plan has no such shard.
    """
    return pairs_of(read_shard_table(pool, shard))


def rows_of_shard(pool: str, shard: int) -> list[Pair]:
    """The pairs of one shard in fetch order."""
    return read_shard(pool, shard)[0]


def retries_of_shard(pool: str, shard: int) -> list[str | None]:
    """For each row of a shard the key of the row that it fetches again, or None."""
    return read_shard(pool, shard)[1]
