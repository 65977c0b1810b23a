"""Random damages of the files of a pool, and whether anybody notices them.

A damage is noticed when `clipmill audit verify` names a file, refused when a reader raises an
error, harmless when every reader gets the same rows, bytes and documents as before, a note when
only what the footer of a Parquet file says beside its rows differs, and else silent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from clipmill.manifests import disk
from clipmill.manifests.aligned import AlignedFiles
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.records import (
    PoolDocument,
    ScoreSetDocument,
    ViewDocument,
    ViewRulesDocument,
    read_document,
)
from clipmill.pipeline.audit.counts import recipe_of_pool
from clipmill.pipeline.audit.integrity import audit_pool
from clipmill.pipeline.planning.plan_files import is_planned, read_plan, read_shard
from clipmill.pipeline.pool.tars import index_tar

DAMAGES = ("flip", "cut", "zeros", "swap", "append")
PAGE = 4096
# (pattern, what these files are)
KINDS = (
    ("shards/*.tar", "tar"),
    ("shards/**/*.tar", "tar"),
    ("shards/*.parquet", "sidecar"),
    ("shards/**/*.parquet", "sidecar"),
    ("shards/*.json", "commit record"),
    ("shards/**/*.json", "commit record"),
    ("index/*.parquet", "index"),
    ("index/index.json", "index document"),
    ("plan/*.parquet", "plan"),
    ("plan/plan.json", "plan document"),
    ("pairs/*.parquet", "pairs"),
    ("parts.parquet", "list of parts"),
    ("scores/*/*.parquet", "score columns"),
    ("scores/*/scores.json", "score document"),
    ("views/*/*.parquet", "mask"),
    ("views/*.json", "view document"),
    ("views/*/rules.json", "rules of a view"),
    ("pool.json", "pool document"),
    ("recipe.json", "recipe"),
)


def files_of(pool: Path) -> dict[str, list[Path]]:
    """{kind: files}."""
    kinds: dict[str, list[Path]] = {}
    seen: set[Path] = set()
    for pattern, kind in KINDS:
        for path in sorted(pool.glob(pattern)):
            if path not in seen and not path.name.startswith("."):
                seen.add(path)
                kinds.setdefault(kind, []).append(path)
    return kinds


def damage(rng: random.Random, pool: Path) -> tuple[str, str, dict[Path, bytes]]:
    """(kind of the files, what to do, {file: its damaged content}), from all kinds evenly."""
    kinds = files_of(pool)
    while True:
        kind, how = rng.choice(sorted(kinds)), rng.choice(DAMAGES)
        path = rng.choice(kinds[kind])
        data = bytearray(path.read_bytes())
        position = rng.randrange(len(data))
        if how == "flip":
            data[position] ^= 1 << rng.randrange(8)
        elif how == "cut":
            del data[position:]
        elif how == "zeros":
            start = position // PAGE * PAGE
            size = min(PAGE, len(data) - start)
            data[start : start + size] = bytes(size)
        elif how == "append":
            data += rng.randbytes(rng.randrange(1, 2000))
        else:
            others = [other for other in kinds[kind] if other != path]
            if not others:
                continue
            other = rng.choice(others)
            if other.read_bytes() != bytes(data):
                return kind, how, {path: other.read_bytes(), other: bytes(data)}
            continue
        if bytes(data) != path.read_bytes():
            return kind, how, {path: bytes(data)}


@dataclass(frozen=True, slots=True)
class Note:
    """What the footer of a Parquet file says beside its rows."""

    metadata: dict[str, Any]


def contents(pool: str) -> tuple[str, str]:
    """Hashes of everything that readers of a pool get: without notes, and of the notes. Whatever
    they raise is raised.
    """
    content, notes = hashlib.sha256(), hashlib.sha256()
    for part in _everything(pool):
        if isinstance(part, Note):
            notes.update(repr(part).encode())
        else:
            content.update(part if isinstance(part, bytes) else repr(part).encode())
    return content.hexdigest(), notes.hexdigest()


def _everything(pool: str) -> Iterator[Any]:
    layout = PoolLayout(pool)
    commits = read_commits(pool)
    yield commits.fingerprint
    yield disk.to_plain(commits.totals)
    yield commits.table.to_pylist()
    for name in commits.names():
        yield disk.read_parquet(commits.sidecar(name)).to_pylist()
        tar = commits.tar(name)
        for member in index_tar(tar):
            yield member.name
            yield disk.read_bytes(tar, member.offset, member.length)
    for name in disk.list_names(layout.scores):
        document = read_document(layout.score_set_json(name), ScoreSetDocument)
        yield document
        yield from _aligned(AlignedFiles.of_scores(PoolLayout(pool), name), commits.shards.tolist())
    for file in disk.list_names(layout.views, ".json"):
        view = file.removesuffix(".json")
        yield read_document(layout.view_json(view), ViewDocument)
        yield from _aligned(AlignedFiles.of_view(PoolLayout(pool), view), commits.shards.tolist())
        if disk.exists(layout.view_rules(view)):
            yield read_document(layout.view_rules(view), ViewRulesDocument)
    for file in disk.list_names(layout.pairs, ".parquet"):
        path = disk.join(layout.pairs, file)
        yield disk.read_parquet(path).to_pylist()
        yield Note(disk.read_metadata(path))
    if is_planned(PoolLayout(pool)):
        for shard in read_plan(PoolLayout(pool)):
            yield shard
            yield read_shard(PoolLayout(pool), shard.shard)
    if disk.exists(layout.parts):
        yield pq.read_table(layout.parts).to_pylist()
    if disk.exists(layout.pool_json):
        yield read_document(layout.pool_json, PoolDocument)
    if disk.exists(layout.recipe_json):
        yield recipe_of_pool(PoolLayout(pool))


def _aligned(files: AlignedFiles, shards: list[int]) -> Iterator[Any]:
    for shard in shards:
        table, metadata = files.read(shard)
        yield table.to_pylist()
        yield Note(metadata)


def outcome_of(pool: str, expected: tuple[str, str]) -> tuple[str, str]:
    """(noticed, refused, harmless, note or silent; the first line or error)."""
    try:
        audit = audit_pool(pool, verify_files=True)
        if not audit.is_fine:
            return "noticed", str([*audit.damaged, *audit.problems, "incomplete"][0])
    except (ValueError, OSError) as error:
        return "noticed", str(error)
    try:
        there = contents(pool)
    except Exception as error:
        return "refused", f"{type(error).__name__}: {error}"
    if there[0] != expected[0]:
        return "silent", ""
    return ("harmless" if there == expected else "note"), ""


def damage_many(pool: str, seed: int, count: int) -> dict[str, Any]:
    """Damage and restore a pool `count` times: {"counts": {kind: {outcome: n}}, "silent": lines,
    "refused": {error: n}}.
    """
    logging.disable()
    root, rng = Path(pool), random.Random(seed)
    expected = contents(pool)
    assert audit_pool(pool, verify_files=True).is_fine
    counts: dict[str, Counter[str]] = {}
    by_damage: dict[str, Counter[str]] = {}
    silent, refused = [], Counter[str]()
    for number in range(count):
        kind, how, files = damage(rng, root)
        before = {path: (path.read_bytes(), path.stat()) for path in files}
        for path, data in files.items():
            path.write_bytes(data)
            _keep_times(path, before[path][1])
        outcome, line = outcome_of(pool, expected)
        counts.setdefault(kind, Counter())[outcome] += 1
        by_damage.setdefault(how, Counter())[outcome] += 1
        if outcome == "refused":
            refused[f"{kind}: {line.partition(':')[0]}"] += 1
        if outcome == "silent":
            names = ", ".join(str(path.relative_to(root)) for path in files)
            silent.append(f"{seed}/{number}: {how} of {names}: {_difference(before, files)}")
        for path, (data, stat) in before.items():
            path.write_bytes(data)
            _keep_times(path, stat)
    return {
        "counts": {kind: dict(each) for kind, each in counts.items()},
        "by_damage": {how: dict(each) for how, each in by_damage.items()},
        "silent": silent,
        "refused": dict(refused),
    }


def _keep_times(path: Path, stat: os.stat_result) -> None:
    """Bits that rot change no time of a file."""
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _difference(before: dict[Path, Any], files: dict[Path, bytes]) -> str:
    """Where the first of the files differs, as text."""
    path = next(iter(files))
    old, new = before[path][0], files[path]
    both = zip(old, new, strict=False)
    first = next((i for i, (a, b) in enumerate(both) if a != b), min(len(old), len(new)))
    shown = slice(max(0, first - 30), first + 20)
    return json.dumps([first, len(old), repr(old[shown]), repr(new[shown])])
