"""The worker that scores a shard: images in chunks, and the filters of a pass."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import simplejpeg
from PIL import Image

from clipmill.filters import Instance, WorkerSpec
from clipmill.filters.base import Batch, Filter
from clipmill.filters.columns import WrongColumns, aligned, arrow_columns
from clipmill.filters.picture import FRAMES, PIXELS
from clipmill.filters.user_file import error_line
from clipmill.manifests import disk
from clipmill.manifests.arrays import Integers
from clipmill.manifests.layout import CommitRecord, PoolLayout, uids_checksum
from clipmill.manifests.pool import Pool
from clipmill.pipeline.executor.tickets import Ticket
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.score_columns import commit_columns
from clipmill.pipeline.progress.state import Measure

# --------------------------------------------------------------------------------------------------
# The stored rows of a shard in chunks with their images, decoded once for all filters.


CHUNK = 256  # images decoded ahead while as many are scored: about 50 MB each at 256 × 256
CHUNK_AREA = 1 << 26  # pixels of a chunk, 200 MB: 256 images of 512 × 512, fewer larger ones
AREA_PER_BYTE = 10  # pixels of an image whose size the sidecar does not say, per byte, about
DECODERS = min(8, os.cpu_count() or 1)  # Pillow releases the GIL while it decodes
JPEG_START = b"\xff\xd8\xff"
FILE_OBJECT = re.compile(r" ?<_io\.BytesIO [^>]*>")  # in Pillow's errors
logger = logging.getLogger(__name__)

Decoding = list["Future[Image.Image | None]"]


def chunks(
    layout: PoolLayout,
    rows: pa.Table,
    record: CommitRecord,
    prepare: Sequence[Callable[[Image.Image], None]] = (),
) -> Iterator[tuple[Integers, list[Image.Image | None]]]:
    """(positions, their images) of the stored rows. The next chunk is decoded and prepared while
    one is in use, so that at most two chunks are in memory.

    prepare: called with each image in the thread that decoded it. ValueError where the tar is not
    that of the commit record.
    """
    parts = chunks_of(rows, stored_positions(rows))
    if not parts:
        return
    read_member = _tar_reader(layout, record)
    offsets, lengths = rows["image_offset"].to_pylist(), rows["image_length"].to_pylist()
    with ThreadPoolExecutor(DECODERS) as threads:

        def load(position: int) -> Image.Image | None:
            row = f"shard {record.shard}, row {position}"
            image = decode(read_member(offsets[position], lengths[position]), row)
            if image is not None:
                for each in prepare:
                    each(image)
                vars(image).pop(PIXELS, None)
            return image

        def begin(chunk: Integers | None) -> Decoding:
            if chunk is None:
                return []
            return [threads.submit(load, position) for position in chunk.tolist()]

        upcoming = begin(parts[0])
        for chunk, following in zip(parts, [*parts[1:], None], strict=True):
            current, upcoming = upcoming, begin(following)
            yield chunk, [decoding.result() for decoding in current]


def damaged(layout: PoolLayout, record: CommitRecord, problem: str) -> ValueError:
    """The error for a shard that is not as its commit record says, with the remedy."""
    return ValueError(
        f"shard {record.shard} is damaged: {problem}; run clipmill audit repair {layout.root}"
    )


def decode(data: bytes, row: str) -> Image.Image | None:
    """An RGB image, or None where the bytes are none. row: names it in the log.

    A JPEG is decoded by simplejpeg, in two thirds of Pillow's time and to the same pixels.
    """
    try:
        image = _decode_jpeg(data) if data.startswith(JPEG_START) else None
        return _decode_any(data) if image is None else image
    # Pillow's decoders raise all kinds of errors: OSError, SyntaxError, struct.error …
    except Exception as error:
        reason = " ".join(FILE_OBJECT.sub("", str(error)).split())
        logger.warning("%s: the stored image cannot be decoded: %s", row, reason)
        return None


def _decode_any(data: bytes) -> Image.Image:
    """The first frame; an animation says how many there are in `info`."""
    with Image.open(io.BytesIO(data)) as opened:
        image = opened.convert("RGB")
        if getattr(opened, "is_animated", False):
            image.info[FRAMES] = getattr(opened, "n_frames", 1)
        return image


def _decode_jpeg(data: bytes) -> Image.Image | None:
    """None for what Pillow may read and simplejpeg does not: CMYK, damage of which Pillow only
    warns, and more pixels than Pillow allows."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if colours in ("CMYK", "YCCK") or width * height > (Image.MAX_IMAGE_PIXELS or 0):
            return None
        pixels_HWC = simplejpeg.decode_jpeg(data)
        image = Image.fromarray(pixels_HWC)
        setattr(image, PIXELS, pixels_HWC)
        return image
    except ValueError:
        return None


def json_members(layout: PoolLayout, rows: pa.Table, record: CommitRecord) -> pa.Array:
    """(rows,) the bytes of the JSON member of each stored row; NULL where it has none.

    ValueError where the tar is not that of the commit record.
    """
    members: list[bytes | None] = [None] * rows.num_rows
    positions = stored_positions(rows)
    if not len(positions):
        return pa.array(members, pa.binary())
    read_member = _tar_reader(layout, record)
    offsets, lengths = rows["json_offset"].to_pylist(), rows["json_length"].to_pylist()
    for position in positions.tolist():
        if lengths[position] is not None:
            members[position] = read_member(offsets[position], lengths[position])
    return pa.array(members, pa.binary())


def stored_positions(rows: pa.Table) -> Integers:
    """Row numbers of the stored rows."""
    is_stored = pc.fill_null(pc.equal(rows["status"], "success"), False)
    return np.flatnonzero(is_stored.to_numpy()).astype(np.int64)


def chunks_of(rows: pa.Table, stored: Sequence[int] | Integers) -> list[Integers]:
    """The stored rows in chunks of at most CHUNK rows and CHUNK_AREA pixels, at least one row."""
    positions = np.asarray(stored, np.int64)
    width, height, length = (
        rows[name].take(pa.array(positions)).to_pylist()
        for name in ("width", "height", "image_length")
    )
    chunks: list[list[int]] = []
    area = 0
    for i, position in enumerate(positions.tolist()):
        own = (width[i] or 0) * (height[i] or 0) or AREA_PER_BYTE * (length[i] or 0)
        if not chunks or len(chunks[-1]) == CHUNK or area + own > CHUNK_AREA:
            chunks.append([])
            area = 0
        chunks[-1].append(position)
        area += own
    return [np.array(chunk, np.int64) for chunk in chunks]


def _tar_reader(layout: PoolLayout, record: CommitRecord) -> Callable[[int, int], bytes]:
    """(offset, length) -> bytes of the tar of a shard. A remote tar is fetched whole, once.

    ValueError where it is not the tar of the commit record: a damaged image would get a score, or
    NULL, as if it were the one that was stored.
    """
    tar = layout.tar(record)
    whole = b""
    if disk.is_url(tar):
        whole = disk.read_bytes(tar)
        size, sha256 = len(whole), hashlib.sha256(whole).hexdigest()
    else:
        size, sha256 = disk.local_path(tar).stat().st_size, disk.file_sha256(tar)
    if (size, sha256) != (record.tar_bytes, record.tar_sha256):
        problem = f"{tar} has {size} bytes of {record.tar_bytes}, or another sha256"
        raise damaged(layout, record, problem)

    def read(offset: int, length: int) -> Any:
        if disk.is_url(tar):
            return whole[offset : offset + length]
        return disk.read_bytes(tar, offset, length)

    return read


# --------------------------------------------------------------------------------------------------
# The worker of a pass: one decode of an image serves all its filters.


# If a filter raises for every one of at least this many rows, the filter is at fault, not the rows.
SYSTEMATIC = 8
SHOWN = 3  # rows and images of a batch or a shard for which a filter raises that the log names
NEEDED = ["uid", "status", "caption", "width", "height", "image_offset", "image_length"]

Images = Sequence[Image.Image | None] | None


@dataclass
class _SetOfShard:
    """The columns of one set for one shard in the making."""

    instance: Instance
    columns: dict[str, pa.Array]  # of the sets that the filter reads, for all rows of the shard
    positions: list[Integers] = field(default_factory=list)
    parts: list[dict[str, pa.Array]] = field(default_factory=list)
    seconds: float = 0.0
    unprepared: int = 0  # images for which `prepare` raised
    problem: Exception | None = None  # why the filter gives no columns for this shard

    @property
    def filter(self) -> Filter:
        assert isinstance(self.instance.filter, Filter)
        return self.instance.filter

    def prepare(self, image: Image.Image) -> None:
        """Begin with an image. Where that fails, `score` meets the same image again."""
        try:
            self.filter.prepare(image)
        except Exception as error:
            self.unprepared += 1
            if self.unprepared <= SHOWN:
                logger.warning("filter %s: prepare: %s", self.instance.name, error_line(error))

    def score(self, positions: Integers, images: Images, rows: pa.Table) -> None:
        """Score the rows `positions`. Rows that lack what the filter needs stay NULL; after a
        problem all do."""
        if self.problem is not None:
            return
        started = time.perf_counter()
        all_rows = rows.take(pa.array(positions))
        captions = all_rows["caption"].to_pylist()
        usable = _usable(self.filter, all_rows, captions, images)
        batch_images = None
        if "image" in self.filter.needs:
            assert images is not None
            batch_images = [image for i in usable if (image := images[i]) is not None]
        indices = pa.array(positions[usable])
        batch = Batch(
            captions=[captions[i] or "" for i in usable],
            images=batch_images,
            rows=rows.take(indices),
            columns={name: column.take(indices) for name, column in self.columns.items()},
        )
        if usable:
            try:
                self.parts.append(_scores(self.instance, self.filter, batch))
                self.positions.append(positions[usable])
            except Exception as error:
                self.problem = error
        self.seconds += time.perf_counter() - started

    def table(self, rows: int) -> pa.Table:
        """The columns of all rows of the shard, by their names in the instance."""
        names = self.instance.column_names()
        positions = np.concatenate([np.zeros(0, np.int64), *self.positions])
        arrays = {}
        for column, kind in self.instance.filter.columns().items():
            parts = [part[column] for part in self.parts]
            arrays[names[column]] = aligned(parts, positions, kind, rows)
        return pa.table(arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSet:
    """A score set of a pass."""

    filter: WorkerSpec
    reads: Mapping[str, Sequence[str]] = field(default_factory=dict)  # NAME@ID -> its columns
    fingerprint: str | None = None  # of the pool, where the columns depend on it


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreJob:
    """What all tickets of a pass have in common."""

    out: PoolWriter
    sets: Mapping[str, ScoredSet]  # by NAME@ID


class ScoreWorker:
    """The filters of a pass, loaded. A call with a ticket, whose payload names sets, writes the
    columns of the shard `ticket.id`.
    """

    def __init__(self, job: ScoreJob) -> None:
        self.out, self.sets = job.out, job.sets
        self.layout, self._table = self.out.layout, Pool.of_tickets(self.out.pool)
        self.filters: dict[str, Instance] = {}
        # shard -> {NAME@ID: its scored rows}, of shards for which another filter failed
        self._written: dict[str, dict[str, int]] = {}
        for name, of_set in self.sets.items():
            self.filters[name] = of_set.filter.instance()
            self.filters[name].filter.setup()

    def __call__(self, ticket: Ticket) -> Measure:
        shard = ticket.id
        table = self._table.of_shards(shard)
        record = table.commits.record(shard)
        scored = self._written.pop(shard, {})
        sets = {}
        needs: set[str] = set()
        for name in ticket.payload:
            if name not in scored:
                columns = self._columns_read(name, table, shard)
                sets[name] = _SetOfShard(self.filters[name], columns)
                needs |= sets[name].filter.needs
        rows = self._rows(table, record, needs)
        self._score(record, sets, rows)
        shared = {
            "uids": uids_checksum(rows["uid"]),
            "sidecar": record.sidecar_sha256,
            "rows": rows.num_rows,
            "stored": stored_positions(rows).size,
        }
        for name, each in sets.items():
            if each.problem is not None:
                continue
            metadata = {**shared, "seconds": round(each.seconds, 3)}
            if fingerprint := self.sets[name].fingerprint:
                metadata["pool"] = fingerprint
            scored[name] = self._write(name, shard, each.table(rows.num_rows), metadata)
        problems = [each.problem for each in sets.values() if each.problem is not None]
        if problems:
            self._written[shard] = scored
            if len(problems) > 1:
                raise ValueError("; ".join(map(error_line, problems)))
            raise problems[0]
        most = max(scored.values(), default=0)  # rows, whatever the number of sets
        return Measure(rows=most, stored=most)

    def _rows(self, pool: Pool, record: CommitRecord, needs: set[str]) -> pa.Table:
        """The columns of the sidecar that filters with these needs read."""
        names = [*NEEDED, "json_offset", "json_length"] if "json" in needs else NEEDED
        rows = pool.read(record.shard, None if "row" in needs else names)
        if "json" in needs:
            rows = rows.append_column("json", json_members(self.layout, rows, record))
        return rows

    def _score(self, record: CommitRecord, sets: dict[str, _SetOfShard], rows: pa.Table) -> None:
        """Score all rows. A filter that fails has its `problem` and stops none of the others."""
        for each in sets.values():
            if "image" not in each.filter.needs:  # all rows at once: fewer calls
                each.score(stored_positions(rows), None, rows)
        with_images = [each for each in sets.values() if "image" in each.filter.needs]
        if not with_images:
            return
        prepare = [each.prepare for each in with_images]
        for positions, images in chunks(self.layout, rows, record, prepare):
            for each in with_images:
                each.score(positions, images, rows)
            if all(each.problem is not None for each in with_images):
                return

    def _columns_read(self, name: str, pool: Pool, shard: str) -> dict[str, pa.Array]:
        """The columns of other sets that a filter reads, for all rows of a shard."""
        reads = self.sets[name].reads.items()
        sets = {column: read for read, names in reads for column in names}
        table = pool.read(shard, list(sets), sets)
        return {column: table[column].combine_chunks() for column in sets}

    def _write(self, name: str, shard: str, table: pa.Table, metadata: Mapping[str, Any]) -> int:
        """Commit the columns of a shard; returns the number of rows that have all of them."""
        scored = commit_columns(self.out, name, shard, table, metadata)
        if scored < metadata["stored"]:
            logger.warning(
                "%s, shard %s: %d of %d stored rows have no score",
                name,
                shard,
                metadata["stored"] - scored,
                metadata["stored"],
            )
        return scored


def _usable(
    filter_: Filter, rows: pa.Table, captions: Sequence[str | None], images: Images
) -> list[int]:
    """Indices of the rows that have what the filter needs."""
    usable = np.ones(len(captions), np.bool_)
    given = {"image": images or [None] * len(captions), "caption": captions}
    for name, values in given.items():
        if name in filter_.needs:
            usable &= np.array([value is not None for value in values], np.bool_)
    if "json" in filter_.needs:
        usable &= rows["json"].is_valid().to_numpy()
    indices: list[int] = np.flatnonzero(usable).tolist()
    return indices


def _scores(instance: Instance, filter_: Filter, batch: Batch) -> dict[str, pa.Array]:
    """A filter's columns for a batch. If it raises, row by row: NULL for each row for which it
    raises again. It raises for good if it raises for all of many rows."""
    count, kinds = len(batch.captions), filter_.columns()
    try:
        return arrow_columns(instance.name, filter_.score(batch), kinds, count)
    except WrongColumns:
        raise
    except Exception as error:
        logger.warning(
            "filter %s raised on %d rows, which are now scored one by one: %s",
            instance.name,
            count,
            error_line(error),
        )
    rows: list[dict[str, pa.Array]] = []
    failures = 0
    for i in range(count):
        row = Batch(
            captions=batch.captions[i : i + 1],
            images=None if batch.images is None else batch.images[i : i + 1],
            rows=batch.rows.slice(i, 1),
            columns={name: column.slice(i, 1) for name, column in batch.columns.items()},
        )
        try:
            rows.append(arrow_columns(instance.name, filter_.score(row), kinds, 1))
        except WrongColumns:
            raise
        except Exception as error:
            failures += 1
            if failures == count >= SYSTEMATIC:
                line = f"filter {instance.name} raised for each of {count} rows: "
                raise ValueError(line + error_line(error)) from error
            if failures <= SHOWN:
                uid = row.rows["uid"][0].as_py()
                logger.warning("filter %s: uid %s: %s", instance.name, uid, error_line(error))
            rows.append({column: pa.nulls(1, kind) for column, kind in kinds.items()})
    return {column: pa.concat_arrays([row[column] for row in rows]) for column in kinds}
