"""Checks every file of a pool of any size in bounded memory, and names each damaged file.

What is held per shard is its number and what the score sets and views say of it, as columns. The
files of a shard are checked by a ticket, in threads of this process or on Ray. The uids of pairs
and attempts are compared by partitions on local disk, see pipeline/pool/uid_comparison.py.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk
from manifests.aligned import score_shards, view_names, view_shards
from manifests.commits import Commits, read_commits
from manifests.documents import (
    ScoreSetDocument,
    ViewDocument,
    ViewRulesDocument,
    read_document,
)
from manifests.pool_layout import (
    COMMIT_SUFFIX,
    FLAT_SHARDS,
    SHARDS_PER_FOLDER,
    CommitRecord,
    PoolLayout,
    list_shard_files,
    shard_name,
)
from pipeline.accounting.counts import recipe_of_pool
from pipeline.accounting.shard_checks import Damage, ShardChecker, inside, read_record
from pipeline.crawl import check_stored_table
from pipeline.executor import Engine, Stage, Ticket, Tickets, execute
from pipeline.pool import UID_BYTES, compare_uids, hex_bytes, uid_spill

THREADS = min(4, os.cpu_count() or 1)  # tickets at a time in this process; hashing frees the GIL
READERS = 8  # columns of uids that are read at a time
MAX_DAMAGES = 10_000  # that are listed; the rest is counted
T = TypeVar("T", ViewDocument, ViewRulesDocument, ScoreSetDocument)
Integers = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Findings:
    """What the tickets reported, each line once."""

    damages: list[Damage] = field(default_factory=list)
    omitted: int = 0
    unreadable: int = 0  # sidecars and parts of the pairs
    lines: set[str] = field(default_factory=set)

    def add(self, damage: Damage) -> None:
        if damage.line in self.lines:  # a bundle is damaged for each of its shards
            return
        if len(self.damages) >= MAX_DAMAGES:
            self.omitted += 1
            return
        self.lines.add(damage.line)
        self.damages.append(damage)


@dataclass(frozen=True, slots=True, eq=False)
class _Aligned:
    """A complete score set or view: its shards in order, and what it says of each."""

    name: str
    shards: Integers
    values: Any  # (shards,) checksums as 32 bytes, or rows kept
    is_stale: bool = False

    def value(self, shard: int) -> Any:
        """What it says of a shard; None where it does not have it."""
        position = int(np.searchsorted(self.shards, shard))
        if position == len(self.shards) or self.shards[position] != shard:
            return None
        value = self.values[position]
        return value.as_py().hex() if isinstance(value, pa.Scalar) else int(value)


def verify(pool: str, *, engine: Engine = "inline") -> list[str]:
    """One line for each file that is missing, damaged or stale; [] if there is none.

    Covers index, pairs, commit records, tars, sidecars, score sets and views, bundles too. Above
    MAX_DAMAGES lines the rest is counted in one line. ValueError where there is no pool.
    """
    damages, omitted = find_damages(pool, engine=engine)
    lines = [damage.line for damage in damages]
    return lines + ([f"and {omitted} further lines"] if omitted else [])


def find_damages(pool: str, *, engine: Engine = "inline") -> tuple[list[Damage], int]:
    """(what is missing, damaged or stale, how much more there is above MAX_DAMAGES)."""
    layout = PoolLayout(pool)
    findings = _Findings()
    shards = _committed(layout, findings)
    parts = disk.list_names(layout.pairs, ".parquet")
    if not len(shards) and not parts and not findings.damages:
        raise ValueError(
            f"{pool} has neither pairs nor committed shards; is it the folder of a pool?"
        )
    commits, index_problem = _read_index(pool)
    fingerprint = None if commits is None else commits.fingerprint
    _pool_documents(layout, findings)
    sets = list(_score_sets(layout, fingerprint, findings))
    views = list(_views(layout, fingerprint, findings))
    columns = {each.name: columns for each, columns in sets}
    stage = Stage(
        name="verify",
        work=ShardChecker,
        config={"pool": pool, "sets": columns, "stale": [v.name for v in views if v.is_stale]},
        concurrency=THREADS,
    )

    def payload(shard: int) -> dict[str, Any]:
        scores = {each.name: each.value(shard) for each, _ in sets}
        kept = {each.name: each.value(shard) for each in views}
        return {
            "shard": shard,
            "scores": {name: value for name, value in scores.items() if value is not None},
            "views": {name: value for name, value in kept.items() if value is not None},
        }

    def ticket(position: int) -> Ticket:
        if position < len(shards):
            shard = int(shards[position])
            return Ticket(id=shard_name(shard), group=str(shard), payload=payload(shard))
        part = parts[position - len(shards)]
        return Ticket(id=part, group=part, payload={"part": part})

    tickets = Tickets(_groups(shards, len(parts)), ticket)
    report = execute(stage, tickets, engine=engine, on_done=_taker(findings, commits, pool))
    for name, reason in report.failed.items():
        findings.add(Damage(kind="record", line=f"{name}: could not be read: {reason}"))
    has_bad_record = any(damage.kind == "record" for damage in findings.damages)
    if index_problem is not None and not has_bad_record:
        findings.add(index_problem)
    if not findings.unreadable and not report.failures and commits is not None:
        for line in _uid_problems(commits, parts):
            findings.add(Damage(kind="uids", line=line))
    return sorted(findings.damages, key=lambda damage: damage.line), findings.omitted


# --- what is there --------------------------------------------------------------------------------


def _committed(layout: PoolLayout, findings: _Findings) -> Integers:
    """(shards,) the numbers of the shards that have a commit record, ascending."""
    numbers: list[Integers] = [np.zeros(0, np.int64)]
    for folder, names in list_shard_files(layout.root):
        stems = [name.removesuffix(COMMIT_SUFFIX) for name in names if name.endswith(COMMIT_SUFFIX)]
        for stem in stems:
            if not stem.isdecimal():
                path = disk.join(folder, stem + COMMIT_SUFFIX)
                problem = read_record(path)
                assert isinstance(problem, str)
                findings.add(Damage(kind="record", line=f"{inside(layout, path)}: {problem}"))
        decimal = [int(stem) for stem in stems if stem.isdecimal()]
        numbers.append(np.array(decimal, np.int64))
    return np.sort(np.concatenate(numbers))


def _groups(shards: Integers, parts: int) -> Integers:
    """(tickets,) the group of each: the shards of a bundle are on one worker, which opens it once.

    Flat shards and the parts of the pairs are groups of their own.
    """
    of_folder = FLAT_SHARDS + shards // SHARDS_PER_FOLDER
    of_shards = np.where(shards < FLAT_SHARDS, shards, of_folder)
    first = int(of_shards.max(initial=-1)) + 1
    return np.concatenate([of_shards, np.arange(first, first + parts)])


def _read_index(pool: str) -> tuple[Commits | None, Damage | None]:
    try:
        return read_commits(pool), None
    except ValueError as error:
        return None, Damage(kind="index", line=f"index: {error}")


def _taker(
    findings: _Findings, commits: Commits | None, pool: str
) -> Callable[[str, dict[str, Any]], None]:
    """What takes the result of each ticket."""

    def take(name: str, result: dict[str, Any]) -> None:
        for plain in result["damages"]:
            findings.add(disk.from_plain(Damage, plain))
        findings.unreadable += not result["sidecar"]
        plain = result.get("record")
        if plain is None or commits is None:
            return
        if commits.get(name) != CommitRecord.from_plain(plain):
            line = (
                f"index: shard {name} is not as its commit record says; "
                f"run python pipeline/audit.py {pool} --reindex"
            )
            findings.add(Damage(kind="index", line=line, shard=int(name)))

    return take


def _pool_documents(layout: PoolLayout, findings: _Findings) -> None:
    """Reads what describes the pool as a whole, where it is there."""
    readers: dict[str, Callable[[], object]] = {
        layout.pool_json: lambda: disk.read_json(layout.pool_json),
        layout.recipe_json: lambda: recipe_of_pool(layout.root),
        layout.parts: lambda: check_stored_table(layout.root),
    }
    for path, read in readers.items():
        if not disk.exists(path):
            continue
        name = inside(layout, path)
        try:
            read()
        except (ValueError, OSError) as error:
            reason = " ".join(str(error).split())[:160]
            line = f"{name}: damaged: {reason}"
            findings.add(Damage(kind="document", line=line, name=name))


# --- score sets and views -------------------------------------------------------------------------


def _score_sets(
    layout: PoolLayout, fingerprint: str | None, findings: _Findings
) -> Iterator[tuple[_Aligned, list[str]]]:
    """(the complete score sets, their columns)."""
    for folder in disk.list_names(layout.scores):
        path = layout.score_set_json(folder)
        if "@" not in folder or not disk.exists(path):
            continue  # not complete, so nothing reads it
        name = f"scores/{folder}"
        document = _document(f"{name}/scores.json", folder, path, ScoreSetDocument, findings)
        if document is None:
            continue
        _report_stale(name, folder, document, fingerprint, findings)
        try:
            shards, checksums = score_shards(layout.root, document)
        except ValueError as error:
            findings.add(Damage(kind="set", line=f"{name}: {error}", name=folder))
            continue
        yield _Aligned(folder, shards, checksums), list(document.columns)


def _views(layout: PoolLayout, fingerprint: str | None, findings: _Findings) -> Iterator[_Aligned]:
    """The complete views."""
    for view in view_names(layout.root):
        name = f"views/{view}"
        path = layout.view_json(view)
        document = _document(f"{name}.json", view, path, ViewDocument, findings)
        rules = layout.view_rules(view)
        if disk.exists(rules):
            _document(f"{name}/rules.json", view, rules, ViewRulesDocument, findings)
        if document is None:
            continue
        _report_stale(name, view, document, fingerprint, findings)
        try:
            shards, kept = view_shards(layout.root, document)
        except ValueError as error:
            findings.add(Damage(kind="view", line=f"{name}: {error}", name=view))
            continue
        in_shards = int(kept.sum())
        if not document.kept == document.funnel[-1][1] == in_shards:
            line = (
                f"{name}.json: damaged: it keeps {document.kept} rows, its funnel "
                f"{document.funnel[-1][1]}, its shards {in_shards}"
            )
            findings.add(Damage(kind="view", line=line, name=view))
        is_stale = fingerprint is not None and document.fingerprint != fingerprint
        yield _Aligned(view, shards, kept, is_stale)


def _report_stale(
    name: str,
    owner: str,
    document: ViewDocument | ScoreSetDocument,
    fingerprint: str | None,
    findings: _Findings,
) -> None:
    """Report a score set or view that was made from other shards than those that are there."""
    if fingerprint is None or document.fingerprint == fingerprint:
        return
    is_view = isinstance(document, ViewDocument)
    command = "pipeline/filter.py" if is_view else "pipeline/score.py"
    line = f"{name}: stale: the shards have changed since; run {command} on this pool again"
    findings.add(Damage(kind="view" if is_view else "set", line=line, name=owner))


def _document(name: str, owner: str, path: str, kind: type[T], findings: _Findings) -> T | None:
    """A JSON document; None where it is damaged, which is reported."""
    try:
        return read_document(path, kind)
    except ValueError as error:
        is_view = kind is not ScoreSetDocument
        line = f"{name}: damaged: {error}"
        findings.add(Damage(kind="view" if is_view else "set", line=line, name=owner))
        return None


# --- uids -----------------------------------------------------------------------------------------


def _uid_problems(commits: Commits, parts: list[str]) -> Iterator[str]:
    """Repeated uids of the pairs and of the first attempts; and whether these are the pairs, where
    there are as many.
    """
    if not parts:
        return
    layout = PoolLayout(commits.pool)
    rows = commits.totals.rows
    with uid_spill(rows) as pairs, uid_spill(rows) as attempted:
        paths = [disk.join(layout.pairs, part) for part in parts]
        for uids in _read_all(_uids, paths):
            pairs.add(hex_bytes(uids, UID_BYTES, "uid"))
        for uids in _read_all(_first_attempts, map(commits.sidecar, commits.names())):
            attempted.add(hex_bytes(uids, UID_BYTES, "uid"))
        repeated_pairs, repeated_attempts, same = compare_uids(pairs, attempted)
        if repeated_pairs:
            yield f"pairs: {repeated_pairs} uids are there twice"
        if repeated_attempts:
            yield f"shards: {repeated_attempts} pairs were attempted twice"
        if pairs.records == attempted.records and not same:
            yield "shards: the rows attempted are not the pairs"


def _read_all(
    read: Callable[[str], pa.ChunkedArray], paths: Iterable[str]
) -> Iterator[pa.ChunkedArray]:
    """A column of each file; few of them are in memory at a time."""
    waiting = iter(paths)
    with ThreadPoolExecutor(READERS) as threads:
        while batch := list(itertools.islice(waiting, 4 * READERS)):
            yield from threads.map(read, batch)


def _uids(path: str) -> pa.ChunkedArray:
    return disk.read_parquet(path, ["uid"])["uid"]


def _first_attempts(path: str) -> pa.ChunkedArray:
    table = disk.read_parquet(path, ["uid", "retry_of"])
    return table["uid"].filter(pc.is_null(table["retry_of"]))
