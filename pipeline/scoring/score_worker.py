"""The worker of a pass: one decode of an image serves all its filters."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from filters import Instance, instance_of_worker_spec
from filters.base import Batch, Filter
from filters.user_calls import error_line
from filters.values import WrongColumns, aligned, arrow_columns, valid_in_all
from manifests import disk
from manifests.aligned import AlignedFiles, parquet_bytes
from manifests.pool_layout import CommitRecord, PoolLayout, uids_checksum
from pipeline.executor import Ticket
from pipeline.pool import commit_columns, read_scores
from pipeline.scoring.image_chunks import (
    Positions,
    chunks,
    damaged,
    json_members,
    stored_positions,
)

# If a filter raises for every one of at least this many rows, the filter is at fault, not the rows.
SYSTEMATIC = 8
SHOWN = 3  # rows and images of a batch or a shard for which a filter raises that the log names
NEEDED = ["uid", "status", "caption", "width", "height", "image_offset", "image_length"]
logger = logging.getLogger(__name__)

Images = Sequence[Image.Image | None] | None


@dataclass
class _SetOfShard:
    """The columns of one set for one shard in the making."""

    instance: Instance
    columns: dict[str, pa.Array]  # of the sets that the filter reads, for all rows of the shard
    positions: list[Positions] = field(default_factory=list)
    parts: list[dict[str, pa.Array]] = field(default_factory=list)
    seconds: float = 0.0
    unprepared: int = 0  # images for which `prepare` raised
    problem: Exception | None = None  # why the filter gives no columns for this shard

    @property
    def needs_image(self) -> bool:
        assert isinstance(self.instance.filter, Filter)
        return "image" in self.instance.filter.needs

    def prepare(self, image: Image.Image) -> None:
        """Begin with an image. Where that fails, `score` meets the same image again."""
        assert isinstance(self.instance.filter, Filter)
        try:
            self.instance.filter.prepare(image)
        except Exception as error:
            self.unprepared += 1
            if self.unprepared <= SHOWN:
                logger.warning("filter %s: prepare: %s", self.instance.name, error_line(error))

    def score(self, positions: Positions, images: Images, rows: pa.Table) -> None:
        """Score the rows `positions`. Rows that lack what the filter needs stay NULL; after a
        problem all do."""
        if self.problem is not None:
            return
        started = time.perf_counter()
        try:
            self._score(positions, images, rows)
        except Exception as error:
            self.problem = error
        self.seconds += time.perf_counter() - started

    def _score(self, positions: Positions, images: Images, rows: pa.Table) -> None:
        filter_ = self.instance.filter
        assert isinstance(filter_, Filter)
        all_rows = rows.take(pa.array(positions))
        captions = all_rows["caption"].to_pylist()
        usable = _usable(filter_, all_rows, captions, images)
        batch_images = None
        if "image" in filter_.needs:
            assert images is not None
            batch_images = [image for i in usable if (image := images[i]) is not None]
        batch_positions = positions[usable]
        indices = pa.array(batch_positions)
        batch = Batch(
            captions=[captions[i] or "" for i in usable],
            images=batch_images,
            rows=rows.take(indices),
            columns={name: column.take(indices) for name, column in self.columns.items()},
        )
        if usable:
            self.positions.append(batch_positions)
            self.parts.append(_scores(self.instance, filter_, batch))

    def table(self, rows: int) -> pa.Table:
        """The columns of all rows of the shard, by their names in the instance."""
        names = self.instance.column_names()
        positions = np.concatenate([np.zeros(0, np.int64), *self.positions])
        arrays = {}
        for column, kind in self.instance.filter.columns().items():
            parts = [part[column] for part in self.parts]
            arrays[names[column]] = aligned(parts, positions, kind, rows)
        return pa.table(arrays)


class ScoreWorker:
    """The filters of a pass, loaded. A call with a ticket {"sets": […]} writes the columns of
    the shard `ticket.id`.

    config: {"pool", "fence", "filters": {NAME@ID: {"filter": its worker_spec, "reads": {NAME@ID:
    columns}, "fingerprint": that of the pool where the columns depend on it}}}.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.pool = str(config["pool"])
        self.layout = PoolLayout(self.pool)
        self.fence: int | None = config.get("fence")
        self.filters: dict[str, Instance] = {}
        self.specs: Mapping[str, Mapping[str, Any]] = config["filters"]
        self.read_sets: dict[str, AlignedFiles] = {}
        # shard -> {NAME@ID: its scored rows}, of shards for which another filter failed
        self._written: dict[str, dict[str, int]] = {}
        for name, spec in self.specs.items():
            self.filters[name] = instance_of_worker_spec(spec["filter"])
            self.filters[name].filter.setup()
            for read in spec.get("reads", {}):
                self.read_sets[read] = AlignedFiles.of_scores(self.pool, read)

    def __call__(self, ticket: Ticket) -> dict[str, Any]:
        shard = ticket.id
        record = CommitRecord.read(self.layout.commit_record(shard))
        scored = self._written.pop(shard, {})
        sets = {}
        needs: set[str] = set()
        for name in ticket.payload["sets"]:
            if name not in scored:
                instance = self.filters[name]
                assert isinstance(instance.filter, Filter)
                needs |= instance.filter.needs
                sets[name] = _SetOfShard(instance, self._columns_read(name, record))
        rows = self._rows(record, needs)
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
            if fingerprint := self.specs[name].get("fingerprint"):
                metadata["pool"] = fingerprint
            scored[name] = self._write(name, shard, each.table(rows.num_rows), metadata)
        problems = [each.problem for each in sets.values() if each.problem is not None]
        if problems:
            self._written[shard] = scored
            if len(problems) > 1:
                raise ValueError("; ".join(map(error_line, problems)))
            raise problems[0]
        return {"scored": scored}

    def _rows(self, record: CommitRecord, needs: set[str]) -> pa.Table:
        """The columns of the sidecar that filters with these needs read."""
        sidecar = self.layout.sidecar(record.shard, record.revision)
        names = [*NEEDED, "json_offset", "json_length"] if "json" in needs else NEEDED
        rows = disk.read_parquet(sidecar, None if "row" in needs else names)
        if rows.num_rows != record.count:
            problem = f"its sidecar has {rows.num_rows} rows of {record.count}"
            raise damaged(self.layout, record, problem)
        if "json" in needs:
            rows = rows.append_column("json", json_members(self.layout, rows, record))
        return rows

    def _score(self, record: CommitRecord, sets: dict[str, _SetOfShard], rows: pa.Table) -> None:
        """Score all rows. A filter that fails has its `problem` and stops none of the others."""
        for each in sets.values():
            if not each.needs_image:  # all rows at once: fewer calls
                each.score(stored_positions(rows), None, rows)
        with_images = [each for each in sets.values() if each.needs_image]
        if not with_images:
            return
        prepare = [each.prepare for each in with_images]
        for positions, images in chunks(self.layout, rows, record, decoded=True, prepare=prepare):
            for each in with_images:
                each.score(positions, images, rows)
            if all(each.problem is not None for each in with_images):
                return

    def _columns_read(self, name: str, record: CommitRecord) -> dict[str, pa.Array]:
        """The columns of other sets that a filter reads, for all rows of a shard."""
        columns: dict[str, pa.Array] = {}
        for read, names in self.specs[name].get("reads", {}).items():
            table = read_scores(self.read_sets[read], record, names)
            for column in names:
                columns[column] = table[column].combine_chunks()
        return columns

    def _write(self, name: str, shard: str, table: pa.Table, metadata: Mapping[str, Any]) -> int:
        """Commit the columns of a shard; returns the number of rows that have all of them."""
        scored = valid_in_all(table.columns)
        if scored < metadata["stored"]:
            logger.warning(
                "%s, shard %s: %d of %d stored rows have no score",
                name,
                shard,
                metadata["stored"] - scored,
                metadata["stored"],
            )
        content = parquet_bytes(table, {**metadata, "scored": scored})
        return commit_columns(self.layout, name, shard, content, metadata, scored, self.fence)


def _usable(
    filter_: Filter, rows: pa.Table, captions: Sequence[str | None], images: Images
) -> list[int]:
    """Indices of the rows that have what the filter needs."""
    has_json = [True] * len(captions)
    if "json" in filter_.needs:
        has_json = rows["json"].is_valid().to_pylist()
    usable = []
    for i, caption in enumerate(captions):
        has_image = images is not None and images[i] is not None
        lacks_image = "image" in filter_.needs and not has_image
        lacks_caption = "caption" in filter_.needs and caption is None
        if not lacks_image and not lacks_caption and has_json[i]:
            usable.append(i)
    return usable


def _scores(instance: Instance, filter_: Filter, batch: Batch) -> dict[str, pa.Array]:
    """A filter's columns for a batch. If it raises, row by row, so that one row costs one row."""
    kinds = filter_.columns()
    try:
        return arrow_columns(instance.name, filter_.score(batch), kinds, len(batch.captions))
    except WrongColumns:
        raise
    except Exception as error:
        logger.warning(
            "filter %s raised on %d rows, which are now scored one by one: %s",
            instance.name,
            len(batch.captions),
            error_line(error),
        )
    return _scores_one_by_one(instance, filter_, batch)


def _scores_one_by_one(instance: Instance, filter_: Filter, batch: Batch) -> dict[str, pa.Array]:
    """NULL for each row for which the filter raises. It raises for good if it raises for all of
    many rows."""
    count = len(batch.captions)
    kinds = filter_.columns()
    parts: dict[str, list[pa.Array]] = {column: [] for column in kinds}
    failures = 0
    for i in range(count):
        row = Batch(
            captions=batch.captions[i : i + 1],
            images=None if batch.images is None else batch.images[i : i + 1],
            rows=batch.rows.slice(i, 1),
            columns={name: column.slice(i, 1) for name, column in batch.columns.items()},
        )
        try:
            scores = arrow_columns(instance.name, filter_.score(row), kinds, 1)
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
            scores = {column: pa.nulls(1, kind) for column, kind in kinds.items()}
        for column, array in scores.items():
            parts[column].append(array)
    return {column: pa.concat_arrays(arrays) for column, arrays in parts.items()}
