"""Tars that exist already become a pool where they lie: a sidecar and a commit record for each, and
no copy.

Any tar of the WebDataset kind: img2dataset's, DataComp's, clip-retrieval's. Columns that the recipe
names as extra_columns come from img2dataset's parquet, else from the json member: DataComp's
scores, for one. A pair that lies in two tars is stored twice, under one uid: nothing is dropped
here, a filter may tell such rows apart.
"""

from __future__ import annotations

import fnmatch
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from manifests import disk
from manifests.columns import SIDECAR, with_extra
from manifests.commits import read_commits
from manifests.pool_layout import CommitRecord, PoolLayout
from manifests.schema import Fetch, Source
from pipeline.crawl import file_stamp, has_stamp
from pipeline.executor import Ticket
from pipeline.external.tar_samples import TarReader
from pipeline.pool import TarFile, local_copy, publish_shard, read_commit_record

THREADS = 16  # that look at tars: a remote store answers each after about 30 ms


def tar_tickets(source: Source) -> list[Ticket]:
    """One ticket per tar, numbered in the order of `source.paths`; a folder or a pattern stands for
    its tars by name.

    ValueError where a path leads to no tar, or a tar is named twice.
    """
    tars: list[str] = []
    for path in source.paths:
        tars += _tars_at(path)
    twice = sorted(tar for tar, count in Counter(tars).items() if count > 1)
    if twice:
        raise ValueError(f"source.paths names {twice[0]} twice")
    columns: dict[str, Any] = {
        "url_column": source.url_column,
        "caption_column": source.caption_column,
        "extra_columns": source.extra_columns,
    }
    tickets = []
    for number, tar in enumerate(tars):
        payload = {"shard": number, "tar": tar, **columns}
        ticket_id = disk.content_hash([number, tar])
        tickets.append(Ticket(id=ticket_id, group=str(number), payload=payload))
    return tickets


def _tars_at(path: str) -> list[str]:
    folder, _, last = path.rstrip("/").rpartition("/")
    if "*" in last or "?" in last:
        names = [name for name in disk.list_names(folder) if fnmatch.fnmatch(name, last)]
        tars = [disk.join(folder, name) for name in names]
    elif path.endswith("/") or (not disk.is_url(path) and disk.local_path(path).is_dir()):
        tars = [disk.join(path, name) for name in disk.list_names(path, ".tar")]
    else:
        tars = [path] if disk.exists(path) else []
    if not tars:
        raise ValueError(f"source.paths: there is no tar at {path}")
    return [tar if disk.is_url(tar) else str(disk.local_path(tar).absolute()) for tar in tars]


def adopt_tars(config: Mapping[str, Any]) -> Callable[[Ticket], dict[str, Any]]:
    """Factory of the stage: {"pool", "fetch": plain Fetch, "fence": of the lease}; of `fetch` the
    limits on an image's size apply.
    """
    pool = str(config["pool"])
    settings: Fetch = disk.from_plain(Fetch, config.get("fetch", {}))

    def work(ticket: Ticket) -> dict[str, Any]:
        """The commit record of the ticket's tar. ValueError where it is no whole, plain tar, or
        changed since it was adopted."""
        started = time.monotonic()
        number, tar = int(ticket.payload["shard"]), str(ticket.payload["tar"])
        _refuse_own_folder(pool, tar)
        extra: dict[str, str] = ticket.payload.get("extra_columns") or {}
        schema = with_extra(SIDECAR, extra)
        if (existing := read_commit_record(pool, number)) is not None:
            _require_same(existing, ticket, pool, schema.names)
            return existing.to_plain()
        url_column, caption_column = ticket.payload["url_column"], ticket.payload["caption_column"]
        reader = TarReader(tar, url_column, caption_column, settings, extra)
        stamp = file_stamp(tar)
        with local_copy(tar) as path:
            rows = list(reader.rows(path))
            size, sha256 = path.stat().st_size, disk.file_sha256(path)
        # Tars of other programs may hold more than the 10,000 samples of a key's four digits.
        width = max(4, len(str(len(rows) - 1)))
        for row, values in enumerate(rows):
            values["key"] = f"{number:05d}{row:0{width}d}"
        record = publish_shard(
            pool,
            number,
            rows,
            TarFile(name=tar, bytes=size, sha256=sha256, stamp=stamp),
            task=ticket.id,
            group=ticket.group,
            duration_s=time.monotonic() - started,
            schema=schema,
            fence=config.get("fence"),
        )
        return record.to_plain()

    return work


def _refuse_own_folder(pool: str, tar: str) -> None:
    folder = PoolLayout(pool).shards
    if disk.is_url(tar):
        same = tar.startswith(folder + "/")
    else:
        same = Path(tar).parent.resolve() == Path(folder).resolve()
    if same:
        raise ValueError(
            f"{tar} lies where this pool keeps its own shards; build into another folder"
        )


def _require_same(record: CommitRecord, ticket: Ticket, pool: str, columns: Sequence[str]) -> None:
    """ValueError where the record is not of this tar as it is now, with these columns.

    After a purge the pool has a tar of its own, without some samples; its task is still this one.
    """
    tar = str(ticket.payload["tar"])
    was_copied = not record.adopted and record.task == ticket.id
    if record.tar != tar and not was_copied:
        raise ValueError(
            f"shard {record.shard} of {pool} was made of {record.tar}, the source now has {tar} "
            "there; give the old list back, or build into another folder"
        )
    if not was_copied and tar_changed(record):
        raise ValueError(
            f"{tar} has changed since it was adopted; "
            f"give the old tar back, or build into another folder than {pool}"
        )
    present = disk.read_schema(PoolLayout(pool).sidecar(record.shard, record.revision)).names
    if list(present) != list(columns):
        raise ValueError(
            f"{pool} was adopted with the extra_columns {present[len(SIDECAR) :]}, "
            f"the source now names {list(columns)[len(SIDECAR) :]}; "
            "give the old list back, or build into another folder"
        )


def check_adopted(pool: str, tickets: Sequence[Ticket]) -> None:
    """ValueError where a shard that is committed is not of its ticket's tar as it is now.

    Only a person can mend that: no further try of the stage would end otherwise.
    """
    commits = read_commits(pool)

    def problem(ticket: Ticket) -> str | None:
        record = commits.get(int(ticket.payload["shard"]))
        if record is None:
            return None
        schema = with_extra(SIDECAR, ticket.payload.get("extra_columns") or {})
        try:
            _require_same(record, ticket, pool, schema.names)
        except ValueError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(THREADS) as threads:
        problems = [text for text in threads.map(problem, tickets) if text is not None]
    if problems:
        others = f" (so it is with {len(problems) - 1} more tars)" if len(problems) > 1 else ""
        raise ValueError(problems[0] + others)


def tar_changed(record: CommitRecord) -> bool:
    """True where an adopted tar is gone, or another program rewrote it.

    A tar with the size and time of its adoption is not read. One of the same size with another time
    is hashed: a copy passes.
    """
    if disk.is_url(record.tar):
        return not has_stamp(record.tar, record.tar_stamp or {})
    path = disk.local_path(record.tar)
    if not path.is_file() or path.stat().st_size != record.tar_bytes:
        return True
    if not record.tar_stamp or has_stamp(record.tar, record.tar_stamp):
        return False
    return disk.file_sha256(path) != record.tar_sha256


def changed_tars(pool: str) -> list[str]:
    """The adopted tars of a pool that are gone, or that another program rewrote."""
    adopted = [record for record in read_commits(pool).records() if record.adopted]
    with ThreadPoolExecutor(THREADS) as threads:
        changed = list(threads.map(tar_changed, adopted))
    return [record.tar for record, flag in zip(adopted, changed, strict=True) if flag]
