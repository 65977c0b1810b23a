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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from manifests import disk
from manifests.columns import PAIRS, with_extra
from manifests.pool_layout import PoolLayout
from manifests.schema import Source
from pipeline.archives import PartCounts
from pipeline.crawl import dedup
from pipeline.crawl.losses import top_reasons
from pipeline.crawl.parts import (
    PARTS,
    THREADS,
    content_of,
    part_names,
    part_totals,
    read_parts,
    stored_table,
    write_parts,
)
from pipeline.crawl.sources import has_source_id, parts, reader_of, source_id
from pipeline.executor import Engine, Stage, Ticket, Tickets, Work, execute
from pipeline.pool import check_fence, publish_new
from pipeline.progress import measure_links

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
Integers = npt.NDArray[np.int64]
logger = logging.getLogger(__name__)


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
            failed = dedup.commit(
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
        if dedup.extracted(pool, number).rpartition("/")[2] in names:
            numbered.append((number, path))
    with ThreadPoolExecutor(THREADS) as threads:
        present = threads.map(lambda part: _extracted_count(pool, source, part), numbered)
        for (number, _), count in zip(numbered, present, strict=True):
            counts[number] = count
            if count < 0:
                disk.remove(dedup.extracted(pool, number))
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
            path = dedup.extracted(config["pool"], ticket.payload["part"])
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
    stored = final["source_id"].to_pylist()
    if not all(has_source_id(source, *each) for each in zip(paths, stored, strict=True)):
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
    metadata = disk.read_metadata(dedup.extracted(pool, number))
    is_source = has_source_id(source, path, metadata["source_id"])
    content = metadata.get("content", {})
    is_same = is_source and reader_of(source).is_unchanged(path, source, content)
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
