"""Score columns of shards from FLAT_SHARDS on: a file each while they are scored, then a bundle for
a thousand of them.

A bundle is published whole before the files in it are removed, so that a process that is killed in
between costs nothing but the work of making it again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manifests import disk
from manifests.aligned import Bundle, BundleWriter
from manifests.commits import Commits
from manifests.layout import (
    FLAT_SHARDS,
    SHARDS_PER_FOLDER,
    PoolLayout,
    bundle_name,
    shard_folder,
    shard_name,
)
from pipeline.executor import Engine, Stage, Ticket, execute
from pipeline.pool import check_fence, staged_file

READERS = 16  # footers that are read at a time: a remote store answers each after about 30 ms
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMetadata:
    """What the files of a score set say of its shards, in the order of the shards."""

    uids: list[str]  # checksum of the uids
    rows: NDArray[np.int64]
    stored: NDArray[np.int64]
    scored: NDArray[np.int64]
    seconds: float


def scored_shards(commits: Commits, name: str, fingerprint: str | None = None) -> NDArray[np.bool_]:
    """(shards,) True where the set has columns of the shard as it is committed now.

    fingerprint: of columns that depend on the whole pool, that of the pool that they must be of.
    """
    layout = PoolLayout(commits.pool)
    top = set(disk.list_names(layout.score_set(name)))
    sidecars = commits.column("sidecar_sha256")
    scored = np.zeros(len(commits), np.bool_)

    def look(positions: range) -> None:
        by_shard = _metadata_of(layout, name, commits.shards[positions.start : positions.stop], top)
        for position in positions:
            metadata = by_shard.get(int(commits.shards[position]))
            if metadata is not None:
                expected = sidecars[position].as_py().hex()
                is_same = metadata.get("sidecar") == expected
                scored[position] = is_same and metadata.get("pool") == fingerprint

    with ThreadPoolExecutor(READERS) as threads:
        list(threads.map(look, _runs(commits.shards)))
    return scored


def read_metadata(commits: Commits, name: str) -> SetMetadata:
    """What is written about all shards of a complete set."""
    layout = PoolLayout(commits.pool)
    top = set(disk.list_names(layout.score_set(name)))
    counts = {key: np.zeros(len(commits), np.int64) for key in ("rows", "stored", "scored")}
    uids = [""] * len(commits)
    seconds = np.zeros(len(commits))

    def look(positions: range) -> None:
        by_shard = _metadata_of(layout, name, commits.shards[positions.start : positions.stop], top)
        for position in positions:
            metadata = by_shard[int(commits.shards[position])]
            uids[position], seconds[position] = metadata["uids"], metadata["seconds"]
            for key, values in counts.items():
                values[position] = metadata[key]

    with ThreadPoolExecutor(READERS) as threads:
        list(threads.map(look, _runs(commits.shards)))
    return SetMetadata(uids=uids, seconds=float(sum(seconds)), **counts)


def _runs(shards: NDArray[np.int64]) -> Iterator[range]:
    """Ranges of positions: one for each bundle, and for each hundred flat shards."""
    keys = np.where(shards < FLAT_SHARDS, shards // 100 - FLAT_SHARDS, shards // SHARDS_PER_FOLDER)
    starts = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1)).tolist() if len(shards) else []
    for start, stop in zip(starts, [*starts[1:], len(shards)], strict=True):
        yield range(start, stop)


def _metadata_of(
    layout: PoolLayout, name: str, shards: NDArray[np.int64], top: set[str]
) -> dict[int, Mapping[str, Any]]:
    """What is written about some shards of one run: a file of its own is newer than the bundle."""
    first = int(shards[0])
    folder = shard_folder(first)
    by_shard: dict[int, Mapping[str, Any]] = {}
    names = top
    if folder:
        if bundle_name(first) in top:
            bundle = Bundle(layout.score_bundle(name, first))
            by_shard |= {int(shard): metadata for shard, metadata in bundle.shards.items()}
        singles = disk.join(layout.score_set(name), folder)
        names = set(disk.list_names(singles, ".parquet")) if folder in top else set()
    for shard in shards.tolist():
        if f"{shard_name(shard)}.parquet" in names:
            by_shard[shard] = disk.read_metadata(layout.score_columns(name, shard))
    return by_shard


# --- bundles ------------------------------------------------------------------------------------


def make_bundles(
    commits: Commits, sets: Sequence[str], engine: Engine, fence: int | None = None
) -> dict[str, str]:
    """Put the files of each thousand shards into a bundle; returns {bundle: reason} of those that
    failed. Every shard must be scored.
    """
    layout = PoolLayout(commits.pool)
    tickets = []
    for name in sets:
        top = set(disk.list_names(layout.score_set(name)))
        for positions in _runs(commits.shards):
            first = int(commits.shards[positions.start])
            folder = shard_folder(first)
            if folder and (folder in top or bundle_name(first) not in top):
                payload = {
                    "set": name,
                    "shards": commits.shards[positions.start : positions.stop].tolist(),
                }
                tickets.append(Ticket(id=f"{name}/{folder}", group=folder, payload=payload))
    if not tickets:
        return {}
    logger.info("%d bundles of a thousand shards to make", len(tickets))
    stage = Stage(
        name="bundle", work=make_bundle_worker, config={"pool": commits.pool, "fence": fence}
    )
    return dict(execute(stage, tickets, engine=engine).failed)


def make_bundle_worker(config: Mapping[str, Any]) -> Callable[[Ticket], dict[str, Any]]:
    """Factory of the stage: {"pool", "fence": that of the lease}.

    A ticket names a set and the shards of one bundle.
    """
    pool, fence = str(config["pool"]), config.get("fence")

    def work(ticket: Ticket) -> dict[str, Any]:
        shards = list(ticket.payload["shards"])
        write_bundle(pool, str(ticket.payload["set"]), shards, fence)
        return {"shards": len(ticket.payload["shards"])}

    return work


def write_bundle(pool: str, name: str, shards: Sequence[int], fence: int | None = None) -> None:
    """Make the bundle of some shards of a set from their files and from the bundle of before.

    LeaseLost where another command has taken the lease over.
    """
    layout = PoolLayout(pool)
    path = layout.score_bundle(name, shards[0])
    folder = disk.join(layout.score_set(name), shard_folder(shards[0]))
    singles = set(disk.list_names(folder, ".parquet"))
    before = Bundle(path) if disk.exists(path) else None
    with staged_file(path, alone=True) as staged:
        writer: BundleWriter | None = None
        with contextlib.ExitStack() as stack:
            for shard in shards:
                file = f"{shard_name(shard)}.parquet"
                if file in singles:
                    single = disk.join(folder, file)
                    table = disk.read_parquet(single).replace_schema_metadata(None)
                    metadata = disk.read_metadata(single)
                else:
                    if before is None:
                        raise ValueError(f"{path}: there are no columns of shard {shard}")
                    table, metadata = before.read(shard), before.metadata(shard)
                if writer is None:
                    writer = stack.enter_context(BundleWriter(staged, table.schema))
                writer.add(shard, table, metadata)
        check_fence(pool, fence)
        disk.publish(staged, path)
    for file in sorted(singles):
        disk.remove(disk.join(folder, file))
    if not disk.is_url(folder):
        with contextlib.suppress(OSError):
            disk.local_path(folder).rmdir()
