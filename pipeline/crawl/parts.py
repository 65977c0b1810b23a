"""The table of a pool's parts, POOL/parts.parquet, and the reasons for which links were dropped."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from clipmill.manifests import disk
from clipmill.manifests.arrays import Integers
from clipmill.manifests.columns import joined_text
from clipmill.manifests.commits import (
    Commits,
    in_threads,
    read_commits,
    sums_of_counts,
    totals_of_counts,
)
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.pool import Pool
from clipmill.pipeline.archives.urls import shortened
from clipmill.pipeline.shuffle import THREADS
from clipmill.pipeline.table_files import batch_rows, row_groups

# --------------------------------------------------------------------------------------------------
# The table of a pool's parts, POOL/parts.parquet: what the footer of each part of the pairs says.
#
# It is written when crawl ends, so that later stages open one file and not one per part. It is
# derived: where it is missing, or does not fit the parts, the footers are read.


BATCH = 10_000  # rows
PART_NAME = re.compile(r"part-(\d{5,})\.parquet")
logger = logging.getLogger(__name__)
PARTS = pa.schema(
    [
        ("part", pa.int32()),
        ("pairs", pa.int64()),  # rows of the part
        ("links", pa.int64()),  # pairs + all reasons
        ("damaged_records", pa.int64()),
        ("reasons", pa.map_(pa.string(), pa.int64())),
        ("examples", pa.map_(pa.string(), pa.string())),
        ("bytes", pa.int64()),  # of the rows in memory
        ("uids", pa.string()),  # digest of the uids in their order, see uids_digest
        ("wat", pa.string()),  # the source file
        ("source_id", pa.string()),
        ("content", pa.string()),  # of the source file, JSON, see `file_content`
        ("parts", pa.int64()),  # how many there are
    ]
)


def part_names(layout: PoolLayout) -> list[str]:
    """The files of the pairs in the order of their numbers; [] where there is none.

    ValueError for a Parquet file of another name.
    """
    folder = layout.pairs
    names = disk.list_names(folder, ".parquet")
    for name in names:
        if not PART_NAME.fullmatch(name):
            raise ValueError(
                f"{disk.join(folder, name)} is no part of the pairs; move it out of the pool's "
                "folder"
            )
    return sorted(names, key=_number_of)


def _number_of(name: str) -> int:
    match = PART_NAME.fullmatch(name)
    assert match is not None
    return int(match[1])


def read_parts(layout: PoolLayout) -> pa.Table:
    """One row of PARTS per part of the pairs, in order; no row where there is none.

    ValueError for a file that is no part.
    """
    names = part_names(layout)
    if (table := stored_table(layout, len(names))) is not None:
        return table
    folder = layout.pairs
    tables = in_threads(_row_of, [disk.join(folder, name) for name in names], THREADS)
    return pa.concat_tables([PARTS.empty_table(), *tables]).combine_chunks()


def check_stored_table(layout: PoolLayout) -> None:
    """ValueError where POOL/parts.parquet is damaged or is no table of as many parts."""
    count = len(part_names(layout))
    if stored_table(layout, count) is None:
        raise ValueError(f"it is no table of {count} parts of the pairs")


def stored_table(layout: PoolLayout, count: int) -> pa.Table | None:
    """POOL/parts.parquet; None where it is missing, damaged, or not that of `count` parts."""
    path = layout.parts
    if not count or not disk.exists(path):
        return None
    try:
        table = disk.read_parquet(path)
    except disk.DamagedTable as error:
        logger.warning("%s; the parts are read instead", error)
        return None
    fits = table.schema.equals(PARTS) and table.num_rows == count
    return table if fits and not any(column.null_count for column in table.columns) else None


def write_parts(layout: PoolLayout) -> pa.Table:
    """Write the table of a crawl that has ended, and return it."""
    path = layout.parts
    disk.remove(path)
    table = read_parts(layout)
    disk.write_parquet(path, table)
    return table


def _row_of(path: str) -> pa.Table:
    """One row of PARTS. ValueError where the file is no part of the pairs."""

    def read(file: Any) -> tuple[pq.FileMetaData, dict[str, Any]]:
        footer = pq.read_metadata(file)
        return footer, disk.metadata_of(footer)

    footer, metadata = disk.read_with(path, read)
    try:
        row = {
            "part": _number_of(path.rpartition("/")[2]),
            "pairs": footer.num_rows,
            "links": metadata["links"],
            "damaged_records": metadata["damaged_records"],
            "reasons": list(metadata["reasons"].items()),
            "examples": list(metadata["examples"].items()),
            "bytes": metadata["bytes"],
            "uids": metadata["uids"],
            "wat": metadata["wat"],
            "source_id": metadata["source_id"],
            "content": json.dumps(metadata["content"], sort_keys=True),
            "parts": metadata["parts"],
        }
        return pa.Table.from_pylist([row], PARTS)
    except (AttributeError, KeyError, OverflowError, TypeError, pa.ArrowException) as error:
        raise ValueError(
            f"{path} is no part of the pairs, or is damaged ({error}); build into another folder, "
            "or restore it from a copy of the pool"
        ) from None


def part_totals(parts: pa.Table) -> dict[str, Any]:
    """{links, pairs, damaged_records, reasons} of all parts."""
    sums = {}
    for name in ("links", "pairs", "damaged_records"):
        sums[name] = int(pc.sum(parts[name], min_count=0).as_py())
    return {**sums, "reasons": dict(sorted(reason_totals(parts).items()))}


def dropped_rows(parts: pa.Table) -> Integers:
    """(parts,) rows of each part that were lost for some reason."""
    return sums_of_counts(parts["reasons"])


def reason_totals(parts: pa.Table) -> Counter[str]:
    """How many rows of all parts were lost for each reason."""
    return totals_of_counts(parts["reasons"])


def examples(parts: pa.Table) -> dict[str, str]:
    """For each reason the first example of a lost row."""
    first: dict[str, str] = {}
    for chunk in parts["examples"].chunks:
        encoded = chunk.keys.dictionary_encode()
        for number, reason in enumerate(encoded.dictionary.to_pylist()):
            if reason not in first:
                first[reason] = chunk.items[pc.index(encoded.indices, number).as_py()].as_py()
    return first


# --- rows of a part -----------------------------------------------------------------------------


def rows_between(
    path: str, start: int, stop: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows `start` to `stop` of a part, batch by batch. Only their row groups are read.

    DamagedTable where a page does not have its checksum.
    """
    with (
        disk.naming_table(path),
        disk.open_stream(path) as stream,
        pq.ParquetFile(stream, page_checksum_verification=True) as table,
    ):
        numbers: list[int] = []
        rows_before, position = 0, 0
        groups = row_groups(stream)
        for number, group in enumerate(groups):
            if rows_before + group.rows > start and rows_before < stop:
                position = position if numbers else rows_before
                numbers.append(number)
            rows_before += group.rows
        left = min(stop, rows_before) - start
        names = columns or table.schema_arrow.names
        size = min((batch_rows(groups[number], names, BATCH) for number in numbers), default=1)
        for batch in table.iter_batches(max(1, size), row_groups=numbers, columns=columns):
            low, high = max(0, start - position), min(batch.num_rows, stop - position)
            if low < high:
                yield batch.slice(low, high - low)
                left -= high - low
            position += batch.num_rows
        if left > 0:  # the header of a page is damaged: Arrow does not compare
            raise disk.DamagedTable(f"{left} rows are missing")


class UidsDigest:
    """Digest of the uids of a part, in their order; the same for any batches."""

    def __init__(self) -> None:
        self._content = xxhash.xxh3_128()
        self._lengths = xxhash.xxh3_128()

    def update(self, uids: pa.Array) -> None:
        """Add the next ones."""
        lengths = pc.binary_length(uids).cast(pa.int32())
        self._lengths.update(lengths.to_numpy(zero_copy_only=False).astype("<i4").tobytes())
        self._content.update(joined_text(uids))

    def hexdigest(self) -> str:
        """32 hex digits."""
        return xxhash.xxh3_128_hexdigest(self._lengths.digest() + self._content.digest())


def content_of(parts: pa.Table) -> list[Mapping[str, object]]:
    """What identified the content of each source file."""
    return [json.loads(text) for text in parts["content"].to_pylist()]


# --------------------------------------------------------------------------------------------------
# The commonest reasons why the rows of a pool were lost, each with one example.


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """How many rows a stage lost for one reason, and one of them."""

    stage: str  # crawl or fetch
    reason: str
    count: int
    example: str

    def __str__(self) -> str:
        example = f", for example {self.example}" if self.example else ""
        return f"{self.count:,} {self.reason} in {self.stage}{example}"


def top_reasons(pool: str, limit: int = 3, commits: Commits | None = None) -> list[Loss]:
    """The commonest reasons of a pool's lost rows, crawl and fetch together; [] where none is
    lost. Duplicates are not counted as lost: their pair is there once.

    commits: what is committed, if the caller has read it.
    """
    if commits is None:
        commits = read_commits(pool, ["reasons"])
    parts = read_parts(PoolLayout(pool))
    of_crawl, first_examples = reason_totals(parts), examples(parts)
    del of_crawl["duplicate_pair"]
    counts = [("crawl", *each) for each in of_crawl.items()]
    counts += [("fetch", *each) for each in commits.reasons().items()]
    counts.sort(key=lambda each: -each[2])
    losses = []
    for stage, reason, count in counts[:limit]:
        example = first_examples.get(reason, "")
        if stage == "fetch":
            example = _fetch_example(commits, reason)
        losses.append(Loss(stage=stage, reason=reason, count=count, example=example))
    return losses


def _fetch_example(commits: Commits, reason: str) -> str:
    """The first row of a reason: URL and error message from the sidecar; "" where it is gone."""
    shard = commits.first_with(reason)
    if shard is None:
        return ""
    table = Pool(commits).read(shard, ["url", "error_message", "reason"])
    row = table.filter(pc.equal(table["reason"], reason)).slice(0, 1).to_pylist()[0]
    return shortened(f"{row['url']} ({row['error_message']})")
