"""The bookkeeping of a pool of many shards, by commit records without tars.

Bars at 8x, a million shards: index, counts, pool.json and audit together at most 20 s; opening a
view at most 5 s and 300 MB.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from clipmill.manifests import disk
from clipmill.manifests.aligned import write_view_shards
from clipmill.manifests.commits import Commits, IndexWriter, read_commits, read_index_document
from clipmill.manifests.commits.commits import schema
from clipmill.manifests.commits.index import (
    INDEX_VERSION,
    IndexDocument,
    write_document,
    write_file,
)
from clipmill.manifests.layout import SHARD_VERSION, CommitRecord, PoolLayout, shard_name
from clipmill.manifests.records import ScoreSetDocument, ViewDocument
from clipmill.manifests.schema import Recipe, Source
from clipmill.pipeline.audit.counts import write_pool_json
from clipmill.pipeline.audit.integrity import audit_pool
from clipmill.train.data.view_rows import open_view as open_rows
from clipmill.train.mixture.order import Order
from clipmill.train.mixture.schedule import SourceRows

BASE, UNIT = 125_000, "shards"
STEPS = ["read_index", "update_index", "pool_json", "audit", "open_view", "order"]
ROWS = 10_000  # of a shard
FILE_ROWS = 65_536
REASONS = ["dns", "http_4xx", "connect", "too_small", "decode_error"]


def records(first: int, count: int) -> pa.Table:
    """Commit records as columns: hashes differ, counts vary a little."""
    shards = np.arange(first, first + count)
    rng = np.random.default_rng(first)
    lost = rng.integers(100, 400, (count, len(REASONS)))
    offsets = pa.array(np.arange(count + 1) * len(REASONS), pa.int32())
    keys = pa.DictionaryArray.from_arrays(
        pa.array(np.tile(np.arange(len(REASONS)), count), pa.int32()), pa.array(REASONS)
    )
    names = [shard_name(int(shard)) for shard in shards]
    columns: dict[str, object] = {
        "shard": pa.array(shards),
        "tar": pa.array([f"{name}.tar" for name in names]),
        "tar_bytes": pa.array(rng.integers(10**8, 3 * 10**8, count)),
        "count": pa.array(np.full(count, ROWS)),
        "successes": pa.array(ROWS - lost.sum(1)),
        "reasons": pa.MapArray.from_arrays(offsets, keys, pa.array(lost.ravel())),
        "failed_to_download": pa.array(lost[:, :3].sum(1)),
        "failed_to_resize": pa.array(lost[:, 3:].sum(1)),
        "sidecar_bytes": pa.array(rng.integers(10**6, 3 * 10**6, count)),
        "task": pa.array([hashlib.sha256(name.encode()).hexdigest()[:12] for name in names]),
        "group": pa.array([str(s % 1024) for s in shards]).dictionary_encode(),
        "duration_s": pa.array(rng.random(count) * 100),
        "version": pa.array(np.full(count, SHARD_VERSION)),
        "adopted": pa.array(np.zeros(count, bool)),
    }
    for name in ("retries", "revision"):
        columns[name] = pa.array(np.zeros(count, np.int64))
    for name in ("tar_sha256", "sidecar_file_sha256", "sidecar_sha256"):
        buffers = [None, pa.py_buffer(rng.bytes(32 * count))]
        columns[name] = pa.Array.from_buffers(pa.binary(32), count, buffers)
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in schema()]
    return pa.Table.from_arrays(arrays, schema=schema())


def write_index(pool: str, count: int) -> Commits:
    """A closed index of `count` shards."""
    starts = range(0, count, FILE_ROWS)
    files = [write_file(PoolLayout(pool), records(at, min(FILE_ROWS, count - at))) for at in starts]
    document = IndexDocument(version=INDEX_VERSION, closed=False, files=tuple(files), shards=count)
    write_document(PoolLayout(pool), document)
    disk.local_path(PoolLayout(pool).shards).mkdir(parents=True, exist_ok=True)
    for shard in range(count):  # a writer lists them; it reads none of those that it has
        disk.local_path(PoolLayout(pool).commit_record(shard)).touch()
    with IndexWriter(pool) as index:
        pass
    assert len(index.commits) == count
    return index.commits


def prepare(folder: Path, count: int) -> None:
    """A pool with an index, a view of all stored rows and tokens; no shard has files."""
    pool = str(folder)
    layout = PoolLayout(pool)
    commits = write_index(pool, count)
    recipe = Recipe(name="scale", source=Source(kind="shards", paths=("/nowhere/*.tar",)))
    disk.write_json(layout.recipe_json, recipe)
    rows, stored = commits.column("count").to_numpy(), commits.column("successes").to_numpy()
    total = int(stored.sum())
    view = ViewDocument(
        name="all", rules=(), thresholds={}, kept=total, fingerprint=commits.fingerprint,
        funnel=(("attempted", int(rows.sum())), ("stored", total)), scores={},
        shards=write_view_shards(PoolLayout(pool), "all", commits.shards, stored),
    )  # fmt: skip
    disk.write_json(layout.view_json("all"), view)
    tokens = ScoreSetDocument(
        name="tokens", id="0", version=1, options={"tokenizer": "clip"}, identity="clip",
        columns=("tokens",), fingerprint=commits.fingerprint, rows=int(rows.sum()), stored=total,
        scored=total, seconds=1.0,
    )  # fmt: skip
    disk.write_json(layout.score_set_json("tokens@0"), tokens)


def read_index(folder: Path, count: int) -> None:
    """Every command does this once."""
    commits = read_commits(str(folder))
    assert len(commits) == count
    assert commits.totals.shards == count


def update_index(folder: Path, count: int) -> None:
    """What the driver of a stage does around a thousand new shards."""
    added = records(count, 1000)
    with IndexWriter(str(folder)) as index:
        for record in Commits(str(folder), added).records():
            _write_record(index.pool, record)
            index.add(record)
    assert len(index.commits) == count + 1000
    with IndexWriter(str(folder)) as index:  # back to what the other steps measure
        for shard in range(count, count + 1000):
            disk.remove(PoolLayout(index.pool).commit_record(shard))
        index.forget(range(count, count + 1000))
    document = read_index_document(PoolLayout(str(folder)))
    assert document is not None
    assert document.shards == count


def _write_record(pool: str, record: CommitRecord) -> None:
    path = disk.local_path(PoolLayout(pool).commit_record(record.shard))
    path.write_text("{}")


def pool_json(folder: Path, count: int) -> None:
    """Counts of every stage and pool.json."""
    recipe = Recipe(name="scale", source=Source(kind="shards", paths=("/nowhere/*.tar",)))
    commits = read_commits(str(folder))
    write_pool_json(commits, recipe, {})


def audit(folder: Path, count: int) -> None:
    """clipmill audit: the counts of every stage."""
    counts = audit_pool(str(folder)).counts
    assert counts is not None
    assert counts.fetch.shards == count


def open_view(folder: Path, count: int) -> None:
    """What every rank of a training run does for each view."""
    rows = open_rows(str(folder), "all")
    assert len(rows.shards) == count


def order(folder: Path, count: int) -> None:
    """The order of training over the view, and the first batch."""

    rows = open_rows(str(folder), "all")
    source = SourceRows(name="pool/all", weight=1.0, shard_rows=rows.shard_rows)
    whole = Order([source], 4096)
    whole.batch(0)
    whole.fingerprint()
