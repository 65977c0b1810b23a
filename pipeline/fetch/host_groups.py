"""Pairs to host groups and shards: which row is fetched with which shard, fixed before the fetch.

Pure: tables and numbers in, numbers out. `plan.py` reads and writes the files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from pipeline.archives import ascii_host

PLAN_VERSION = 2  # a change of order or of shard ids bumps this and the golden test
MAX_GROUPS = 1024  # shards that can be fetched at a time; a host belongs to one group
ORDER_SEED = 20240229
HASHED_AT_ONCE = 1 << 16  # rows
# The host of most URLs, 4 times faster than urlsplit.
PLAIN_HOST = re.compile(r"https?://([a-z0-9-]+(?:\.[a-z0-9-]+)*)(?::[0-9]*)?(?:[/?#]|\Z)")
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedShard:
    """One shard to fetch. `rows` are row numbers of the pairs in fetch order.

    `rows` is empty in a plan that was read back from disk.
    """

    shard: int
    group: int
    id: str  # content id: the uids of the rows in order, what they retry, and the fetch settings
    size: int
    rows: Integers = field(
        compare=False, repr=False, default_factory=lambda: np.zeros(0, dtype=np.int64)
    )


def host_of(url: str) -> str:
    """The host of a URL as `ascii_host` writes it, without user or port; "" where it has none."""
    if plain := PLAIN_HOST.match(url):
        return plain[1]
    try:
        return ascii_host(urlsplit(url).hostname or "")
    except ValueError:  # not a host name: the fetcher refuses such a row before it connects
        return ""


def host_groups(rows: int, rows_per_shard: int) -> int:
    """The number of host groups: clamp(rows // rows_per_shard, 1, 1024)."""
    return max(1, min(rows // rows_per_shard, MAX_GROUPS))


def group_of(host: str, groups: int) -> int:
    """The group of a host, in 0..groups-1."""
    return host_hash(host) % groups


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKeys:
    """What the plan needs of each pair, 60 bytes a row."""

    uids: pa.LargeStringArray  # one chunk: a row is found without a search through chunks
    host_hashes: npt.NDArray[np.uint64]
    order: npt.NDArray[np.uint64]  # sort key inside a group

    def __len__(self) -> int:
        return len(self.uids)


def row_keys(tables: Iterable[pa.Table]) -> RowKeys:
    """The keys of all rows of `tables` (columns uid and url), read one after the other."""
    uids: list[pa.LargeStringArray] = []
    hashes: list[npt.NDArray[np.uint64]] = [np.zeros(0, dtype=np.uint64)]
    orders: list[npt.NDArray[np.uint64]] = [np.zeros(0, dtype=np.uint64)]
    for table in tables:
        for batch in table.select(["uid", "url"]).to_batches(max_chunksize=HASHED_AT_ONCE):
            uids.append(batch["uid"].cast(pa.large_string()))
            rows = list(zip(batch["uid"].to_pylist(), batch["url"].to_pylist(), strict=True))
            hashes.append(
                np.array([host_hash(host_of(url) or uid) for uid, url in rows], np.uint64)
            )
            orders.append(np.array([_order_of(uid) for uid, _ in rows], np.uint64))
    return RowKeys(
        uids=pa.chunked_array(uids, pa.large_string()).combine_chunks(),
        host_hashes=np.concatenate(hashes),
        order=np.concatenate(orders),
    )


def plan_shards(
    keys: RowKeys,
    rows_per_shard: int,
    settings: str = "",
    *,
    by_host: bool = True,
    groups: int | None = None,
    first_shard: int = 0,
    retry_of: Sequence[str] | None = None,
) -> list[PlannedShard]:
    """The shards of the pairs with these keys, numbered from `first_shard`.

    `by_host`: the group of a row is the hash of its host, or of its uid where it has no host.
    Inside a group rows are ordered by xxh3(uid), and a shard is the next `rows_per_shard` of them,
    so the last shard of each group may be short. `by_host=False` is for files, which have no host
    to be polite to: all rows are ordered by xxh3(uid), each shard is a group of its own, so that
    any worker may take it, and only the last shard may be short.

    `settings` is the hash of the fetch settings. `retry_of` has one key a row in a round of
    retries. The result depends on nothing else.
    """
    groups = (groups or host_groups(len(keys), rows_per_shard)) if by_host else 1
    row_groups = (keys.host_hashes % np.uint64(groups)).astype(np.int16)  # all 0 where groups is 1
    # Stable: equal uids, which only a round of retries can have, stay in the order of the pairs.
    fetch_order = np.lexsort((keys.order, row_groups))
    bounds = np.searchsorted(row_groups[fetch_order], np.arange(groups + 1))
    shards: list[PlannedShard] = []
    for group in range(groups):
        end = int(bounds[group + 1])
        for start in range(int(bounds[group]), end, rows_per_shard):
            rows = fetch_order[start : min(start + rows_per_shard, end)].astype(np.int64)
            retried = None if retry_of is None else [retry_of[row] for row in rows]
            number = first_shard + len(shards)
            shards.append(
                PlannedShard(
                    shard=number,
                    group=group if by_host else number,
                    id=_shard_id(keys.uids.take(pa.array(rows)).to_pylist(), retried, settings),
                    size=len(rows),
                    rows=rows,
                )
            )
    return shards


def host_hash(host: str) -> int:
    """Hash of a host name. Its remainder by the number of groups is the host's group."""
    return int(xxhash.xxh3_64_intdigest(host.encode("utf-8", "surrogatepass")))


def _order_of(uid: str) -> int:
    return int(xxhash.xxh3_64_intdigest(uid.encode(), seed=ORDER_SEED))


def _shard_id(uids: Sequence[str], retried: Sequence[str] | None, settings: str) -> str:
    content = hashlib.sha256(f"{PLAN_VERSION}\n{settings}\n".encode())
    content.update("\n".join(uids).encode())
    if retried is not None:
        content.update("\n".join(["", *retried]).encode())
    return content.hexdigest()[:16]
