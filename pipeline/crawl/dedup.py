"""Which pairs of a whole job come first: exact, by hash partition, in memory that does not grow
with the job.

Three steps, each a ticket per file, each resumed by what it has left in POOL/pairs/.extracted.
scatter: the uids of a part, sorted by partition. gather: of one partition, the rows of every part
that no earlier row equals. write: the rows of a part that stay, as POOL/pairs/part-k.parquet. The
first by (part, row) stays, however many partitions there are.

A scratch file is an array of offsets, then the entries that the offsets divide.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from manifests import disk
from manifests.columns import PAIRS, with_extra
from manifests.pool_layout import PoolLayout
from pipeline.executor import Engine, Stage, Ticket, Work, execute

ROWS_PER_PARTITION = 4_000_000  # gather holds about 60 bytes a row
FEW = 1_000_000  # pairs up to which starting workers would take longer than the work
BATCH = 10_000  # rows
UID = np.dtype([("high", ">u8"), ("low", ">u8")])
ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<u4")])
ROW = np.dtype("<u4")
OFFSET = np.dtype("<u8")
Config = dict[str, Any]
logger = logging.getLogger(__name__)


def commit(
    pool: str,
    ids: Sequence[str],
    extra_columns: dict[str, str],
    engine: Engine,
    *,
    workers: int | None = None,
) -> dict[str, str]:
    """Write the final parts of extracted ones. Returns {task: error}: {} where all are there."""
    counts = [int(disk.read_metadata(extracted(pool, k))["pairs"]) for k in range(len(ids))]
    rows = ROWS_PER_PARTITION
    partitions = max(1, _chunks(sum(counts), rows))
    config: Config = {
        "pool": pool,
        "job": disk.content_hash([list(ids), rows]),
        "rows": rows,
        "partitions": partitions,
        "counts": counts,
        "extra_columns": extra_columns,
    }
    engine = "inline" if sum(counts) <= FEW else engine
    logger.info("%d pairs are compared in %d partitions", sum(counts), partitions)
    steps: tuple[tuple[str, Callable[[Config], Work], list[tuple[int, int]]], ...] = (
        ("scatter", scatter, _part_chunks(config)),
        ("gather", gather, [(k, 0) for k in range(partitions)]),
        ("write", write, [(k, 0) for k in range(len(ids))]),
    )
    for step, work, numbers in steps:
        tickets = []
        for number, chunk in numbers:
            if not _is_done(config, step, number, chunk):
                group = f"{step}-{number:05d}"
                payload = {"number": number, "chunk": chunk}
                tickets.append(Ticket(id=f"{group}-{chunk:03d}", group=group, payload=payload))
        if not tickets:
            continue
        stage = Stage(name=step, work=work, config=config)
        if failed := execute(stage, tickets, engine=engine, workers=workers).failed:
            return dict(failed)
    return {}


def extracted(pool: str, part: int) -> str:
    """A part before its duplicates are left out."""
    return disk.join(PoolLayout(pool).extracted, f"part-{part:05d}.parquet")


def _part_chunks(config: Config) -> list[tuple[int, int]]:
    """(part, chunk) of all parts: a chunk is the next `rows` rows of its part."""
    numbers = []
    for part, count in enumerate(config["counts"]):
        numbers += [(part, chunk) for chunk in range(_chunks(count, config["rows"]))]
    return numbers


def _chunks(count: int, rows: int) -> int:
    return -(-count // rows)


def _scratch_file(config: Config, step: str, number: int, chunk: int = 0) -> str:
    name = f"{step}-{config['job']}-{number:05d}-{chunk:03d}.bin"
    return disk.join(PoolLayout(config["pool"]).extracted, name)


def _is_done(config: Config, step: str, number: int, chunk: int) -> bool:
    if step != "write":
        return disk.exists(_scratch_file(config, step, number, chunk))
    path = PoolLayout(config["pool"]).pairs_part(number)
    return disk.exists(path) and disk.read_metadata(path).get("job") == config["job"]


def _read_block(path: str, blocks: int, block: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The entries of one of the `blocks` blocks of a scratch file."""
    pair = disk.read_bytes(path, block * OFFSET.itemsize, 2 * OFFSET.itemsize)
    begin, end = (int(offset) for offset in np.frombuffer(pair, OFFSET))
    head = OFFSET.itemsize * (blocks + 1)
    data = disk.read_bytes(path, head + begin * dtype.itemsize, (end - begin) * dtype.itemsize)
    return np.frombuffer(data, dtype)


# --- scatter ---------------------------------------------------------------------------------


def scatter(config: Config) -> Work:
    """Factory: the uids of a chunk of a part with their rows, sorted by partition."""
    partitions: int = config["partitions"]

    def work(ticket: Ticket) -> dict[str, Any]:
        part, chunk = ticket.payload["number"], ticket.payload["chunk"]
        start = chunk * config["rows"]
        uids = _uids(extracted(config["pool"], part), start, start + config["rows"])
        entries = np.empty(len(uids), ENTRY)
        entries["high"], entries["low"] = uids["high"], uids["low"]
        entries["row"] = np.arange(start, start + len(uids), dtype=np.int64)
        partition = (entries["high"] >> np.uint64(32)) * np.uint64(partitions) >> np.uint64(32)
        order = np.argsort(partition, kind="stable")
        bounds = np.arange(partitions + 1, dtype=np.uint64)
        offsets = np.searchsorted(partition[order], bounds).astype(OFFSET)
        data = offsets.tobytes() + entries[order].tobytes()
        disk.write_bytes(_scratch_file(config, "scatter", part, chunk), data)
        return {}

    return work


def _uids(path: str, start: int, stop: int) -> npt.NDArray[Any]:
    """The uids of rows `start` to `stop` of a part."""
    uids = [np.empty(0, UID)]
    with fsspec.open(path, "rb") as stream, pq.ParquetFile(stream) as table:
        groups: list[int] = []
        rows_before, position = 0, 0
        for number in range(table.num_row_groups):
            size = table.metadata.row_group(number).num_rows
            if rows_before + size > start and rows_before < stop:
                position = position if groups else rows_before
                groups.append(number)
            rows_before += size
        for batch in table.iter_batches(batch_size=BATCH, row_groups=groups, columns=["uid"]):
            values = np.frombuffer(bytes.fromhex("".join(batch["uid"].to_pylist())), UID)
            uids.append(values[max(0, start - position) : max(0, stop - position)])
            position += len(values)
    return np.concatenate(uids)


# --- gather ----------------------------------------------------------------------------------


def gather(config: dict[str, Any]) -> Work:
    """Factory: the rows of a partition that come first, part by part, behind the parts' offsets."""
    counts: list[int] = config["counts"]
    chunks = _part_chunks(config)

    def work(ticket: Ticket) -> dict[str, Any]:
        partition = ticket.payload["number"]
        blocks = []
        for part, chunk in chunks:
            path = _scratch_file(config, "scatter", part, chunk)
            blocks.append(_read_block(path, config["partitions"], partition, ENTRY))
        sizes = [len(block) for block in blocks]
        entries = np.concatenate([np.empty(0, ENTRY), *blocks])
        blocks.clear()
        first = first_of_equal(entries)
        rows_per_part = np.zeros(len(counts) + 1, dtype=np.int64)
        begin = 0
        for (part, _), size in zip(chunks, sizes, strict=True):
            rows_per_part[part + 1] += np.count_nonzero(first[begin : begin + size])
            begin += size
        offsets = np.cumsum(rows_per_part).astype(OFFSET)
        data = offsets.tobytes() + entries["row"][first].tobytes()
        disk.write_bytes(_scratch_file(config, "gather", partition), data)
        return {}

    return work


def first_of_equal(entries: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """True for each entry whose uid, all 128 bits of it, no earlier entry has."""
    order = np.lexsort((entries["low"], entries["high"]))  # stable: the first of equal ones leads
    high, low = entries["high"][order], entries["low"][order]
    differs = np.ones(len(order), dtype=bool)
    differs[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    first = np.zeros(len(order), dtype=bool)
    first[order[differs]] = True
    return first


# --- write -----------------------------------------------------------------------------------


def write(config: Config) -> Work:
    """Factory: the rows of a part that stay, as the final part, with the counts that follow."""
    schema = with_extra(PAIRS, config["extra_columns"])

    def work(ticket: Ticket) -> dict[str, Any]:
        part = ticket.payload["number"]
        path = extracted(config["pool"], part)
        rows = _rows_that_stay(config, part)
        metadata = disk.read_metadata(path)
        reasons = dict(metadata["reasons"])
        if duplicates := metadata["pairs"] - len(rows):
            reasons["duplicate_pair"] = duplicates
        metadata |= {
            "pairs": len(rows),
            "reasons": reasons,
            "parts": len(config["counts"]),
            "job": config["job"],
        }
        with tempfile.TemporaryDirectory(prefix="clipmill-pairs-") as folder:
            staged = Path(folder) / "part.parquet"
            annotated = disk.with_metadata(schema, metadata)
            with pq.ParquetWriter(staged, annotated, compression="zstd") as writer:
                for batch in _batches_of(path, rows):
                    writer.write_batch(batch.cast(schema))
            disk.publish(staged, PoolLayout(config["pool"]).pairs_part(part))
        return {"pairs": len(rows)}

    return work


def _rows_that_stay(config: Config, part: int) -> npt.NDArray[np.int64]:
    """The rows of a part that stay, in order."""
    rows = [np.zeros(0, ROW)]
    for partition in range(config["partitions"]):
        path = _scratch_file(config, "gather", partition)
        rows.append(_read_block(path, len(config["counts"]), part, ROW))
    return np.sort(np.concatenate(rows)).astype(np.int64)


def _batches_of(path: str, rows: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """The rows of these numbers, batch by batch."""
    start = 0
    with fsspec.open(path, "rb") as stream, pq.ParquetFile(stream) as table:
        for batch in table.iter_batches(batch_size=BATCH):
            first, last = np.searchsorted(rows, [start, start + batch.num_rows])
            yield batch.take(pa.array(rows[first:last] - start))
            start += batch.num_rows
