"""The plan of pairs that fit in memory, row by row: what the shuffle must give."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import pyarrow as pa
import xxhash

from clipmill.pipeline.archives.urls import ascii_host
from clipmill.pipeline.planning.plan_files import PLAN_VERSION, PlannedShard, host_groups

ORDER_SEED = 20240229


@dataclass(frozen=True)
class Expected:
    """A shard and the numbers of its rows."""

    shard: PlannedShard
    rows: list[int]


def plan_of(
    table: pa.Table,
    rows_per_shard: int,
    settings: str,
    *,
    by_host: bool = True,
    groups: int | None = None,
    first_shard: int = 0,
    retry_of: Sequence[str] | None = None,
) -> list[Expected]:
    """The shards of the rows of `table`, whose columns are uid and url."""
    uids, urls = table["uid"].to_pylist(), table["url"].to_pylist()
    count = (groups or host_groups(len(uids), rows_per_shard)) if by_host else 1
    by_group: dict[int, list[int]] = {group: [] for group in range(count)}
    for row, (uid, url) in enumerate(zip(uids, urls, strict=True)):
        by_group[_hash(_host(url) or uid) % count].append(row)
    shards: list[Expected] = []
    for group, rows in by_group.items():
        rows.sort(key=lambda row: _hash(uids[row], ORDER_SEED))
        for start in range(0, len(rows), rows_per_shard):
            chosen = rows[start : start + rows_per_shard]
            number = first_shard + len(shards)
            lines = [uids[row] for row in chosen]
            if retry_of is not None:
                lines += [retry_of[row] for row in chosen]
            content = f"{PLAN_VERSION}\n{settings}\n" + "\n".join(lines)
            shard = PlannedShard(
                shard=number,
                group=group if by_host else number,
                id=hashlib.sha256(content.encode()).hexdigest()[:16],
                size=len(chosen),
            )
            shards.append(Expected(shard, chosen))
    return shards


def _hash(text: str, seed: int = 0) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), seed=seed)


def _host(url: str) -> str:
    try:
        return ascii_host(urlsplit(url).hostname or "")
    except ValueError:
        return ""
