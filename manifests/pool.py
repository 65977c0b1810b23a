"""A pool as a table: the rows of its committed shards × the columns of sidecars and score sets.

Sidecar, score columns and masks of views are rows of one shard side by side, in tar order. A score
column is used only beside the sidecar whose hash it names, so that a picture that was fetched again
never has the columns of the one before; a mask, where its view is of the shards as they are now.

Reads `shards/NNNNN.parquet`, `scores/NAME@ID/`, `views/NAME/`, the documents of score sets and
views, and the index of commits. One shard is in memory at a time.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clipmill.manifests import disk
from clipmill.manifests.aligned import (
    AlignedFiles,
    Bundle,
    current_view,
    own_shards,
    view_names,
    view_shards,
)
from clipmill.manifests.arrays import Integers, Mask
from clipmill.manifests.commits import Commits, ShardFiles, position_of, read_commits
from clipmill.manifests.layout import (
    NOT_STORED,
    CommitRecord,
    PoolLayout,
    shard_name,
    uids_checksum,
)
from clipmill.manifests.records import ScoreSetDocument, ViewDocument, read_document

T = TypeVar("T")
# What reads with a name for messages: once, or again after a store's transient error.
Reader = Callable[[Callable[[], T], str], T]
REPEATED = frozenset({"class", "content_type", "page_lang", "reason", "status"})  # of sidecars
ROW_COLUMNS = ("count", "sidecar_sha256")  # of commit records: what rows are compared with


def read_once(read: Callable[[], T], name: str) -> T:
    """`read()`; files of a store are read again by `disk` itself."""
    return read()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The rows of one shard, in tar order, whether they are kept or not."""

    shard: str
    table: pa.Table  # the columns that were asked for, in that order
    kept: Mask  # (rows,) the view keeps the row; without a view: it has an image
    rule: pa.ChunkedArray  # (rows,) NULL where kept, else the first rule that failed

    def kept_rows(self) -> pa.Table:
        """The columns of the kept rows."""
        return self.table.filter(pa.array(self.kept))


class Pool:
    """An open pool. It does not change: shards that are committed later are not in it.

    files: the shards; of a trainer, only where their files are: the commit records are read when
    columns are. reader: how a file is read, as `read_once`.
    """

    def __init__(self, files: Commits | ShardFiles, reader: Reader[Any] = read_once) -> None:
        self.path, self.files, self._reader = files.pool, files, reader
        self.layout = PoolLayout(self.path)
        self._scores: dict[str, AlignedFiles] = {}

    @classmethod
    def of_tickets(cls, path: str) -> Pool:
        """The pool of a worker, which learns from its tickets what is committed: `of_shards`."""
        return cls(Commits.of_records(path, []))

    @classmethod
    def open(cls, path: str, reader: Reader[Any] = read_once) -> Pool:
        """The pool in a folder or at a URL. ValueError for a damaged index."""
        return cls(reader(lambda: read_commits(path), path), reader)

    def of_shards(self, *shards: int | str) -> Pool:
        """The same pool with some shards, whose commit records are read now: those of a ticket."""
        records = [CommitRecord.read(self.layout.commit_record(shard)) for shard in shards]
        pool = Pool(Commits.of_records(self.path, records), self._reader)
        pool._scores = self._scores
        return pool

    @functools.cached_property
    def commits(self) -> Commits:
        """The commit records of the shards."""
        files = self.files
        if isinstance(files, Commits) and set(ROW_COLUMNS) <= set(files.table.column_names):
            return files
        names = ["tar", *ROW_COLUMNS]
        commits: Commits = self._reader(lambda: read_commits(self.path, names), self.path)
        return commits

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The columns of the first shard's sidecar; none of a pool without shards."""
        if not len(self.commits):
            return pa.schema([])
        return self.schema_of(int(self.commits.shards[0]))

    def schema_of(self, shard: int | str) -> pa.Schema:
        """The columns of a shard's sidecar."""
        path = self.files.sidecar(shard)
        schema: pa.Schema = self._reader(lambda: disk.read_schema(path), path)
        return schema.remove_metadata()

    # --- score sets -------------------------------------------------------------------------------

    @functools.cached_property
    def all_score_sets(self) -> dict[str, ScoreSetDocument]:
        """The documents of the complete score sets, by NAME@ID. ValueError for a damaged one."""
        sets: dict[str, ScoreSetDocument] = self._reader(
            lambda: complete_score_sets(self.layout), self.layout.scores
        )
        return sets

    @functools.cached_property
    def score_sets(self) -> dict[str, ScoreSetDocument]:
        """Those that have columns of all shards as they are now."""
        return {name: each for name, each in self.all_score_sets.items() if self.covers(each)}

    def covers(self, document: ScoreSetDocument) -> bool:
        """True where a score set has columns of all shards as they are now. That of the same
        fingerprint has."""
        if document.fingerprint == self.files.fingerprint:
            return True
        if document.whole_pool:  # its values depend on rows that have come or gone
            return False
        name = f"{document.name}@{document.id}"
        covered: bool = self._reader(
            lambda: all(self.has_scores(name, shard) for shard in self.commits.shards.tolist()),
            self.layout.score_set(name),
        )
        return covered

    def has_scores(self, name: str, shard: int | str) -> bool:
        """True where a score set has columns of a shard as it is now."""
        files, sidecar = self.scores(name), self.commits.value(shard, "sidecar_sha256").hex()
        return files.has(shard) and files.metadata(shard).get("sidecar") == sidecar

    def scores(self, name: str) -> AlignedFiles:
        """The files of a score set, opened once."""
        if name not in self._scores:
            self._scores[name] = AlignedFiles.of_scores(self.layout, name)
        return self._scores[name]

    def score_schema(self, name: str) -> pa.Schema:
        """The columns of a score set, as its first shard has them."""
        schema: pa.Schema = self.scores(name).bundle(int(self.commits.shards[0])).schema
        return schema

    def sets_of(self, columns: Iterable[str], view: OpenView | None = None) -> dict[str, str]:
        """Column -> the score set NAME@ID that it is read from, of the columns that are not of the
        sidecars: one that the view's rules read, else a current one.

        ValueError for a column that is nowhere or of an older state of the pool, and where two
        current score sets have it.
        """
        others = sorted(set(columns) - set(self.schema.names))
        if not others or not len(self.commits):
            return {}
        sets = {} if view is None else view.score_sets
        for column in others:
            if column in sets:
                continue
            having = [name for name, each in self.score_sets.items() if column in each.columns]
            if not having:
                raise self._no_column(column)
            if len(having) > 1:
                reads = "" if view is None else f", and view {view.document.name!r} reads neither"
                raise ValueError(
                    f"{self.path} has the column {column!r} in the score sets "
                    f"{' and '.join(sorted(having))}{reads}: name it in a rule of a view, such as "
                    f"{{{column}: {column} IS NOT NULL}}, choose the view, and read it with this "
                    "view"
                )
            sets = {**sets, column: having[0]}
        return {column: sets[column] for column in others}

    def _no_column(self, column: str) -> ValueError:
        """The error for a column that neither sidecars nor current score sets have."""
        known = list(self.schema.names)
        for name, document in self.all_score_sets.items():
            if column in document.columns:
                return ValueError(
                    f"{self.path} has the column {column!r} in the score set {name}, which is of "
                    f"an older state of the pool: run clipmill score {self.path} with the same "
                    "recipe"
                )
            known += document.columns
        return ValueError(f"{self.path} has no column {column!r}{disk.did_you_mean(column, known)}")

    # --- views ------------------------------------------------------------------------------------

    @functools.cached_property
    def views(self) -> dict[str, ViewDocument]:
        """The documents of the complete views, by name. ValueError for a damaged one."""
        path = self.layout.view_json
        views: dict[str, ViewDocument] = self._reader(
            lambda: {view: read_document(path(view), ViewDocument) for view in self.view_names()},
            self.layout.views,
        )
        return views

    def view_names(self) -> list[str]:
        """The names of the complete views."""
        return view_names(self.layout)

    def view(self, name: str, remedy: str | None = None) -> OpenView:
        """A view. ValueError where there is none, or it is older than the shards; remedy: what to
        do then."""
        if not isinstance(name, str):
            views = ", ".join(self.view_names())
            raise ValueError(f"view is a {type(name).__name__}; give the name of one: {views}")
        remedy = remedy or choose_again(self.path)
        document: ViewDocument = self._reader(
            lambda: current_view(self.layout, name, self.files.fingerprint, remedy),
            self.layout.views,
        )
        return OpenView(self, document)

    # --- rows -------------------------------------------------------------------------------------

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        view: str | None = None,
        shards: Iterable[int | str] | None = None,
    ) -> Iterator[Part]:
        """The rows of a shard at a time, with some columns and what a view makes of each row.

        columns: of the sidecars or of score sets, see `sets_of`; None: those of the sidecars.
        shards: which, in which order; None: all, ascending. Nothing is read before the first part
        is asked for. ValueError for a shard that is not there, and as of `view` and `read`.
        """
        masks = None if view is None else self.view(view)
        wanted = self.schema.names if columns is None else names_of(columns)
        sets = self.sets_of(wanted, masks)
        if isinstance(shards, (int, str)):
            raise ValueError(f"shards is {shards!r}; give a list, as in [{shards!r}]")
        there = self.commits.shards if masks is None else masks.shards
        for shard in there.tolist() if shards is None else shards:
            number = position_of(there, shard) if str(shard).isdecimal() else None
            if number is None:
                raise ValueError(
                    f"{view or self.path} has no shard {shard!s:0>5}; a shard is a number"
                )
            if masks is not None:
                yield masks.part(number, wanted, sets)
                continue
            table = self.read(shard, [*wanted, "image_offset"], sets)
            stored = pc.is_valid(table["image_offset"])
            yield Part(
                shard=shard_name(int(shard)),
                table=table.select(wanted),
                kept=np.asarray(stored.to_numpy(), np.bool_),
                rule=pc.if_else(stored, pa.scalar(None, pa.string()), NOT_STORED),
            )

    def read(
        self,
        shard: int | str,
        columns: Sequence[str] | None,
        sets: Mapping[str, str] | None = None,
        *,
        encoded: bool = False,
    ) -> pa.Table:
        """(rows of a shard, `columns` in that order); None: all of its sidecar.

        sets: column -> the score set NAME@ID that it is read from; other columns are of the
        sidecar. encoded: texts that repeat (REPEATED) come as dictionaries, in half of the time.
        ValueError for a column that is not there, for a sidecar that does not have the
        rows of its commit record, and for score columns of another sidecar.
        """
        sets = sets or {}
        if columns is None:
            return self._sidecar(shard, None)
        wanted = list(dict.fromkeys(columns))
        own = [name for name in wanted if name not in sets]
        sidecar = self._sidecar(shard, own, encoded).columns if own else ()
        arrays = dict(zip(own, sidecar, strict=True))
        for name in dict.fromkeys(sets[column] for column in wanted if column in sets):
            of_set = [column for column in wanted if sets.get(column) == name]
            read = self._of_set(name, shard, of_set)
            arrays |= {column: read[column] for column in of_set}
        if not wanted:
            return pa.table({"": pa.nulls(self.commits.value(shard, "count"))}).select([])
        return pa.table({name: arrays[name] for name in wanted})

    def stored(self, shard: int | str, columns: Sequence[str], sets: Mapping[str, str]) -> pa.Table:
        """As `read`, the rows whose picture is stored."""
        table = self.read(shard, [*columns, "image_offset"], sets)
        return table.filter(pc.is_valid(table["image_offset"])).select(list(columns))

    def read_exact(self, shard: int | str) -> pa.Table:
        """The whole sidecar, of which the file has the sha256 of its commit record. ValueError
        where it is missing or damaged.
        """
        path = self.files.sidecar(shard)
        try:
            content = disk.read_bytes(path)
        except FileNotFoundError:
            raise ValueError(f"{path} is missing: run clipmill audit repair {self.path}") from None
        if hashlib.sha256(content).digest() != self.commits.value(shard, "sidecar_file_sha256"):
            raise ValueError(f"{path} is damaged: run clipmill audit repair {self.path}")
        return pq.read_table(pa.BufferReader(content), use_threads=False)

    def read_of_uids(
        self, shard: int | str, columns: Sequence[str], name: str, uids: pa.ChunkedArray
    ) -> pa.Table:
        """Columns of a score set that follow from the captions, such as tokens, beside the rows
        with these uids, which are hashes of them: no commit record is read. ValueError as of
        `read`.
        """
        files = self.scores(name)
        table, metadata = self.read_aligned(files, shard, columns)
        if metadata.get("uids") != uids_checksum(uids):
            raise files.of_other_rows(shard)
        return table

    def read_aligned(
        self, files: AlignedFiles, shard: int | str, columns: Sequence[str]
    ) -> tuple[pa.Table, dict[str, Any]]:
        """What row-aligned files have of a shard, see `AlignedFiles.read`. ValueError where they
        are missing."""
        path = files.path(shard)
        try:
            return self._reader(lambda: files.read(shard, columns), path)  # type: ignore[no-any-return]
        except FileNotFoundError:
            raise ValueError(f"{path} is missing; make it again") from None

    def _of_set(self, name: str, shard: int | str, columns: Sequence[str]) -> pa.Table:
        files, rows = self.scores(name), self.commits.value(shard, "count")
        sidecar = self.commits.value(shard, "sidecar_sha256").hex()
        table: pa.Table = self._reader(
            lambda: files.read_of(shard, sidecar, rows, columns), files.path(shard)
        )
        return table

    def _sidecar(
        self, shard: int | str, columns: Sequence[str] | None, encoded: bool = False
    ) -> pa.Table:
        table = self.read_lazily(shard, columns, encoded=encoded)
        if table.num_rows != self.commits.value(shard, "count"):
            path = self.files.sidecar(shard)
            raise ValueError(
                f"shard {shard_name(shard)} is damaged: {path} does not have the rows of its "
                f"commit record: its sidecar has {table.num_rows} rows of "
                f"{self.commits.value(shard, 'count')}; run clipmill audit repair {self.path}"
            )
        return table

    def read_lazily(
        self, shard: int | str, columns: Sequence[str] | None, *, encoded: bool = False
    ) -> pa.Table:
        """As `read`, of the sidecar alone, and no commit record is read: the caller compares the
        rows, with those of a mask.
        """
        path = self.files.sidecar(shard)
        names = None if columns is None else list(columns)
        as_dictionaries = sorted(REPEATED.intersection(names or ())) if encoded else None

        def read(source: Any) -> pa.Table:
            options = {"page_checksum_verification": True}
            try:
                file = pq.ParquetFile(source, read_dictionary=as_dictionaries, **options)
            except KeyError:  # one is not there, and is named below
                file = pq.ParquetFile(source, **options)
            known = file.schema_arrow.names
            for name in names or []:
                if name not in known:
                    if name in self.schema.names:
                        raise ValueError(
                            f"{path} has no column {name!r}, unlike the first shard of the pool; "
                            "its shards are of different recipes: build them again, or leave the "
                            "column out"
                        )
                    raise ValueError(
                        f"{path} has no column {name!r}{disk.did_you_mean(name, known)} "
                        f"(of {', '.join(known)})"
                    )
            return file.read(names, use_threads=False)

        try:
            table = self._reader(lambda: disk.read_with(path, read), path)
        except FileNotFoundError:
            now = CommitRecord.read(self.layout.commit_record(shard))
            if disk.join(self.layout.shards, now.sidecar) == path:
                raise
            raise ValueError(
                f"shard {shard_name(shard)} was replaced while the pool was read: run it again"
            ) from None
        table = table.replace_schema_metadata(None)
        return table if names is None else table.select(names)


class OpenView:
    """A view of an open pool: its document, its shards, and what it makes of each row.

    shards: (shards,) their numbers, ascending. kept: (shards,) rows that it keeps of each. `number`
    is a position in them.
    """

    def __init__(self, pool: Pool, document: ViewDocument) -> None:
        self.table, self.document, self.files = pool, document, pool.files
        self.pool = pool.path
        path = pool.layout.view_shards(document.name, document.shards.file)
        self.shards, self.kept = pool._reader(lambda: view_shards(pool.layout, document), path)
        self._masks = AlignedFiles.of_view(pool.layout, document.name)

    @property
    def commits(self) -> Commits:
        """The commit records of the shards of the view: of all, or of a frozen one's own."""
        return own_shards(self.document, self.table.commits)

    def names(self) -> Iterator[str]:
        """The names of the shards."""
        return (shard_name(int(shard)) for shard in self.shards)

    @functools.cached_property
    def score_sets(self) -> dict[str, str]:
        """Column -> the score set that has it, for the score sets that the view's rules read.
        ValueError for one of other rows."""
        layout, document = self.table.layout, self.document
        of_column: dict[str, str] = {}
        for name in document.scores.values():
            path = layout.score_set_json(name)
            read = functools.partial(read_document, path, ScoreSetDocument)
            scores = self.table._reader(read, path)
            is_of_rows = scores.fingerprint == document.fingerprint
            if not is_of_rows and document.frozen:
                if scores.whole_pool:
                    continue  # its values are of the pool as it is now
                is_of_rows = self.covers(scores)
            if not is_of_rows:
                raise ValueError(
                    f"{layout.score_set(name)} was made of other rows or pictures than the view "
                    f"{document.name!r}; {choose_again(self.pool)}"
                )
            of_column.update(dict.fromkeys(scores.columns, name))
        return of_column

    def covers(self, scores: ScoreSetDocument) -> bool:
        """True where a score set has columns of all shards of the view as they are now."""
        if scores.fingerprint == self.document.fingerprint:
            return True
        return Pool(self.commits, self.table._reader).covers(scores)

    def bundle(self, shard: int | str) -> Bundle:
        """The file with the masks of a shard, opened once."""
        return self._masks.bundle(shard)

    def mask(
        self,
        shard: int | str,
        columns: Sequence[str] = ("kept", "rule"),
        rows: int | None = None,
    ) -> pa.Table:
        """What the view makes of each row of a shard: whether it is `kept`, and the first `rule`
        that failed. Of other shards than its own a frozen view keeps no row.

        ValueError for a mask of other rows; rows: how many the shard has.
        """
        number = position_of(self.shards, shard)
        if number is None:
            rows = int(self.table.commits.value(shard, "count"))
            rule = pa.chunked_array([pa.repeat(NOT_STORED, rows)])
            return pa.table({"kept": np.zeros(rows, np.bool_), "rule": rule}).select(columns)
        mask, _ = self.table.read_aligned(self._masks, shard, list(columns))
        kept = (pc.sum(mask["kept"]).as_py() or 0) if "kept" in columns else self.kept[number]
        if kept != self.kept[number] or rows not in (None, len(mask)):
            raise ValueError(
                f"{self._masks.path(shard)} does not fit its shard or its view; "
                f"{choose_again(self.pool)}"
            )
        return mask

    def read(self, number: int, rows: int) -> pa.Table:
        """The mask of the shard at a position of `shards`, which has so many rows."""
        return self.mask(int(self.shards[number]), rows=rows)

    def kept_mask(self, shard: int) -> Mask:
        """(rows,) which rows of a shard the view keeps. ValueError for a mask of other rows."""
        rows = int(self.table.commits.value(shard, "count"))
        return np.asarray(self.mask(shard, ["kept"], rows)["kept"].to_numpy(), np.bool_)

    def kept_rows(self, number: int) -> Integers:
        """(kept rows,) their rows in the sidecar of a shard. Only the mask is read."""
        kept = self.mask(int(self.shards[number]), ["kept"])["kept"]
        return np.flatnonzero(kept.to_numpy())

    def kept_columns(self, number: int, columns: Sequence[str]) -> pa.Table:
        """The kept rows of a shard, with columns of its sidecar or of a score set that the view's
        rules read."""
        try:
            return self.part(number, columns, self.score_sets).kept_rows()
        except ValueError as error:
            raise self._not_read(columns) or error from None

    def part(self, number: int, columns: Sequence[str], sets: Mapping[str, str]) -> Part:
        """All rows of a shard. sets: as of `Pool.read`."""
        shard = shard_name(int(self.shards[number]))
        table = self.table.read(shard, columns, sets)
        mask = self.read(number, len(table))
        kept = np.asarray(mask["kept"].to_numpy(), np.bool_)
        return Part(shard=shard, table=table, kept=kept, rule=mask["rule"])

    def _not_read(self, columns: Sequence[str]) -> ValueError | None:
        """The error for a column that the pool has and the view does not read; None for others.

        A view names the score sets that its rules read, so that a run with its hash has their
        values.
        """
        view, own = self.document.name, set(columns) - self.score_sets.keys()
        for name, document in self.table.all_score_sets.items():
            for column in document.columns:
                if column not in own:
                    continue
                if name in self.document.scores.values():
                    return ValueError(
                        f"view {view!r} of {self.pool} is frozen, and the column {column!r} of "
                        f"the score set {name} was computed anew from the rows that the pool has "
                        "now: use a view that is not frozen"
                    )
                return ValueError(
                    f"view {view!r} of {self.pool} does not read the column {column!r}, which is "
                    f"of the score set {name}: name it in a rule of the view, such as "
                    f"{{{column}: {column} IS NOT NULL}}, and choose the view again"
                )
        return None


def names_of(columns: Iterable[str]) -> list[str]:
    """Each name once. ValueError for a text, which is no list of names."""
    if isinstance(columns, str):
        raise ValueError(f"columns is {columns!r}; give a list of names, as in [{columns!r}]")
    return list(dict.fromkeys(columns))


def choose_again(pool: str) -> str:
    """The command that chooses a pool's views."""
    return f"run clipmill filter {pool} --recipe RECIPE"


def score_set_names(layout: PoolLayout) -> list[str]:
    """The complete score sets of a pool, NAME@ID."""
    names = [name for name in disk.list_names(layout.scores) if "@" in name]
    return [name for name in names if disk.exists(layout.score_set_json(name))]


def complete_score_sets(layout: PoolLayout) -> dict[str, ScoreSetDocument]:
    """The documents of all complete score sets, by name. ValueError for a damaged one."""
    sets = {}
    for name in disk.list_names(layout.scores):
        if "@" in name:
            with suppress(FileNotFoundError, NotADirectoryError):  # it is not complete
                sets[name] = read_document(layout.score_set_json(name), ScoreSetDocument)
    return sets
