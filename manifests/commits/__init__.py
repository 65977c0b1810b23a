"""What is committed in a pool: the commit records as columns, and their index on disk."""

from __future__ import annotations

from manifests.commits.commits import Commits, CommitTotals
from manifests.commits.index_files import IndexDocument, read_document
from manifests.commits.reading import read_commits
from manifests.commits.shard_files import ShardFiles, open_shard_files
from manifests.commits.writer import IndexWriter, rebuild_index, update_index

__all__ = [
    "CommitTotals",
    "Commits",
    "IndexDocument",
    "IndexWriter",
    "ShardFiles",
    "open_shard_files",
    "read_commits",
    "read_document",
    "rebuild_index",
    "update_index",
]
