"""Checks every file of a pool against its commit records: hashes, offsets and alignment. Names
each damaged file."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm import tqdm

from manifests import disk
from manifests.aligned.bundles import AlignedFiles
from manifests.aligned.shard_tables import score_shards_dict, view_shards_dict
from manifests.columns import PAIRS, REASONS, SIDECAR, VIEW
from manifests.commits import Commits, read_commits
from manifests.documents import ScoreSetDocument, ViewDocument, read_document
from manifests.pool_layout import (
    COMMIT_SUFFIX,
    NOT_STORED,
    SHARD_VERSION,
    CommitRecord,
    PoolLayout,
    list_shard_files,
    shard_folder,
    uids_checksum,
)
from pipeline.pool import index_tar, local_copy, sidecar_hash

READERS = 16  # commit records that are read at a time
PARTS = ("image", "text", "json")  # members of a sample
MEMBER_COLUMNS = [
    "status",
    "caption",
    "image_name",
    *(f"{part}_offset" for part in PARTS),
    *(f"{part}_length" for part in PARTS),
]
Uids = npt.NDArray[np.bytes_]
T = TypeVar("T", ViewDocument, ScoreSetDocument)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRows:
    """What other files must agree with: one shard's sidecar."""

    checksum: str  # of the uids
    stored: npt.NDArray[np.bool_]
    first_attempts: Uids  # uids of the rows that retry nothing


def verify(pool: str) -> list[str]:
    """One line for each file that is missing, damaged or stale; [] if there is none.

    Covers pairs, commit records, tars, sidecars, score sets and views. ValueError where there is no
    pool.
    """
    layout = PoolLayout(pool)
    has_shards = any(names for _, names in list_shard_files(pool))
    if not has_shards and not disk.list_names(layout.pairs):
        raise ValueError(
            f"{pool} has neither pairs nor committed shards; is it the folder of a pool?"
        )
    records, lines = _records(layout)
    if not lines:
        lines += _index_problems(pool, records)
    rows: dict[str, ShardRows] = {}
    for shard, record in tqdm(
        records.items(), desc="verify", unit="shard", disable=not sys.stderr.isatty()
    ):
        table, problems = _sidecar(layout, record)
        lines += [*problems, *_tar(layout, record, table)]
        if table is not None:
            stored = pc.equal(table["status"], "success").to_numpy(zero_copy_only=False)
            first = table.filter(pc.is_null(table["retry_of"]))
            rows[shard] = ShardRows(
                checksum=uids_checksum(table["uid"]),
                stored=np.asarray(stored, np.bool_),
                first_attempts=_binary_uids(first["uid"]),
            )
    if len(rows) == len(records):
        lines += _pairs(layout, [shard_rows.first_attempts for shard_rows in rows.values()])
    fingerprint = Commits.of_records(pool, records.values()).fingerprint
    return [*lines, *_scores(layout, rows, fingerprint), *_views(layout, rows, fingerprint)]


def _records(layout: PoolLayout) -> tuple[dict[str, CommitRecord], list[str]]:
    """Commit records that can be read, and a line for each that cannot."""
    files = []
    for folder, names in list_shard_files(layout.root):
        files += [disk.join(folder, name) for name in names if name.endswith(COMMIT_SUFFIX)]
    with ThreadPoolExecutor(READERS) as readers:
        answers = list(readers.map(_record, files))
    records, lines = {}, []
    for file, answer in zip(files, answers, strict=True):
        if isinstance(answer, str):
            lines.append(f"{_inside(layout, file)}: damaged: {answer}")
        else:
            records[answer.shard] = answer
    return dict(sorted(records.items(), key=lambda item: int(item[0]))), lines


def _inside(layout: PoolLayout, path: str) -> str:
    """A path as it is called inside the pool."""
    return path.removeprefix(layout.root.rstrip("/") + "/")


def _index_problems(pool: str, records: Mapping[str, CommitRecord]) -> Iterator[str]:
    """Where the index does not say what the commit records say."""
    try:
        commits = read_commits(pool)
    except ValueError as error:
        yield f"index: {error}"
        return
    known = {record.shard: record for record in commits.records()}
    for shard in sorted(known.keys() | records.keys(), key=int):
        if known.get(shard) != records.get(shard):
            yield (
                f"index: shard {shard} is not as its commit record says; "
                f"run python pipeline/audit.py {pool} --reindex"
            )


def _record(path: str) -> CommitRecord | str:
    """A commit record, or what is wrong with it."""
    try:
        document = disk.read_json(path)
    except ValueError:
        return "it is not JSON"
    try:
        record = CommitRecord.from_plain(document)
    except (ValueError, TypeError) as error:
        return str(error)
    if record.shard != path.rpartition("/")[2].removesuffix(COMMIT_SUFFIX):
        return f"it is the record of shard {record.shard}"
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
        metadata = json.loads((table.schema.metadata or {}).get(b"clipmill", b"{}"))
        return table, metadata, ""
    except FileNotFoundError:
        return None, {}, f"{name}: missing"
    except Exception as error:  # a damaged footer makes Arrow raise all kinds of errors
        return None, {}, f"{name}: damaged: {' '.join(str(error).split())[:120]}"


def _aligned(
    layout: PoolLayout, files: AlignedFiles, shard: str, columns: Sequence[str]
) -> tuple[pa.Table, dict[str, Any], str]:
    """Like `_parquet`, of the rows of a shard in a score set or view."""
    name = _inside(layout, files.path(shard))
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


# --- shards ---------------------------------------------------------------------------------------


def _sidecar(layout: PoolLayout, record: CommitRecord) -> tuple[pa.Table | None, list[str]]:
    """The sidecar if it can be used, and a line for each problem."""
    path = layout.sidecar(record.shard, record.revision)
    name = _inside(layout, path)
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
    name = record.tar if is_adopted else _inside(layout, layout.tar(record))
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


def _binary_uids(uids: pa.ChunkedArray) -> Uids:
    """(rows,) uids as 16 bytes each."""
    return np.frombuffer(bytes.fromhex("".join(uids.to_pylist())), "S16")


def _pairs(layout: PoolLayout, first_attempts: list[Uids]) -> list[str]:
    """Row counts and repeated uids of the pairs, and whether each pair has one first attempt in
    a complete pool."""
    lines: list[str] = []
    uids_of_parts = []
    for file in disk.list_names(layout.pairs, ".parquet"):
        table, metadata, problem = _parquet(
            layout, f"pairs/{file}", PAIRS.names, may_have_more=True
        )
        if problem:
            return [*lines, problem]
        if table.num_rows != metadata["pairs"]:
            lines.append(
                f"pairs/{file}: has {table.num_rows} rows, its footer says {metadata['pairs']}"
            )
        uids_of_parts.append(_binary_uids(table["uid"]))
    if not uids_of_parts:
        return lines
    none = uids_of_parts[0][:0]
    pairs = np.sort(np.concatenate(uids_of_parts))
    attempted = np.sort(np.concatenate([*first_attempts, none]))
    if repeated := _repetitions(pairs):
        lines.append(f"pairs: {repeated} uids are there twice")
    if repeated := _repetitions(attempted):
        lines.append(f"shards: {repeated} pairs were attempted twice")
    if len(pairs) == len(attempted) and not np.array_equal(pairs, attempted):
        lines.append("shards: the rows attempted are not the pairs")
    return lines


def _repetitions(uids: Uids) -> int:
    """How many values of a sorted array equal the one before."""
    return int((uids[1:] == uids[:-1]).sum())


# --- what was made from shards --------------------------------------------------------------------


def _scores(layout: PoolLayout, rows: Mapping[str, ShardRows], fingerprint: str) -> list[str]:
    lines: list[str] = []
    for folder in disk.list_names(layout.scores):
        path = layout.score_set_json(folder)
        if "@" not in folder or not disk.exists(path):
            continue  # not complete, so nothing reads it
        name = f"scores/{folder}"
        document = _document(f"{name}/scores.json", path, ScoreSetDocument, lines)
        if document is None:
            continue
        if document.fingerprint != fingerprint:
            lines.append(
                f"{name}: stale: the shards have changed since; "
                "run pipeline/score.py on this pool again"
            )
        files = AlignedFiles.of_scores(layout.root, folder)
        try:
            checksums = score_shards_dict(layout.root, document)
        except ValueError as error:
            lines.append(f"{name}: {error}")
            continue
        for shard in rows.keys() & checksums.keys():
            table, metadata, problem = _aligned(layout, files, shard, document.columns)
            if not problem:
                problem = _score_problem(table, metadata, checksums[shard], rows[shard])
                problem = problem and f"{_inside(layout, files.path(shard))}: {problem}"
            lines += [problem] if problem else []
    return sorted(lines)


def _score_problem(
    table: pa.Table, metadata: Mapping[str, Any], checksum: str, rows: ShardRows
) -> str:
    if {metadata.get("uids"), checksum} != {rows.checksum}:
        return "its rows are not those of the sidecar (checksum of the uids)"
    if table.num_rows != len(rows.stored):
        return f"has {table.num_rows} rows, the sidecar {len(rows.stored)}"
    return ""


def _views(layout: PoolLayout, rows: Mapping[str, ShardRows], fingerprint: str) -> list[str]:
    lines: list[str] = []
    for file in disk.list_names(layout.views, ".json"):
        view = file.removesuffix(".json")
        name = f"views/{view}"
        document = _document(f"{name}.json", layout.view_json(view), ViewDocument, lines)
        if document is None:
            continue
        if document.fingerprint != fingerprint:
            lines.append(
                f"{name}: stale: the shards have changed since; "
                "run pipeline/filter.py on this pool again"
            )
        files = AlignedFiles.of_view(layout.root, view)
        try:
            kept = view_shards_dict(layout.root, document)
        except ValueError as error:
            lines.append(f"{name}: {error}")
            continue
        in_shards = sum(kept.values())
        if not document.kept == document.funnel[-1][1] == in_shards:
            lines.append(
                f"{name}.json: damaged: it keeps {document.kept} rows, its funnel "
                f"{document.funnel[-1][1]}, its shards {in_shards}"
            )
        for shard in rows.keys() & kept.keys():
            table, _, problem = _aligned(layout, files, shard, VIEW.names)
            if not problem:
                problem = _mask_problem(table, rows[shard], kept[shard])
                problem = problem and f"{_inside(layout, files.path(shard))}: {problem}"
            lines += [problem] if problem else []
    return sorted(lines)


def _mask_problem(table: pa.Table, rows: ShardRows, kept: int) -> str:
    if table.num_rows != len(rows.stored):
        return f"has {table.num_rows} rows, the sidecar {len(rows.stored)}"
    mask, rules = table["kept"].to_pylist(), table["rule"].to_pylist()
    if sum(mask) != kept:
        return f"keeps {sum(mask)} rows, its view says {kept}"
    for is_kept, rule, stored in zip(mask, rules, rows.stored, strict=True):
        if is_kept != (rule is None) or (rule == NOT_STORED) != (not stored):
            return "has a row that is kept and fails a rule, or is not stored and does not say so"
    return ""


def _document(name: str, path: str, kind: type[T], lines: list[str]) -> T | None:
    """A JSON document, None with a line if it is damaged."""
    try:
        return read_document(path, kind)
    except ValueError as error:
        lines.append(f"{name}: damaged: {error}")
        return None
