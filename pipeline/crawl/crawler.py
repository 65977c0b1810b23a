"""Sources to pairs: each WAT, WARC, table or captions file becomes one part, and a pair that came before is dropped.

Two steps, both resumed by what is committed. Parts are read into POOL/pairs/.extracted, one task each, in any order.
When all are there, (url, caption) pairs that an earlier part, or the same part earlier, has already are left out and
POOL/pairs/part-00000.parquet … are committed (unique.py); those count once all of them exist.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from manifests import disk
from manifests.columns import PAIRS, with_extra
from manifests.schema import Source
from pipeline.crawl import dedup
from pipeline.crawl.dedup import extracted
from pipeline.crawl.table_files import ENDINGS, is_table
from pipeline.crawl.tables import file_table, url_table
from pipeline.crawl.warc import rows_of_warc
from pipeline.crawl.wat import batches_of_wat, pairs_of_wat
from pipeline.executor import Engine, Stage, Ticket, Work, execute

__all__ = ["crawl", "extract", "pairs_of_wat"]
CRAWL_VERSION = 2  # of what is read out of a source; a part of another version is read again
ROWS = 10_000  # of a row group
# Of a part that is read once and removed: half the time of zstd, and a dictionary only where values repeat.
STAGED: dict[str, Any] = {
    "compression": "lz4",
    "use_dictionary": ["page_url", "page_lang", "robots", "license", "wat"],
    "write_statistics": False,
}
logger = logging.getLogger(__name__)


def crawl(
    source: Source, pool: str, engine: Engine, *, workers: int | None = None
) -> dict[str, Any]:
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
        todo = [
            k
            for k, (path, name) in enumerate(zip(paths, ids, strict=True))
            if not _is_extracted(pool, k, name)
        ]
        if todo and source.kind in ("table", "files"):
            check_table(
                paths[todo[0]], source
            )  # says that a column is missing before workers start
        logger.info("%d of %d parts are read already", len(paths) - len(todo), len(paths))
        config = {"pool": pool, "source": disk.to_plain(source)}
        tickets = [
            Ticket(
                id=_part(k),
                group=_part(k),
                payload={"part": k, "path": paths[k], "source_id": ids[k]},
            )
            for k in todo
        ]
        stage = Stage(name="crawl", work=extract, config=config)
        report = execute(stage, tickets, engine=engine, workers=workers)
        failed = {
            paths[int(name.removeprefix("part-"))]: text for name, text in report.failed.items()
        }
        if not failed:
            failed = dedup.commit(pool, ids, source.extra_columns, engine, workers=workers)
            done = [] if failed else _final(pool, len(paths))
    if done:
        for name in disk.list_names(disk.join(pool, "pairs", ".extracted")):
            disk.remove(disk.join(pool, "pairs", ".extracted", name))
    return {**_totals(done), "parts": len(paths), "failed": failed}


def parts(source: Source) -> list[str]:
    """What becomes part 0, 1, …: the files of a source, folders replaced by what is in them."""
    if source.kind == "shards":
        raise ValueError(
            "a source of kind shards has its pictures already: it is adopted, not crawled"
        )
    if source.kind in ("wat_index", "warc_index"):
        return _sample(source)
    found: list[str] = []
    for path in source.paths:
        if not disk.is_url(path) and not disk.exists(path):
            raise ValueError(f"source.paths names {path}, which does not exist")
        if path.endswith("/") if disk.is_url(path) else disk.local_path(path).is_dir():
            names = [
                name
                for name in disk.list_names(path)
                if source.kind not in ("table", "files") or is_table(name)
            ]
            found += [disk.join(path, name) for name in names]
        else:
            found.append(path)
    if source.kind in ("table", "files"):
        for path in found:
            if not is_table(path):
                raise ValueError(
                    f"{path} is no table: its name must end in {', '.join(ENDINGS)}, or, but for .parquet, in one of "
                    "them + .gz"
                )
    if not found:
        raise ValueError(f"source.paths {list(source.paths)} has no files")
    return found


def _sample(source: Source) -> list[str]:
    """A sample of a crawl's files without replacement, in the order of the index; a larger one holds a smaller one."""
    kind = source.kind.removesuffix("_index")
    index = disk.join(source.base, "crawl-data", str(source.crawl), f"{kind}.paths.gz")
    try:
        listed = gzip.decompress(disk.read_bytes(index)).decode().split()
    except FileNotFoundError:
        raise ValueError(
            f"there is no {index}: source.crawl is {source.crawl!r}; see index.commoncrawl.org"
        ) from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{index} cannot be read as a list of files: {error}") from error
    if source.sample is None or source.sample > len(listed):
        raise ValueError(
            f"source.sample is {source.sample}, but {source.crawl} has {len(listed)} {kind.upper()}s"
        )
    drawn = sorted(
        listed, key=lambda path: xxhash.xxh3_64_intdigest(path.encode(), seed=source.seed)
    )[: source.sample]
    wanted = set(drawn)
    return [disk.join(source.base, path) for path in listed if path in wanted]


# --- one part ------------------------------------------------------------------------------------------------------


def extract(config: dict[str, Any]) -> Work:
    """Factory of the stage: a ticket's file becomes POOL/pairs/.extracted/part-k.parquet."""
    source: Source = disk.from_plain(Source, config["source"])
    schema = with_extra(PAIRS, source.extra_columns)

    def work(ticket: Ticket) -> dict[str, Any]:
        path, counts = ticket.payload["path"], Counter[str]()
        with rare_collections(), tempfile.TemporaryDirectory(prefix="clipmill-crawl-") as folder:
            staged = Path(folder) / "part.parquet"
            with pq.ParquetWriter(staged, schema, **STAGED) as writer:
                for batch in _batches(path, source, counts, schema):
                    writer.write_batch(batch)
                links, pairs, damaged = (
                    counts.pop(name, 0) for name in ("links", "pairs", "damaged_records")
                )
                assert links == pairs + counts.total()
                notes = {
                    "source_id": ticket.payload["source_id"],
                    "wat": _name(path),
                    "links": links,
                    "pairs": pairs,
                    "reasons": dict(counts),
                    "damaged_records": damaged,
                }
                writer.add_key_value_metadata(disk.with_metadata(schema, notes).metadata)
            disk.publish(staged, extracted(config["pool"], ticket.payload["part"]))
        return {"links": links, "pairs": pairs}

    return work


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Python looks for cycles a hundred times less often: rows are millions of tuples without any, and looking through
    them was 5 to 10 % of a WAT."""
    usual = gc.get_threshold()
    gc.set_threshold(100 * usual[0], *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _batches(
    path: str, source: Source, counts: Counter[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The pairs of a file as batches of PAIRS, and behind them the source's extra columns."""
    if source.kind.startswith("wat"):
        yield from batches_of_wat(path, counts)
        return
    rows: Iterator[tuple[Any, ...]]
    rows = (
        rows_of_warc(path, counts)
        if source.kind.startswith("warc")
        else rows_of_table(path, source, counts)
    )
    while batch := list(islice(rows, ROWS)):
        columns = [
            pa.array(c, t) for c, t in zip(zip(*batch, strict=True), schema.types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


# --- the whole job -------------------------------------------------------------------------------------------------


def _final(pool: str, count: int) -> list[dict[str, Any]]:
    """The notes of the final parts if all are there, else []. ValueError where there are more than asked for."""
    names = disk.list_names(disk.join(pool, "pairs"), ".parquet")
    found = [disk.read_metadata(disk.join(pool, "pairs", name)) for name in names]
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
            for rubbish in (disk.local_path(pool) / folder).glob(".*.partial.*"):
                rubbish.unlink()


def _is_extracted(pool: str, part: int, source_id: str) -> bool:
    path = extracted(pool, part)
    return disk.exists(path) and disk.read_metadata(path)["source_id"] == source_id


def _other(done: Sequence[dict[str, Any]], paths: Sequence[str]) -> str:
    was, now = [notes["wat"] for notes in done], [_name(path) for path in paths]
    changed = [f"{a} is now {b}" for a, b in zip(was, now, strict=True) if a != b]
    if changed:
        return changed[0]
    return "its files or its columns have changed, or this version of clipmill reads them in another way"


def _totals(done: Sequence[dict[str, Any]]) -> dict[str, Any]:
    reasons: Counter[str] = Counter()
    for notes in done:
        reasons.update(notes["reasons"])
    sums = {
        name: sum(notes[name] for notes in done) for name in ("links", "pairs", "damaged_records")
    }
    return {**sums, "reasons": dict(sorted(reasons.items()))}


def _source_id(source: Source, path: str) -> str:
    """What a part was read from: where, how, and, of a local file, how many bytes it has."""
    size = None if disk.is_url(path) else disk.local_path(path).stat().st_size
    columns = [source.url_column, source.caption_column] if source.kind == "table" else []
    return disk.content_hash(
        [CRAWL_VERSION, source.kind, path, size, columns, source.extra_columns]
    )


def _part(number: int) -> str:
    return f"part-{number:05d}"


def _name(path: str) -> str:
    return path if disk.is_url(path) else disk.local_path(path).name
