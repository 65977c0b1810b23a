"""Sources to pairs: each file of a source becomes one part, and a pair that came before is dropped.

Two steps, both resumed by what is committed. Parts are read into POOL/pairs/.extracted, one task
each, in any order. When all are there, (url, caption) pairs that an earlier part, or the same part
earlier, has already are left out and POOL/pairs/part-00000.parquet … are committed; those count
once all of them exist.

A source may grow: its new files become the parts behind those that are there, which stay as they
are and count as earlier. A file that is gone keeps its pairs; one that has changed is refused. A
folder of images with other images than before is read again as a new part.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.manifests import disk
from clipmill.manifests.arrays import Integers
from clipmill.manifests.columns import PAIRS, hex_bytes, with_extra
from clipmill.manifests.commits import in_threads
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.ray_runtime import Engine
from clipmill.manifests.schema import Source
from clipmill.pipeline.archives.urls import PartCounts, shortened
from clipmill.pipeline.crawl.parts import (
    PART_NAME,
    PARTS,
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
from clipmill.pipeline.crawl.sources import parts, reader_of, source_id
from clipmill.pipeline.database import select, stream
from clipmill.pipeline.executor.tickets import Ticket, Work
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.progress.state import Measure
from clipmill.pipeline.shuffle import PLACE, THREADS, Exchange, Step, run_steps

# --------------------------------------------------------------------------------------------------
# Which pairs of a whole job come first: exact, by hash partition, in memory that does not grow
# with the job.
#
# Three steps of tickets, each resumed by what it has left in POOL/pairs/.extracted. scatter: the
# uids of the next `rows` rows of all parts, with the numbers of their rows, placed by partition.
# gather: of one partition, the numbers of the rows that an earlier row equals. write: the rows of
# some parts that stay, as POOL/pairs/part-k.parquet. The first by (part, row) stays, however many
# partitions there are. The number of reads does not follow the number of parts.


ROWS_PER_PARTITION = 4_000_000
ROWS_PER_BLOCK = 1_000_000  # of scatter and write
FEW = 1_000_000  # pairs up to which starting workers would take longer than the work
UID_BYTES = 16
UID = np.dtype([("high", ">u8"), ("low", ">u8")])
REPEATED = """
SELECT row FROM (SELECT row, min(row) OVER (PARTITION BY high, low) AS first FROM rows)
WHERE row > first ORDER BY row
"""
ROW = pa.schema([("row", pa.uint64())])
NUMBERED = pa.schema([("high", pa.uint64()), ("low", pa.uint64()), ("row", pa.uint64())])
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsJob:
    """What all tickets have in common that make final parts of extracted ones."""

    out: PoolWriter
    id: str  # of what decides the rows of each file
    base: int  # the parts that are final already
    parts: int
    blocks: int
    partitions: int
    extra_columns: Mapping[str, str]

    @property
    def uids(self) -> Exchange:
        """The uids of all rows by partition."""
        return self._exchange("uids", self.blocks)

    @property
    def repeated(self) -> Exchange:
        """The numbers of the rows that an earlier row equals, by themselves."""
        return self._exchange("repeated", self.partitions)

    def _exchange(self, name: str, files: int) -> Exchange:
        folder = self.out.layout.extracted
        return Exchange(out=self.out, folder=folder, name=f"{name}-{self.id}", files=files)

    def is_done(self, part: int) -> bool:
        """Whether a final part is there, of this job."""
        path = self.out.layout.pairs_part(part)
        return disk.exists(path) and disk.read_metadata(path).get("job") == self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The payload of a ticket: consecutive rows of some parts."""

    number: int
    first: int  # row of all parts
    ranges: tuple[tuple[int, int, int], ...]  # part, its first row, their end


@dataclass(frozen=True, slots=True, kw_only=True)
class SomeParts:
    """The payload of a ticket of write: consecutive parts."""

    first: int
    bounds: tuple[int, ...]  # where the rows of each begin in those of all parts, and the end
    some_are_done: bool


def commit(
    out: PoolWriter,
    ids: Sequence[str],
    extra_columns: dict[str, str],
    engine: Engine,
    *,
    counts: Integers,
    base: int = 0,
    workers: int | None = None,
) -> dict[str, str]:
    """Write the final parts of extracted ones. Returns {task: error}: {} where all are there.

    `counts` (parts,) is the number of pairs of each part, of which the first `base` are final.
    """
    total = int(counts.sum())
    rows = min(ROWS_PER_BLOCK, ROWS_PER_PARTITION)
    partitions = max(1, -(-total // ROWS_PER_PARTITION))
    job = PairsJob(
        out=out,
        id=disk.content_hash([list(ids), rows, partitions, *([base] if base else [])]),
        base=base,
        parts=len(ids),
        blocks=-(-total // rows),
        partitions=partitions,
        extra_columns=extra_columns,
    )
    engine = "inline" if total <= FEW else engine
    logger.info("%d pairs are compared in %d partitions", total, partitions)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    _remove_parts_of_others(job)

    first_parts = base + np.unique(bounds[base:-1] // rows, return_index=True)[1]
    ends = [*first_parts[1:].tolist(), len(ids)]
    some_are_done = bool(disk.list_names(out.layout.pairs, ".parquet"))

    def block(number: int) -> Block:
        return block_of(bounds, rows, number)

    def some_parts(number: int) -> SomeParts:
        """Consecutive parts that have about so many rows together."""
        first, end = int(first_parts[number]), ends[number]
        of_parts = tuple(bounds[first : end + 1].tolist())
        return SomeParts(first=first, bounds=of_parts, some_are_done=some_are_done)

    all_parts = np.ones(len(ends), np.bool_)
    steps = (
        Step(name="scatter", work=scatter, job=job, lacks=job.uids.lacks(), payload=block),
        Step(name="gather", work=gather, job=job, lacks=job.repeated.lacks()),
        Step(name="write", work=write, job=job, lacks=all_parts, payload=some_parts),
    )
    return run_steps(steps, engine, workers)


def _remove_parts_of_others(job: PairsJob) -> None:
    """Remove final parts that a crawl of other pairs left before it was complete."""
    names = _names_from(job.out.layout, job.base)
    paths = [disk.join(job.out.layout.pairs, name) for name in names]
    for path, footer in zip(paths, in_threads(disk.read_metadata, paths, THREADS), strict=True):
        if footer.get("job") != job.id:
            job.out.remove(path)


def _names_from(layout: PoolLayout, base: int) -> list[str]:
    """The names of the final parts behind the first `base`."""
    final = layout.pairs_part
    first = {final(part).rpartition("/")[2] for part in range(base)}
    return [name for name in part_names(layout) if name not in first]


def extracted(layout: PoolLayout, part: int) -> str:
    """A part before its duplicates are left out."""
    return disk.join(layout.extracted, f"part-{part:05d}.parquet")


def block_of(bounds: Integers, rows: int, number: int, first_part: int = 0) -> Block:
    """The block `number` of as many rows. `bounds` (parts + 1,) is where the rows of each part
    begin, of the parts behind the first `first_part`.
    """
    start, stop = number * rows, min((number + 1) * rows, int(bounds[-1]))
    ranges = []
    first = int(np.searchsorted(bounds, start, "right")) - 1
    for part in range(first, int(np.searchsorted(bounds, stop, "left"))):
        begin = int(bounds[part])
        low, high = max(start, begin), min(stop, int(bounds[part + 1]))
        if low < high:
            ranges.append((first_part + part, low - begin, high - begin))
    return Block(number=number, first=start, ranges=tuple(ranges))


# --- scatter ---------------------------------------------------------------------------------


def scatter(job: PairsJob) -> Work:
    """Factory: the uids of some rows, by partition."""
    out, exchange, partitions = job.out, job.uids, np.uint64(job.partitions)

    def work(ticket: Ticket) -> None:
        of_ticket: Block = ticket.payload
        uids = [np.empty(0, UID)]
        for part, start, stop in of_ticket.ranges:
            is_final = part < job.base
            path = out.layout.pairs_part(part) if is_final else extracted(out.layout, part)
            for batch in rows_between(path, start, stop, ["uid"]):
                uids.append(uids_of(batch["uid"]))
        block = np.concatenate(uids)
        high, low = block["high"].astype(np.uint64), block["low"].astype(np.uint64)
        rows = np.arange(len(block), dtype=np.uint64) + np.uint64(of_ticket.first)
        places = (high >> np.uint64(32)) * partitions >> np.uint64(32)
        exchange.write(of_ticket.number, pa.table([high, low, rows], NUMBERED), places)

    return work


def uids_of(texts: pa.Array) -> npt.NDArray[Any]:
    """(rows,) uids as two numbers. ValueError where one is not 32 hex digits."""
    try:
        return hex_bytes(texts, UID_BYTES, "uid").view(UID).ravel()
    except ValueError as error:
        raise ValueError(f"{error}; run the stage crawl into a new folder") from None


# --- gather ----------------------------------------------------------------------------------


def gather(job: PairsJob) -> Work:
    """Factory: the rows of a partition that an earlier row equals, in all 128 bits of the uid."""
    uids, repeated = job.uids, job.repeated

    def work(ticket: Ticket) -> None:
        partition: int = ticket.payload
        rows = stream(uids.tables(partition, partition + 1), NUMBERED)
        table = pa.Table.from_batches(select(REPEATED, rows=rows), ROW)
        repeated.write(partition, table, table["row"].to_numpy())

    return work


# --- write -----------------------------------------------------------------------------------


def write(job: PairsJob) -> Work:
    """Factory: the rows of some parts that stay, as final parts, with the counts that follow."""
    schema = with_extra(PAIRS, job.extra_columns)
    repeated = job.repeated

    def work(ticket: Ticket) -> None:
        some: SomeParts = ticket.payload
        bounds = some.bounds
        numbers = [np.zeros(0, np.int64)]
        for table in repeated.tables(bounds[0], bounds[-1]):
            numbers.append(table[PLACE].to_numpy().astype(np.int64))
        stays = np.ones(bounds[-1] - bounds[0], np.bool_)
        stays[np.concatenate(numbers) - bounds[0]] = False
        with disk.scratch_folder("clipmill-pairs-") as folder:
            for part, (start, end) in enumerate(pairwise(bounds), start=some.first):
                if some.some_are_done and job.is_done(part):
                    continue
                own = np.flatnonzero(stays[start - bounds[0] : end - bounds[0]])
                _write_part(job, schema, part, own, Path(folder) / "part.parquet")

    return work


def _write_part(job: PairsJob, schema: pa.Schema, part: int, rows: Integers, staged: Path) -> None:
    """Publish the rows of these numbers of an extracted part."""
    path = extracted(job.out.layout, part)
    metadata = disk.read_metadata(path)
    reasons = dict(metadata["reasons"])
    if duplicates := metadata["pairs"] - len(rows):
        reasons["duplicate_pair"] = duplicates
    digest, size = UidsDigest(), 0
    with disk.parquet_writer(staged, schema) as writer:
        for batch in _batches_of(path, metadata["pairs"], rows):
            kept = batch.cast(schema)
            digest.update(kept["uid"])
            size += kept.nbytes
            writer.write_batch(kept)
        metadata |= {
            "pairs": len(rows),
            "reasons": reasons,
            "parts": job.parts,
            "job": job.id,
            "bytes": size,
            "uids": digest.hexdigest(),
        }
        writer.add_key_value_metadata(disk.with_metadata(schema, metadata).metadata)
    job.out.publish_new(staged, job.out.layout.pairs_part(part))


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


TOTALS = ("links", "pairs", "damaged_records")
# Of a part that is read once and removed: half the time of zstd, and a dictionary only where values
# repeat.
STAGED: dict[str, Any] = {
    "compression": "lz4",
    "use_dictionary": ["page_url", "page_lang", "robots", "license", "wat"],
    "write_statistics": False,
}


def crawl(
    source: Source,
    out: PoolWriter,
    engine: Engine,
    *,
    workers: int | None = None,
) -> dict[str, Any]:
    """The pairs of a source without repetitions. Totals {links, pairs, reasons, damaged_records,
    parts, failed}.

    `failed` names parts that could not be read, and why; then no pairs are committed, and the next
    call reads only those again. ValueError where the source cannot be read as it is described, or
    the pool holds pairs of another source, or of this one before its files changed; LeaseLost where
    another command has taken the lease over.
    """
    out.check()
    layout = out.layout
    final, paths = _known_parts(layout, source)
    base, new = len(final), paths[len(final) :]
    ids = [*final["source_id"].to_pylist(), *(source_id(source, path) for path in new)]
    failed: dict[str, str] = {}
    _remove_partial_files(layout)
    if new:
        counts = np.full(len(paths), -1, np.int64)
        counts[:base] = final["pairs"].to_numpy()
        failed = _extract_parts(source, out, paths, ids, counts, base, engine, workers)
        if not failed:
            extra = source.extra_columns
            failed = commit(out, ids, extra, engine, counts=counts, base=base, workers=workers)
            out.check()
            final = PARTS.empty_table() if failed else write_parts(layout)
        if base and not failed:
            _say_what_grew(final, base)
    elif stored_table(layout, base) is None:  # a crawl was killed before it wrote the table
        final = write_parts(layout)
    if not failed:
        extracted = out.layout.extracted
        out.remove(*(disk.join(extracted, name) for name in disk.list_names(extracted)))
    totals = part_totals(PARTS.empty_table() if failed else final)
    if totals["links"] and not totals["pairs"]:
        losses = "; ".join(map(str, top_reasons(layout.root)))
        logger.warning("none of the %d rows of the source is a pair: %s", totals["links"], losses)
    return {**totals, "parts": len(paths), "failed": failed}


def _say_what_grew(final: pa.Table, base: int) -> None:
    """Log what each new part gave, and which brings nothing but what was there."""
    contents = [_content_alone(content) for content in content_of(final)]
    first = {content: number for number, content in reversed([*enumerate(contents)])}
    for part in final.slice(base).to_pylist():
        content = contents[part["part"]]
        is_repeated = bool(content) and first[content] < part["part"]
        logger.info(
            "%s is new: %d pairs, %d of %d rows were there before%s",
            part["wat"],
            part["pairs"],
            dict(part["reasons"]).get("duplicate_pair", 0),
            part["links"],
            f"; it is {final['wat'][first[content]]} again" if is_repeated else "",
        )


def _content_alone(content: Mapping[str, object]) -> object:
    """What is equal of two files with equal bytes; None where that is not known."""
    return content.get("xxh3") or content.get("etag") or content.get("md5")


def _extract_parts(
    source: Source,
    out: PoolWriter,
    paths: Sequence[str],
    ids: Sequence[str],
    counts: Integers,
    base: int,
    engine: Engine,
    workers: int | None,
) -> dict[str, str]:
    """Read the parts behind the first `base` that are not extracted yet. Returns {path: error} of
    those that failed, and sets the (parts,) pairs of the others in `counts`."""
    counts[base:] = _extracted_counts(source, out, paths, base)
    todo = np.flatnonzero(counts < 0)
    if len(todo):
        reader_of(source).check(paths[todo[0]], source)
        _remove_derived(out, base)
    logger.info("%d of %d parts are read already", len(paths) - len(todo), len(paths))

    def one_part(number: int) -> SourceFile:
        return SourceFile(number=number, path=paths[number], source_id=ids[number])

    def count(name: str, of_part: Measure) -> None:
        counts[_number(name)] = of_part.stored

    step = Step(
        name="crawl",
        work=extract,
        job=ExtractJob(out=out, source=source),
        lacks=counts < 0,
        payload=one_part,
        result=Measure,
        on_done=count,
    )
    failed = run_steps([step], engine, workers)
    return {paths[_number(name)]: text for name, text in failed.items()}


def _remove_derived(out: PoolWriter, base: int) -> None:
    """Remove what was derived from the parts behind the first `base`, before some of them are read
    again."""
    layout = out.layout
    names = disk.list_names(layout.extracted)
    paths = [disk.join(layout.extracted, name) for name in names if not PART_NAME.fullmatch(name)]
    paths += [disk.join(layout.pairs, name) for name in _names_from(out.layout, base)]
    out.remove(*paths)


def _number(ticket: str) -> int:
    return int(ticket.removeprefix("crawl-"))


def _extracted_counts(source: Source, out: PoolWriter, paths: Sequence[str], base: int) -> Integers:
    """(parts - base,) the pairs of each part that is extracted already; -1 of the others.

    A part that was extracted from a file that has changed since is removed.
    """
    names = set(disk.list_names(out.layout.extracted, ".parquet"))

    def count(number: int) -> int:
        part = extracted(out.layout, number)
        if part.rpartition("/")[2] not in names:
            return -1
        metadata = disk.read_metadata(part)
        is_source = metadata["source_id"] == source_id(source, paths[number])
        content = metadata["content"]
        if is_source and reader_of(source).is_unchanged(paths[number], source, content):
            return int(metadata["pairs"])
        out.remove(part)
        return -1

    counts = in_threads(count, range(base, len(paths)), THREADS)
    return np.fromiter(counts, np.int64, len(paths) - base)


# --- one part ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractJob:
    """What all tickets of the stage have in common."""

    out: PoolWriter
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """The payload of a ticket: a file of the source, which becomes the part `number`."""

    number: int
    path: str
    source_id: str


def extract(job: ExtractJob) -> Work:
    """Factory of the stage: a ticket's file becomes POOL/pairs/.extracted/part-k.parquet."""
    out, source, reader = job.out, job.source, reader_of(job.source)
    schema = with_extra(PAIRS, source.extra_columns)

    def work(ticket: Ticket) -> Measure:
        file: SourceFile = ticket.payload
        path, counts = file.path, PartCounts()
        content = reader.content(path, source)
        target = extracted(out.layout, file.number)
        with (
            rare_collections(),
            out.parquet_writer(target, schema, new=True, **STAGED) as writer,
        ):
            for batch in reader.batches(path, source, counts):
                writer.write_batch(batch)
            if not reader.is_unchanged(path, source, content):
                raise ValueError(f"{path} has changed while it was read")
            totals = {name: counts.pop(name, 0) for name in TOTALS}
            assert totals["links"] == totals["pairs"] + counts.total()
            metadata = {
                **totals,
                "source_id": file.source_id,
                "content": content,
                "wat": _name(path),
                "reasons": dict(counts),
                "examples": counts.examples,
            }
            writer.add_key_value_metadata(disk.with_metadata(schema, metadata).metadata)
        return Measure(rows=totals["links"], stored=totals["pairs"])

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


def _known_parts(layout: PoolLayout, source: Source) -> tuple[pa.Table, list[str]]:
    """(the final parts of the crawls that were completed, the paths of all parts: those of the
    final ones and, behind them, what the source has now beside them).

    The path of a part whose file is gone is the name that it had. ValueError where the final parts
    are of another source, or a file has changed since.
    """
    final, paths = _complete_parts(layout), parts(source)
    if not len(final):
        return final, paths
    by_id: dict[str, list[int]] = {}
    for number, path in enumerate(paths):
        by_id.setdefault(source_id(source, path), []).append(number)
    names, known = final["wat"].to_pylist(), list[str | None]()
    last = dict[str, int]()  # of folders, which may grow in place: the part that was read last
    for number, stored in enumerate(final["source_id"].to_pylist()):
        if stored in last:
            known.append(known[last[stored]])
        else:
            known.append(paths[by_id[stored].pop(0)] if by_id.get(stored) else None)
        if source.kind == "image_folder":
            last[stored] = number
    new = [paths[number] for number in sorted(chain.from_iterable(by_id.values()))]
    gone = [name for name, path in zip(names, known, strict=True) if path is None]
    new_names = {*map(_name, new)}
    if others := [name for name in gone if name in new_names]:
        raise ValueError(
            f"{layout}/pairs was made of another source ({others[0]} has another size, or other "
            "columns are asked for, or this version of clipmill reads it in another way): "
            "build into another folder, or give the old source back"
        )
    if len(gone) == len(final):
        raise ValueError(
            f"{layout}/pairs was made of another source ({gone[0]} is not in it, and "
            f"{_name(new[0])} is): build into another folder, or give the old source back"
        )
    if gone:
        logger.warning(
            "%s is no longer in the source%s: its pairs stay",
            gone[0],
            f", as are {len(gone) - 1} others" if gone[1:] else "",
        )
    reader = reader_of(source)

    def is_unchanged(part: tuple[str | None, Mapping[str, object]]) -> bool:
        path, content = part
        return path is None or reader.is_unchanged(path, source, content)

    if source.kind == "image_folder":
        contents = content_of(final)
        for number in last.values():
            folder = known[number]
            if folder is not None and not is_unchanged((folder, contents[number])):
                numbers = [n for n, path in enumerate(known) if path == folder]
                _check_grown(layout, source, folder, numbers)
                new.append(folder)
        return final, [*(path or name for path, name in zip(known, names, strict=True)), *new]
    unchanged = in_threads(is_unchanged, zip(known, content_of(final), strict=True), THREADS)
    changed = [path for path, same in zip(known, unchanged, strict=True) if not same]
    if changed:
        raise ValueError(
            f"{changed[0]} has changed since {layout}/pairs was made of it"
            f"{f', as have {len(changed) - 1} others' if changed[1:] else ''}: build into another "
            "folder, or give the old files back"
        )
    old = [path or name for path, name in zip(known, names, strict=True)]
    return final, [*old, *new]


def _check_grown(layout: PoolLayout, source: Source, folder: str, numbers: Sequence[int]) -> None:
    """ValueError where an image of which a pair is in the parts `numbers` has other captions in its
    folder now. Images that are gone keep their pairs, as those of a file that is gone do."""
    counts, columns = PartCounts(), ["uid", "url", "caption"]
    batches = [one.select(columns) for one in reader_of(source).batches(folder, source, counts)]
    now = pa.Table.from_batches(batches, pa.schema([PAIRS.field(name) for name in columns]))
    gone = 0
    for number in numbers:
        before = disk.read_parquet(layout.pairs_part(number), columns)
        before = before.filter(pc.invert(pc.is_in(before["uid"], now["uid"].combine_chunks())))
        is_there = pc.is_in(before["url"], now["url"].combine_chunks())
        for changed in before.filter(is_there).slice(0, 1).to_pylist():
            raise ValueError(
                f"{folder} has changed since {layout}/pairs was made of it: {changed['url']} had "
                f"the caption {shortened(changed['caption'])!r}; build into another folder, or "
                "give the old captions back"
            )
        gone += before.num_rows
    if gone:
        logger.warning("%d pairs of %s have no image in it now: they stay", gone, folder)


def contents_of_rows(layout: PoolLayout, source: Source) -> dict[str, Mapping[str, object]]:
    """The content of each file of a source of kind image_table by its absolute path: the pairs name
    rows of them. ValueError where the files are not those that the pairs were made of.
    """
    final, paths = _known_parts(layout, source)
    if len(final) < len(paths):
        raise ValueError(f"{layout}/pairs is not complete: run clipmill build on this pool again")
    return dict(zip(map(disk.absolute_path, paths), content_of(final), strict=True))


def _complete_parts(layout: PoolLayout) -> pa.Table:
    """The final parts of the crawls that were completed; no row where none was.

    A part says how many there were when its crawl was complete: those of a crawl that has not ended
    say more than there are.
    """
    table = read_parts(layout)
    numbers, said = table["part"].to_numpy(), table["parts"].to_numpy()
    for count in sorted(set(said.tolist()), reverse=True):
        first = table.slice(0, count)
        if len(first) == count and numbers[count - 1] == count - 1 and said[:count].max() == count:
            return first
    return table.slice(0, 0)


def _remove_partial_files(layout: PoolLayout) -> None:
    """Remove what an interrupted write left of the pairs. Only local files have partial ones."""
    if not disk.is_url(layout.root):
        for folder in ("pairs", "pairs/.extracted"):
            for partial in (disk.local_path(layout.root) / folder).glob(".*.partial.*"):
                partial.unlink()


def _name(path: str) -> str:
    return path if disk.is_url(path) else disk.local_path(path).name
