"""Rows to score columns: one decode of an image serves all filters of a pass, models are loaded
once per worker.

A shard's columns are committed by their rename into POOL/scores/NAME@ID/; scores.json is written
when all shards are there. What is scored already is not scored again.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from filters import make
from filters.base import Batch, Columns, Filter, FilterBase, options_of
from manifests import disk, ray_runtime
from manifests.aligned.bundles import parquet_bytes
from manifests.aligned.shard_tables import has_table, write_score_shards
from manifests.commits import Commits
from manifests.documents import ScoreSetDocument
from manifests.pool_layout import CommitRecord, PoolLayout, shard_name, uids_checksum
from manifests.schema import FilterSpec
from pipeline.executor import Engine, Stage, Ticket, Tickets, execute
from pipeline.pool import check_fence
from pipeline.progress import measure_scored
from pipeline.scoring.score_bundles import make_bundles, read_metadata, scored_shards
from pipeline.scoring.score_sets import current_score_set, name_of_filter, read_score_set
from pipeline.scoring.stored_rows import shards_with_rows

CHUNK = 256  # images decoded ahead while as many are scored: about 50 MB each at 256 × 256
CHUNK_AREA = 1 << 26  # pixels of a chunk, 200 MB: 256 images of 512 × 512, fewer larger ones
AREA_PER_BYTE = 10  # pixels of an image whose size the sidecar does not say, per byte, about
DECODERS = min(8, os.cpu_count() or 1)  # Pillow releases the GIL while it decodes
# If a filter raises for every one of at least this many rows, the filter is at fault, not the rows.
SYSTEMATIC = 8
NEEDED = ["uid", "status", "caption", "width", "height", "image_offset", "image_length"]
logger = logging.getLogger(__name__)

Decoding = list["Future[Image.Image | None]"]


def score(
    pool: str,
    specs: Sequence[FilterSpec],
    *,
    engine: Engine,
    fence: int | None = None,
    commits: Commits | None = None,
) -> dict[str, Any]:
    """Score every committed shard by every filter; what is scored already is left as it is.

    commits: what is committed, if the caller has read it. fence: that of the lease. Returns
    {"sets": {NAME@ID: scores.json}, "failed": {shard: reason}}. After a failed shard a set has {}.
    A row that cannot be decoded or scored has NULL. ValueError for unknown filters, options or
    weights, and for a pool without a stored row.
    """
    commits = shards_with_rows(pool, commits)
    todo: dict[str, Filter] = {}
    names: list[str] = []
    for spec in specs:
        filter_ = _row_local(make(spec))
        current = current_score_set(pool, filter_, commits.fingerprint, skip_damaged=True)
        if current is not None:
            names.append(current[0])
            continue
        filter_.check()
        filter_ = _row_local(filter_.resolved(gpu=_has_gpu(filter_, engine)))
        names.append(name_of_filter(filter_))
        todo[names[-1]] = filter_
    failed = _score_sets(todo, commits, engine, fence) if todo else {}
    if not failed:
        failed = make_bundles(commits, list(todo), engine, fence)
    if not failed:
        check_fence(pool, fence)
        for name, filter_ in todo.items():
            _write_document(name, filter_, commits)
    documents = {name: read_score_set(pool, name) for name in names}
    sets = {name: document.document() if document else {} for name, document in documents.items()}
    return {"sets": sets, "failed": failed}


def _row_local(filter_: FilterBase) -> Filter:
    if not isinstance(filter_, Filter):
        raise ValueError(f"filter {filter_.name} looks at the whole pool; it cannot run here yet")
    return filter_


def _score_sets(
    filters: Mapping[str, Filter], commits: Commits, engine: Engine, fence: int | None
) -> dict[str, str]:
    """Score the shards that lack columns of one of these sets; returns {shard: reason} of those
    that failed."""
    tickets = _tickets(commits, list(filters))
    logger.info("%s: %d of %d shards to score", ", ".join(filters), len(tickets), len(commits))
    specs = {
        name: {"name": filter_.name, "options": options_of(filter_)}
        for name, filter_ in filters.items()
    }
    on_gpu = engine == "ray" and any(_has_gpu(filter_, engine) for filter_ in filters.values())
    stage = Stage(
        name="score",
        work=ScoreWorker,
        config={"pool": commits.pool, "filters": specs, "fence": fence},
        gpus=1 if on_gpu else 0,  # inline, a filter takes the GPU that the process sees
        measure=measure_scored,
    )
    return dict(execute(stage, tickets, engine=engine).failed)


# --- the worker -----------------------------------------------------------------------------------


class ScoreWorker:
    """The filters of a pass, loaded. A call with a ticket {"sets": […]} writes the columns of
    the shard `ticket.id`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.pool = str(config["pool"])
        self.layout = PoolLayout(self.pool)
        self.fence: int | None = config.get("fence")
        self.filters: dict[str, Filter] = {}
        for name, spec in config["filters"].items():
            filter_ = make(FilterSpec(name=spec["name"], options=spec["options"]))
            self.filters[name] = _row_local(filter_)
            self.filters[name].setup()

    def __call__(self, ticket: Ticket) -> dict[str, Any]:
        shard = ticket.id
        filters = {name: self.filters[name] for name in ticket.payload["sets"]}
        record = CommitRecord.read(self.layout.commit_record(shard))
        all_columns = any("row" in filter_.needs for filter_ in filters.values())
        rows = disk.read_parquet(
            self.layout.sidecar(shard, record.revision), None if all_columns else NEEDED
        )
        if rows.num_rows != record.count:
            raise ValueError(
                self._damaged(record, f"its sidecar has {rows.num_rows} rows of {record.count}")
            )
        columns: dict[str, dict[str, list[Any]]] = {}
        for name, filter_ in filters.items():
            columns[name] = {column: [None] * rows.num_rows for column in filter_.adds}
        seconds = dict.fromkeys(filters, 0.0)
        for positions, images in self._chunks(rows, record, filters.values()):
            for name, filter_ in filters.items():
                started = time.perf_counter()
                _fill(columns[name], positions, filter_, images, rows)
                seconds[name] += time.perf_counter() - started
        shared = {
            "uids": uids_checksum(rows["uid"]),
            "sidecar": record.sidecar_sha256,
            "rows": rows.num_rows,
            "stored": _stored_positions(rows).size,
        }
        scored = {}
        for name, filter_ in filters.items():
            metadata = {**shared, "seconds": round(seconds[name], 3)}
            scored[name] = self._write(name, shard, filter_, columns[name], metadata)
        return {"scored": scored}

    def _write(
        self,
        name: str,
        shard: str,
        filter_: Filter,
        columns: Mapping[str, list[Any]],
        metadata: Mapping[str, Any],
    ) -> int:
        """Commit the columns of a shard; returns the number of rows that have all of them.

        Columns of the same rows that another worker has committed in the meantime stay.
        """
        scored = 0
        for values in zip(*columns.values(), strict=True):
            scored += all(value is not None for value in values)
        if scored < metadata["stored"]:
            logger.warning(
                "%s, shard %s: %d of %d stored rows have no score",
                name,
                shard,
                metadata["stored"] - scored,
                metadata["stored"],
            )
        arrays = {column: pa.array(columns[column], kind) for column, kind in filter_.adds.items()}
        path = self.layout.score_columns(name, shard)
        content = parquet_bytes(pa.table(arrays), {**metadata, "scored": scored})
        check_fence(self.pool, self.fence)
        try:
            disk.create_bytes(path, content)
        except FileExistsError:
            there = _metadata_of_same_rows(path, metadata)
            if there is not None:
                return int(there["scored"])
            check_fence(self.pool, self.fence)
            disk.write_bytes(path, content)  # in place of columns of other rows, or damaged ones
        return scored

    def _damaged(self, record: CommitRecord, problem: str) -> str:
        return (
            f"shard {record.shard} is damaged: {problem}; run python pipeline/audit.py "
            f"{self.pool} --repair"
        )

    def _tar_reader(self, record: CommitRecord) -> Callable[[int, int], bytes]:
        """(offset, length) -> bytes of the tar of a shard. A remote tar is fetched whole, once.

        ValueError where it is not the tar of the commit record: a damaged image would get a score,
        or NULL, as if it were the one that was stored.
        """
        tar = self.layout.tar(record)
        if disk.is_url(tar):
            whole = disk.read_bytes(tar)
            size, sha256 = len(whole), hashlib.sha256(whole).hexdigest()
        else:
            size, sha256 = disk.local_path(tar).stat().st_size, disk.file_sha256(tar)
        if (size, sha256) != (record.tar_bytes, record.tar_sha256):
            problem = f"{tar} has {size} bytes of {record.tar_bytes}, or another sha256"
            raise ValueError(self._damaged(record, problem))
        if disk.is_url(tar):
            return lambda offset, length: whole[offset : offset + length]
        return lambda offset, length: disk.read_bytes(tar, offset, length)

    def _chunks(
        self, rows: pa.Table, record: CommitRecord, filters: Iterable[Filter]
    ) -> Iterator[tuple[list[int], list[Image.Image | None] | None]]:
        """(positions, their images) of the stored rows. The next chunk is decoded while one is
        in use."""
        stored = _stored_positions(rows).tolist()
        chunks = _chunks_of(rows, stored)
        if not any("image" in filter_.needs for filter_ in filters):
            for chunk in chunks:
                yield chunk, None
            return
        read_member = self._tar_reader(record)
        offsets, lengths = rows["image_offset"].to_pylist(), rows["image_length"].to_pylist()
        with ThreadPoolExecutor(DECODERS) as threads:

            def load(position: int) -> Image.Image | None:
                return decode(read_member(offsets[position], lengths[position]))

            def begin(chunk: Sequence[int]) -> Decoding:
                return [threads.submit(load, position) for position in chunk]

            upcoming = begin(chunks[0]) if chunks else []
            for chunk, following in zip(chunks, [*chunks[1:], []], strict=True):
                current, upcoming = upcoming, begin(following)
                yield chunk, [decoding.result() for decoding in current]


def _metadata_of_same_rows(path: str, expected: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is written about columns that are there; None where they are of other rows."""
    try:
        there = disk.read_metadata(path)
    except (FileNotFoundError, pa.ArrowException, ValueError):
        return None
    same = all(there.get(name) == expected[name] for name in ("uids", "sidecar", "rows", "stored"))
    return there if same and "scored" in there else None


def decode(data: bytes) -> Image.Image | None:
    """An RGB image, or None where the bytes are none."""
    try:
        return Image.open(io.BytesIO(data)).convert("RGB")
    # Pillow's decoders raise all kinds of errors: OSError, SyntaxError, struct.error …
    except Exception as error:
        logger.warning("a stored image cannot be decoded: %s", error)
        return None


def _stored_positions(rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Row numbers of the stored rows."""
    statuses = np.array(rows["status"].to_pylist(), object)
    return np.flatnonzero(statuses == "success").astype(np.int64)


def _chunks_of(rows: pa.Table, stored: Sequence[int]) -> list[list[int]]:
    """The stored rows in chunks of at most CHUNK rows and CHUNK_AREA pixels, at least one row."""
    positions = pa.array(stored, pa.int64())
    width, height, length = (
        rows[name].take(positions).to_pylist() for name in ("width", "height", "image_length")
    )
    chunks: list[list[int]] = []
    area = 0
    for i, position in enumerate(stored):
        own = (width[i] or 0) * (height[i] or 0) or AREA_PER_BYTE * (length[i] or 0)
        if not chunks or len(chunks[-1]) == CHUNK or area + own > CHUNK_AREA:
            chunks.append([])
            area = 0
        chunks[-1].append(position)
        area += own
    return chunks


def _fill(
    columns: dict[str, list[Any]],
    positions: Sequence[int],
    filter_: Filter,
    images: Sequence[Image.Image | None] | None,
    rows: pa.Table,
) -> None:
    """Score the rows `positions` and write the values to `columns`.

    Rows that lack what the filter needs stay NULL. NaN and infinity become NULL.
    """
    captions = rows["caption"].take(pa.array(positions, pa.int64())).to_pylist()
    usable = _usable(filter_, captions, images)
    batch_images = None
    if "image" in filter_.needs:
        assert images is not None
        batch_images = [image for i in usable if (image := images[i]) is not None]
    batch_positions = [positions[i] for i in usable]
    batch = Batch(
        captions=[captions[i] or "" for i in usable],
        images=batch_images,
        rows=rows.take(pa.array(batch_positions, pa.int64())),
    )
    for column, values in _scores(filter_, batch).items():
        assert len(values) == len(usable), (
            f"filter {filter_.name} gave {len(values)} values of {column} for {len(usable)} rows"
        )
        for position, value in zip(batch_positions, values, strict=True):
            not_finite = isinstance(value, (float, np.floating)) and not np.isfinite(value)
            columns[column][position] = None if not_finite else value


def _usable(
    filter_: Filter,
    captions: Sequence[str | None],
    images: Sequence[Image.Image | None] | None,
) -> list[int]:
    """Indices of the rows that have what the filter needs."""
    usable = []
    for i, caption in enumerate(captions):
        has_image = images is not None and images[i] is not None
        lacks_image = "image" in filter_.needs and not has_image
        lacks_caption = "caption" in filter_.needs and caption is None
        if not lacks_image and not lacks_caption:
            usable.append(i)
    return usable


def _scores(filter_: Filter, batch: Batch) -> Columns:
    """A filter's columns for a batch. If it raises, row by row, so that one row costs one row."""
    if not batch.captions:
        return {column: [] for column in filter_.adds}
    try:
        return filter_.score(batch)
    except Exception as error:
        logger.warning(
            "filter %s raised on %d rows, which are now scored one by one: %s",
            filter_.name,
            len(batch.captions),
            error,
        )
    return _scores_one_by_one(filter_, batch)


def _scores_one_by_one(filter_: Filter, batch: Batch) -> Columns:
    """NULL for each row for which the filter raises. It raises for good if it raises for all of
    many rows."""
    count = len(batch.captions)
    columns: dict[str, list[Any]] = {column: [] for column in filter_.adds}
    failures = 0
    for i in range(count):
        row = Batch(
            captions=batch.captions[i : i + 1],
            images=None if batch.images is None else batch.images[i : i + 1],
            rows=batch.rows.slice(i, 1),
        )
        try:
            scores: Columns = filter_.score(row)
        except Exception:
            failures += 1
            if failures == count >= SYSTEMATIC:
                raise
            scores = {column: [None] for column in filter_.adds}
        for column, values in columns.items():
            values.append(scores[column][0])
    return dict(columns)


# --- tickets and documents ------------------------------------------------------------------------


def _tickets(commits: Commits, sets: Sequence[str]) -> Tickets:
    """One ticket for each shard that lacks columns of a set. It names the sets that the shard
    lacks."""
    lacking = np.array([~scored_shards(commits, name) for name in sets])  # (sets, shards)
    shards = np.flatnonzero(lacking.any(axis=0))

    def make(number: int) -> Ticket:
        position = int(shards[number])
        names = [name for name, lacks in zip(sets, lacking[:, position], strict=True) if lacks]
        shard = shard_name(int(commits.shards[position]))
        return Ticket(id=shard, group=shard, payload={"sets": names})

    return Tickets(np.arange(len(shards)), make)


def _write_document(name: str, filter_: Filter, commits: Commits) -> None:
    """scores.json, from the metadata of all shards' columns."""
    layout = PoolLayout(commits.pool)
    metadata = read_metadata(commits, name)
    shards, table = None, None
    if has_table(len(commits)):
        table = write_score_shards(
            commits.pool,
            name,
            commits.shards,
            metadata.uids,
            metadata.rows,
            metadata.scored,
        )
    else:
        shards = dict(zip(commits.names(), metadata.uids, strict=True))
    document = ScoreSetDocument(
        name=filter_.name,
        id=name.partition("@")[2],
        version=filter_.version,
        options=options_of(filter_),
        identity=filter_.identity(),
        columns=tuple(filter_.adds),
        shards=shards,
        table=table,
        fingerprint=commits.fingerprint,
        rows=int(metadata.rows.sum()),
        stored=int(metadata.stored.sum()),
        scored=int(metadata.scored.sum()),
        seconds=round(metadata.seconds, 3),
    )
    disk.write_json(layout.score_set_json(name), document.document(), sealed=True)


def _has_gpu(filter_: Filter, engine: Engine) -> bool:
    """True where the filter will run on a GPU: `cuda` always, `auto` where Ray or this process
    has one."""
    if filter_.device != "auto":
        return filter_.device == "cuda"
    if engine == "inline":
        import torch

        return torch.cuda.is_available()
    ray_runtime.connect()
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources.get("GPU", 0) >= 1
