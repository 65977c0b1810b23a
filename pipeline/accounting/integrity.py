"""Is every file of a pool what its books say? Recomputes hashes and places, and names each file that is damaged."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm import tqdm

from manifests import disk
from manifests.columns import PAIRS, REASONS, SIDECAR, VIEW
from manifests.pool_layout import (
    COMMIT_SUFFIX,
    NOT_STORED,
    SHARD_VERSION,
    CommitRecord,
    PoolLayout,
    pool_fingerprint,
    uids_checksum,
)
from pipeline.pool import index_tar, local_copy, sidecar_hash

PARTS = ("image", "text", "json")  # of a sample
Uids = npt.NDArray[np.bytes_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What other files must agree with: one shard's sidecar."""

    uids: str  # checksum
    stored: npt.NDArray[np.bool_]
    first: Uids  # of rows that retry nothing


def verify(pool: str) -> list[str]:
    """One line for each file that is missing, damaged or stale; [] where all is well.

    Covers pairs, commit records, tars, sidecars, score sets and views. ValueError where there is no pool.
    """
    if not disk.list_names(disk.join(pool, "shards"), COMMIT_SUFFIX) and not disk.list_names(
        disk.join(pool, "pairs")
    ):
        raise ValueError(
            f"{pool} has neither pairs nor committed shards; is it the folder of a pool?"
        )
    records, lines = _records(pool)
    rows: dict[str, Rows] = {}
    for name, record in tqdm(
        records.items(), desc="verify", unit="shard", disable=not sys.stderr.isatty()
    ):
        table, found = _sidecar(pool, record)
        lines += [*found, *_tar(pool, record, table)]
        if table is not None:
            stored = np.asarray(
                pc.equal(table["status"], "success").to_numpy(zero_copy_only=False), np.bool_
            )
            first = _sixteen(table.filter(pc.is_null(table["retry_of"]))["uid"])
            rows[name] = Rows(uids=uids_checksum(table["uid"]), stored=stored, first=first)
    if len(rows) == len(records):
        lines += _pairs(pool, [found.first for found in rows.values()])
    fingerprint = pool_fingerprint(records)
    return [*lines, *_scores(pool, rows, fingerprint), *_views(pool, rows, fingerprint)]


def _records(pool: str) -> tuple[dict[str, CommitRecord], list[str]]:
    """Commit records that can be read, and a line for each that cannot."""
    records: dict[str, CommitRecord] = {}
    lines = []
    folder = PoolLayout(pool).shards
    for file in disk.list_names(folder, COMMIT_SUFFIX):
        shard = file.removesuffix(COMMIT_SUFFIX)
        try:
            record = CommitRecord.from_plain(json.loads(disk.read_bytes(disk.join(folder, file))))
        except ValueError as error:
            lines.append(f"shards/{file}: damaged: {error}")
            continue
        if record.shard != shard:
            lines.append(f"shards/{file}: damaged: it is the record of shard {record.shard}")
            continue
        records[shard] = record
    return records, lines


def _parquet(
    pool: str, name: str, columns: Sequence[str], *, more: bool = False
) -> tuple[pa.Table, dict[str, Any], str]:
    """(table, notes, "") of a file of the pool, or (None, {}, a line that says what is wrong with it). `more`: there
    may be further columns behind these."""
    try:
        data = io.BytesIO(disk.read_bytes(disk.join(pool, name)))
        table = pq.read_table(data, page_checksum_verification=True)
        if table.column_names[: len(columns) if more else None] != list(columns):
            return (
                None,
                {},
                f"{name}: damaged: its columns are {table.column_names}, not {list(columns)}",
            )
        return table, json.loads((table.schema.metadata or {}).get(b"clipmill", b"{}")), ""
    except FileNotFoundError:
        return None, {}, f"{name}: missing"
    except Exception as error:  # a damaged footer makes Arrow raise all kinds of things
        return None, {}, f"{name}: damaged: {' '.join(str(error).split())[:120]}"


# --- shards --------------------------------------------------------------------------------------------------------


def _sidecar(pool: str, record: CommitRecord) -> tuple[pa.Table | None, list[str]]:
    """The sidecar if it is whole, and a line for each thing that is wrong with it."""
    name = f"shards/{record.shard}.parquet"
    try:
        data = disk.read_bytes(PoolLayout(pool).sidecar(record.shard))
    except FileNotFoundError:
        return None, [f"{name}: missing"]
    if hashlib.sha256(data).hexdigest() != record.sidecar_file_sha256:
        return None, [f"{name}: damaged: its sha256 is not that of the commit record"]
    table = pq.read_table(io.BytesIO(data))
    if list(table.schema)[: len(SIDECAR)] != list(SIDECAR):
        return None, [f"{name}: its columns are not those of shard version {SHARD_VERSION}"]
    return table, [f"{name}: {wrong}" for wrong in _wrong_rows(table, record)]


def _wrong_rows(table: pa.Table, record: CommitRecord) -> Iterator[str]:
    """What contradicts itself or the commit record."""
    if sidecar_hash(table) != record.sidecar_sha256:
        yield "its values do not have the hash of the commit record"
    reasons = Counter(reason for reason in table["reason"].to_pylist() if reason is not None)
    statuses = Counter(table["status"].to_pylist())
    books = (table.num_rows, statuses["success"], dict(reasons))
    if books != (record.count, record.successes, record.reasons):
        yield f"{books[0]} rows, {books[1]} stored; its commit record has {record.count}, {record.successes}"
    if table.num_rows != statuses["success"] + reasons.total():
        yield f"{table.num_rows} attempts are not {statuses['success']} stored + {reasons.total()} with a reason"
    if unknown := sorted(reasons.keys() - REASONS.keys()):
        yield f"reason {unknown[0]!r} is unknown"
    keys = table["key"].to_pylist()
    if keys != sorted(set(keys)):
        yield "its keys repeat or are not in order"


def _tar(pool: str, record: CommitRecord, table: pa.Table | None) -> list[str]:
    """Size and hash of the tar, and whether each member lies where the sidecar says."""
    name = record.tar if record.adopted else f"shards/{record.tar}"
    try:
        with local_copy(PoolLayout(pool).tar(record)) as place:
            size, sha256 = place.stat().st_size, disk.file_sha256(place)
            if (size, sha256) != (record.tar_bytes, record.tar_sha256):
                what = (
                    f"{size} bytes, not {record.tar_bytes}"
                    if size != record.tar_bytes
                    else "another sha256"
                )
                return [f"{name}: damaged: {what}"]
            there = {(m.name, m.offset, m.length) for m in index_tar(name, place)}
            if table is None:
                return []
            with open(place, "rb") as f:
                lines = [
                    f"{name}: {wrong}"
                    for row in table.to_pylist()
                    for wrong in _misplaced(row, there, f)
                ]
    except ValueError as error:
        return [str(error) if str(error).startswith(name) else f"{name}: {error}"]
    listed = sum(row is not None for part in PARTS for row in table[f"{part}_offset"].to_pylist())
    if not record.adopted and listed != len(there):
        lines.append(f"{name}: has {len(there)} members, the sidecar lists {listed}")
    return lines[:1]


def _misplaced(
    row: Mapping[str, Any], there: set[tuple[str, int, int]], f: io.BufferedReader
) -> Iterator[str]:
    if row["status"] != "success":
        return
    if (row["image_name"], row["image_offset"], row["image_length"]) not in there:
        yield f"{row['image_name']} does not lie where the sidecar says"
    if row["text_offset"] is not None:
        f.seek(row["text_offset"])
        if f.read(row["text_length"]) != row["caption"].encode():
            yield f"the caption of {row['image_name']} is not that of the sidecar"


def _sixteen(uids: pa.ChunkedArray) -> Uids:
    """Uids as 16 bytes each."""
    return np.frombuffer(bytes.fromhex("".join(uids.to_pylist())), "S16")


def _pairs(pool: str, attempted: list[Uids]) -> list[str]:
    """Rows and repetitions of the pairs, and whether each pair has one first attempt once all shards are there."""
    lines: list[str] = []
    listed = []
    for file in disk.list_names(disk.join(pool, "pairs"), ".parquet"):
        table, notes, wrong = _parquet(pool, f"pairs/{file}", PAIRS.names, more=True)
        if wrong:
            return [*lines, wrong]
        if table.num_rows != notes["pairs"]:
            lines.append(
                f"pairs/{file}: has {table.num_rows} rows, its footer says {notes['pairs']}"
            )
        listed.append(_sixteen(table["uid"]))
    if not listed:
        return lines
    pairs, first = (
        np.sort(np.concatenate(listed)),
        np.sort(np.concatenate([*attempted, listed[0][:0]])),
    )
    for uids, what in (
        (pairs, "pairs: {} uids are there twice"),
        (first, "shards: {} pairs were attempted twice"),
    ):
        if repeated := int((uids[1:] == uids[:-1]).sum()):
            lines.append(what.format(repeated))
    if len(pairs) == len(first) and not np.array_equal(pairs, first):
        lines.append("shards: the rows attempted are not the pairs")
    return lines


# --- what was made from shards -------------------------------------------------------------------------------------


def _scores(pool: str, rows: Mapping[str, Rows], fingerprint: str) -> list[str]:
    lines = []
    for folder in _folders(pool, "scores"):
        name = f"scores/{folder}"
        if not disk.exists(disk.join(pool, name, "scores.json")):
            continue  # not complete, so nothing reads it
        try:
            document = disk.read_json(disk.join(pool, name, "scores.json"))
        except ValueError as error:
            lines.append(f"{name}/scores.json: damaged: {error}")
            continue
        if document["fingerprint"] != fingerprint:
            lines.append(
                f"{name}: stale: the shards have changed since; run pipeline/score.py on this pool again"
            )
        for number in rows.keys() & document["shards"].keys():
            table, notes, wrong = _parquet(pool, f"{name}/{number}.parquet", document["columns"])
            if not wrong and {notes.get("uids"), document["shards"][number]} != {rows[number].uids}:
                wrong = f"{name}/{number}.parquet: its rows are not those of the sidecar (checksum of the uids)"
            if not wrong and table.num_rows != len(rows[number].stored):
                wrong = f"{name}/{number}.parquet: has {table.num_rows} rows, the sidecar {len(rows[number].stored)}"
            lines += [wrong] if wrong else []
    return sorted(lines)


def _views(pool: str, rows: Mapping[str, Rows], fingerprint: str) -> list[str]:
    lines = []
    for file in disk.list_names(disk.join(pool, "views"), ".json"):
        name = f"views/{file.removesuffix('.json')}"
        try:
            document = disk.read_json(disk.join(pool, "views", file))
        except ValueError as error:
            lines.append(f"views/{file}: damaged: {error}")
            continue
        if document["fingerprint"] != fingerprint:
            lines.append(
                f"{name}: stale: the shards have changed since; run pipeline/filter.py on this pool again"
            )
        if not document["kept"] == document["funnel"][-1][1] == sum(document["shards"].values()):
            lines.append(f"{name}.json: damaged: kept, the funnel and the shards do not add up")
        for number in rows.keys() & document["shards"].keys():
            table, _, wrong = _parquet(pool, f"{name}/{number}.parquet", VIEW.names)
            wrong = wrong or _wrong_mask(table, rows[number], document["shards"][number])
            if wrong:
                lines.append(
                    wrong if wrong.startswith(name) else f"{name}/{number}.parquet: {wrong}"
                )
    return sorted(lines)


def _wrong_mask(table: pa.Table, rows: Rows, kept: int) -> str:
    if table.num_rows != len(rows.stored):
        return f"has {table.num_rows} rows, the sidecar {len(rows.stored)}"
    mask, rules = table["kept"].to_pylist(), table["rule"].to_pylist()
    if sum(mask) != kept:
        return f"keeps {sum(mask)} rows, its view says {kept}"
    for is_kept, rule, stored in zip(mask, rules, rows.stored, strict=True):
        if is_kept != (rule is None) or (rule == NOT_STORED) != (not stored):
            return "has a row that is kept and fails a rule, or is not stored and does not say so"
    return ""


def _folders(pool: str, name: str) -> list[str]:
    return [entry for entry in disk.list_names(disk.join(pool, name)) if "@" in entry]
