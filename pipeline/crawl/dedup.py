"""Which pairs of a whole job come first: exact, by partitions of their uids, in memory that does not grow with the job.

Three steps, each a ticket per file, each resumed by what it has left in POOL/pairs/.extracted. scatter: the uids of a
part, sorted by partition. gather: of one partition, the rows of every part that no earlier row equals. write: the rows
of a part that stay, as POOL/pairs/part-k.parquet. The first by (part, row) stays, however many partitions there are.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from manifests import disk
from manifests.columns import PAIRS, with_extra
from pipeline.executor import Engine, Stage, Ticket, Work, execute

ROWS_PER_PARTITION = 4_000_000  # gather holds about 60 bytes a row
FEW = 1_000_000  # pairs up to which starting workers would take longer than the work
BATCH = 10_000  # rows
UID = np.dtype([("high", ">u8"), ("low", ">u8")])
ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<u4")])
PLACE = np.dtype("<u8")
logger = logging.getLogger(__name__)


def commit(
    pool: str,
    ids: Sequence[str],
    extra_columns: dict[str, str],
    engine: Engine,
    *,
    workers: int | None = None,
) -> dict[str, str]:
    """Write the final parts of extracted ones. Returns what failed, and why: {} where all are there."""
    counts = [int(disk.read_metadata(extracted(pool, k))["pairs"]) for k in range(len(ids))]
    rows = ROWS_PER_PARTITION
    partitions = max(1, _chunks(sum(counts), rows))
    config: dict[str, Any] = {
        "pool": pool,
        "job": disk.content_hash([list(ids), rows]),
        "rows": rows,
        "partitions": partitions,
        "counts": counts,
        "extra_columns": extra_columns,
    }
    engine = "inline" if sum(counts) <= FEW else engine
    logger.info("%d pairs are compared in %d partitions", sum(counts), partitions)
    steps = (
        (
            "scatter",
            scatter,
            [(k, c) for k, count in enumerate(counts) for c in range(_chunks(count, rows))],
        ),
        ("gather", gather, [(k, 0) for k in range(partitions)]),
        ("write", write, [(k, 0) for k in range(len(ids))]),
    )
    for step, work, numbers in steps:
        tickets = [
            Ticket(
                id=f"{step}-{k:05d}-{chunk:03d}",
                group=f"{step}-{k:05d}",
                payload={"number": k, "chunk": chunk},
            )
            for k, chunk in numbers
            if not _is_done(config, step, k, chunk)
        ]
        if not tickets:
            continue
        stage = Stage(name=step, work=work, config=config)
        if failed := execute(stage, tickets, engine=engine, workers=workers).failed:
            return dict(failed)
    return {}


def extracted(pool: str, part: int) -> str:
    """Where a part lies before its repetitions are left out."""
    return disk.join(pool, "pairs", ".extracted", f"part-{part:05d}.parquet")


def final(pool: str, part: int) -> str:
    return disk.join(pool, "pairs", f"part-{part:05d}.parquet")


def _left(config: dict[str, Any], step: str, number: int, chunk: int = 0) -> str:
    name = f"{step}-{config['job']}-{number:05d}-{chunk:03d}.bin"
    return disk.join(config["pool"], "pairs", ".extracted", name)


def _is_done(config: dict[str, Any], step: str, number: int, chunk: int) -> bool:
    if step != "write":
        return disk.exists(_left(config, step, number, chunk))
    path = final(config["pool"], number)
    return disk.exists(path) and disk.read_metadata(path).get("job") == config["job"]


def _chunks(count: int, rows: int) -> int:
    return -(-count // rows)


# --- scatter -------------------------------------------------------------------------------------------------------


def scatter(config: dict[str, Any]) -> Work:
    """Factory: the next uids of a part and their rows, sorted by partition, behind the partitions' places."""
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
        places = np.searchsorted(
            partition[order], np.arange(partitions + 1, dtype=np.uint64)
        ).astype(PLACE)
        disk.write_bytes(
            _left(config, "scatter", part, chunk), places.tobytes() + entries[order].tobytes()
        )
        return {}

    return work


def _uids(path: str, start: int, stop: int) -> npt.NDArray[Any]:
    """The uids of some rows of a part."""
    found = [np.empty(0, UID)]
    with fsspec.open(path, "rb") as stream, pq.ParquetFile(stream) as table:
        groups, before = [], 0
        for k in range(table.num_row_groups):
            size = table.metadata.row_group(k).num_rows
            if before + size > start and before < stop:
                groups.append((k, before))
            before += size
        place = groups[0][1] if groups else 0
        for batch in table.iter_batches(
            batch_size=BATCH, row_groups=[k for k, _ in groups], columns=["uid"]
        ):
            uids = np.frombuffer(bytes.fromhex("".join(batch["uid"].to_pylist())), UID)
            found.append(uids[max(0, start - place) : max(0, stop - place)])
            place += len(uids)
    return np.concatenate(found)


# --- gather --------------------------------------------------------------------------------------------------------


def gather(config: dict[str, Any]) -> Work:
    """Factory: the rows of a partition that come first, part by part, behind the parts' places."""
    counts: list[int] = config["counts"]

    def work(ticket: Ticket) -> dict[str, Any]:
        number = ticket.payload["number"]
        chunks = [
            (part, c)
            for part, count in enumerate(counts)
            for c in range(_chunks(count, config["rows"]))
        ]
        taken = [_entries(config, number, part, c) for part, c in chunks]
        ends = np.cumsum([len(entries) for entries in taken], dtype=np.int64)
        entries = np.concatenate([np.empty(0, ENTRY), *taken])
        taken.clear()
        order = np.lexsort(
            (entries["low"], entries["high"])
        )  # stable: of equal ones the first stays in front
        differs = np.ones(len(order), dtype=bool)
        for name in ("high", "low"):
            values = entries[name][order]
            same = values[1:] == values[:-1]
            differs[1:] = ~same if name == "high" else differs[1:] | ~same
        kept = np.zeros(len(order), dtype=bool)
        kept[order[differs]] = True
        sizes = np.zeros(len(counts) + 1, dtype=np.int64)
        for (part, _), begin, end in zip(chunks, [0, *ends][:-1], ends, strict=True):
            sizes[part + 1] += np.count_nonzero(kept[begin:end])
        data = np.cumsum(sizes).astype(PLACE).tobytes() + entries["row"][kept].tobytes()
        disk.write_bytes(_left(config, "gather", number), data)
        return {}

    return work


def _entries(config: dict[str, Any], number: int, part: int, chunk: int) -> npt.NDArray[Any]:
    """What a chunk of a part has in a partition."""
    path, head = _left(config, "scatter", part, chunk), PLACE.itemsize * (config["partitions"] + 1)
    begin, end = _places(path, number)
    return np.frombuffer(
        disk.read_bytes(path, head + begin * ENTRY.itemsize, (end - begin) * ENTRY.itemsize), ENTRY
    )


def _places(path: str, number: int) -> tuple[int, int]:
    begin, end = np.frombuffer(
        disk.read_bytes(path, number * PLACE.itemsize, 2 * PLACE.itemsize), PLACE
    )
    return int(begin), int(end)


# --- write ---------------------------------------------------------------------------------------------------------


def write(config: dict[str, Any]) -> Work:
    """Factory: the rows of a part that stay, as the final part, with the counts that follow from it."""
    schema = with_extra(PAIRS, config["extra_columns"])

    def work(ticket: Ticket) -> dict[str, Any]:
        part = ticket.payload["number"]
        path = extracted(config["pool"], part)
        rows = _kept(config, part)
        notes = disk.read_metadata(path)
        dropped = notes["pairs"] - len(rows)
        reasons = {**notes["reasons"], **({"duplicate_pair": dropped} if dropped else {})}
        notes |= {
            "pairs": len(rows),
            "reasons": reasons,
            "parts": len(config["counts"]),
            "job": config["job"],
        }
        with tempfile.TemporaryDirectory(prefix="clipmill-pairs-") as folder:
            staged = Path(folder) / "part.parquet"
            with pq.ParquetWriter(
                staged, disk.with_metadata(schema, notes), compression="zstd"
            ) as writer:
                for batch in _staying(path, rows):
                    writer.write_batch(batch.cast(schema))
            disk.publish(staged, final(config["pool"], part))
        return {"pairs": len(rows)}

    return work


def _kept(config: dict[str, Any], part: int) -> npt.NDArray[np.int64]:
    """The rows of a part that stay, in order."""
    found, head = [np.zeros(0, "<u4")], PLACE.itemsize * (len(config["counts"]) + 1)
    for number in range(config["partitions"]):
        path = _left(config, "gather", number)
        begin, end = _places(path, part)
        found.append(
            np.frombuffer(disk.read_bytes(path, head + begin * 4, (end - begin) * 4), "<u4")
        )
    return np.sort(np.concatenate(found)).astype(np.int64)


def _staying(path: str, rows: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    start = 0
    with fsspec.open(path, "rb") as stream, pq.ParquetFile(stream) as table:
        for batch in table.iter_batches(batch_size=BATCH):
            inside = (
                rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + batch.num_rows)]
                - start
            )
            yield batch.take(pa.array(inside))
            start += batch.num_rows
