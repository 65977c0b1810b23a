"""A pool as a table: the rows of its committed shards × the columns of sidecars and score sets.

Views, filters over the pool, scores, exports, reports and the trainer's columns are read here; the
audit, locks, masks and a trainer's tokens are not yet. Sidecar and score columns are rows of one
shard side by side, in tar order; a score column is used only beside the sidecar whose hash it
names, so that a picture that was fetched again never has the columns of the one before.

Reads `shards/NNNNN.parquet`, `scores/NAME@ID/`, the documents of score sets, the index of commits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clipmill.manifests import disk
from clipmill.manifests.aligned import AlignedFiles
from clipmill.manifests.commits import Commits, ShardFiles, read_commits
from clipmill.manifests.layout import CommitRecord, PoolLayout, shard_name
from clipmill.manifests.records import ScoreSetDocument, read_document

T = TypeVar("T")
# What reads with a name for messages: once, or again after a store's transient error.
Reader = Callable[[Callable[[], T], str], T]
ROW_COLUMNS = ("count", "sidecar_sha256")  # of commit records: what rows are compared with


def read_once(read: Callable[[], T], name: str) -> T:
    """`read()`; files of a store are read again by `disk` itself."""
    return read()


class Pool:
    """An open pool. It does not change: shards that are committed later are not in it.

    files: the shards; of a trainer, only where their files are: the commit records are read when
    columns are. reader: how a file is read, as `read_once`.
    """

    def __init__(self, files: Commits | ShardFiles, reader: Reader[Any] = read_once) -> None:
        self.path, self._files, self._reader = files.pool, files, reader
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

    def of_shards(self, *shards: str) -> Pool:
        """The same pool with some shards, whose commit records are read now: those of a ticket."""
        records = [CommitRecord.read(self.layout.commit_record(shard)) for shard in shards]
        pool = Pool(Commits.of_records(self.path, records), self._reader)
        pool._scores = self._scores
        return pool

    @functools.cached_property
    def commits(self) -> Commits:
        """The commit records of the shards."""
        files = self._files
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
        path = self.commits.sidecar(int(self.commits.shards[0]))
        schema: pa.Schema = self._reader(lambda: disk.read_schema(path), path)
        return schema.remove_metadata()

    # --- score sets -------------------------------------------------------------------------------

    @functools.cached_property
    def all_score_sets(self) -> dict[str, ScoreSetDocument]:
        """The documents of the complete score sets, by NAME@ID. ValueError for a damaged one."""
        sets: dict[str, ScoreSetDocument] = self._reader(
            lambda: complete_score_sets(self.path), self.layout.scores
        )
        return sets

    @functools.cached_property
    def score_sets(self) -> dict[str, ScoreSetDocument]:
        """Those that have columns of all shards as they are now."""
        return {name: each for name, each in self.all_score_sets.items() if self.covers(each)}

    def covers(self, document: ScoreSetDocument) -> bool:
        """True where a score set has columns of all shards as they are now. That of the same
        fingerprint has."""
        if document.fingerprint == self._files.fingerprint:
            return True
        if document.whole_pool:  # its values depend on rows that have come or gone
            return False
        name = f"{document.name}@{document.id}"
        sidecars = self.commits.column("sidecar_sha256")

        def has_all() -> bool:
            files = self.scores(name)
            return all(
                files.has(shard) and files.metadata(shard).get("sidecar") == sidecar.as_py().hex()
                for shard, sidecar in zip(self.commits.shards.tolist(), sidecars, strict=True)
            )

        covered: bool = self._reader(has_all, self.layout.score_set(name))
        return covered

    def scores(self, name: str) -> AlignedFiles:
        """The files of a score set, opened once."""
        if name not in self._scores:
            self._scores[name] = AlignedFiles.of_scores(self.path, name)
        return self._scores[name]

    def score_schema(self, name: str) -> pa.Schema:
        """The columns of a score set, as its first shard has them."""
        schema: pa.Schema = self.scores(name).bundle(int(self.commits.shards[0])).schema
        return schema

    # --- rows -------------------------------------------------------------------------------------

    def read(
        self, shard: int | str, columns: Sequence[str] | None, sets: Mapping[str, str] | None = None
    ) -> pa.Table:
        """(rows of a shard, `columns` in that order); None: all of its sidecar.

        sets: column -> the score set NAME@ID that it is read from; other columns are of the
        sidecar. ValueError for a column that is not there, for a sidecar that does not have the
        rows of its commit record, and for score columns of another sidecar.
        """
        sets = sets or {}
        if columns is None:
            return self._sidecar(shard, None)
        wanted = list(dict.fromkeys(columns))
        own = [name for name in wanted if name not in sets]
        arrays = dict(zip(own, self._sidecar(shard, own).columns, strict=True)) if own else {}
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

    def _of_set(self, name: str, shard: int | str, columns: Sequence[str]) -> pa.Table:
        files, rows = self.scores(name), self.commits.value(shard, "count")
        sidecar = self.commits.value(shard, "sidecar_sha256").hex()
        table: pa.Table = self._reader(
            lambda: files.read_of(shard, sidecar, rows, columns), files.path(shard)
        )
        return table

    def _sidecar(self, shard: int | str, columns: Sequence[str] | None) -> pa.Table:
        path = self._files.sidecar(shard)
        names = None if columns is None else list(columns)

        def read(source: Any) -> pa.Table:
            file = pq.ParquetFile(source, page_checksum_verification=True)
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

        table = self._reader(lambda: disk.read_with(path, read), path).replace_schema_metadata(None)
        if table.num_rows != self.commits.value(shard, "count"):
            raise ValueError(
                f"shard {shard_name(shard)} is damaged: {path} does not have the rows of its "
                f"commit record: its sidecar has {table.num_rows} rows of "
                f"{self.commits.value(shard, 'count')}; run clipmill audit repair {self.path}"
            )
        return table if names is None else table.select(names)


def score_set_names(pool: str) -> list[str]:
    """The complete score sets of a pool, NAME@ID."""
    layout = PoolLayout(pool)
    names = [name for name in disk.list_names(layout.scores) if "@" in name]
    return [name for name in names if disk.exists(layout.score_set_json(name))]


def complete_score_sets(pool: str) -> dict[str, ScoreSetDocument]:
    """The documents of all complete score sets, by name. ValueError for a damaged one."""
    layout = PoolLayout(pool)
    return {
        name: read_document(layout.score_set_json(name), ScoreSetDocument)
        for name in score_set_names(pool)
    }
