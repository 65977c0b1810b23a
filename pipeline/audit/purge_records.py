"""What was purged when, and by which kind of selector, without the content: POOL/purges/*.json.

Of a URL or a domain that was given only the sha256 is kept, so that a person who asks for that URL
learns that it was purged. Rows keep their uid as tombstones anyway.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from manifests import disk
from manifests.records import read_document

HASHED = ("url", "domain")  # kinds of selectors that no tombstone has
HOST = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^/?#@]*@)?(\[[^\]]*\]|[^/?#:]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeRecord:
    """One purge that has ended."""

    at: str  # when it began, UTC
    selectors: dict[str, int]  # kind -> how many were given
    hashes: tuple[str, ...]  # sha256 of `KIND=VALUE`: of the kinds HASHED, and the rows' URLs
    uids: tuple[str, ...]  # of the rows that were purged


def selectors_of(criteria: Mapping[str, Set[str]]) -> tuple[dict[str, int], tuple[str, ...]]:
    """(how many of each kind, the hashes of those that no tombstone names)."""
    hashes = []
    for kind in HASHED:
        hashes += [_hash(kind, value) for value in criteria.get(kind, ())]
    return {kind: len(values) for kind, values in sorted(criteria.items())}, tuple(sorted(hashes))


def hashes_of_urls(urls: Iterable[str]) -> list[str]:
    """The hashes of the URLs of purged rows, as if each had been a selector."""
    return [_hash("url", url) for url in urls]


def now() -> str:
    """The time, UTC, to the second."""
    return datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_record(pool: str, record: PurgeRecord) -> None:
    """Write the record of a purge. The same purge, ended again after a kill, has one record."""
    name = f"{record.at.replace(':', '')}-{disk.content_hash(record.uids)}.json"
    disk.write_json(disk.join(_folder(pool), name), record, sealed=True)


def purges_of_uid(pool: str, uid: str) -> list[dict[str, Any]]:
    """The purges that removed a row: {"at", "by": kinds of selectors, "rows"}."""
    return [_shown(record) for record in _records(pool) if uid in record.uids]


def purges_of_name(pool: str, name: str) -> list[dict[str, Any]]:
    """The purges whose selectors named a URL, or a domain that it lies in."""
    wanted = {_hash("url", name)}
    if match := HOST.match(name):
        labels = match[1].lower().split(".")
        wanted |= {_hash("domain", ".".join(labels[first:])) for first in range(len(labels))}
    return [_shown(record) for record in _records(pool) if wanted & set(record.hashes)]


def was_purged(pool: str, criteria: Mapping[str, Set[str]]) -> bool:
    """Whether an earlier purge had one of these selectors or removed one of these uids."""
    hashes, uids = set(selectors_of(criteria)[1]), criteria.get("uid", set())
    return any(hashes & set(record.hashes) or uids & set(record.uids) for record in _records(pool))


def purge_line(purge: Mapping[str, Any]) -> str:
    """A purge for a terminal."""
    return f"purged  {purge['at']} by {' and '.join(purge['by'])}, with {purge['rows']:,} rows"


def _shown(record: PurgeRecord) -> dict[str, Any]:
    return {"at": record.at, "by": sorted(record.selectors), "rows": len(record.uids)}


def _records(pool: str) -> Iterator[PurgeRecord]:
    for name in disk.list_names(_folder(pool), ".json"):
        yield read_document(disk.join(_folder(pool), name), PurgeRecord)


def _folder(pool: str) -> str:
    return disk.join(pool, "purges")


def _hash(kind: str, value: str) -> str:
    return hashlib.sha256(f"{kind}={value}".encode("utf-8", "surrogatepass")).hexdigest()
