"""Checks the files of one shard against its commit record: hashes, offsets and alignment.

The work of the stage verify: a ticket names a shard or a part of the pairs, and its result lists
what is damaged.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifests import disk
from manifests.aligned import AlignedFiles, mask_owner
from manifests.columns import PAIRS, REASONS, SIDECAR, VIEW
from manifests.pool_layout import (
    COMMIT_SUFFIX,
    NOT_STORED,
    SHARD_VERSION,
    CommitRecord,
    PoolLayout,
    shard_folder,
    uids_checksum,
)
from pipeline.executor import Ticket
from pipeline.pool import index_tar, local_copy, sidecar_hash

PARTS = ("image", "text", "json")  # members of a sample
MEMBER_COLUMNS = [
    "status",
    "caption",
    "image_name",
    *(f"{part}_offset" for part in PARTS),
    *(f"{part}_length" for part in PARTS),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file that is missing, damaged or stale, or a count that is wrong.

    kind: record, sidecar, tar, scores, mask, pairs, set or view (their documents), index, uids,
    document (of the pool as a whole).
    """

    kind: str
    line: str  # PATH: what is wrong
    shard: int | None = None
    name: str | None = None  # of the score set or the view

    @property
    def is_stale(self) -> bool:
        """True where nothing is damaged, but the shards are newer."""
        return ": stale: " in self.line


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRows:
    """What other files must agree with: one shard's sidecar."""

    checksum: str  # of the uids
    stored: npt.NDArray[np.bool_]


class ShardChecker:
    """Checks the files of one ticket. Threads may share it.

    `config`: {"pool", "sets": {score set: its columns}, "stale": views that are older than the
    shards, whose masks are only read}. A ticket has {"part": file name} or
    {"shard", "scores": {score set: checksum of its uids}, "views": {view: rows kept}}. The result:
    {"damages": plain Damage of each file, "record": plain commit record or None,
    "sidecar": whether the sidecar can be read}.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.layout = PoolLayout(str(config["pool"]))
        self.columns: dict[str, list[str]] = dict(config["sets"])
        self.stale = frozenset(config.get("stale", ()))
        self._files: dict[tuple[str, str], AlignedFiles] = {}

    def __call__(self, ticket: Ticket) -> dict[str, Any]:
        if "part" in ticket.payload:
            damages = self._part(str(ticket.payload["part"]))
            return {"damages": disk.to_plain(damages), "sidecar": not damages}
        shard = int(ticket.payload["shard"])
        record = read_record(self.layout.commit_record(shard))
        if isinstance(record, str):
            path = inside(self.layout, self.layout.commit_record(shard))
            line = f"{path}: {record}"
            damage = Damage(kind="record", line=line, shard=shard)
            return {"damages": disk.to_plain([damage]), "record": None, "sidecar": False}
        damages, rows = check_shard(self.layout, record)
        if rows is not None:
            damages += self._scores(shard, rows, ticket.payload["scores"])
            damages += self._masks(shard, rows, ticket.payload["views"])
        return {
            "damages": disk.to_plain(damages),
            "record": record.to_plain(),
            "sidecar": rows is not None,
        }

    def _part(self, file: str) -> list[Damage]:
        """Columns and number of rows of a part of the pairs."""
        name = f"pairs/{file}"
        table, metadata, problem = _parquet(self.layout, name, PAIRS.names, may_have_more=True)
        if not problem and table.num_rows != metadata["pairs"]:
            problem = f"{name}: has {table.num_rows} rows, its footer says {metadata['pairs']}"
        return [Damage(kind="pairs", line=problem, name=file)] if problem else []

    def _scores(
        self, shard: int, rows: ShardRows, checksums: Mapping[str, str]
    ) -> Iterator[Damage]:
        for name, checksum in checksums.items():
            files = self._aligned_files("scores", name)
            table, metadata, problem = _aligned(self.layout, files, shard, self.columns[name])
            if not problem:
                problem = _score_problem(table, metadata, checksum, rows)
                problem = problem and f"{inside(self.layout, files.path(shard))}: {problem}"
            if problem:
                yield Damage(kind="scores", line=problem, shard=shard, name=name)

    def _masks(self, shard: int, rows: ShardRows, kept: Mapping[str, int]) -> Iterator[Damage]:
        for name, count in kept.items():
            files = self._aligned_files("views", name)
            table, metadata, problem = _aligned(self.layout, files, shard, VIEW.names)
            if not problem:
                problem = mask_owner(metadata, shard, name)
                if name not in self.stale:  # else its rows were those of another sidecar
                    problem = problem or _mask_problem(table, rows, count)
                problem = problem and f"{inside(self.layout, files.path(shard))}: {problem}"
            if problem:
                yield Damage(kind="mask", line=problem, shard=shard, name=name)

    def _aligned_files(self, kind: str, name: str) -> AlignedFiles:
        """The files of a score set or a view, whose bundles stay open."""
        if (kind, name) not in self._files:
            of = AlignedFiles.of_scores if kind == "scores" else AlignedFiles.of_view
            self._files[kind, name] = of(self.layout.root, name)
        return self._files[kind, name]


def check_shard(layout: PoolLayout, record: CommitRecord) -> tuple[list[Damage], ShardRows | None]:
    """What is damaged of the sidecar and the tar of a shard, and its rows if they can be read."""
    table, problems = _sidecar(layout, record)
    number = int(record.shard)
    damages = [Damage(kind="sidecar", line=line, shard=number) for line in problems]
    for line in _tar(layout, record, table):
        damages.append(Damage(kind="tar", line=line, shard=number))
    if table is None:
        return damages, None
    stored = _flags(pc.equal(table["status"], "success"))
    return damages, ShardRows(checksum=uids_checksum(table["uid"]), stored=stored)


def inside(layout: PoolLayout, path: str) -> str:
    """A path as it is called inside the pool."""
    return path.removeprefix(layout.root.rstrip("/") + "/")


def read_record(path: str) -> CommitRecord | str:
    """A commit record, or what is wrong with it."""
    try:
        document = disk.read_json(path)
    except ValueError as error:
        changed = "was changed after" in str(error)
        return f"damaged: {'its hash is another one' if changed else 'it is not JSON'}"
    except FileNotFoundError:
        return "missing"
    try:
        record = CommitRecord.from_plain(document)
    except (ValueError, TypeError) as error:
        return f"damaged: {error}"
    if record.shard != path.rpartition("/")[2].removesuffix(COMMIT_SUFFIX):
        return f"damaged: it is the record of shard {record.shard}"
    return record


def _parquet(
    layout: PoolLayout, name: str, columns: Sequence[str], *, may_have_more: bool = False
) -> tuple[pa.Table, dict[str, Any], str]:
    """(table, metadata, "") of a file of the pool, or (None, {}, a line that says what is wrong
    with it).

    may_have_more: there may be further columns behind `columns`.
    """
    try:
        data = io.BytesIO(disk.read_bytes(disk.join(layout.root, name)))
        table = pq.read_table(data, page_checksum_verification=True)
        compared = table.column_names[: len(columns) if may_have_more else None]
        if compared != list(columns):
            problem = f"its columns are {table.column_names}, not {list(columns)}"
            return None, {}, f"{name}: damaged: {problem}"
        footer = pq.read_metadata(data).metadata or {}
        metadata = json.loads(footer.get(b"clipmill", b"{}"))
        return table, metadata, ""
    except FileNotFoundError:
        return None, {}, f"{name}: missing"
    except Exception as error:  # a damaged footer makes Arrow raise all kinds of errors
        return None, {}, f"{name}: damaged: {' '.join(str(error).split())[:120]}"


def _aligned(
    layout: PoolLayout, files: AlignedFiles, shard: int, columns: Sequence[str]
) -> tuple[pa.Table, dict[str, Any], str]:
    """Like `_parquet`, of the rows of a shard in a score set or view."""
    name = inside(layout, files.path(shard))
    if not shard_folder(shard):
        return _parquet(layout, name, columns)
    try:
        table, metadata = files.read(shard)
    except FileNotFoundError:
        return None, {}, f"{name}: missing"
    except ValueError as error:
        return None, {}, f"{name}: {error}"
    if table.column_names != list(columns):
        return None, {}, f"{name}: damaged: its columns are {table.column_names}"
    return table, metadata, ""


def _sidecar(layout: PoolLayout, record: CommitRecord) -> tuple[pa.Table | None, list[str]]:
    """The sidecar if it can be used, and a line for each problem."""
    path = layout.sidecar(record.shard, record.revision)
    name = inside(layout, path)
    try:
        data = disk.read_bytes(path)
    except FileNotFoundError:
        return None, [f"{name}: missing"]
    if hashlib.sha256(data).hexdigest() != record.sidecar_file_sha256:
        return None, [f"{name}: damaged: its sha256 is not that of the commit record"]
    table = pq.read_table(io.BytesIO(data))
    if list(table.schema)[: len(SIDECAR)] != list(SIDECAR):
        problem = f"its columns are not those of shard version {SHARD_VERSION}"
        return None, [f"{name}: {problem}"]
    return table, [f"{name}: {problem}" for problem in _row_problems(table, record)]


def _row_problems(table: pa.Table, record: CommitRecord) -> Iterator[str]:
    """What contradicts itself or the commit record."""
    if sidecar_hash(table) != record.sidecar_sha256:
        yield "its values do not have the hash of the commit record"
    reasons = Counter(reason for reason in table["reason"].to_pylist() if reason is not None)
    stored = Counter(table["status"].to_pylist())["success"]
    counts = (table.num_rows, stored, dict(reasons))
    if counts != (record.count, record.successes, record.reasons):
        yield (
            f"{table.num_rows} rows, {stored} stored; its commit record has {record.count}, "
            f"{record.successes}"
        )
    if table.num_rows != stored + reasons.total():
        yield f"{table.num_rows} attempts, but {stored} stored + {reasons.total()} with a reason"
    if unknown := sorted(reasons.keys() - REASONS.keys()):
        yield f"reason {unknown[0]!r} is unknown"
    keys = table["key"].to_pylist()
    if keys != sorted(set(keys)):
        yield "its keys repeat or are not in order"


def _tar(layout: PoolLayout, record: CommitRecord, table: pa.Table | None) -> list[str]:
    """Size and hash of the tar, and whether each member lies where the sidecar says. At most one
    line."""
    is_adopted = record.adopted
    name = record.tar if is_adopted else inside(layout, layout.tar(record))
    try:
        with local_copy(layout.tar(record)) as path:
            size = path.stat().st_size
            if size != record.tar_bytes:
                return [f"{name}: damaged: {size} bytes, not {record.tar_bytes}"]
            if disk.file_sha256(path) != record.tar_sha256:
                return [f"{name}: damaged: another sha256"]
            members = {(m.name, m.offset, m.length) for m in index_tar(name, path)}
            if table is None:
                return []
            rows = table.select(MEMBER_COLUMNS).to_pylist()
            with open(path, "rb") as f:
                for row in rows:
                    if problem := _member_problem(row, members, f):
                        return [f"{name}: {problem}"]
    except ValueError as error:
        return [str(error) if str(error).startswith(name) else f"{name}: {error}"]
    listed = sum(len(table) - table[f"{part}_offset"].null_count for part in PARTS)
    if not is_adopted and listed != len(members):
        return [f"{name}: has {len(members)} members, the sidecar lists {listed}"]
    return []


def _member_problem(
    row: Mapping[str, Any], members: set[tuple[str, int, int]], f: io.BufferedReader
) -> str:
    """What is wrong with the members of a row, "" if nothing is."""
    if row["status"] != "success":
        return ""
    if (row["image_name"], row["image_offset"], row["image_length"]) not in members:
        return f"{row['image_name']} does not lie where the sidecar says"
    if row["text_offset"] is not None:
        f.seek(row["text_offset"])
        if f.read(row["text_length"]) != row["caption"].encode():
            return f"the caption of {row['image_name']} is not that of the sidecar"
    return ""


def _score_problem(
    table: pa.Table, metadata: Mapping[str, Any], checksum: str, rows: ShardRows
) -> str:
    if {metadata.get("uids"), checksum} != {rows.checksum}:
        return "its rows are not those of the sidecar (checksum of the uids)"
    if table.num_rows != len(rows.stored):
        return f"has {table.num_rows} rows, the sidecar {len(rows.stored)}"
    return ""


def _mask_problem(table: pa.Table, rows: ShardRows, kept: int) -> str:
    if table.num_rows != len(rows.stored):
        return f"has {table.num_rows} rows, the sidecar {len(rows.stored)}"
    mask = _flags(pc.fill_null(table["kept"], False))
    if int(mask.sum()) != kept:
        return f"keeps {int(mask.sum())} rows, its view says {kept}"
    without_rule = _flags(pc.is_null(table["rule"]))
    unstored = _flags(pc.fill_null(pc.equal(table["rule"], NOT_STORED), False))
    if (mask != without_rule).any() or (unstored == rows.stored).any():
        return "has a row that is kept and fails a rule, or is not stored and does not say so"
    return ""


def _flags(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)
