"""Committed shards with something to work on; and, where a pool has no stored row, the reasons
with an example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pyarrow.compute as pc

from manifests import disk
from manifests.commits import Commits, read_commits
from manifests.pool_layout import PoolLayout
from manifests.text import printable

TOP_REASONS = 5
EXAMPLE_COLUMNS = ["key", "url", "error_message", "reason"]


def shards_with_rows(pool: str, commits: Commits | None = None) -> Commits:
    """What is committed; `commits` if the caller has read it.

    ValueError where nothing is committed or no row is stored. It names the most frequent reasons
    and an example row.
    """
    if commits is None:
        commits = read_commits(pool)
    if not len(commits):
        raise ValueError(_nothing_committed(pool))
    if not commits.totals.stored:
        raise ValueError(_nothing_stored(commits))
    return commits


def example_row(commits: Commits, reason: str) -> str:
    """One row that ended with `reason`, as a line."""
    shard = commits.first_with(reason)
    assert shard is not None, f"no shard has a row with reason {reason!r}"
    rows = disk.read_parquet(commits.sidecar(shard), EXAMPLE_COLUMNS)
    row = rows.filter(pc.equal(rows["reason"], reason)).slice(0, 1).to_pylist()[0]
    message = f" ({row['error_message']})" if row["error_message"] else ""
    return printable(f"row {row['key']}: {row['url']}{message}")


def reasons_text(reasons: Mapping[str, int]) -> str:
    """The most frequent reasons with their counts."""
    most = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{reason} {count}" for reason, count in most[:TOP_REASONS])
    left = len(most) - TOP_REASONS
    return f"{text} and {left} other reasons" if left > 0 else text


def _nothing_stored(commits: Commits) -> str:
    totals = commits.totals
    if not totals.rows:
        return f"{commits.pool}: its {totals.shards} shards have no row"
    reason = min(totals.reasons, key=lambda name: (-totals.reasons[name], name))
    return (
        f"{commits.pool}: none of the {totals.rows} rows is stored: "
        f"{reasons_text(totals.reasons)}; "
        f"an example of {reason}: {example_row(commits, reason)}"
    )


def _nothing_committed(pool: str) -> str:
    layout = PoolLayout(pool)
    links, pairs = 0, 0
    reasons: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for name in disk.list_names(layout.pairs, ".parquet"):
        metadata = disk.read_metadata(disk.join(layout.pairs, name))
        links, pairs = links + metadata["links"], pairs + metadata["pairs"]
        reasons.update(metadata["reasons"])
        examples = {**metadata.get("examples", {}), **examples}
    if links and not pairs:
        reason = min(reasons, key=lambda name: (-reasons[name], name))
        example = f"; an example of {reason}: {examples[reason]}" if reason in examples else ""
        return (
            f"{pool}: none of the {links} rows of the source became a pair: "
            f"{reasons_text(reasons)}{example}; correct the source in the recipe"
        )
    return f"{pool} has no committed shard; build it first: pipeline/build.py RECIPE --out {pool}"
