"""Sources to pairs: each file of a source becomes one part, and a pair that came before is dropped.

Two steps, both resumed by what is committed. Parts are read into POOL/pairs/.extracted, one task
each, in any order. When all are there, (url, caption) pairs that an earlier part, or the same part
earlier, has already are left out and POOL/pairs/part-00000.parquet … are committed (dedup.py);
those count once all of them exist.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from manifests import disk
from manifests.columns import PAIRS, hex_bytes, with_extra
from manifests.layout import PoolLayout
from manifests.schema import Source
from pipeline.archives.urls import PartCounts
from pipeline.crawl.parts import (
    PARTS,
    THREADS,
    UidsDigest,
    content_of,
    part_names,
    part_totals,
    read_parts,
    rows_between,
    stored_table,
    top_reasons,
    write_parts,
)
from pipeline.crawl.sources import parts, reader_of, source_id
from pipeline.executor.stage import Engine, execute
from pipeline.executor.tickets import Stage, Ticket, Tickets, Work
from pipeline.pool.lease import check_fence
from pipeline.pool.shard_writer import publish_new
from pipeline.progress.state import measure_links

# --------------------------------------------------------------------------------------------------
# Which pairs of a whole job come first: exact, by hash partition, in memory that does not grow
# with the job.
#
# Three steps of tickets, each resumed by what it has left in POOL/pairs/.extracted. scatter: the
# uids of a block, which is the next `rows` rows of all parts, sorted by partition. gather: of one
# partition, the rows of every block that no earlier row equals. write: the rows of some parts
# that stay, as POOL/pairs/part-k.parquet. The first by (part, row) stays, however many partitions
# and blocks there are. The number of reads is blocks x partitions, and does not follow the number
# of parts.
#
# A scratch file is an array of offsets, then the entries that the offsets divide.


ROWS_PER_PARTITION = 4_000_000  # gather holds about 60 bytes a row
ROWS_PER_BLOCK = 1_000_000  # of scatter and write
FEW = 1_000_000  # pairs up to which starting workers would take longer than the work
UID_BYTES = 16
UID = np.dtype([("high", ">u8"), ("low", ">u8")])
ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<u4")])  # row: in the block
ROW = np.dtype("<u4")
OFFSET = np.dtype("<u8")
Config = dict[str, Any]
Integers = npt.NDArray[np.int64]
logger = logging.getLogger(__name__)


def commit(
    pool: str,
    ids: Sequence[str],
    extra_columns: dict[str, str],
    engine: Engine,
    *,
    counts: Integers | None = None,
    workers: int | None = None,
    fence: int | None = None,
) -> dict[str, str]:
    """Write the final parts of extracted ones. Returns {task: error}: {} where all are there.

    `counts` (parts,) is the number of pairs of each extracted part, where it is known. fence: that
    of the lease.
    """
    if counts is None:
        counts = _counts_of(pool, len(ids))
    total = int(counts.sum())
    rows = min(ROWS_PER_BLOCK, ROWS_PER_PARTITION)
    partitions = max(1, -(-total // ROWS_PER_PARTITION))
    blocks = -(-total // rows)
    config: Config = {
        "pool": pool,
        "job": disk.content_hash([list(ids), rows, partitions]),
        "rows": rows,
        "partitions": partitions,
        "blocks": blocks,
        "parts": len(ids),
        "extra_columns": extra_columns,
        "fence": fence,
    }
    engine = "inline" if total <= FEW else engine
    logger.info("%d pairs are compared in %d partitions", total, partitions)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    _remove_parts_of_others(config)
    steps: tuple[tuple[str, Callable[[Config], Work], Tickets], ...] = (
        ("scatter", scatter, _scatter_tickets(config, bounds)),
        ("gather", gather, _scratch_tickets(config, "gather", partitions, lambda number: {})),
        ("write", write, _write_tickets(config, bounds)),
    )
    for name, work, tickets in steps:
        stage = Stage(name=name, work=work, config=config)
        if failed := execute(stage, tickets, engine=engine, workers=workers).failed:
            return dict(failed)
    return {}


def _remove_parts_of_others(config: Config) -> None:
    """Remove final parts that a crawl of other pairs left before it was complete."""
    pool = config["pool"]
    paths = [disk.join(PoolLayout(pool).pairs, name) for name in part_names(pool)]
    with ThreadPoolExecutor(THREADS) as threads:
        for path, footer in zip(paths, threads.map(disk.read_metadata, paths), strict=True):
            if footer.get("job") != config["job"]:
                check_fence(pool, config["fence"])
                disk.remove(path)


def extracted(pool: str, part: int) -> str:
    """A part before its duplicates are left out."""
    return disk.join(PoolLayout(pool).extracted, f"part-{part:05d}.parquet")


def _counts_of(pool: str, parts: int) -> Integers:
    """(parts,) pairs of each extracted part, from its footer."""
    paths = [extracted(pool, part) for part in range(parts)]
    with ThreadPoolExecutor(THREADS) as threads:
        counts = [int(footer["pairs"]) for footer in threads.map(disk.read_metadata, paths)]
    return np.array(counts, dtype=np.int64)


def ranges_of(bounds: Integers, start: int, stop: int) -> list[list[int]]:
    """[part, first, end] of each part that has some of rows `start` to `stop` of all parts.

    `bounds` (parts + 1,) is where the rows of each part begin; first and end are rows of the part.
    """
    ranges = []
    first = int(np.searchsorted(bounds, start, "right")) - 1
    for part in range(first, int(np.searchsorted(bounds, stop, "left"))):
        begin = int(bounds[part])
        low, high = max(start, begin), min(stop, int(bounds[part + 1]))
        if low < high:
            ranges.append([part, low - begin, high - begin])
    return ranges


def _scatter_tickets(config: Config, bounds: Integers) -> Tickets:
    rows, total = config["rows"], int(bounds[-1])

    def payload(number: int) -> dict[str, Any]:
        start = number * rows
        return {"ranges": ranges_of(bounds, start, min(start + rows, total))}

    return _scratch_tickets(config, "scatter", config["blocks"], payload)


def _scratch_tickets(
    config: Config, step: str, count: int, payload: Callable[[int], dict[str, Any]]
) -> Tickets:
    """The tickets of a step whose scratch files are not there. One listing."""
    names = set(disk.list_names(PoolLayout(config["pool"]).extracted, ".bin"))
    paths = [_scratch_file(config, step, number) for number in range(count)]
    todo = [number for number, path in enumerate(paths) if path.rpartition("/")[2] not in names]

    def make(position: int) -> Ticket:
        name = f"{step}-{todo[position]:05d}"
        number = {"number": todo[position]}
        return Ticket(id=name, group=name, payload={**number, **payload(todo[position])})

    return Tickets(np.arange(len(todo)), make)


def _write_tickets(config: Config, bounds: Integers) -> Tickets:
    """Tickets over consecutive parts that have about a block of rows together."""
    numbers = bounds[:-1] // config["rows"]
    first_parts = np.unique(numbers, return_index=True)[1].tolist()
    ends = [*first_parts[1:], config["parts"]]
    some_are_done = bool(disk.list_names(PoolLayout(config["pool"]).pairs, ".parquet"))

    def make(number: int) -> Ticket:
        first, end = first_parts[number], ends[number]
        name = f"write-{number:05d}"
        payload = {
            "first": first,
            "bounds": bounds[first : end + 1].tolist(),
            "some_are_done": some_are_done,
        }
        return Ticket(id=name, group=name, payload=payload)

    return Tickets(np.arange(len(first_parts)), make)


def _scratch_file(config: Config, step: str, number: int) -> str:
    name = f"{step}-{config['job']}-{number:05d}.bin"
    return disk.join(PoolLayout(config["pool"]).extracted, name)


def _read_blocks(
    path: str, blocks: int, first: int, end: int, dtype: np.dtype[Any]
) -> tuple[npt.NDArray[Any], Integers]:
    """The entries of blocks `first` to `end` of the `blocks` blocks of a scratch file, and how many
    each of them has."""
    data = disk.read_bytes(path, first * OFFSET.itemsize, (end - first + 1) * OFFSET.itemsize)
    offsets = np.frombuffer(data, OFFSET).astype(np.int64)
    head = OFFSET.itemsize * (blocks + 1)
    begin, stop = int(offsets[0]), int(offsets[-1])
    data = disk.read_bytes(path, head + begin * dtype.itemsize, (stop - begin) * dtype.itemsize)
    return np.frombuffer(data, dtype), np.diff(offsets)


# --- scatter ---------------------------------------------------------------------------------


def scatter(config: Config) -> Work:
    """Factory: the uids of a block with their rows, sorted by partition."""
    partitions: int = config["partitions"]

    def work(ticket: Ticket) -> dict[str, Any]:
        uids = [np.empty(0, UID)]
        for part, start, stop in ticket.payload["ranges"]:
            for batch in rows_between(extracted(config["pool"], part), start, stop, ["uid"]):
                uids.append(uids_of(batch["uid"]))
        block = np.concatenate(uids)
        uids.clear()
        entries = np.empty(len(block), ENTRY)
        entries["high"], entries["low"] = block["high"], block["low"]
        entries["row"] = np.arange(len(block))
        partition = (entries["high"] >> np.uint64(32)) * np.uint64(partitions) >> np.uint64(32)
        order = np.argsort(partition, kind="stable")
        bounds = np.arange(partitions + 1, dtype=np.uint64)
        offsets = np.searchsorted(partition[order], bounds).astype(OFFSET)
        data = offsets.tobytes() + entries[order].tobytes()
        check_fence(config["pool"], config.get("fence"))
        disk.write_bytes(_scratch_file(config, "scatter", ticket.payload["number"]), data)
        return {}

    return work


def uids_of(texts: pa.Array) -> npt.NDArray[Any]:
    """(rows,) uids as two numbers. ValueError where one is not 32 hex digits."""
    try:
        return hex_bytes(texts, UID_BYTES, "uid").view(UID).ravel()
    except ValueError as error:
        raise ValueError(f"{error}; run the stage crawl into a new folder") from None


# --- gather ----------------------------------------------------------------------------------


def gather(config: dict[str, Any]) -> Work:
    """Factory: the rows of a partition that come first, block by block, behind the offsets."""
    count: int = config["blocks"]

    def work(ticket: Ticket) -> dict[str, Any]:
        partition = ticket.payload["number"]
        blocks = [np.empty(0, ENTRY)]
        for block in range(count):
            path = _scratch_file(config, "scatter", block)
            blocks.append(
                _read_blocks(path, config["partitions"], partition, partition + 1, ENTRY)[0]
            )
        ends = np.cumsum([len(block) for block in blocks])
        entries = np.concatenate(blocks)
        blocks.clear()
        first = first_of_equal(entries)
        kept = np.concatenate([[0], np.cumsum(first)])
        data = kept[ends].astype(OFFSET).tobytes() + entries["row"][first].tobytes()
        check_fence(config["pool"], config.get("fence"))
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
    """Factory: the rows of some parts that stay, as final parts, with the counts that follow."""
    schema = with_extra(PAIRS, config["extra_columns"])

    def work(ticket: Ticket) -> dict[str, Any]:
        first, bounds = ticket.payload["first"], ticket.payload["bounds"]
        rows = _rows_that_stay(config, bounds[0], bounds[-1])
        cuts = np.searchsorted(rows, bounds)
        with disk.scratch_folder("clipmill-pairs-") as folder:
            for position in range(len(bounds) - 1):
                part = first + position
                if ticket.payload["some_are_done"] and _is_done(config, part):
                    continue
                own = rows[cuts[position] : cuts[position + 1]] - bounds[position]
                _write_part(config, schema, part, own, Path(folder) / "part.parquet")
        return {}

    return work


def _is_done(config: Config, part: int) -> bool:
    path = PoolLayout(config["pool"]).pairs_part(part)
    return disk.exists(path) and disk.read_metadata(path).get("job") == config["job"]


def _write_part(config: Config, schema: pa.Schema, part: int, rows: Integers, staged: Path) -> None:
    """Publish the rows of these numbers of an extracted part."""
    path = extracted(config["pool"], part)
    metadata = disk.read_metadata(path)
    reasons = dict(metadata["reasons"])
    if duplicates := metadata["pairs"] - len(rows):
        reasons["duplicate_pair"] = duplicates
    digest, size = UidsDigest(), 0
    with disk.parquet_writer(
        staged, schema, compression="zstd", write_page_checksum=True
    ) as writer:
        for batch in _batches_of(path, metadata["pairs"], rows):
            kept = batch.cast(schema)
            digest.update(kept["uid"])
            size += kept.nbytes
            writer.write_batch(kept)
        metadata |= {
            "pairs": len(rows),
            "reasons": reasons,
            "parts": config["parts"],
            "job": config["job"],
            "bytes": size,
            "uids": digest.hexdigest(),
        }
        writer.add_key_value_metadata(disk.with_metadata(schema, metadata).metadata)
    pool = config["pool"]
    publish_new(pool, staged, PoolLayout(pool).pairs_part(part), config.get("fence"))


def _rows_that_stay(config: Config, start: int, stop: int) -> Integers:
    """The numbers, among the rows of all parts, of rows `start` to `stop` that stay; ascending."""
    rows, count = config["rows"], config["blocks"]
    first, end = start // rows, max(start // rows, -(-stop // rows))
    numbers = [np.zeros(0, np.int64)]
    if start < stop:
        for partition in range(config["partitions"]):
            path = _scratch_file(config, "gather", partition)
            local, sizes = _read_blocks(path, count, first, end, ROW)
            numbers.append(local + np.repeat(np.arange(first, end) * rows, sizes))
    whole = np.sort(np.concatenate(numbers))
    return whole[np.searchsorted(whole, start) : np.searchsorted(whole, stop)]


def _batches_of(path: str, count: int, rows: Integers) -> Iterator[pa.RecordBatch]:
    """The rows of these numbers, batch by batch."""
    start = 0
    for batch in rows_between(path, 0, count):
        first, last = np.searchsorted(rows, [start, start + batch.num_rows])
        if last - first == batch.num_rows:
            yield batch
        else:
            yield batch.take(pa.array(rows[first:last] - start))
        start += batch.num_rows


__all__ = ["crawl", "extract", "parts"]
TOTALS = ("links", "pairs", "damaged_records")
# Of a part that is read once and removed: half the time of zstd, and a dictionary only where values
# repeat.
STAGED: dict[str, Any] = {
    "compression": "lz4",
    "use_dictionary": ["page_url", "page_lang", "robots", "license", "wat"],
    "write_statistics": False,
    "write_page_checksum": True,
}


def crawl(
    source: Source,
    pool: str,
    engine: Engine,
    *,
    workers: int | None = None,
    fence: int | None = None,
) -> dict[str, Any]:
    """The pairs of a source without repetitions. Totals {links, pairs, reasons, damaged_records,
    parts, failed}.

    `failed` names parts that could not be read, and why; then no pairs are committed, and the next
    call reads only those again. ValueError where the source cannot be read as it is described, or
    the pool holds pairs of another source, or of this one before its files changed; LeaseLost where
    another command has taken the lease over. fence: that of the lease.
    """
    check_fence(pool, fence)
    paths = parts(source)
    ids = [source_id(source, path) for path in paths]
    final = _final_parts(pool, paths, source)
    failed: dict[str, str] = {}
    _remove_partial_files(pool)
    if final is None:
        failed, counts = _extract_parts(source, pool, paths, ids, engine, workers, fence)
        if not failed:
            failed = commit(
                pool,
                ids,
                source.extra_columns,
                engine,
                counts=counts,
                workers=workers,
                fence=fence,
            )
            check_fence(pool, fence)
            final = None if failed else write_parts(pool)
    elif stored_table(pool, len(final)) is None:  # a crawl was killed before it wrote the table
        final = write_parts(pool)
    if final is not None:
        extracted = PoolLayout(pool).extracted
        with ThreadPoolExecutor(THREADS) as threads:
            left = [disk.join(extracted, name) for name in disk.list_names(extracted)]
            list(threads.map(disk.remove, left))
    totals = part_totals(final if final is not None else PARTS.empty_table())
    if totals["links"] and not totals["pairs"]:
        losses = "; ".join(map(str, top_reasons(pool)))
        logger.warning("none of the %d rows of the source is a pair: %s", totals["links"], losses)
    return {**totals, "parts": len(paths), "failed": failed}


def _extract_parts(
    source: Source,
    pool: str,
    paths: Sequence[str],
    ids: Sequence[str],
    engine: Engine,
    workers: int | None,
    fence: int | None,
) -> tuple[dict[str, str], Integers]:
    """Read the parts that are not extracted yet. Returns {path: error} of those that failed, and
    the (parts,) pairs of each."""
    counts = _extracted_counts(source, pool, paths)
    todo = np.flatnonzero(counts < 0)
    if len(todo):
        reader_of(source).check(paths[todo[0]], source)
    logger.info("%d of %d parts are read already", len(paths) - len(todo), len(paths))

    def make(position: int) -> Ticket:
        number = int(todo[position])
        payload = {"part": number, "path": paths[number], "source_id": ids[number]}
        return Ticket(id=f"part-{number:05d}", group=str(number), payload=payload)

    def count(name: str, result: dict[str, Any]) -> None:
        counts[_number(name)] = result["pairs"]

    config = {"pool": pool, "source": disk.to_plain(source), "fence": fence}
    stage = Stage(name="crawl", work=extract, config=config, measure=measure_links)
    tickets = Tickets(np.arange(len(todo)), make)
    report = execute(stage, tickets, engine=engine, workers=workers, on_done=count)
    return {paths[_number(name)]: text for name, text in report.failed.items()}, counts


def _number(name: str) -> int:
    return int(name.removeprefix("part-"))


def _extracted_counts(source: Source, pool: str, paths: Sequence[str]) -> Integers:
    """(parts,) the pairs of each part that is extracted already; -1 of the others.

    A part that was extracted from a file that has changed since is removed.
    """
    names = set(disk.list_names(PoolLayout(pool).extracted, ".parquet"))
    counts = np.full(len(paths), -1, dtype=np.int64)
    numbered = []
    for number, path in enumerate(paths):
        if extracted(pool, number).rpartition("/")[2] in names:
            numbered.append((number, path))
    with ThreadPoolExecutor(THREADS) as threads:
        present = threads.map(lambda part: _extracted_count(pool, source, part), numbered)
        for (number, _), count in zip(numbered, present, strict=True):
            counts[number] = count
            if count < 0:
                disk.remove(extracted(pool, number))
    return counts


# --- one part ---------------------------------------------------------------------------------


def extract(config: dict[str, Any]) -> Work:
    """Factory of the stage: a ticket's file becomes POOL/pairs/.extracted/part-k.parquet."""
    source: Source = disk.from_plain(Source, config["source"])
    schema = with_extra(PAIRS, source.extra_columns)
    reader = reader_of(source)

    def work(ticket: Ticket) -> dict[str, Any]:
        path, counts = ticket.payload["path"], PartCounts()
        content = reader.content(path, source)
        with rare_collections(), disk.scratch_folder("clipmill-crawl-") as folder:
            staged = Path(folder) / "part.parquet"
            with disk.parquet_writer(staged, schema, **STAGED) as writer:
                for batch in reader.batches(path, source, counts):
                    writer.write_batch(batch)
                totals = {name: counts.pop(name, 0) for name in TOTALS}
                assert totals["links"] == totals["pairs"] + counts.total()
                metadata = {
                    **totals,
                    "source_id": ticket.payload["source_id"],
                    "content": content,
                    "wat": _name(path),
                    "reasons": dict(counts),
                    "examples": counts.examples,
                }
                writer.add_key_value_metadata(disk.with_metadata(schema, metadata).metadata)
            path = extracted(config["pool"], ticket.payload["part"])
            publish_new(config["pool"], staged, path, config.get("fence"))
        return {"links": totals["links"], "pairs": totals["pairs"]}

    return work


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Python looks for cycles a hundred times less often: rows are millions of tuples without any,
    and looking through them took 5 to 10 % of the time of a WAT."""
    usual = gc.get_threshold()
    gc.set_threshold(100 * usual[0], *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


# --- the whole job ----------------------------------------------------------------------------


def _final_parts(pool: str, paths: Sequence[str], source: Source) -> pa.Table | None:
    """The table of the final parts if all are there, else None. ValueError where they are of
    another source, or a file has changed since."""
    final = _all_parts(pool, len(paths))
    if final is None:
        return None
    if final["source_id"].to_pylist() != [source_id(source, path) for path in paths]:
        raise ValueError(
            f"{pool}/pairs was made of another source ({_difference(final, paths)}): build into "
            "another folder, or give the old source back"
        )
    reader = reader_of(source)

    def is_unchanged(path: str, content: Mapping[str, Any]) -> bool:
        return reader.is_unchanged(path, source, content)

    with ThreadPoolExecutor(THREADS) as threads:
        unchanged = list(threads.map(is_unchanged, paths, content_of(final)))
    changed = [path for path, same in zip(paths, unchanged, strict=True) if not same]
    if changed:
        raise ValueError(
            f"{changed[0]} has changed since {pool}/pairs was made of it"
            f"{f', as have {len(changed) - 1} others' if changed[1:] else ''}: build into another "
            "folder, or give the old files back"
        )
    return final


def _all_parts(pool: str, count: int) -> pa.Table | None:
    """The table of the final parts if all are there, else None. ValueError where there are more
    than asked for."""
    names = part_names(pool)
    if not names:
        return None
    first = disk.join(PoolLayout(pool).pairs, names[0])
    expected = disk.read_metadata(first).get("parts")
    if expected != count:
        raise ValueError(
            f"{pool}/pairs was made of {expected} parts, and the source now has {count}: "
            "build into another folder, or give the old source back"
        )
    return read_parts(pool) if len(names) == count else None


def _remove_partial_files(pool: str) -> None:
    """Remove what an interrupted write left of the pairs. Only local files have partial ones."""
    if not disk.is_url(pool):
        for folder in ("pairs", "pairs/.extracted"):
            for partial in (disk.local_path(pool) / folder).glob(".*.partial.*"):
                partial.unlink()


def _extracted_count(pool: str, source: Source, numbered: tuple[int, str]) -> int:
    """The pairs of a part that was read from this source; -1 where its file has changed since."""
    number, path = numbered
    metadata = disk.read_metadata(extracted(pool, number))
    is_source = metadata["source_id"] == source_id(source, path)
    is_same = is_source and reader_of(source).is_unchanged(path, source, metadata["content"])
    return int(metadata["pairs"]) if is_same else -1


def _difference(final: pa.Table, paths: Sequence[str]) -> str:
    was, now = final["wat"].to_pylist(), [_name(path) for path in paths]
    changed = [f"{old} is now {new}" for old, new in zip(was, now, strict=True) if old != new]
    if changed:
        return changed[0]
    return (
        "its files or its columns have changed, "
        "or this version of clipmill reads them in another way"
    )


def _name(path: str) -> str:
    return path if disk.is_url(path) else disk.local_path(path).name
