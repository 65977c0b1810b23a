"""What is committed in a pool: the commit records as columns, and their index on disk.

What is committed in a pool: the commit records as columns, and their index on disk. Every command
reads it once and passes it on; nothing holds a Python object per shard.

Reads and writes `index/index.json` and `index/commits-HASH.parquet`; reads
`shards/NNNNN_stats.json`.

Invariants:

* A writer that is killed between any two steps loses no shard and invents none:
  `tests/manifests/commits/test_index_files.py`.
* A closed index is read without a listing, an open one is completed from one. What a person does
  to a record is named by `clipmill audit verify` and taken up by `clipmill audit reindex`:
  `tests/manifests/commits/test_index_files.py`.
* A damaged byte, a missing file and two different records of a shard are errors that name
  `clipmill audit reindex`: `tests/manifests/commits/test_index_files.py`.
* The fingerprint is that of the records as a dict: `tests/manifests/commits/test_commits.py`.

A new field of `CommitRecord` becomes a column by itself. A text that many shards share is named in
`commits.REPEATED_FIELDS`. Whoever replaces or removes a record calls `IndexWriter.forget` before
and `add` after.
"""

from __future__ import annotations

from clipmill.manifests.commits.commits import (
    Commits,
    CommitTotals,
    in_threads,
    position_of,
    sums_of_counts,
    totals_of_counts,
)
from clipmill.manifests.commits.index import (
    IndexDocument,
    IndexWriter,
    ShardFiles,
    open_shard_files,
    read_commits,
    read_files,
    read_index_document,
    rebuild_index,
    update_index,
)
