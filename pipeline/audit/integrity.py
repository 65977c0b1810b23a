"""Checks the files of a pool against its commit records, and the counts against the files."""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clipmill.manifests import disk
from clipmill.manifests.aligned import AlignedFiles, is_current, view_names, view_shards
from clipmill.manifests.arrays import Integers, Mask
from clipmill.manifests.columns import PAIRS, REASONS, SIDECAR, VIEW, hex_bytes
from clipmill.manifests.commits import Commits, in_threads, position_of, read_commits
from clipmill.manifests.layout import (
    COMMIT_SUFFIX,
    NOT_STORED,
    SHARD_VERSION,
    CommitRecord,
    PoolLayout,
    shard_name,
    uids_checksum,
)
from clipmill.manifests.ray_runtime import Engine
from clipmill.manifests.records import (
    PoolCounts,
    ScoreSetDocument,
    ViewDocument,
    ViewRulesDocument,
    read_document,
)
from clipmill.manifests.text import one_line, printable
from clipmill.pipeline.audit import counts as counting
from clipmill.pipeline.audit.counts import recipe_of_pool
from clipmill.pipeline.crawl.parts import check_stored_table
from clipmill.pipeline.database import UID_BYTES, blobs, database, insert
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Stage, Ticket, Tickets
from clipmill.pipeline.external.adopt import tar_changed
from clipmill.pipeline.pool.shard_writer import sidecar_hash
from clipmill.pipeline.pool.tars import index_tar, local_copy
from clipmill.pipeline.scoring.score_sets import example_row
from clipmill.pipeline.views.files import differing_views, unlisted_views_line, views_not_in

# --------------------------------------------------------------------------------------------------
# Checks the files of one shard against its commit record: hashes, offsets and alignment.
#
# The work of the stage verify: a ticket names a shard or a part of the pairs, and its result
# lists what is damaged.


PARTS = ("image", "text", "json")  # members of a sample
MEMBER_COLUMNS = ["status", "image_name", "image_offset", "image_length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file that is missing, damaged or stale, or a count that is wrong.

    kind: record, sidecar, tar, scores, mask, pairs, set or view (their documents), index, uids,
    document (of the pool as a whole).
    """

    kind: str
    line: str  # PATH: what is wrong
    shard: int | None = None
    name: str | None = None  # of the score set or the view

    @property
    def is_stale(self) -> bool:
        """True where nothing is damaged, but the shards are newer."""
        return ": stale: " in self.line


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What other files must agree with: one shard's sidecar."""

    checksum: str  # of the uids
    stored: Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckJob:
    """What all tickets of a check have in common."""

    layout: PoolLayout
    columns: Mapping[str, Sequence[str]]  # of each score set
    stale: frozenset[str]  # score sets and views older than the shards: their masks are only read


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedShard:
    """The payload of a ticket: a shard, and how many rows of it each view keeps."""

    shard: int
    views: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What became of a ticket."""

    damages: tuple[Damage, ...]
    is_readable: bool  # the sidecar, or the part of the pairs
    record: CommitRecord | None = None


class ShardChecker:
    """Checks the files of one ticket: a `CheckedShard`, or the file name of a part of the pairs.
    Threads may share it.
    """

    def __init__(self, job: CheckJob) -> None:
        self.job, self.layout = job, job.layout
        self._files: dict[tuple[str, str], AlignedFiles] = {}

    def __call__(self, ticket: Ticket) -> Checked:
        checked: CheckedShard | str = ticket.payload
        if isinstance(checked, str):
            damages = self._part(checked)
            return Checked(damages=tuple(damages), is_readable=not damages)
        shard = checked.shard
        record = read_record(self.layout.commit_record(shard))
        if isinstance(record, str):
            line = f"{inside(self.layout, self.layout.commit_record(shard))}: {record}"
            damage = Damage(kind="record", line=line, shard=shard)
            return Checked(damages=(damage,), is_readable=False)
        damages, rows = check_shard(self.layout, record)
        if rows is not None:
            damages += self._scores(shard, rows)
            damages += self._masks(shard, rows, checked.views)
        return Checked(damages=tuple(damages), is_readable=rows is not None, record=record)

    def _part(self, file: str) -> list[Damage]:
        """Columns and number of rows of a part of the pairs."""
        name, problem = f"pairs/{file}", ""
        try:
            data = io.BytesIO(disk.read_bytes(disk.join(self.layout.pairs, file)))
            table = pq.read_table(data, page_checksum_verification=True)
            pairs = disk.read_metadata(disk.join(self.layout.pairs, file)).get("pairs")
            if table.column_names[: len(PAIRS)] != PAIRS.names:
                problem = f"damaged: its columns are {table.column_names}, not {PAIRS.names}"
            elif table.num_rows != pairs:
                problem = f"has {table.num_rows} rows, its footer says {pairs}"
        except FileNotFoundError:
            problem = "missing"
        except Exception as error:  # a damaged footer makes Arrow raise all kinds of errors
            problem = f"damaged: {one_line(error, 120)}"
        return [Damage(kind="pairs", line=f"{name}: {problem}", name=file)] if problem else []

    def _scores(self, shard: int, rows: Reference) -> Iterator[Damage]:
        for name, columns in self.job.columns.items():
            files = self._aligned_files("scores", name)
            table, metadata, problem = _aligned(self.layout, files, shard, columns)
            if name in self.job.stale and "does not have shard" in problem:
                continue
            if not problem:
                problem = _score_problem(table, metadata, rows)
                problem = problem and self._line(files, shard, problem)
            if problem:
                yield Damage(kind="scores", line=problem, shard=shard, name=name)

    def _masks(self, shard: int, rows: Reference, kept: Mapping[str, int]) -> Iterator[Damage]:
        for name, count in kept.items():
            files = self._aligned_files("views", name)
            table, _, problem = _aligned(self.layout, files, shard, VIEW.names)
            if not problem and name not in self.job.stale:  # else it is of another sidecar
                problem = _mask_problem(table, rows, count)
                problem = problem and self._line(files, shard, problem)
            if problem:
                yield Damage(kind="mask", line=problem, shard=shard, name=name)

    def _line(self, files: AlignedFiles, shard: int, problem: str) -> str:
        return f"{inside(self.layout, files.path(shard))}: shard {shard_name(shard)}: {problem}"

    def _aligned_files(self, kind: str, name: str) -> AlignedFiles:
        """The files of a score set or a view, whose bundles stay open."""
        if (kind, name) not in self._files:
            of = AlignedFiles.of_scores if kind == "scores" else AlignedFiles.of_view
            self._files[kind, name] = of(self.layout, name)
        return self._files[kind, name]


def check_shard(layout: PoolLayout, record: CommitRecord) -> tuple[list[Damage], Reference | None]:
    """What is damaged of the sidecar and the tar of a shard, and its rows if they can be read."""
    table, problems = _sidecar(layout, record)
    number = int(record.shard)
    damages = [Damage(kind="sidecar", line=line, shard=number) for line in problems]
    for line in _tar(layout, record, table):
        damages.append(Damage(kind="tar", line=line, shard=number))
    if table is None:
        return damages, None
    stored = _flags(pc.equal(table["status"], "success"))
    return damages, Reference(checksum=uids_checksum(table["uid"]), stored=stored)


def inside(layout: PoolLayout, path: str) -> str:
    """A path as it is called inside the pool."""
    return path.removeprefix(layout.root.rstrip("/") + "/")


def read_record(path: str) -> CommitRecord | str:
    """A commit record, or what is wrong with it."""
    try:
        document = disk.read_json(path)
    except ValueError as error:
        changed = "was changed after" in str(error)
        return f"damaged: {'its hash is another one' if changed else 'it is not JSON'}"
    except FileNotFoundError:
        return "missing"
    try:
        record = CommitRecord.from_plain(document)
    except (ValueError, TypeError) as error:
        return f"damaged: {error}"
    if record.shard != path.rpartition("/")[2].removesuffix(COMMIT_SUFFIX):
        return f"damaged: it is the record of shard {record.shard}"
    return record


def _aligned(
    layout: PoolLayout, files: AlignedFiles, shard: int, columns: Sequence[str]
) -> tuple[pa.Table, dict[str, Any], str]:
    """(table, metadata, "") of the rows of a shard in a score set or view, or (None, {}, a line
    that says what is wrong with it).
    """
    name = inside(layout, files.path(shard))
    try:
        table, metadata = files.read(shard)
    except FileNotFoundError:
        return None, {}, f"{name}: missing"
    except ValueError as error:
        return None, {}, f"{name}: {str(error).removeprefix(files.path(shard) + ' is ')}"
    if table.column_names != list(columns):
        return None, {}, f"{name}: damaged: its columns are {table.column_names}"
    return table, metadata, ""


def _sidecar(layout: PoolLayout, record: CommitRecord) -> tuple[pa.Table | None, list[str]]:
    """The sidecar if it can be used, and a line for each problem."""
    path = layout.sidecar(record.shard, record.revision)
    name = inside(layout, path)
    try:
        data = disk.read_bytes(path)
    except FileNotFoundError:
        return None, [f"{name}: missing"]
    if hashlib.sha256(data).hexdigest() != record.sidecar_file_sha256:
        return None, [f"{name}: damaged: its sha256 is not that of the commit record"]
    table = pq.read_table(io.BytesIO(data))
    if list(table.schema)[: len(SIDECAR)] != list(SIDECAR):
        problem = f"its columns are not those of shard version {SHARD_VERSION}"
        return None, [f"{name}: {problem}"]
    return table, [f"{name}: {problem}" for problem in _row_problems(table, record)]


def _row_problems(table: pa.Table, record: CommitRecord) -> Iterator[str]:
    """What contradicts itself or the commit record."""
    if sidecar_hash(table) != record.sidecar_sha256:
        yield "its values do not have the hash of the commit record"
    reasons = Counter(reason for reason in table["reason"].to_pylist() if reason is not None)
    stored = Counter(table["status"].to_pylist())["success"]
    counts = (table.num_rows, stored, dict(reasons))
    if counts != (record.count, record.successes, record.reasons):
        yield (
            f"{table.num_rows} rows, {stored} stored; its commit record has {record.count}, "
            f"{record.successes}"
        )
    keys = table["key"].to_pylist()
    if keys != sorted(set(keys)):
        yield "its keys repeat or are not in order"


def _tar(layout: PoolLayout, record: CommitRecord, table: pa.Table | None) -> list[str]:
    """Size and hash of the tar, and whether each member lies where the sidecar says. At most one
    line."""
    is_adopted = record.adopted
    name = record.tar if is_adopted else inside(layout, layout.tar(record))
    try:
        with local_copy(layout.tar(record)) as path:
            size = path.stat().st_size
            if size != record.tar_bytes:
                return [f"{name}: damaged: {size} bytes, not {record.tar_bytes}"]
            if disk.file_sha256(path) != record.tar_sha256:
                return [f"{name}: damaged: another sha256"]
            members = {(m.name, m.offset, m.length) for m in index_tar(name, path)}
            if table is None:
                return []
            for row in table.select(MEMBER_COLUMNS).to_pylist():
                image = (row["image_name"], row["image_offset"], row["image_length"])
                if row["status"] == "success" and image not in members:
                    return [f"{name}: {row['image_name']} does not lie where the sidecar says"]
    except ValueError as error:
        return [str(error) if str(error).startswith(name) else f"{name}: {error}"]
    listed = sum(len(table) - table[f"{part}_offset"].null_count for part in PARTS)
    if not is_adopted and listed != len(members):
        return [f"{name}: has {len(members)} members, the sidecar lists {listed}"]
    return []


def _score_problem(table: pa.Table, metadata: Mapping[str, object], rows: Reference) -> str:
    if metadata.get("uids") != rows.checksum:
        return "its rows are not those of the sidecar (checksum of the uids)"
    if table.num_rows != len(rows.stored):
        return f"has {table.num_rows} rows, the sidecar {len(rows.stored)}"
    return ""


def _mask_problem(table: pa.Table, rows: Reference, kept: int) -> str:
    if table.num_rows != len(rows.stored):
        return f"has {table.num_rows} rows, the sidecar {len(rows.stored)}"
    mask = _flags(pc.fill_null(table["kept"], False))
    if int(mask.sum()) != kept:
        return f"keeps {int(mask.sum())} rows, its view says {kept}"
    without_rule = _flags(pc.is_null(table["rule"]))
    unstored = _flags(pc.fill_null(pc.equal(table["rule"], NOT_STORED), False))
    if (mask != without_rule).any() or (unstored == rows.stored).any():
        return "has a row that is kept and fails a rule, or is not stored and does not say so"
    return ""


def _flags(column: pa.ChunkedArray) -> Mask:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)


# --------------------------------------------------------------------------------------------------
# Checks every file of a pool of any size in bounded memory, and names each damaged file.
#
# What is held per shard is its number and what the score sets and views say of it, as columns.
# The files of a shard are checked by a ticket, in threads of this process or on Ray. The uids of
# pairs and attempts are compared in a database.


THREADS = min(4, os.cpu_count() or 1)  # tickets at a time in this process; hashing frees the GIL
MAX_DAMAGES = 10_000  # that are listed; the rest is counted
COMPARED = """
SELECT coalesce(sum(greatest(pairs - 1, 0)), 0), coalesce(sum(greatest(attempts - 1, 0)), 0),
    sum(pairs) = sum(attempts) AND NOT bool_and(pairs = attempts)
FROM (
    SELECT count_if(is_pair) AS pairs, count_if(NOT is_pair) AS attempts FROM uids GROUP BY uid
)
"""
T = TypeVar("T", ViewDocument, ViewRulesDocument, ScoreSetDocument)


@dataclass(slots=True)
class _Findings:
    """What the tickets reported, each line once."""

    damages: list[Damage] = field(default_factory=list)
    omitted: int = 0
    unreadable: int = 0  # sidecars and parts of the pairs
    lines: set[str] = field(default_factory=set)

    def add(self, kind: str, line: str, name: str | None = None, shard: int | None = None) -> None:
        self.take(Damage(kind=kind, line=line, shard=shard, name=name))

    def take(self, damage: Damage) -> None:
        if damage.line in self.lines:  # a bundle is damaged for each of its shards
            return
        if len(self.damages) >= MAX_DAMAGES:
            self.omitted += 1
            return
        self.lines.add(damage.line)
        self.damages.append(damage)


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
    commits, index_problem = _read_index(layout)
    if commits is not None:  # it may name a shard whose record is lost
        shards = np.union1d(shards, commits.shards)
    _pool_documents(layout, findings)
    sets = dict(_score_sets(layout, findings))
    views, stale = _views(layout, commits, findings)
    for name, document in sets.items():
        if _report_stale(f"scores/{name}", name, document, commits, findings):
            stale.append(name)
    columns = {name: document.columns for name, document in sets.items()}
    job = CheckJob(layout=layout, columns=columns, stale=frozenset(stale))
    stage = Stage(name="verify", work=ShardChecker, job=job, concurrency=THREADS, result=Checked)

    def checked(shard: int) -> CheckedShard:
        kept = {}
        for name, (of_view, counts) in views.items():
            if (position := position_of(of_view, shard)) is not None:
                kept[name] = int(counts[position])
        return CheckedShard(shard=shard, views=kept)

    def ticket(position: int) -> Ticket:
        if position < len(shards):
            shard = int(shards[position])
            return Ticket(id=shard_name(shard), group=str(shard), payload=checked(shard))
        part = parts[position - len(shards)]
        return Ticket(id=part, group=part, payload=part)

    tickets = Tickets(np.arange(len(shards) + len(parts)), ticket)
    report = execute(stage, tickets, engine=engine, on_done=_taker(findings, commits, pool))
    for name, reason in report.failed.items():
        findings.add("record", f"{name}: could not be read: {reason}")
    has_bad_record = any(damage.kind == "record" for damage in findings.damages)
    if index_problem is not None and not has_bad_record:
        findings.add("index", index_problem)
    if not findings.unreadable and not report.failures and commits is not None:
        for line in _uid_problems(commits, parts):
            findings.add("uids", line)
    return sorted(findings.damages, key=lambda damage: damage.line), findings.omitted


# --- what is there --------------------------------------------------------------------------------


def _committed(layout: PoolLayout, findings: _Findings) -> Integers:
    """(shards,) the numbers of the shards that have a commit record, ascending."""
    folder = layout.shards
    stems = [name.removesuffix(COMMIT_SUFFIX) for name in disk.list_names(folder, COMMIT_SUFFIX)]
    for stem in stems:
        if not stem.isdecimal():
            path = disk.join(folder, stem + COMMIT_SUFFIX)
            problem = read_record(path)
            assert isinstance(problem, str)
            findings.add("record", f"{inside(layout, path)}: {problem}")
    return np.sort(np.array([int(stem) for stem in stems if stem.isdecimal()], np.int64))


def _read_index(layout: PoolLayout) -> tuple[Commits | None, str | None]:
    try:
        return read_commits(layout.root), None
    except ValueError as error:
        return None, f"index: {error}"


def _taker(
    findings: _Findings, commits: Commits | None, pool: str
) -> Callable[[str, Checked], None]:
    """What takes the result of each ticket."""

    def take(name: str, checked: Checked) -> None:
        for damage in checked.damages:
            findings.take(damage)
        findings.unreadable += not checked.is_readable
        if checked.record is None or commits is None:
            return
        if commits.get(name) != checked.record:
            line = f"index: shard {name} is not as its commit record says; "
            line += f"run clipmill audit reindex {pool}"
            findings.add("index", line, shard=int(name))

    return take


def _pool_documents(layout: PoolLayout, findings: _Findings) -> None:
    """Reads what describes the pool as a whole, where it is there."""
    readers: dict[str, Callable[[], object]] = {
        layout.pool_json: lambda: disk.read_json(layout.pool_json),
        layout.recipe_json: lambda: recipe_of_pool(layout),
        layout.parts: lambda: check_stored_table(layout),
    }
    for path, read in readers.items():
        if not disk.exists(path):
            continue
        name = inside(layout, path)
        try:
            read()
        except (ValueError, OSError) as error:
            findings.add("document", f"{name}: damaged: {one_line(error)}", name)


# --- score sets and views -------------------------------------------------------------------------


def _score_sets(layout: PoolLayout, findings: _Findings) -> Iterator[tuple[str, ScoreSetDocument]]:
    """(NAME@ID, document) of the complete score sets."""
    for folder in disk.list_names(layout.scores):
        path = layout.score_set_json(folder)
        if "@" not in folder or not disk.exists(path):
            continue  # not complete, so nothing reads it
        name = f"scores/{folder}/scores.json"
        document = _document(name, folder, path, ScoreSetDocument, findings)
        if document is not None:
            yield folder, document


def _views(
    layout: PoolLayout, commits: Commits | None, findings: _Findings
) -> tuple[dict[str, tuple[Integers, Integers]], list[str]]:
    """{complete view: (its shards in order, the rows that it keeps of each)}, and which are
    stale.
    """
    views, stale = {}, []
    for view in view_names(layout):
        name = f"views/{view}"
        path = layout.view_json(view)
        document = _document(f"{name}.json", view, path, ViewDocument, findings)
        rules = layout.view_rules(view)
        if disk.exists(rules):
            _document(f"{name}/rules.json", view, rules, ViewRulesDocument, findings)
        if document is None:
            continue
        try:
            views[view] = view_shards(layout, document)
        except ValueError as error:
            findings.add("view", f"{name}: {error}", view)
            continue
        if _report_stale(name, view, document, commits, findings):
            stale.append(view)
        in_shards = int(views[view][1].sum())
        if not document.kept == document.funnel[-1][1] == in_shards:
            line = f"{name}.json: damaged: it keeps {document.kept} rows, its funnel "
            findings.add("view", f"{line}{document.funnel[-1][1]}, its shards {in_shards}", view)
    return views, stale


def _report_stale(
    name: str,
    owner: str,
    document: ViewDocument | ScoreSetDocument,
    commits: Commits | None,
    findings: _Findings,
) -> bool:
    """Report a score set or view that was made from other shards than those that are there."""
    if commits is None or document.fingerprint == commits.fingerprint:
        return False
    kind, command = "set", "clipmill score"
    if isinstance(document, ViewDocument):
        if is_current(document, commits):
            return False
        kind, command = "view", "clipmill filter"
    line = f"{name}: stale: the shards have changed since; run {command} on this pool again"
    findings.add(kind, line, owner)
    return True


def _document(name: str, owner: str, path: str, kind: type[T], findings: _Findings) -> T | None:
    """A JSON document; None where it is damaged, which is reported."""
    try:
        return read_document(path, kind)
    except ValueError as error:
        of = "set" if kind is ScoreSetDocument else "view"
        findings.add(of, f"{name}: damaged: {error}", owner)
        return None


# --- uids -----------------------------------------------------------------------------------------


def _uid_problems(commits: Commits, parts: list[str]) -> Iterator[str]:
    """Repeated uids of the pairs and of the first attempts; and whether these are the pairs, where
    there are as many.
    """
    if not parts:
        return
    layout = commits.layout
    with database() as connection:
        connection.execute("CREATE TABLE uids (uid BLOB, is_pair BOOLEAN)")
        paths = [disk.join(layout.pairs, part) for part in parts]
        attempted = map(commits.sidecar, commits.names())
        for is_pair, read, files in (
            (True, _uids, paths),
            (False, _first_attempts, attempted),
        ):
            for uids in in_threads(read, files):
                keys = hex_bytes(uids, UID_BYTES, "uid")
                insert(connection, "uids", blobs(keys), np.full(len(keys), is_pair))
        ((repeated_pairs, repeated_attempts, differ),) = connection.execute(COMPARED).fetchall()
    if repeated_pairs:
        yield f"pairs: {repeated_pairs} uids are there twice"
    if repeated_attempts:
        yield f"shards: {repeated_attempts} pairs were attempted twice"
    if differ:
        yield "shards: the rows attempted are not the pairs"


def _uids(path: str) -> pa.ChunkedArray:
    return disk.read_parquet(path, ["uid"])["uid"]


def _first_attempts(path: str) -> pa.ChunkedArray:
    table = disk.read_parquet(path, ["uid", "retry_of"])
    return table["uid"].filter(pc.is_null(table["retry_of"]))


# --------------------------------------------------------------------------------------------------
# What the audit says about a whole pool: counts, problems, damaged files and notes, as lines and
# as plain values.


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result of an audit. `counts` is None if damaged files make counting impossible."""

    counts: PoolCounts | None
    problems: tuple[str, ...]  # counts that contradict each other, tars that changed
    damaged: tuple[str, ...]  # one line for each file; empty unless `verified`
    notes: tuple[str, ...]  # nothing is wrong, but worth knowing
    verified: bool

    @property
    def is_fine(self) -> bool:
        """True if the pool is complete and nothing is wrong."""
        complete = self.counts is not None and self.counts.complete
        return complete and not self.problems and not self.damaged


def audit_pool(pool: str, *, verify_files: bool = False, engine: Engine = "inline") -> Audit:
    """Count a pool; with `verify_files` read every file too. ValueError where there is no pool."""
    damaged = tuple(verify(pool, engine=engine)) if verify_files else ()
    try:
        commits = read_commits(pool)
        counts = counting.count_pool(commits)
    except Exception as error:
        if not damaged:
            raise
        problems = (f"the pool cannot be counted: {error}",)
        return Audit(counts=None, problems=problems, damaged=damaged, notes=(), verified=True)
    return Audit(
        counts=counts,
        problems=(*counts.problems, *changed_tars(commits)),
        damaged=damaged,
        notes=tuple(_notes(commits, counts)),
        verified=verify_files,
    )


def changed_tars(commits: Commits) -> Iterator[str]:
    """One line for each adopted tar that is missing or has other content than at adoption."""
    adopted = np.asarray(commits.column("adopted").to_numpy(zero_copy_only=False), bool)
    for record in commits.records(adopted):
        if not tar_changed(record):
            continue
        from_it = f"shard {record.shard} was adopted from it"
        if not disk.exists(record.tar):
            yield f"{record.tar}: missing; {from_it}"
        else:
            yield (
                f"{record.tar}: changed since {from_it}: another program rewrote it; give the old "
                "tar back, or build into another folder"
            )


def audit_lines(audit: Audit) -> list[str]:
    """The audit for a terminal. Characters that a terminal would act on are escaped."""
    lines: list[str] = []
    if audit.counts is not None:
        lines += count_lines(audit.counts)
    lines += [f"note    {note}" for note in audit.notes]
    lines += [f"WRONG   {problem}" for problem in (*audit.problems, *audit.damaged)]
    return [printable(line) for line in (*lines, conclusion(audit))]


def audit_plain(audit: Audit) -> dict[str, object]:
    """The audit as plain values, for JSON."""
    plain: dict[str, object] = {"complete": False}
    if audit.counts is not None:
        plain = disk.to_plain(audit.counts)
    return {
        **plain,
        "problems": list(audit.problems),
        "damaged": list(audit.damaged),
        "notes": list(audit.notes),
    }


def count_lines(counts: PoolCounts) -> Iterator[str]:
    """The counts of each stage."""
    if counts.crawl:
        crawl = counts.crawl
        yield (
            f"crawl   {crawl.links} links of {crawl.parts} parts = {crawl.pairs} pairs + "
            f"{sum(crawl.reasons.values())} dropped"
        )
        if crawl.damaged_records:
            yield f"        {crawl.damaged_records} damaged records, whose links nobody knows"
        yield from _reason_lines(crawl.reasons, {})
    fetch = counts.fetch
    yield f"fetch   {fetch.shards} of {fetch.planned} shards, {fetch.bytes:,} bytes of tar"
    retries = f" ({fetch.retries} of them retries)" if fetch.retries else ""
    yield (
        f"        {fetch.attempted} attempted{retries} = {fetch.stored} stored + "
        f"{sum(fetch.reasons.values())} not stored"
    )
    if fetch.retries:
        rows = fetch.attempted - fetch.retries
        yield f"        with their retries {fetch.final.stored} of {rows} rows are stored"
    yield from _reason_lines(fetch.reasons, REASONS)
    if fetch.strays:
        yield f"        {fetch.strays} members of the tars are no part of a sample"
    for name, scores in counts.scores.items():
        yield f"score   {name}: {scores.scored} of {scores.stored} stored rows"
    for name, view in counts.views.items():
        steps = " → ".join(f"{step} {left}" for step, left in view.funnel)
        yield f"view    {name}: {steps}"


def conclusion(audit: Audit) -> str:
    """The last line: what is wrong, or what to do next, or that nothing is wrong."""
    if wrong := len(audit.damaged) + len(audit.problems):
        return f"{wrong} {'problems' if wrong > 1 else 'problem'} found"
    assert audit.counts is not None
    crawl, fetch = audit.counts.crawl, audit.counts.fetch
    if crawl and crawl.links and not crawl.pairs:
        return "all counts are consistent; the source gave no pair: correct it in the recipe"
    if not audit.counts.complete and not fetch.planned:
        return (
            "all counts are consistent so far; no shard is planned yet: "
            "run clipmill build with its recipe again"
        )
    if not audit.counts.complete:
        return (
            f"all counts are consistent so far; {fetch.planned - fetch.shards} shards are missing: "
            "run clipmill build with its recipe again"
        )
    return "all counts are consistent" + (" and all files are intact" if audit.verified else "")


def _notes(commits: Commits, counts: PoolCounts) -> Iterator[str]:
    layout, fetch = commits.layout, counts.fetch
    if fetch.attempted and not fetch.stored:
        reason = min(fetch.reasons, key=lambda name: (-fetch.reasons[name], name))
        yield (
            f"none of the {fetch.attempted} rows is stored; an example of {reason}: "
            f"{example_row(commits, reason)}"
        )
    recipe = counting.recipe_of_pool(layout)
    if recipe is not None and (unlisted := views_not_in(recipe, layout)):
        yield unlisted_views_line(recipe, unlisted)
    for view, changes in (differing_views(recipe, layout) if recipe else {}).items():
        yield (
            f"view {view} has other rules than recipe.json of the pool: {changes}; "
            "clipmill filter made it with another recipe"
        )


def _reason_lines(reasons: Mapping[str, int], classes: Mapping[str, str]) -> Iterator[str]:
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        yield f"          {reason:<20}{count:>10}  {classes.get(reason, '')}".rstrip()
