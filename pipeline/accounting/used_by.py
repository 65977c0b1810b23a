"""The runs, ablations and reports that used views of a pool, found by their documents on disk."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from manifests import disk
from manifests.pool_layout import PoolLayout
from manifests.run_layout import AblationLayout

DEPTH = 5  # levels of folders below a folder in which runs are looked for
SHARDS = PoolLayout("pool").shards.rpartition("/")[2]  # a folder that has it is a pool
RUN_FILES = ("blend.json", "run.json")  # either one says what a run draws from


def find_users(pool: str, views: Collection[str], folders: Sequence[str]) -> Iterator[str]:
    """Folders of runs that drew from one of these views of the pool, and the folders and reports of
    their ablations.

    Looked for in `folders`; without any, beside the pool.
    """
    if not views:
        return
    beside = [] if disk.is_url(pool) else [str(disk.local_path(pool).absolute().parent)]
    named: set[str] = set()
    for folder in folders or beside:
        for path in _run_files(disk.local_path(folder), DEPTH):
            if not _draws(path, pool, views):
                continue
            for user in (str(path.parent), *_ablation_of(path)):
                if user not in named:
                    named.add(user)
                    yield user


def _run_files(folder: Path, depth: int) -> Iterator[Path]:
    """What RUN_FILES there are in a folder and below it, but not in pools and hidden folders."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # a folder of somebody else
        return
    names = {entry.name for entry in entries}
    yield from (folder / name for name in RUN_FILES if name in names)
    if depth == 0 or SHARDS in names:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from _run_files(folder / entry.name, depth - 1)


def _ablation_of(path: Path) -> Iterator[str]:
    """The folder of the ablation that a run belongs to, and its report."""
    for parent in path.parents:
        if (parent / "ablation.json").is_file():
            yield str(parent)
            report = AblationLayout(str(parent)).report
            if disk.exists(report):
                yield report
            return


def _draws(path: Path, pool: str, views: Collection[str]) -> bool:
    """Whether a run, by its resolved blend or its record, draws from a view of the pool."""
    try:
        document: Any = disk.read_json(path)
    except (ValueError, OSError):
        return False
    blend = document.get("blend", document) if isinstance(document, dict) else {}
    pools = blend.get("pools") or {} if isinstance(blend, dict) else {}
    used = blend.get("views") or {} if isinstance(blend, dict) else {}
    for name in used:
        folder, _, view = str(name).rpartition("/")
        location = str(pools.get(folder, folder)).rstrip("/")
        is_pool = location.rpartition("/")[2] == pool.rstrip("/").rpartition("/")[2]
        if is_pool and view in views:
            return True
    return False
