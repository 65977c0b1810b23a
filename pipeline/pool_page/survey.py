"""Everything that is computed once for a page: columns in order, effects of rules, example rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from manifests.commits import read_commits
from manifests.documents import PoolCounts
from pipeline.accounting import count_pool
from pipeline.pool_page.number_columns import NumberColumn, number_columns
from pipeline.pool_page.pool_rows import MOST_ROWS, Mask, PoolRows, PoolView, read_rows
from pipeline.pool_page.pool_totals import PoolTotals, totals_of_pool
from pipeline.pool_page.view_effects import ViewEffects, view_effects

DETAILED_VIEWS = 12  # views of which the page has every rule; of the others it has the funnel
ATTEMPTS = 3  # to read a pool in which a shard is replaced meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A pool as the page shows it. `detailed`: the views with effects, by name."""

    pool: str
    counts: PoolCounts
    totals: PoolTotals
    rows: PoolRows
    columns: Mapping[str, NumberColumn]
    detailed: Mapping[str, PoolView]
    effects: Mapping[str, ViewEffects]

    def scope(self, view: str, column: str) -> Mask:
        """(rows,) stored rows that pass the rules of a view that do not read a column; all stored
        rows for view "". KeyError for a view that is not detailed."""
        if not view:
            return self.rows.stored
        mask = self.effects[view].others.get(column)
        if mask is not None:
            return mask
        kept = self.detailed[view].kept
        assert kept is not None
        return kept


def survey_pool(pool: str, view: str | None = None, most_rows: int = MOST_ROWS) -> Survey:
    """Read a pool. view: only this one. ValueError where there is no pool or no such view."""
    for attempt in range(ATTEMPTS):
        try:
            return _survey(pool, view, most_rows)
        except FileNotFoundError:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _survey(pool: str, view: str | None, most_rows: int) -> Survey:
    commits = read_commits(pool)
    counts = count_pool(pool, commits)
    rows = read_rows(commits, view, most_rows)
    columns = {column.name: column for column in number_columns(rows)}
    sizes = {one.name: one.document.kept for one in rows.views}
    detailed: dict[str, PoolView] = {}
    effects: dict[str, ViewEffects] = {}
    for one in rows.views:
        if one.kept is not None and len(detailed) < DETAILED_VIEWS:
            detailed[one.name] = one
            effects[one.name] = view_effects(rows, one, columns.keys(), sizes)
    return Survey(
        pool=pool,
        counts=counts,
        totals=totals_of_pool(counts, rows),
        rows=rows,
        columns=columns,
        detailed=detailed,
        effects=effects,
    )
