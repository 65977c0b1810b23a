"""Sources to pairs: each WAT, table or captions file becomes one part, and a pair that came before is dropped.

Two steps, both resumed by what is committed. Parts are read into POOL/pairs/.extracted, one task each, in any order.
When all are there, (url, caption) pairs that an earlier part, or the same part earlier, has already are left out and
POOL/pairs/part-00000.parquet … are committed; those count once all of them exist.
"""

from __future__ import annotations

import csv
import gzip
import io
import logging
import os
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from manifests import disk
from manifests.columns import PAIRS
from manifests.schema import Source
from pipeline.plan import Integers, database, quoted
from pipeline.stage import Engine, Stage, Ticket, Work, execute
from pipeline.wat import SPACE, Row, pairs_of_wat, resolve, rows_of_wat

__all__ = ["crawl", "extract", "pairs_of_wat"]
CRAWL_VERSION = 1  # of what is read out of a source; a part of another version is read again
TABLES = (".parquet", ".csv", ".tsv", ".jsonl", ".ndjson")
ROWS = 10_000  # of a row group
PROBE = 1000  # rows that are looked at before anything runs
csv.field_size_limit(1 << 26)
logger = logging.getLogger(__name__)


def crawl(source: Source, pool: str, engine: Engine, *, workers: int | None = None) -> dict[str, Any]:
    """The pairs of a source, without repetitions. Totals {links, pairs, reasons, damaged_records, parts, failed}.

    `failed` names parts that could not be read, and why; then no pairs are committed, and the next call reads only
    those again. ValueError where the source cannot be read as it is described, or the pool holds another's pairs.
    """
    paths = parts(source)
    ids = [_source_id(source, path) for path in paths]
    done = _final(pool, len(paths))
    if done and [notes["source_id"] for notes in done] != ids:
        raise ValueError(
            f"{pool}/pairs was made of another source ({_other(done, paths)}): build into another folder, or give the "
            "old source back"
        )
    failed: dict[str, str] = {}
    _sweep(pool)
    if not done:
        todo = [k for k, (path, name) in enumerate(zip(paths, ids, strict=True)) if not _is_extracted(pool, k, name)]
        if todo and source.kind in ("table", "files"):
            rows = _table(paths[todo[0]], *_columns(source))
            deque(islice(rows, PROBE + 1), maxlen=0)  # says that a column is missing before workers start
        logger.info("%d of %d parts are read already", len(paths) - len(todo), len(paths))
        config = {"pool": pool, "source": disk.to_plain(source)}
        tickets = [
            Ticket(id=_part(k), group=_part(k), payload={"part": k, "path": paths[k], "source_id": ids[k]})
            for k in todo
        ]
        stage = Stage(name="crawl", work="pipeline.crawl:extract", config=config)
        report = execute(stage, tickets, engine=engine, workers=workers)
        failed = {paths[int(name.removeprefix("part-"))]: text for name, text in report.failed.items()}
        if not failed:
            _commit(pool, len(paths))
            done = _final(pool, len(paths))
    if done:
        for name in disk.names(disk.join(pool, "pairs", ".extracted")):
            disk.remove(disk.join(pool, "pairs", ".extracted", name))
    return {**_totals(done), "parts": len(paths), "failed": failed}


def parts(source: Source) -> list[str]:
    """What becomes part 0, 1, …: the files of a source, folders replaced by what is in them."""
    if source.kind == "shards":
        raise ValueError("a source of kind shards has its pictures already: it is adopted, not crawled")
    if source.kind == "wat_index":
        return _sample(source)
    found: list[str] = []
    for path in source.paths:
        if not disk.is_url(path) and not disk.exists(path):
            raise ValueError(f"source.paths names {path}, which does not exist")
        folder = not disk.is_url(path) and disk.local(path).is_dir()
        found += [disk.join(path, name) for name in disk.names(path)] if folder else [path]
    if source.kind in ("table", "files"):
        for path in found:
            if not path.removesuffix(".gz").endswith(TABLES):
                raise ValueError(
                    f"{path} is no table: its name must end in {', '.join(TABLES)}, or in one of them + .gz"
                )
    if not found:
        raise ValueError(f"source.paths {list(source.paths)} has no files")
    return found


def _sample(source: Source) -> list[str]:
    """A sample of a crawl's WATs without replacement, in the order of the index; a larger one holds a smaller one."""
    index = disk.join(source.base, "crawl-data", str(source.crawl), "wat.paths.gz")
    try:
        listed = gzip.decompress(disk.read_bytes(index)).decode().split()
    except FileNotFoundError:
        raise ValueError(f"there is no {index}: source.crawl is {source.crawl!r}; see index.commoncrawl.org") from None
    if source.sample is None or source.sample > len(listed):
        raise ValueError(f"source.sample is {source.sample}, but {source.crawl} has {len(listed)} WATs")
    drawn = sorted(listed, key=lambda path: xxhash.xxh3_64_intdigest(path.encode(), seed=source.seed))[: source.sample]
    return [disk.join(source.base, path) for path in listed if path in set(drawn)]


# --- one part ------------------------------------------------------------------------------------------------------


def extract(config: dict[str, Any]) -> Work:
    """Factory of the stage: a ticket's file becomes POOL/pairs/.extracted/part-k.parquet."""
    source: Source = disk.from_plain(Source, config["source"])

    def work(ticket: Ticket) -> dict[str, Any]:
        path, counts = ticket.payload["path"], Counter[str]()
        rows = rows_of_wat(path, counts) if source.kind.startswith("wat") else _rows_of_table(path, source, counts)
        with tempfile.TemporaryDirectory(prefix="clipmill-crawl-") as folder:
            staged = Path(folder) / "part.parquet"
            with pq.ParquetWriter(staged, PAIRS, compression="zstd") as writer:
                while batch := list(islice(rows, ROWS)):
                    columns = [pa.array(c, t) for c, t in zip(zip(*batch, strict=True), PAIRS.types, strict=True)]
                    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=PAIRS))
                links, pairs, damaged = (counts.pop(name, 0) for name in ("links", "pairs", "damaged_records"))
                assert links == pairs + counts.total()
                notes = {
                    "source_id": ticket.payload["source_id"],
                    "wat": _name(path),
                    "links": links,
                    "pairs": pairs,
                    "reasons": dict(counts),
                    "damaged_records": damaged,
                }
                writer.add_key_value_metadata(disk.with_notes(PAIRS, notes).metadata)
            disk.publish(staged, _extracted(config["pool"], ticket.payload["part"]))
        return {"links": links, "pairs": pairs}

    return work


def _rows_of_table(path: str, source: Source, counts: Counter[str]) -> Iterator[Row]:
    """The rows of a table, or of a captions file, whose names are made absolute paths: nothing is downloaded."""
    name = _name(path)
    folder = path.rpartition("/")[0] if disk.is_url(path) else str(disk.local(path).absolute().parent)
    for number, row in enumerate(_table(path, *_columns(source))):
        counts["links"] += 1
        try:
            if row is None:
                raise ValueError("damaged")
            link, caption = row
            if caption is None:
                raise ValueError("no_alt")
            if not caption.strip():
                raise ValueError("empty_alt")
            if source.kind == "table":
                url = resolve("", link or "")
            elif link and link.strip(SPACE):
                url = disk.join(folder, link) if disk.is_url(path) else os.path.abspath(os.path.join(folder, link))
            else:
                raise ValueError("bad_url")
        except ValueError as reason:
            counts[str(reason)] += 1
            continue
        counts["pairs"] += 1
        uid = disk.uid_of(url, caption)
        yield (uid, url, caption, None, None, None, None, None, None, name, None, number)


def _table(path: str, *columns: str) -> Iterator[tuple[str | None, str | None] | None]:
    """Two columns of a table, row by row; None for a row that cannot be read. ValueError where a column is missing."""
    kind = Path(path.removesuffix(".gz")).suffix
    if kind == ".parquet":
        with fsspec.open(path, "rb") as stream, pq.ParquetFile(stream) as table:
            _present(path, columns, table.schema_arrow.names)
            for batch in table.iter_batches(batch_size=ROWS, columns=list(columns)):
                first, second = (batch.column(name).cast(pa.string()).to_pylist() for name in columns)
                yield from zip(first, second, strict=True)
        return
    with fsspec.open(path, "rb", compression="infer") as stream:
        if kind in (".jsonl", ".ndjson"):
            yield from _json_rows(path, stream, columns)
            return
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")
        rows = csv.reader(text, delimiter="\t" if kind == ".tsv" else ",")
        header = next(rows, [])
        _present(path, columns, header)
        first_at, second_at = (header.index(name) for name in columns)
        for row in rows:
            if row:  # an empty line is no row
                yield (row[first_at], row[second_at]) if len(row) == len(header) else None


def _json_rows(path: str, lines: Iterable[bytes], columns: Sequence[str]) -> Iterator[tuple[Any, Any] | None]:
    """A column is missing where none of the first PROBE rows has it: one row may do without."""
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        row = None
        with suppress(msgspec.DecodeError):
            row = msgspec.json.decode(line)
        if isinstance(row, dict):
            seen.update(row)
            first, second = (None if row.get(name) is None else str(row[name]) for name in columns)
            yield first, second
        elif line.strip():
            yield None
        if number == PROBE:
            _present(path, columns, sorted(seen))
    if seen:
        _present(path, columns, sorted(seen))


def _present(path: str, columns: Sequence[str], there: Sequence[str]) -> None:
    for name in columns:
        if name not in there:
            close = disk.nearest(name, there)
            raise ValueError(f"{path} has no column {name!r}{close} (it has {', '.join(map(repr, there)) or 'none'})")


# --- the whole job -------------------------------------------------------------------------------------------------


def _commit(pool: str, count: int) -> None:
    """Write the final parts: every pair where it comes first by (part, row), and the counts that follow from it."""
    staged = [_extracted(pool, k) for k in range(count)]
    with tempfile.TemporaryDirectory(prefix="clipmill-pairs-") as folder:
        first = disk.join(folder, "first.parquet")
        everything = " UNION ALL ".join(
            f"SELECT uid, ({k}::BIGINT << 40) + file_row_number AS place "
            f"FROM read_parquet('{quoted(path)}', file_row_number = true)"
            for k, path in enumerate(staged)
        )
        with database(folder, staged) as connection:
            connection.execute(
                f"COPY (SELECT min(place) AS place FROM ({everything}) GROUP BY uid ORDER BY place) "
                f"TO '{quoted(first)}' (FORMAT parquet)"
            )
        for k, path in enumerate(staged):
            places = disk.read_parquet(first, where=[("place", ">=", k << 40), ("place", "<", (k + 1) << 40)])
            notes = {**disk.notes(path), "parts": count}
            _write_part(pool, k, path, places["place"].to_numpy() - (k << 40), notes, folder)


def _write_part(pool: str, part: int, path: str, rows: Integers, notes: dict[str, Any], folder: str) -> None:
    """The rows of an extracted part that stay, as the final part."""
    dropped = notes["pairs"] - len(rows)
    notes = {
        **notes,
        "pairs": len(rows),
        "reasons": {**notes["reasons"], **({"duplicate_pair": dropped} if dropped else {})},
    }
    staged, start = Path(folder) / "part.parquet", 0
    with (
        fsspec.open(path, "rb") as stream,
        pq.ParquetFile(stream) as table,
        pq.ParquetWriter(staged, disk.with_notes(PAIRS, notes), compression="zstd") as writer,
    ):
        for batch in table.iter_batches(batch_size=ROWS):
            inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + batch.num_rows)] - start
            writer.write_batch(batch.take(pa.array(inside)).cast(PAIRS))
            start += batch.num_rows
    disk.publish(staged, disk.join(pool, "pairs", f"{_part(part)}.parquet"))


def _final(pool: str, count: int) -> list[dict[str, Any]]:
    """The notes of the final parts if all are there, else []. ValueError where there are more than asked for."""
    names = disk.names(disk.join(pool, "pairs"), ".parquet")
    found = [disk.notes(disk.join(pool, "pairs", name)) for name in names]
    if found and found[0]["parts"] != count:
        raise ValueError(
            f"{pool}/pairs was made of {found[0]['parts']} parts, and the source now has {count}: build into another "
            "folder, or give the old source back"
        )
    return found if len(found) == count else []


def _sweep(pool: str) -> None:
    """Remove what an interrupted write has left; elsewhere than on a local disk nothing is written in pieces."""
    if not disk.is_url(pool):
        for folder in ("", "pairs", "pairs/.extracted"):
            for rubbish in (disk.local(pool) / folder).glob(".*.partial.*"):
                rubbish.unlink()


def _is_extracted(pool: str, part: int, source_id: str) -> bool:
    path = _extracted(pool, part)
    return disk.exists(path) and disk.notes(path)["source_id"] == source_id


def _other(done: Sequence[dict[str, Any]], paths: Sequence[str]) -> str:
    was, now = [notes["wat"] for notes in done], [_name(path) for path in paths]
    changed = [f"{a} is now {b}" for a, b in zip(was, now, strict=True) if a != b]
    return changed[0] if changed else "its files or its columns have changed"


def _totals(done: Sequence[dict[str, Any]]) -> dict[str, Any]:
    reasons: Counter[str] = Counter()
    for notes in done:
        reasons.update(notes["reasons"])
    sums = {name: sum(notes[name] for notes in done) for name in ("links", "pairs", "damaged_records")}
    return {**sums, "reasons": dict(sorted(reasons.items()))}


def _source_id(source: Source, path: str) -> str:
    """What a part was read from: where, how, and, of a local file, how many bytes it has."""
    size = None if disk.is_url(path) else disk.local(path).stat().st_size
    columns = _columns(source) if source.kind == "table" else ()
    return disk.content_hash([CRAWL_VERSION, source.kind, path, size, columns])


def _columns(source: Source) -> tuple[str, str]:
    return ("file", "caption") if source.kind == "files" else (source.url_column, source.caption_column or "")


def _part(number: int) -> str:
    return f"part-{number:05d}"


def _extracted(pool: str, part: int) -> str:
    return disk.join(pool, "pairs", ".extracted", f"{_part(part)}.parquet")


def _name(path: str) -> str:
    return path if disk.is_url(path) else disk.local(path).name
