"""The totals of a pool as the page shows them: its funnel, its reasons with an example of each."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from manifests.columns import REASONS
from manifests.documents import PoolCounts
from manifests.text import printable
from pipeline.pool_page.pool_rows import PoolRows

CRAWL = "crawl"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonLine:
    """Why links or rows are not stored."""

    reason: str
    kind: str  # CRAWL, or a class of REASONS
    count: int
    example: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTotals:
    """Counts of the whole pool, whichever rows were read."""

    funnel: tuple[tuple[str, int], ...]
    reasons: tuple[ReasonLine, ...]
    problems: tuple[str, ...]
    shards: int
    planned: int
    bytes: int
    complete: bool
    retries: int


def totals_of_pool(counts: PoolCounts, rows: PoolRows) -> PoolTotals:
    """The counts as steps and reasons; the examples are from the rows that were read.

    links = pairs + crawl's reasons; attempted = stored + the other reasons.
    """
    fetch = counts.fetch
    steps: list[tuple[str, int]] = []
    lines = []
    if counts.crawl is not None:
        steps += [("links", counts.crawl.links), ("pairs", counts.crawl.pairs)]
        for reason, count in sorted(counts.crawl.reasons.items(), key=_by_count):
            lines.append(ReasonLine(reason=reason, kind=CRAWL, count=count))
    steps += [("attempted", fetch.attempted), ("stored", fetch.stored)]
    examples = _examples(rows.table)
    for reason, count in sorted(fetch.reasons.items(), key=_by_count):
        example = examples.get(reason, "")
        kind = REASONS.get(reason, "unknown")
        lines.append(ReasonLine(reason=reason, kind=kind, count=count, example=example))
    return PoolTotals(
        funnel=tuple(steps),
        reasons=tuple(lines),
        problems=(*counts.problems, *rows.problems),
        shards=fetch.shards,
        planned=fetch.planned,
        bytes=fetch.bytes,
        complete=counts.complete,
        retries=fetch.retries,
    )


def _by_count(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _examples(table: pa.Table) -> dict[str, str]:
    """An address for each reason: the first row of the table that still has one."""
    columns = table.select(["reason", "url"])
    mask = pc.and_(columns["reason"].is_valid(), columns["url"].is_valid())
    columns = columns.filter(mask)
    grouped = columns.group_by("reason", use_threads=False).aggregate([("url", "first")])
    pairs = zip(grouped["reason"].to_pylist(), grouped["url_first"].to_pylist(), strict=True)
    return {reason: printable(url) for reason, url in pairs}
