"""Columns of another pool, for rows that duplicate one of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk
from manifests.aligned.bundles import AlignedFiles
from manifests.commits import Commits, read_commits
from manifests.documents import ScoreSetDocument, read_document
from manifests.pool_layout import PoolLayout, uids_checksum

PIECE = 1 << 18  # rows that are compared with at a time


class OtherPool:
    """A pool that is complete as far as its columns are needed. ValueError where it is not."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        if not disk.exists(PoolLayout(folder).shards):
            raise ValueError(f"against names {folder}, which is no pool: it has no folder shards")
        self.commits = read_commits(folder, ["tar", "count"])

    def identity(self, columns: Sequence[str]) -> str:
        """A hash of the rows of the pool, and of the filters behind its columns."""
        sets = [self._set_of(column, self.commits) for column in columns]
        return disk.content_hash([self.commits.fingerprint, sets])

    def columns(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of the stored rows, about PIECE rows at a time."""
        waiting: list[pa.Table] = []
        sets = {name: self._set_of(name, self.commits) for name in names}
        files = {
            each: AlignedFiles.of_scores(self.folder, each) for each in set(sets.values()) if each
        }
        own = [name for name in names if not sets[name]]
        for shard in self.commits.names():
            needed = list(dict.fromkeys([*own, "uid", "status"]))
            sidecar = disk.read_parquet(self.commits.sidecar(shard), needed)
            columns = {name: sidecar[name] for name in own}
            for each, reader in files.items():
                wanted = [name for name in names if sets[name] == each]
                table, metadata = reader.read(shard, wanted)
                if metadata.get("uids") != uids_checksum(sidecar["uid"]):
                    raise ValueError(
                        f"{reader.path(shard)} was made for other rows than {self.folder} has; "
                        f"run python pipeline/score.py {self.folder} with its recipe"
                    )
                columns |= {name: table[name] for name in wanted}
            rows = pa.table({name: columns[name] for name in names})
            waiting.append(rows.filter(pc.equal(sidecar["status"], "success")))
            if sum(map(len, waiting)) >= PIECE:
                yield pa.concat_tables(waiting)
                waiting = []
        if waiting:
            yield pa.concat_tables(waiting)

    def _set_of(self, column: str, commits: Commits) -> str:
        """The score set of a column; "" for a column of the sidecar."""
        names = commits.names()
        first = next(iter(names), None)
        if first is not None and column in disk.read_schema(commits.sidecar(first)).names:
            return ""
        layout = PoolLayout(self.folder)
        for name in disk.list_names(layout.scores):
            path = layout.score_set_json(name)
            if "@" in name and disk.exists(path):
                document = read_document(path, ScoreSetDocument)
                if column in document.columns and document.fingerprint == commits.fingerprint:
                    return name
        raise ValueError(
            f"against: the pool {self.folder} has no complete column {column!r}; run "
            f"python pipeline/score.py {self.folder} with a recipe that has its filter"
        )
